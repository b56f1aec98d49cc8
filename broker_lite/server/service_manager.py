"""Report the state of a broker to systemd (sd_notify).

The broker sends a datagram to the Unix socket in the environment variable ``NOTIFY_SOCKET``. For a
unit with ``Type=notify``, systemd therefore counts the service as started only when the broker
serves clients. Without the variable, the broker sends nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the service manager. Errors are ignored, because a broker also runs without a
    service manager."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    # An address that begins with @ is in Linux' abstract namespace.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto(state.encode(), path)
