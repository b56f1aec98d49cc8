"""The settings of a console: address, permissions and host names."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import InvalidConfigError

PORT = 8088
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of a console. ``allowed_hosts`` are additional host names, without port, that a
    request's Host header may have."""

    host: str = "127.0.0.1"
    port: int = PORT
    read_only: bool = False
    """Whether the console serves no page that changes the cluster."""
    allow_changes: bool = False
    """Whether the console allows changes even if other machines can reach it, or if it connects to
    the brokers with a client certificate and no login."""
    interval_s: float = 5.0
    """Seconds between two reads of the cluster's state."""
    serves_pages: bool = True
    """Whether the console serves pages, in addition to /metrics and /healthz."""
    compat: str = ""
    """The program whose names for metrics the console also serves, beside its own:
    "kafka_exporter", or "" for none."""
    by_partition: bool = False
    """Whether the console also serves metrics of each partition."""
    hides_payloads: bool = False
    """Whether the console hides the keys, values and headers of all records."""
    allowed_hosts: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the console."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def may_change(self, security: ClientSecurity) -> bool:
        """Return whether pages may change the cluster, to whose brokers the console connects with
        ``security``.

        A console with a client certificate but no login acts as the certificate's owner for every
        user of this machine. It therefore needs ``allow_changes``, even on loopback."""
        is_shared = bool(security.certificate_location) and not security.demands_login
        return not self.read_only and (self.allow_changes or (self.is_loopback and not is_shared))

    @property
    def hosts(self) -> frozenset[str]:
        """The host names that the console accepts in a request's Host header."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, own, *self.allowed_hosts))

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    def _check_certificate(self) -> None:
        if self.certificate is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise InvalidConfigError(
                f"--tls-certificate {self.certificate} cannot be used: {error.strerror or error}. "
                "Name a PEM file with the certificate and its private key, or name the key's file "
                "with --tls-key"
            ) from None

    def check(self, *, demands_login: bool) -> None:
        """Raise InvalidConfigError for an unusable certificate, and if other machines could reach
        the console without TLS or a login."""
        self._check_certificate()
        if self.is_loopback:
            return
        lacking = []
        if self.certificate is None:
            lacking.append("TLS (--tls-certificate)")
        if not demands_login:
            lacking.append("brokers that demand a login (logbus up --secure)")
        if lacking:
            raise InvalidConfigError(
                f"--host {self.host} is not loopback, and the console lacks "
                f"{' and '.join(lacking)}. Keep --host 127.0.0.1, and reach it from "
                f"elsewhere with: ssh -L {self.port}:127.0.0.1:{self.port} HOST"
            )
