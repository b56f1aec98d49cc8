"""A child process that can be started again: the base of the processes of a local cluster."""

from __future__ import annotations

import subprocess

from broker_lite.local.process import ending_of


class ChildProcess:
    """A child process that a subclass starts."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None while the process is not running."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        """The exit code or signal of a process that ended by itself, as text; otherwise empty."""
        return ending_of(self._process)

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
