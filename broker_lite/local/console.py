"""The web console of a local cluster, as a child process of the cluster's guard."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from broker_lite.client.client_config import VARIABLE
from broker_lite.errors import MissingDependencyError, RequestTimedOutError
from broker_lite.local.guard import Guard
from broker_lite.local.process import ending_of
from broker_lite.local.ready_pipe import ReadyPipe, reported_error
from broker_lite.local.zookeeper import last_line

START_S, STOP_S = 30.0, 5.0
"""Maximum seconds of a start, and seconds after SIGTERM at which the process is killed."""


class LocalConsole:
    """A console process, which can be started again after it has ended. ``url`` is its address,
    ``servers`` the brokers' addresses, ``client_config`` the file with its login."""

    def __init__(self, guard: Guard, log: Path, servers: str, client_config: str | None) -> None:
        self.log = log
        self.url = ""
        self.port = 0
        self._guard = guard
        self._servers = servers
        self._client_config = client_config
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: ReadyPipe | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None while the console is down."""
        return None if self._process is None or not self.is_running else self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_starting(self) -> bool:
        """Whether the process was started, and ``wait_ready`` has not returned since."""
        return self._ready is not None

    @property
    def has_answered(self) -> bool:
        """Whether ``wait_ready`` would return at once: the console has reported or ended."""
        return self._ready is not None and self._ready.has_report

    @property
    def ending(self) -> str:
        """The exit code or signal of a process that ended by itself, as text; else empty."""
        return ending_of(self._process)

    def start(self, port: int) -> None:
        """Start the process and return; ``wait_ready`` waits until it listens on ``port``."""
        self.port = port
        ready = self._ready = ReadyPipe()
        command = [sys.executable, "-P", "-m", "broker_lite", "console", "--port", str(port)]
        command += ["--ready-fd", str(ready.child_end), "-b", self._servers]
        environment = dict(os.environ)
        if self._client_config is not None:
            environment[VARIABLE] = self._client_config
        try:
            self._process = self._guard.spawn(
                command, self.log, pass_fds=(ready.child_end,), environment=environment
            )
        finally:
            ready.started()

    def wait_ready(self) -> None:
        """Wait until the console listens. Raises PortInUseError, RequestTimedOutError after
        ``START_S``, or MissingDependencyError if the extra [console] is not installed."""
        assert self._process is not None and self._ready is not None
        line = self._ready.read_line(self._process, time.monotonic() + START_S)
        self._ready = None
        if line:
            self.url = line.decode().strip()
        elif self.is_running:
            self.stop()
            raise RequestTimedOutError(f"the console does not listen; see {self.log}")
        else:
            text = last_line(self.log)
            raise reported_error(text, "the console") or MissingDependencyError(
                f"the console ended: {text}; see {self.log}"
            )

    def stop(self) -> None:
        """Stop the process. Idempotent."""
        self.request_stop()
        self.wait_stopped()

    def request_stop(self) -> None:
        """Send SIGTERM and return, so that the console stops while the brokers do."""
        if self._ready is not None:
            self._ready.close()
            self._ready = None
        if self.is_running:
            assert self._process is not None
            self._process.terminate()

    def wait_stopped(self) -> None:
        """Wait until the process has ended after ``request_stop``; kill it after ``STOP_S``."""
        if self._process is None:
            return
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
