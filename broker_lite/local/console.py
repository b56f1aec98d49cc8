"""The web console of a local cluster: a child process that ends with the cluster (``guard``)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from broker_lite.client.client_config import VARIABLE
from broker_lite.errors import MissingDependencyError, RequestTimedOutError
from broker_lite.local.guard import Guard
from broker_lite.local.ready_pipe import ReadyPipe, reported_error
from broker_lite.local.ready_process import ReadyProcess
from broker_lite.local.zookeeper import last_line

START_S = 30.0
"""Maximum seconds from a console's start until it listens."""


class LocalConsole(ReadyProcess):
    """The process of a web console, which can be started again after it has ended.

    ``url`` is the console's address, once it listens. ``servers`` are the brokers' addresses, and
    ``client_config`` is the file with the login that the console uses."""

    stop_timeout_seconds = 5.0

    def __init__(self, guard: Guard, log: Path, servers: str, client_config: str | None) -> None:
        super().__init__()
        self.log = log
        self.url = ""
        self.port = 0
        self._guard = guard
        self._servers = servers
        self._client_config = client_config

    def start(self, port: int) -> None:
        """Start the process without waiting until it listens on ``port`` (``wait_ready`` waits)."""
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
            raise RequestTimedOutError(
                f"the console did not start within {START_S:.0f} s; see {self.log}"
            )
        else:
            text = last_line(self.log)
            raise reported_error(text, "the console") or MissingDependencyError(
                f"the console ended: {text}; see {self.log}"
            )

    def request_stop(self) -> None:
        """Send SIGTERM and return. If the console is still starting, no longer wait for its
        report."""
        self.close_ready_pipe()
        super().request_stop()
