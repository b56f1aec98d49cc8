"""Report the state of a broker to systemd (sd_notify).

The broker sends datagrams to the Unix socket that the environment variable ``NOTIFY_SOCKET`` names;
without this variable, it sends nothing. A unit with ``Type=notify`` counts as started when the
broker serves clients."""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state to the service manager. Errors are ignored: a broker also runs without one."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    # An address that begins with @ is in Linux' abstract namespace, for which sockets use a NUL
    # byte.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto(state.encode(), path)
