"""Open a client's transport, and describe why it failed."""

from __future__ import annotations

import socket

from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import LogbusError, NetworkError
from broker_lite.model import Endpoint
from broker_lite.net.transport import PlainTransport, Transport


def client_transport(sock: socket.socket, host: str, security: ClientSecurity) -> Transport:
    """Return the transport over a connected socket; call ``handshake`` while it is handshaking.

    Raises InvalidConfigError for unusable TLS files.
    """
    if not security.is_tls:
        return PlainTransport(sock)
    from broker_lite.net.contexts import client_context
    from broker_lite.net.tls import TlsTransport

    return TlsTransport(sock, client_context(security), server_hostname=host)


def connection_failure(
    endpoint: Endpoint, security: ClientSecurity, error: OSError, is_opening: bool
) -> LogbusError:
    """Return the error of a connection whose socket failed, before or after it was open."""
    if security.is_tls:
        from broker_lite.net.contexts import tls_failure

        failure = tls_failure(endpoint, security, error, is_opening)
        if failure is not None:
            return failure
    return NetworkError(f"lost the connection to {endpoint}: {error.strerror or error}")
