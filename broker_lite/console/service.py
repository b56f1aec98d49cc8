"""Run the console in the foreground until a signal ends it."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace

import uvicorn

from broker_lite.bus.blocking import Bus
from broker_lite.console.application import Console
from broker_lite.console.connections import ConsoleConnection
from broker_lite.console.memory import spare_startup
from broker_lite.console.sessions import ANSWER_MS
from broker_lite.console.settings import ConsoleSettings
from broker_lite.errors import InvalidConfigError, PortInUseError
from broker_lite.net.listening import why_not_listening
from broker_lite.observing.sampler import Sampler

STOP_S = 1
"""Seconds that running requests, such as live tails, may take at shutdown."""
HEAD_BYTES_MAX = 16 * 1024
"""Maximum bytes of a request line with its headers."""
REQUESTS_AT_ONCE = 100
"""Maximum concurrent connections. uvicorn answers further connections with status 503."""
KEEP_ALIVE_S = 15
"""Seconds after which an idle connection is closed."""
BACKLOG = 100
"""Maximum connections that wait to be accepted."""


class ConsoleServer(uvicorn.Server):
    """A server whose ``run`` returns after the first signal. uvicorn's own server would raise the
    signal again after it has stopped, which would end the process before the caller closes the
    sessions."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP, so that the console stays up after the end of the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self.handle_exit)
        yield


def serve(bus: Bus, settings: ConsoleSettings, ready: Callable[[str], None]) -> None:
    """Serve the console until SIGINT, SIGTERM or SIGHUP. Calls ``ready`` with the console's URL
    once it listens.

    Raises PortInUseError, and InvalidConfigError for an address that other machines reach without
    TLS and logins."""
    settings.check(demands_login=bus.security.demands_login)
    listener = _listen(settings.host, settings.port)
    # With port 0, the system has chosen the port.
    settings = replace(settings, port=listener.getsockname()[1])
    bus.admin.timeout_ms = ANSWER_MS
    sampler = Sampler(bus.admin, interval_s=settings.interval_s).start()
    console = Console(bus, sampler, settings)
    config = uvicorn.Config(
        console.application(),
        http=ConsoleConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        limit_concurrency=REQUESTS_AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    spare_startup()
    ready(address(settings))
    try:
        ConsoleServer(config).run(sockets=[listener])
    finally:
        sampler.stop()
        console.sessions.close()


def address(settings: ConsoleSettings) -> str:
    """Return the URL of the console."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{settings.scheme}://{host}:{settings.port}/"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except socket.gaierror as error:
        raise InvalidConfigError(f"--host {host} cannot be resolved: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} of {host} is in use. Choose another with --port, or any free one "
                "with --port 0"
            ) from None
        raise InvalidConfigError(
            f"cannot listen on --host {host} --port {port}: {why_not_listening(error)}"
        ) from None
    return listener
