"""Processes by pid and start mark, so that a recorded pid is never mistaken for a stranger's.

``logbus down`` and ``status`` read pids from a file that may be older than the last reboot: a
process counts as the recorded one only while it has the start mark that was recorded with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_POLL_SECONDS = 0.03


def start_mark(pid: int) -> str | None:
    """When the process started, in the system's own words; None where there is none."""
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
    """Whether the process that had this mark still runs."""
    return bool(mark) and start_mark(pid) == mark


def end(pid: int, mark: str, grace_seconds: float) -> bool:
    """Ask the process to end, insist after the grace. Whether it was running at all."""
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
    """Resident memory, where the system tells it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
