"""Measure processor seconds and peak resident memory of every process of a run, by role.

The module needs Linux (``/proc``). Servers are identified by pid; this process and every other
child process are clients. The time of processes that end during the run is complete, because the
kernel adds it to that of the waiting parent. Memory is the kernel's peak of each process, summed
over the processes of a role and sampled ten times a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.1
PROCESS_CLOCK = 2
"""CPUCLOCK_SCHED of Linux: combined with a pid, the clock of the process's processor time."""
CLIENTS = "clients"
SPARK = "spark"
JVM, PYTHON = f"{SPARK}, jvm", f"{SPARK}, python"
"""The roles of the processes of a Spark session: the JVM, and the driver with Python workers.

The processor time of ended children of the JVM, which are Python workers, counts for PYTHON.
"""


def cpu_seconds(pid: int, *, with_children: bool = True) -> float:
    """Return user and system seconds of all threads and waited-for children of a process.

    Return 0 if the process has ended.
    """
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11 : 15 if with_children else 13])) / TICKS
    return 0.0


def counted_as(role: str, pid: int) -> str:
    """Return the role under which a process counts: JVM or PYTHON for a process of Spark, else
    ``role``."""
    if role != SPARK:
        return role
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}/comm").read_bytes() == b"java\n":
            return JVM
    return PYTHON


def fine_cpu_seconds(pid: int) -> float:
    """Return the processor seconds of all threads, also of ended threads, to the nanosecond.

    This is for idle processes, which use less than a clock tick: ``cpu_seconds`` counts ticks.
    Return 0 if the process has ended.
    """
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)
    return 0.0


def resident_mb(*pids: int) -> float:
    """Return the resident memory of processes in MB (10^6 bytes)."""
    return sum(_memory_mb(pid, "VmRSS") for pid in pids)


def peak_mb(*pids: int) -> float:
    """Return the sum of the peaks of the resident memory of processes in MB (10^6 bytes).

    A peak counts from the start of the process, or from a call of ``forget_peak``.
    """
    return sum(_memory_mb(pid, "VmHWM") for pid in pids)


def _memory_mb(pid: int, field: str) -> float:
    with contextlib.suppress(OSError):
        found = re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 / 1e6 if found else 0.0
    return 0.0


def forget_peak(pid: int) -> None:
    """Reset the peak memory of a process, if the kernel permits it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_bytes(b"5")


def below(pid: int, without: Collection[int] = ()) -> list[int]:
    """Return all living descendants of a process, except the processes in ``without`` and their
    descendants."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in map(int, (task / "children").read_text("ascii").split()):
                    if child not in without:
                        found += [child, *below(child, without)]
    return found


class CpuUse:
    """Measures the processor time of the processes of each role (such as the brokers) while the
    context is open: ``seconds``, and ``percent`` of a core. ``wall_s`` is the duration."""

    def __init__(self, roles: Mapping[Any, Collection[int]]) -> None:
        self._roles = roles

    def __enter__(self) -> CpuUse:
        self._before, self._began = self._spent(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.monotonic() - self._began
        self.seconds = {role: spent - self._before[role] for role, spent in self._spent().items()}
        self.percent = {role: 100 * each / self.wall_s for role, each in self.seconds.items()}

    def _spent(self) -> dict[Any, float]:
        return {role: sum(map(fine_cpu_seconds, pids)) for role, pids in self._roles.items()}


def _own_cpu() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Meter:
    """Measures the processes of a run while the context is open; afterwards ``found`` has ``cpu_s``
    and ``peak_mb`` by role."""

    def __init__(
        self,
        servers: Mapping[str, list[int]],
        others: set[int],
        within: Callable[[], Mapping[str, list[int]]] = dict,
    ) -> None:
        """Prepare a measurement.

        * ``servers``: processes by role, each with its descendants.
        * ``others``: child processes that are not part of the run.
        * ``within``: returns the servers that the run itself starts and ends, by role. The last
          sample of each server counts, because a server may end before the measurement.
        """
        self.found: dict[str, dict[str, float]] = {}
        self._servers = {role: list(pids) for role, pids in servers.items()}
        self._within = within
        self._no_clients = others | {pid for pids in self._servers.values() for pid in pids}
        self._before: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._seen: dict[str, dict[int, float]] = {}
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Meter:
        for pids in self._processes().values():
            for pid in pids:
                forget_peak(pid)
        self._before = self._spent()
        self._sampler.start()
        return self

    def __exit__(self, *_: Any) -> None:
        after = self._spent()
        self._done.set()
        self._sampler.join()
        for role, seen in self._seen.items():
            after[role] = after.get(role, 0.0) + sum(seen.values())
            # The operating system adds the processor time of an ended server to that of the client
            # process that started the server, so subtract it.
            after[CLIENTS] -= sum(seen.values())
        for role, spent in after.items():
            cpu = max(spent - self._before.get(role, 0.0), 0.0)
            peak = self._peaks.get(role, 0.0)
            self.found[role] = {"cpu_s": round(cpu, 2), "peak_mb": round(peak, 1)}

    def seen(self, role: str) -> list[float]:
        """Return the processor seconds of each server of this role that the measured run itself
        started."""
        return list(self._seen.get(role, {}).values())

    def _processes(self) -> dict[str, list[int]]:
        roles = _with_all_below(self._servers)
        roles[CLIENTS] = below(os.getpid(), self._no_clients)
        return roles

    def _spent(self) -> dict[str, float]:
        spent = {CLIENTS: _own_cpu()}
        for role, pids in self._processes().items():
            for pid in pids:
                own, whole = cpu_seconds(pid, with_children=False), cpu_seconds(pid)
                of_ended = PYTHON if role == JVM else role
                spent[role] = spent.get(role, 0.0) + own
                spent[of_ended] = spent.get(of_ended, 0.0) + max(whole - own, 0.0)
        return spent

    def _come(self) -> dict[str, list[int]]:
        """Return the servers that the measured run started, with their descendants, by role. Store
        the processor time that each process has used so far."""
        come = _with_all_below(self._within())
        for role, pids in come.items():
            seen = self._seen.setdefault(role, {})
            for pid in pids:
                spent = cpu_seconds(pid, with_children=False)
                seen[pid] = max(spent, seen.get(pid, 0.0))
        return come

    def _sample(self) -> None:
        while True:
            is_last = self._done.wait(SAMPLE_SECONDS)
            come = self._come()
            own = {pid for pids in come.values() for pid in pids}
            roles = self._processes()
            roles[CLIENTS] = [pid for pid in roles[CLIENTS] if pid not in own]
            for role, pids in (roles | come).items():
                self._peaks[role] = max(self._peaks.get(role, 0.0), peak_mb(*pids))
            if is_last:
                return


def _with_all_below(servers: Mapping[str, list[int]]) -> dict[str, list[int]]:
    roles: dict[str, list[int]] = {role: [] for role in servers if role != SPARK}
    for role, pids in servers.items():
        for pid in pids:
            for each in (pid, *below(pid)):
                roles.setdefault(counted_as(role, each), []).append(each)
    return roles
