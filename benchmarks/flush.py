"""Measure the cost of a flush on this disk in several ways; print one JSON object.

    python benchmarks/flush.py [--directory D] [--rounds 20]

A group is the work that one disk thread flushes together: ``logs`` files, each with new bytes. A
round measures each way once. ``in_turn`` flushes a file after the file before it is on disk.
``together`` starts all flushes first, as the broker does. ``written_before`` overwrites zeros that
are already in the file: this needs no commit of the file system's journal, but writes all bytes
twice. The figures are medians of wall time, and processor time of this process, in us for each
group.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from broker_lite.storage.files import OsFile, OsFiles

GROUPS = 30
"""Number of groups of files that are flushed in each way in one round."""
CASES = ((1, 200), (1, 16_000), (2, 16_000), (2, 48_000), (4, 48_000))


def appended(folder: str, name: str, size: int) -> OsFile:
    return OsFiles().create(f"{folder}/{name}")


def written(folder: str, name: str, size: int) -> OsFile:
    """Create a file of ``size`` zeros on the disk; open it so that writes overwrite the zeros."""
    path = Path(folder, name)
    path.write_bytes(bytes(size))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    return OsFile(fd, str(path), 0)


def in_turn(files: list[OsFile]) -> None:
    for file in files:
        file.datasync()


def together(files: list[OsFile], size: int) -> None:
    for file in files:
        file.start_sync(file.size - size)
    in_turn(files)


Make = Callable[[str, str, int], OsFile]
WAYS: dict[str, tuple[Make, bool]] = {
    "in_turn": (appended, False),
    "together": (appended, True),
    "written_before": (written, True),
}


def one_round(
    folder: str, make: Make, begun: bool, logs: int, size: int
) -> tuple[list[float], float]:
    """Flush several groups of files in one way.

    Return the wall time of each group and the processor time of all groups, in seconds.
    """
    files = [make(folder, f"{n}", GROUPS * size) for n in range(logs)]
    data = os.urandom(size)
    os.sync()
    walls = []
    cpu = time.process_time()
    for _ in range(GROUPS):
        began = time.perf_counter()
        for file in files:
            file.append((data,))
        if begun:
            together(files, size)
        else:
            in_turn(files)
        walls.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    for file in files:
        os.unlink(file.path)
    return walls, cpu


def measure(folder: str, logs: int, size: int, rounds: int) -> dict[str, float]:
    walls: dict[str, list[float]] = {way: [] for way in WAYS}
    cpus = dict.fromkeys(WAYS, 0.0)
    for number in range(rounds):
        for way in list(WAYS)[:: 1 if number % 2 else -1]:
            took, cpu = one_round(folder, *WAYS[way], logs, size)
            walls[way] += took
            cpus[way] += cpu
    found = {f"{way}_us": round(statistics.median(walls[way]) * 1e6, 1) for way in WAYS}
    return found | {f"{way}_cpu_us": round(cpus[way] / rounds / GROUPS * 1e6, 1) for way in WAYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", help="where to write (default: a temporary folder)")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        found = {
            f"{logs}_logs_{size}_bytes": measure(folder, logs, size, arguments.rounds)
            for logs, size in CASES
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
