"""Reports the state of a broker to the service manager that started it.

systemd's protocol (sd_notify): a datagram to the Unix socket that ``NOTIFY_SOCKET`` names. With
``Type=notify`` a unit has started once its broker serves clients. Without the variable nothing is
sent.
"""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state. A service manager that does not listen is ignored."""
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
