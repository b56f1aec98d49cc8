"""TLS connections to ZooKeeper: the settings, the handshake, and the reason of a failed handshake.

kazoo's own TLS also trusts the operating system's CAs, and by default does not check the host name.
``connection`` therefore connects with ``ZooKeeperTls.wrap`` instead.
"""

from __future__ import annotations

import ssl
from socket import socket
from typing import NamedTuple

from broker_lite.config.broker import BrokerConfig
from broker_lite.errors import InvalidConfigError
from broker_lite.net.contexts import load_certificate, trust
from broker_lite.net.loopback import is_loopback

ENABLE = "zookeeper.ssl.client.enable"
TLS_ENABLE = f"{ENABLE}=true"
TRUSTSTORE = "zookeeper.ssl.truststore.location"
KEYSTORE = "zookeeper.ssl.keystore.location"


class ZooKeeperTls(NamedTuple):
    """The TLS settings for connections to ZooKeeper.

    ``truststore`` is a PEM file of trusted CAs. ``keystore`` is a PEM file with the broker's
    certificate and key, or "" if the broker presents no certificate.
    """

    truststore: str
    keystore: str = ""
    checks_host_name: bool = True

    def context(self) -> ssl.SSLContext:
        """Return an SSL context with the certificates in ``truststore`` and ``keystore``. Raises
        InvalidConfigError for a file that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.checks_host_name
        trust(context, self.truststore, TRUSTSTORE)
        if self.keystore:
            load_certificate(context, self.keystore, "", KEYSTORE, KEYSTORE)
        return context

    def wrap(self, sock: socket, host: str) -> ssl.SSLSocket:
        """Complete a TLS handshake over a connected socket, and return the encrypted socket.

        Each call reads the PEM files again, because connections are rare and the files may have
        changed. Raises OSError and InvalidConfigError."""
        wrapped = self.context().wrap_socket(sock, server_hostname=host)
        if wrapped.version() is None:
            # The peer closed the connection. Raise an error: reads would now return plain text
            # (CVE-2023-40217).
            wrapped.close()
            raise ConnectionResetError(
                "ZooKeeper closed the connection before the TLS handshake ended"
            )
        return wrapped


def tls_of(config: BrokerConfig) -> ZooKeeperTls | None:
    """Return the TLS settings for a broker's connection to ZooKeeper; None for plain text.

    Raises InvalidConfigError if settings contradict each other, or if the brokers' credential would
    cross a network in plain text."""
    tls = ZooKeeperTls(
        config.zookeeper_ssl_truststore,
        config.zookeeper_ssl_keystore,
        config.zookeeper_ssl_identification == "https",
    )
    if config.zookeeper_ssl:
        if not tls.truststore:
            raise InvalidConfigError(
                f"{ENABLE}=true needs {TRUSTSTORE}: a PEM file with the CA of ZooKeeper's "
                "certificates"
            )
        tls.context()
        return tls
    for setting, path in ((TRUSTSTORE, tls.truststore), (KEYSTORE, tls.keystore)):
        if path:
            raise InvalidConfigError(f"{setting}={path} is set without {ENABLE}=true; set both")
    if config.zookeeper_auth_file and not config.zookeeper_insecure_allow:
        remote = _remote_host(config.zookeeper_connect)
        if remote:
            raise InvalidConfigError(
                f"zookeeper.connect names {remote}, and the credential of zookeeper.auth.file "
                f"would cross the network in plain text; set {ENABLE}=true and {TRUSTSTORE}, or "
                "zookeeper.insecure.allow=true on a private network"
            )
    return None


def _remote_host(address: str) -> str:
    """Return the first host of ``zookeeper.connect`` that is not this machine (loopback); "" if
    every host is."""
    for part in address.partition("/")[0].split(","):
        host = part.strip().rpartition(":")[0].strip("[]")
        if not is_loopback(host):
            return host
    return ""


def handshake_failure(error: OSError) -> str:
    """Return why a TLS handshake with ZooKeeper failed, and which setting to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is refused: {error.verify_message.rstrip('.')}; check {TRUSTSTORE}, "
            "and that zookeeper.connect names a host in the certificate"
        )
    reason = (getattr(error, "reason", None) or "").lower().replace("_", " ")
    if "alert" in reason:
        return f"it refuses the broker's certificate ({reason}); check {KEYSTORE}"
    return (
        f"the TLS handshake fails ({reason or error.strerror or error}); name ZooKeeper's "
        f"secureClientPort, or set {ENABLE}=false"
    )
