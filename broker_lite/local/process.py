"""Find processes by pid and start mark, the process's start time. The system reuses pids, so a pid
alone does not identify a process.

``logbus down`` and ``status`` read pids and start marks from a file, which may be older than the
last reboot. A running process is the recorded one only if its pid and its start mark match."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_POLL_SECONDS = 0.03


def start_mark(pid: int) -> str | None:
    """Return the start time of a process as the system prints it, or None if no process has this
    pid."""
    if os.path.isdir("/proc/self"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return None
        fields = stat.rpartition(b")")[2].split()
        return None if fields[0] == b"Z" else fields[19].decode("ascii")
    listed = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip() or None


def is_running(pid: int, mark: str) -> bool:
    """Return whether the process with this pid and start mark (its start time) is running."""
    return bool(mark) and start_mark(pid) == mark


def ending_of(child: subprocess.Popen[bytes] | None) -> str:
    """Return the exit code or signal of a child that has ended, as text; empty for a running child
    and for None."""
    code = None if child is None else child.poll()
    if code is None:
        return ""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def end(pid: int, mark: str, grace_seconds: float) -> bool:
    """End the process with this pid and start mark (its start time): send SIGTERM, and SIGKILL
    after the grace period. Return whether the process was running.

    Raises PermissionError if the process belongs to another user."""
    if not is_running(pid, mark):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline:
            if not is_running(pid, mark):
                return True
            time.sleep(_POLL_SECONDS)
        os.kill(pid, signal.SIGKILL)
    return True


def memory_bytes(pid: int) -> int | None:
    """Return the resident memory of a process in bytes, or None if the system does not report
    it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
