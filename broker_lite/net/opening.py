"""Create the transport (plain or TLS) of a client's connection, and explain why a connection
failed."""

from __future__ import annotations

import socket

from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import LogbusError, NetworkError
from broker_lite.model import Endpoint
from broker_lite.net.transport import PlainTransport, Transport


def client_transport(sock: socket.socket, host: str, security: ClientSecurity) -> Transport:
    """Return the transport for a connected socket, with TLS if ``security`` demands it. Call its
    ``handshake`` until ``is_handshaking`` is False. Raises InvalidConfigError for unusable TLS
    files."""
    if not security.is_tls:
        return PlainTransport(sock)
    from broker_lite.net.contexts import client_context
    from broker_lite.net.tls import TlsTransport

    return TlsTransport(sock, client_context(security), server_hostname=host)


def early_end(endpoint: Endpoint, security: ClientSecurity) -> NetworkError:
    """Return the error for a connection that the broker closed before its first answer.

    A listener that demands TLS or a login closes the connection of a client without it, so the
    message names the setting to change."""
    cure = ""
    if not security.is_tls:
        cure = "; if the listener has TLS, set security.protocol to SSL, with logins to SASL_SSL"
        if not security.demands_login:
            cure += "; if it has logins without TLS, to SASL_PLAINTEXT"
    elif not security.demands_login:
        cure = "; if the listener demands a login, set security.protocol=SASL_SSL"
    return NetworkError(
        f"{endpoint} closed the connection before its first answer{cure}; if this is ZooKeeper's "
        "port, give a broker's"
    )


def connection_failure(
    endpoint: Endpoint,
    security: ClientSecurity,
    error: OSError,
    is_opening: bool,
    *,
    is_answered: bool = False,
) -> LogbusError:
    """Return the error that a client raises when the socket to a broker has failed with ``error``.

    ``is_opening`` says whether the connection was still being opened, and ``is_answered`` whether
    the broker had sent an answer on it."""
    if security.is_tls:
        from broker_lite.net.contexts import tls_failure

        failure = tls_failure(endpoint, security, error, is_opening)
        if failure is not None:
            return failure
    if isinstance(error, ConnectionResetError) and not is_answered:
        return early_end(endpoint, security)
    return NetworkError(f"lost the connection to {endpoint}: {error.strerror or error}")
