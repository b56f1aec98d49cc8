"""One broker of a local cluster: a child process with its directory, its log and its port."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker_lite.errors import TABLE, BrokerNotAvailableError, LogbusError
from broker_lite.local.guard import Guard
from broker_lite.local.zookeeper import last_line

START_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 15.0
_READY_BYTES_MAX = 65536


class LocalBroker:
    """A broker that can be stopped, killed and started again on the same port and directory."""

    def __init__(
        self, guard: Guard, directory: Path, broker_id: int, settings: Mapping[str, str]
    ) -> None:
        self.id = broker_id
        self.directory = directory
        self.log = directory / "broker.log"
        self.settings = dict(settings)
        self.host = settings.get("host", "127.0.0.1")
        self.port = int(settings.get("port", "0"))
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None
        self._begin_fd = -1
        self._ready_fd = -1
        self._started = 0.0

    @property
    def pid(self) -> int | None:
        """The broker's process, or None while it is down."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_starting(self) -> bool:
        """Whether it was started and its word that it serves was not waited for yet."""
        return self._ready_fd >= 0

    @property
    def has_answered(self) -> bool:
        """Whether there is an answer for ``wait_ready``, or it has been waited for long enough."""
        if time.monotonic() - self._started > START_TIMEOUT_SECONDS:
            return True
        return bool(select.select([self._ready_fd], [], [], 0)[0])

    @property
    def ending(self) -> str:
        """How the process ended, in words; empty while it runs and where it was stopped here."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    @property
    def endpoint(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with ``wait`` return once it is registered and listening.

        Raises the broker's own error (a port in use, a directory of another cluster, …).
        """
        if self.is_running:
            return
        self.prepare()
        self.begin()
        if wait:
            self.wait_ready()

    def prepare(self) -> None:
        """Start the process as far as it needs no settings, which is most of a start: what it
        imports. It then waits for ``begin``, and ends where that never comes."""
        self._forget_pipes()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        begin_end, self._begin_fd = os.pipe()
        self._ready_fd, ready_end = os.pipe()
        # -P keeps the current folder off the path: the installed package runs, not a checkout.
        command = [sys.executable, "-P", "-m", "broker_lite", "broker"]
        command += ["--config", str(self._config), "--begin-fd", str(begin_end)]
        command += ["--output", str(self.log.absolute())]
        try:
            self._process = self._guard.spawn(
                [*command, "--ready-fd", str(ready_end)], self.log, pass_fds=(begin_end, ready_end)
            )
        finally:
            os.close(begin_end)
            os.close(ready_end)

    def begin(self) -> None:
        """Let a process that is prepared read its settings and go on."""
        self._write_settings()
        self._started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has ended, as wait_ready will tell
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
        self._config.write_text("".join(f"{k}={v}\n" for k, v in self.settings.items()), "utf-8")

    def wait_ready(self, timeout_seconds: float | None = None) -> None:
        """Wait for the broker's word that it serves, and learn its port. Default: 30 s."""
        timeout_seconds = START_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        line = self._read_ready_line(time.monotonic() + timeout_seconds)
        if not line:
            assert self._process is not None
            if self._process.poll() is None:
                self.kill()
                took = time.monotonic() - self._started
                raise BrokerNotAvailableError(
                    f"broker {self.id} was not ready within {took:.0f} s; see {self.log}"
                )
            raise self._start_error()
        facts: dict[str, Any] = json.loads(line)
        self.port = int(facts["port"])

    def stop(self) -> None:
        """End the broker in good order (SIGTERM); kill it where that takes over 15 s."""
        self.request_stop()
        self.wait_stopped()

    def request_stop(self) -> None:
        """Send SIGTERM and return, so that several brokers stop side by side."""
        if self.is_running:
            assert self._process is not None
            self._process.terminate()

    def wait_stopped(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Wait for the end of a broker that was asked to stop; insist after the time-out."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End the broker as a power cut would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process in its tracks (SIGSTOP): alive, silent."""
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        if self.is_running:
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)

    def _read_ready_line(self, deadline: float) -> bytes:
        received = b""
        try:
            while b"\n" not in received and len(received) < _READY_BYTES_MAX:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._ready_fd], [], [], left)[0]:
                    return b""
                part = os.read(self._ready_fd, 4096)
                if not part:
                    assert self._process is not None
                    self._process.wait(STOP_TIMEOUT_SECONDS)
                    return b""
                received += part
        finally:
            self._forget_pipes()
        return received

    def _forget_pipes(self) -> None:
        for descriptor in (self._begin_fd, self._ready_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._begin_fd = self._ready_fd = -1

    def _start_error(self) -> LogbusError:
        said = last_line(self.log)
        for row in TABLE:
            head = f"[LOGBUS_{row.name}] "
            if head in said:
                return row(f"broker {self.id}: {said.partition(head)[2]}")
        return BrokerNotAvailableError(
            f"broker {self.id} ended while it started: {said}; see {self.log}"
        )
