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

    Raises InvalidConfigError if settings contradict each other, or if the brokers' credential,
    users or ACLs would cross a network in plain text."""
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
    exposed = _exposed(config)
    if exposed and not config.zookeeper_insecure_allow:
        check_local(
            config.zookeeper_connect,
            "zookeeper.connect",
            exposed,
            f"set {ENABLE}=true and {TRUSTSTORE}, or zookeeper.insecure.allow=true on a private "
            "network",
        )
    return None


def _exposed(config: BrokerConfig) -> str:
    """Return what a broker with these settings must not send or read over a network in plain text;
    "" for a broker without any security."""
    if config.zookeeper_auth_file:
        return "the credential of zookeeper.auth.file"
    if config.authorizer != "off":
        return f"the ACLs of authorizer={config.authorizer}"
    if config.sasl_mechanisms:
        return "the users of sasl.enabled.mechanisms"
    return ""


def check_local(address: str, setting: str, exposed: str, cure: str) -> None:
    """Raise InvalidConfigError if ZooKeeper's ``address`` has a host that is not this machine
    (loopback), because ``exposed`` would cross the network in plain text.

    The message names ``setting``, which has the address, and says what to do (``cure``)."""
    for part in address.partition("/")[0].split(","):
        host = part.strip().rpartition(":")[0].strip("[]")
        if not is_loopback(host):
            raise InvalidConfigError(
                f"{setting} names {host}, and {exposed} would cross the network in plain text; "
                f"{cure}"
            )


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
