"""Find Spark's Python processes and their connections in /proc (Linux only)."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from support.spark_classes import jvm_options

ESTABLISHED = "01"
QUICK_JVM = {"JDK_JAVA_OPTIONS": jvm_options()}
"""Environment variables for a Spark process whose executors are separate JVMs."""


def children(parent: int) -> list[int]:
    """Return the pids of a process's children."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        # Ignore a thread that has ended since it was listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the pids of a process's children, of their children and so on."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in children(pid):
            found += [*descendants(child), child]
    return found


def kill_with_descendants(pid: int) -> None:
    """Send SIGKILL to a process and to all its descendants, as when its machine dies."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def python_workers(spark: Any) -> list[int]:
    """Return the pids of the Python workers that run tasks: children of Spark's worker daemon."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    daemons = [pid for pid in children(jvm) if arguments(pid)[-1] == "pyspark.worker"]
    return [worker for daemon in daemons for worker in children(daemon)]


def arguments(pid: int) -> list[str]:
    """Return the arguments of a process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def connections(pid: int, port: int) -> int:
    """Return the number of a process's connections to a port of this machine."""
    held = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        is_ours = f"socket:[{fields[9]}]" in held
        count += is_ours and fields[3] == ESTABLISHED and int(fields[2][-4:], 16) == port
    return count
