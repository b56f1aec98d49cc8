"""A guard process, which ends the brokers and other children of a process when that process ends,
even by SIGKILL.

The process that starts the guard is the parent. The guard leads a process group, which each of the
parent's children joins before its exec. The guard waits on a pipe whose write end only the parent
has.

When the parent ends, the pipe closes. The guard then sends SIGTERM to the group and, after a grace
period, SIGKILL to the group and itself. The guard stores no child's pid, so a reused pid cannot be
killed by mistake. It removes the parent's temporary folder after the last child has ended.

When this file runs as a script, it is the guard process. It imports only the standard library and
starts in 25 ms. Any thread of the parent may use ``Guard``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

GRACE_SECONDS = 8.0
"""Seconds between SIGTERM and SIGKILL for the child processes, once their parent has ended."""

_POLL_SECONDS = 0.05
_REMOVAL_SECONDS = 5.0
"""Maximum seconds to wait until killed children have ended, before their parent's temporary folder
is removed."""


class Guard:
    """Starts child processes that end when this process ends.

    ``temporary`` is a folder to remove if this process ends without calling ``close``. ``grace_s``
    is the time in seconds between SIGTERM and SIGKILL for the children. Raises OSError if a process
    cannot be started."""

    def __init__(self, temporary: Path | None = None, *, grace_s: float = GRACE_SECONDS) -> None:
        read_end, self._write_end = os.pipe()
        folder = [] if temporary is None else [str(temporary.absolute())]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(read_end), str(grace_s), *folder],
            stdin=subprocess.DEVNULL,
            pass_fds=(read_end,),
            process_group=0,
        )
        os.close(read_end)
        _OPEN_GUARDS.add(self)

    def spawn(
        self,
        command: Sequence[str],
        log: Path,
        *,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a child in the guard's process group. Append its output to ``log``."""
        with log.open("ab") as output:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=tuple(pass_fds),
                env=dict(environment) if environment is not None else None,
                process_group=self._process.pid,
            )

    def close(self) -> None:
        """Kill all remaining processes of the guard's group. A second call does nothing."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._forget_pipe()
        _OPEN_GUARDS.discard(self)

    def _forget_pipe(self) -> None:
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1


_OPEN_GUARDS: weakref.WeakSet[Guard] = weakref.WeakSet()
"""The open guards of this process. A forked child closes its copies of their pipes."""


def _after_fork_in_child() -> None:
    # The guard process waits until all copies of its pipe are closed. A forked worker that keeps
    # its copy open would keep the guard waiting after the parent has ended.
    for guard in list(_OPEN_GUARDS):
        guard._forget_pipe()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _others_in_group(group: int) -> bool:
    """Return whether the guard's process group has other live processes. Without /proc the
    processes are unknown, and the result is True, so that the caller waits until its time limit."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return True
    for entry in entries:
        if not entry.isdigit() or int(entry) == group:
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{entry}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
            if int(fields[2]) == group and fields[0] != b"Z":
                return True
    return False


def _remove_after(group: int, folder: str) -> None:
    """Fork a process that leaves the process group and removes the folder once all processes of the
    group have ended."""
    read_end, write_end = os.pipe()
    remover = os.fork()
    if remover:
        # Parent and child both call setpgid, as either may run first: the child must leave
        # ``group`` before that process group is killed.
        with contextlib.suppress(OSError):
            os.setpgid(remover, remover)
        return
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    os.close(write_end)
    os.read(read_end, 1)
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while time.monotonic() < deadline and _others_in_group(group):
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _watch(pipe: int, grace_s: float, temporary: str | None = None) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(pipe, 1):
        pass
    group = os.getpgrp()
    os.killpg(group, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and _others_in_group(group):
        time.sleep(_POLL_SECONDS)
    if temporary is not None:
        _remove_after(group, temporary)
    os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:4])
