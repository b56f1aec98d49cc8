"""A child process that reports on a pipe once it is ready: the base of local brokers and
consoles."""

from __future__ import annotations

import subprocess

from broker_lite.local.child_process import ChildProcess
from broker_lite.local.ready_pipe import STOP_TIMEOUT_SECONDS, ReadyPipe


class ReadyProcess(ChildProcess):
    """A child process that reports through a pipe that it is ready. A subclass starts the process;
    the subclass's ``wait_ready`` reads the report, and then sets ``_ready`` (the pipe) to None."""

    stop_timeout_seconds = STOP_TIMEOUT_SECONDS
    """Seconds after SIGTERM at which ``wait_stopped`` kills the process."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: ReadyPipe | None = None

    @property
    def is_starting(self) -> bool:
        """Whether the process was started, and ``wait_ready`` has not returned since."""
        return self._ready is not None

    @property
    def has_answered(self) -> bool:
        """Whether ``wait_ready`` would return at once, because the process has reported or
        ended."""
        return self._ready is not None and self._ready.has_report

    def stop(self) -> None:
        """Stop the process with SIGTERM, and kill it after ``stop_timeout_seconds``. A second call
        does nothing."""
        self.request_stop()
        self.wait_stopped()

    def request_stop(self) -> None:
        """Send SIGTERM and return, so that several processes can stop at the same time."""
        if self.is_running:
            assert self._process is not None
            self._process.terminate()

    def wait_stopped(self, timeout_seconds: float | None = None) -> None:
        """Wait until the process has ended after ``request_stop``, and kill it after the timeout,
        by default ``stop_timeout_seconds``."""
        if self._process is None:
            return
        if timeout_seconds is None:
            timeout_seconds = self.stop_timeout_seconds
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def close_ready_pipe(self) -> None:
        """Close the ready pipe of a process that is stopped before it has reported on the pipe."""
        if self._ready is not None:
            self._ready.close()
            self._ready = None
