"""Build TLS contexts from settings, and explain failed handshakes.

Importing this module loads ``ssl``, so processes without TLS do not import it. Each process builds
its own contexts from PEM files. A context is never pickled."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from dataclasses import replace
from functools import lru_cache

from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.listeners import TlsSettings
from broker_lite.config.secret import Secret
from broker_lite.errors import InvalidConfigError, LogbusError, NetworkError, TlsError
from broker_lite.model import Endpoint

TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PLAIN_REASONS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


def client_context(security: ClientSecurity) -> ssl.SSLContext:
    """Return the TLS context for a client's security settings, cached until one of its PEM files
    changes. Raises InvalidConfigError, which names the setting and the file."""
    paths = (security.ca_location, security.certificate_location, security.key_location)
    # Leave the login out of the cache's key: the cache would keep passwords in memory.
    without_login = replace(security, username="", secret=())
    return _client_context(without_login, tuple(_version(path) for path in paths))


def _version(path: str) -> tuple[int, int]:
    """Return the modification time (ns) and the inode of a file, which show that it was changed or
    replaced; zeros for a missing file."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=16)
def _client_context(
    security: ClientSecurity, file_versions: tuple[tuple[int, int], ...]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    versions = [VERSIONS[version] for version in security.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.check_hostname = security.checks_host_name
    if security.ca_location:
        trust(context, security.ca_location, "ssl.ca.location")
    if security.ca_certificates:
        try:
            context.load_verify_locations(cadata=security.ca_certificates)
        except (ssl.SSLError, ValueError):
            raise InvalidConfigError(
                "ssl.truststore.certificates is not the PEM text of CA certificates, which begins "
                "with -----BEGIN CERTIFICATE-----"
            ) from None
    if not security.ca_location and not security.ca_certificates:
        context.load_default_certs()
    if security.certificate_location:
        load_certificate(
            context,
            security.certificate_location,
            security.key_location,
            "ssl.certificate.location",
            "ssl.key.location",
            password=security.key_password,
        )
    return context


def certificate_end(endpoint: Endpoint, security: ClientSecurity, timeout_s: float) -> float:
    """Connect to a broker, and return the time until which its certificate is valid, in seconds
    since 1970.

    The function blocks. Raises OSError for a failed connection or handshake, and InvalidConfigError
    for unusable files of the client."""
    context = client_context(security)
    with (
        socket.create_connection(endpoint, timeout_s) as sock,
        context.wrap_socket(sock, server_hostname=endpoint.host) as wrapped,
    ):
        certificate = wrapped.getpeercert()
        assert certificate is not None
        return ssl.cert_time_to_seconds(str(certificate["notAfter"]))


def trust(context: ssl.SSLContext, path: str, setting: str) -> None:
    """Make ``context`` trust the CAs in a PEM file or folder. Raises InvalidConfigError, which
    names ``setting`` and the path."""
    try:
        if os.path.isdir(path):
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise InvalidConfigError(
            f"{setting}={path}: the file has no PEM certificate ({error.reason}); "
            "name a file of CA certificates"
        ) from None
    except OSError as error:
        reason = error.strerror or error
        raise InvalidConfigError(f"{setting}={path}: cannot be read: {reason}") from None


def load_certificate(
    context: ssl.SSLContext,
    certificate: str,
    key: str,
    setting: str,
    key_setting: str,
    *,
    password: Secret | None = None,
) -> None:
    """Load a certificate chain and its private key into ``context``. Without ``key``, the key is in
    the file ``certificate``. Raises InvalidConfigError, which names the setting and the file."""

    def key_password() -> str:
        if password is not None:
            return password.reveal()
        raise InvalidConfigError(
            f"{key_setting}={key or certificate}: the key is encrypted; name a file with the "
            "decrypted key, readable by its owner only"
        )

    for path, name in ((certificate, setting), (key, key_setting)):
        if path and not os.access(path, os.R_OK):
            why = "cannot be read" if os.path.exists(path) else "does not exist"
            raise InvalidConfigError(f"{name}={path}: the file {why}")
    if os.stat(key or certificate).st_mode & stat.S_IRWXO:
        raise InvalidConfigError(
            f"{key_setting if key else setting}={key or certificate}: other users may read the "
            f"private key; run: chmod 600 {key or certificate}"
        )
    try:
        context.load_cert_chain(certificate, key or None, key_password)
    except ssl.SSLError as error:
        why = "is not the key of the certificate" if "MISMATCH" in str(error) else "is unusable"
        if password is not None and "MISMATCH" not in str(error):
            # For a wrong password OpenSSL reports no reason of its own, so name the password as a
            # possible cause.
            why = "is unusable, or ssl.key.password is wrong,"
        raise InvalidConfigError(
            f"{key_setting}={key or certificate}: the private key {why} in "
            f"{setting}={certificate} ({error.reason or error}); give the PEM files of a "
            "certificate and its key"
        ) from None


def tls_failure(
    endpoint: Endpoint, security: ClientSecurity, error: OSError, is_opening: bool
) -> LogbusError | None:
    """Return the error that a client raises if a connection failed with ``error`` because of TLS.
    The error names the cause and the setting. Return None if TLS is not the cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(f"{endpoint}: {_refused(endpoint, security, error)}")
    reason = getattr(error, "reason", None) or ""
    if reason in _PLAIN_REASONS:
        return TlsError(
            f"{endpoint} does not speak TLS; set security.protocol=PLAINTEXT, or name the address "
            "of an SSL listener"
        )
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        return TlsError(
            f"{endpoint} refused the client certificate "
            f"{security.certificate_location or '(none is set)'}: {_words(reason)}; set "
            "ssl.certificate.location to a certificate that the listener's ssl.truststore.location "
            "trusts"
        )
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return TlsError(
            f"{endpoint} accepts no TLS version of this client; check ssl.enabled.protocols of both"
        )
    if is_opening and isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return NetworkError(
            f"{endpoint} closed the connection during the TLS handshake; if its listener is "
            "PLAINTEXT, set security.protocol=PLAINTEXT"
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return TlsError(f"{endpoint}: TLS failed: {_words(reason) or error}")
    return None


def _refused(
    endpoint: Endpoint, security: ClientSecurity, error: ssl.SSLCertVerificationError
) -> str:
    message = error.verify_message
    if error.verify_code == 10:
        return (
            "the broker's certificate has expired; renew the file that the broker's "
            "ssl.keystore.location names"
        )
    if "ostname" in message or "IP address mismatch" in message:
        return (
            f"the broker's certificate is not for {endpoint.host} ({message.rstrip('.')}); name "
            "the broker by a host in the certificate, or issue one with this host"
        )
    ca = security.ca_location or "the system's CAs"
    return (
        f"{ca} did not sign the broker's certificate ({message}); set ssl.ca.location to the "
        "CA of the cluster"
    )


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


def server_context(tls: TlsSettings, *, asks_clients: bool = True) -> ssl.SSLContext:
    """Return the TLS context of a broker's listener. Without ``asks_clients``, it requests no
    certificates from clients. Raises InvalidConfigError, which names the setting."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [VERSIONS[version.strip()] for version in tls.versions.split(",")]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.set_ciphers(TLS12_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    keystore, key = tls.prefix + "ssl.keystore.location", tls.prefix + "ssl.key.location"
    load_certificate(context, tls.keystore, tls.key, keystore, key if tls.key else keystore)
    if asks_clients and tls.client_auth != "none":
        truststore = tls.prefix + "ssl.truststore.location"
        if os.path.isdir(tls.truststore):
            # Refuse a folder: OpenSSL would read its CAs only when it needs them, so that no check
            # could tell which CAs the listener trusts.
            raise InvalidConfigError(
                f"{truststore}={tls.truststore}: this is a folder; name one PEM file with the CAs"
            )
        trust(context, tls.truststore, truststore)
        if tls.crl:
            _load_revocations(context, tls.crl, tls.prefix + "ssl.crl.location")
        required = tls.client_auth == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        # Allow no resumption of TLS sessions: it would skip the check of the client's certificate.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def _load_revocations(context: ssl.SSLContext, path: str, setting: str) -> None:
    """Load a file of revocation lists into a context, which then refuses the revoked certificates.
    Raises InvalidConfigError."""
    cas = context.cert_store_stats()["x509"]
    trust(context, path, setting)
    if context.cert_store_stats()["x509"] != cas:
        raise InvalidConfigError(
            f"{setting}={path}: the file has certificates, which the listener would trust; name a "
            "file of revocation lists alone"
        )
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def try_handshake(tls: TlsSettings, *, is_mutual: bool = False) -> None:
    """Check a listener's certificate and key, by a TLS handshake in memory in which the listener is
    the server. Raises InvalidConfigError if the handshake fails.

    With ``is_mutual``, the client of the handshake presents the same certificate, and both ends
    check it with the listener's CAs, as brokers do with each other."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    if is_mutual:
        trust(client_context, tls.truststore, f"{tls.prefix}ssl.truststore.location")
        client_context.load_cert_chain(tls.keystore, tls.key or None)
    else:
        client_context.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context(tls, asks_clients=is_mutual).wrap_bio(
        to_server, to_client, server_side=True
    )
    ends = [client, server]
    try:
        for _ in range(10):
            for end in list(ends):
                try:
                    end.do_handshake()
                    ends.remove(end)
                except ssl.SSLWantReadError:
                    pass
    except ssl.SSLCertVerificationError as error:
        raise InvalidConfigError(
            f"{tls.prefix}ssl.keystore.location={tls.keystore}: other brokers would refuse the "
            f"certificate ({error.verify_message}); sign it with a CA of "
            f"{tls.prefix}ssl.truststore.location={tls.truststore}"
        ) from None
    except ssl.SSLError as error:
        raise InvalidConfigError(
            f"{tls.prefix}ssl.keystore.location={tls.keystore}: a test handshake with it fails: "
            f"{_words(error.reason or '') or error}"
        ) from None
    assert not ends


def handshake_refusal(error: OSError) -> str:
    """Return the reason why a broker's handshake with a client failed, for the broker's log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    reason = getattr(error, "reason", None) or ""
    if reason == "HTTP_REQUEST":
        return "the client sent an HTTP request to a TLS listener of Kafka's protocol"
    if reason in _PLAIN_REASONS:
        return "the client does not speak TLS; set security.protocol=SSL in the client"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client has no certificate, but the listener has ssl.client.auth=required"
    if "ALERT" in reason:
        return f"the client refused the broker's certificate: {_words(reason)}"
    if isinstance(error, ssl.SSLEOFError | ConnectionResetError):
        return "the client ended the connection during the TLS handshake"
    return f"the TLS handshake failed: {_words(reason) or error.strerror or error}"
