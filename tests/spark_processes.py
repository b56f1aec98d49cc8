"""The processes that Spark starts for Python code, and what they are connected to (Linux only)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

ESTABLISHED = "01"
QUICK_JVM = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}
"""For a Spark that a test starts for itself, as setup.cfg has it for the session of all tests."""


def children(parent: int) -> list[int]:
    """A process's children now."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def python_workers(spark: Any) -> list[int]:
    """The workers that run tasks: children of a daemon that the JVM starts."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    daemons = [pid for pid in children(jvm) if arguments(pid)[-1] == "pyspark.worker"]
    return [worker for daemon in daemons for worker in children(daemon)]


def arguments(pid: int) -> list[str]:
    """A process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def connections(pid: int, port: int) -> int:
    """How many connections a process has to a port of this machine."""
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
