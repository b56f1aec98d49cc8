"""A broker process of a local cluster, with its directory, its log file and its port."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_lite.errors import BrokerNotAvailableError, LogbusError
from broker_lite.local.guard import Guard
from broker_lite.local.ready_pipe import ReadyPipe, reported_error
from broker_lite.local.ready_process import ReadyProcess
from broker_lite.local.zookeeper import last_line
from broker_lite.model import Endpoint

if TYPE_CHECKING:
    from broker_lite.local.secure import ClusterSecurity

START_TIMEOUT_SECONDS = 60.0
"""Maximum seconds from a broker's start until it reports that it is ready."""


class LocalBroker(ReadyProcess):
    """A broker process that can be stopped, killed and restarted with the same port and
    directory."""

    def __init__(
        self,
        guard: Guard,
        directory: Path,
        broker_id: int,
        settings: Mapping[str, str],
        *,
        security: ClusterSecurity | None = None,
    ) -> None:
        super().__init__()
        self.id = broker_id
        self.directory = directory
        self.log = directory / "broker.log"
        self.settings = dict(settings)
        self.host = settings.get("host", "127.0.0.1")
        self.port = int(settings.get("port", "0"))
        self.metrics_port: int | None = None
        """The port that serves /metrics, or None if metrics are off."""
        self._guard = guard
        self._security = security
        self._begin_fd = -1
        self._started = 0.0

    @property
    def has_answered(self) -> bool:
        """Whether ``wait_ready`` would return at once: the broker has reported that it is ready, it
        has ended, or the start has timed out."""
        if time.monotonic() - self._started > START_TIMEOUT_SECONDS:
            return True
        return super().has_answered

    @property
    def endpoint(self) -> str:
        """``host:port`` on which the broker listens for clients."""
        return str(Endpoint(self.host, self.port))

    def start(self, *, wait: bool = True) -> None:
        """Start the process. With ``wait``, return once the broker is registered and listening.

        Raises the error with which the broker failed, such as PortInUseError or
        InconsistentClusterIdError."""
        if self.is_running:
            return
        self.prepare()
        self.begin()
        if wait:
            self.wait_ready()

    def prepare(self) -> None:
        """Start the process and let it import its modules, which takes most of the time of a start.

        The process then waits for ``begin`` before it reads its settings. It exits if the calling
        process ends first."""
        self._forget_pipes()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        begin_end, self._begin_fd = os.pipe()
        ready = self._ready = ReadyPipe()
        # With -P, Python does not search the current folder for modules, so the installed package
        # runs.
        command = [sys.executable, "-P", "-m", "broker_lite", "broker"]
        command += ["--config", str(self._config), "--begin-fd", str(begin_end)]
        command += ["--output", str(self.log.absolute())]
        try:
            self._process = self._guard.spawn(
                [*command, "--ready-fd", str(ready.child_end)],
                self.log,
                pass_fds=(begin_end, ready.child_end),
            )
        finally:
            os.close(begin_end)
            ready.started()

    def begin(self) -> None:
        """Write the settings, and let the process that ``prepare`` started read them and serve."""
        self._write_settings()
        self._started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            # The broker's process has exited: ``wait_ready`` raises the error.
            os.write(self._begin_fd, b"\n")
        os.close(self._begin_fd)
        self._begin_fd = -1

    @property
    def _config(self) -> Path:
        return self.directory / "broker.conf"

    def _write_settings(self) -> None:
        self.settings |= {
            "broker.id": str(self.id),
            "host": self.host,
            "port": str(self.port),
            "log.dir": str(self.directory / "data"),
        }
        written = self.settings
        if self._security is not None:
            # After a restart, the broker keeps the port of its last start, ``self.port``.
            endpoint = Endpoint(self.host, self.port)
            written = written | self._security.broker_settings(self.id, endpoint, written)
        self._config.write_text("".join(f"{k}={v}\n" for k, v in written.items()), "utf-8")

    def wait_ready(self, timeout_seconds: float | None = None) -> None:
        """Wait until the broker reports that it is ready, and store its port. The default timeout
        is START_TIMEOUT_SECONDS.

        Raises BrokerNotAvailableError after the timeout, or the error with which the broker
        failed."""
        timeout_seconds = START_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        assert self._process is not None and self._ready is not None
        line = self._ready.read_line(self._process, time.monotonic() + timeout_seconds)
        self._ready = None
        if not line:
            if self._process.poll() is None:
                self.kill()
                took = time.monotonic() - self._started
                raise BrokerNotAvailableError(
                    f"broker {self.id} was not ready within {took:.0f} s; see {self.log}"
                )
            raise self._start_error()
        facts: dict[str, Any] = json.loads(line)
        self.port = int(facts["port"])
        self.metrics_port = facts.get("metrics_port")

    def pause(self) -> None:
        """Suspend the process (SIGSTOP)."""
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended process (SIGCONT)."""
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)

    def _forget_pipes(self) -> None:
        if self._begin_fd >= 0:
            os.close(self._begin_fd)
            self._begin_fd = -1
        self.close_ready_pipe()

    def _start_error(self) -> LogbusError:
        line = last_line(self.log)
        return reported_error(line, f"broker {self.id}") or BrokerNotAvailableError(
            f"broker {self.id} ended while it started: {line}; see {self.log}"
        )
