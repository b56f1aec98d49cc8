"""One guard process that ends a parent's children when the parent ends, kill -9 included.

The guard leads a process group that every child joins before its exec, and waits on a pipe that
only the parent holds. When the pipe closes, the whole group gets SIGTERM and, after a grace, the
group gets SIGKILL, the guard with it. No pid is ever remembered, so none can be mistaken. A folder
that the parent made for the time of its life goes after the last child.

Run as a script this file is the guard itself: it imports nothing but the standard library and
starts in 25 ms. Any thread of the parent may use ``Guard``.
"""

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

_POLL_SECONDS = 0.05
_REMOVAL_SECONDS = 5.0
"""How long children that were killed are waited for before the folder under them goes."""


class Guard:
    """Starts children that cannot outlive this process.

    ``temporary``: a folder of this process's own making, removed when the process ends without
    ``close``; after ``close`` it is the caller's. ``grace_s``: what children get between SIGTERM
    and SIGKILL once this process is gone. Raises OSError where processes cannot be started.
    """

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
        """Start a child in the guard's group; its output is appended to ``log``."""
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
        """End whatever is left of the group at once. Idempotent."""
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


def _after_fork_in_child() -> None:
    # A forked worker that held the pipe too would keep the guard waiting after the parent's death.
    for guard in list(_OPEN_GUARDS):
        guard._forget_pipe()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _others_in_group(group: int) -> bool:
    """Whether anyone but the guard is left in its group; True where that cannot be known."""
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
    """Leave a process behind that removes the folder once nobody of the group is left in it."""
    read_end, write_end = os.pipe()
    remover = os.fork()
    if remover:
        # By both of them: whichever comes first, it is out of the group before that is killed.
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
