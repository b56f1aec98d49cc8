"""Measure the costs of a log on this disk; print one JSON object.

    python benchmarks/storage.py [--directory D] [--seconds 2]

The figures are append, append and flush, opening after a clean stop, and recovery. The same run
measures the system call ``write`` alone. Each measurement writes at most 256 MiB, so that appends
go to the page cache, not to the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers import figures

from broker_lite.config import GIB, TopicConfig
from broker_lite.model import PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header, set_crc
from broker_lite.storage.files import OsFiles
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager

KEY = PartitionKey("benchmarkAAAAAAAAAAAAA", 0)
CONFIG = TopicConfig(segment_bytes=GIB)
BYTES_MAX = 256 << 20
SIZES = {"1_kb": 1 << 10, "64_kb": 64 << 10, "1_mb": 1 << 20}


def make_batch(size: int) -> bytearray:
    header = (0, size - 12, -1, fmt.MAGIC_ROWS, 0, 0, 9, 1, 1, -1, -1, -1, 10)
    data = bytearray(fmt.HEADER.pack(*header) + os.urandom(size - fmt.HEADER_BYTES))
    set_crc(data)
    return data


def opened(path: str) -> LogManager:
    manager = LogManager(OsFiles(), path, default_config=CONFIG)
    manager.data.start()
    manager.open_all(0)
    return manager


def appending(log: Log, size: int) -> Callable[[], object]:
    """Return a function that appends a batch, the same one at each call."""
    data = make_batch(size)
    header = read_header(data)
    return lambda: log.append_as_leader(data, header, 1, 1000)


def repeat(work: Callable[[], object], seconds: float, limit: int) -> tuple[float, float]:
    """Run ``work`` repeatedly for ``seconds``, but at most about ``limit`` times.

    Return its mean wall time and mean processor time in us.
    """
    count, start, cpu = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() < start + seconds and count < limit:
        for _ in range(16):
            work()
        count += 16
    scale = 1e6 / count
    return (time.perf_counter() - start) * scale, (time.thread_time() - cpu) * scale


def append(path: str, size: int, seconds: float) -> dict[str, float]:
    manager, limit = opened(path), BYTES_MAX // size
    us, cpu_us = repeat(appending(manager.create(KEY), size), seconds, limit)
    manager.close()
    data = make_batch(size)
    raw = os.open(f"{path}/raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    raw_us, raw_cpu_us = repeat(lambda: os.write(raw, data), seconds, limit)
    os.close(raw)
    return {
        "us_per_append": round(us, 2),
        "mb_per_s": round(size / us, 1),
        "cpu_us_per_append": round(cpu_us, 2),
        "us_per_bare_write": round(raw_us, 2),
        "cpu_us_over_bare_write": round(cpu_us - raw_cpu_us, 2),
    }


def append_and_flush(path: str, size: int, seconds: float) -> dict[str, float]:
    manager = opened(path)
    log = manager.create(KEY)
    one = appending(log, size)

    def both() -> None:
        one()
        log.flush()

    took, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        took.append(figures.timed(both))
    manager.close()
    return {
        "ms_median": figures.median((1e3 * each for each in took), 3),
        "ms_p99": round(figures.percentile(took, 99) * 1e3, 3),
        "mb_per_s": round(len(took) * size / sum(took) / 1e6, 1),
    }


def recovery(path: str, size: int, _: float) -> dict[str, float]:
    """Measure the opening of a log after a clean stop, and with only its .log files."""
    manager = opened(path)
    log = manager.create(KEY)
    one = appending(log, size)
    for _number in range(BYTES_MAX // 2 // size):
        one()
    log.flush()
    manager.close_clean()
    start = time.perf_counter()
    clean = opened(path)
    clean_ms = (time.perf_counter() - start) * 1e3
    assert clean.reports[KEY].scanned_bytes == 0
    clean.close()
    for file in Path(log.directory).iterdir():
        if file.suffix != ".log":
            file.unlink()
    start, cpu = time.perf_counter(), time.thread_time()
    unclean = opened(path)
    scanned = unclean.reports[KEY].scanned_bytes
    seconds, cpu = time.perf_counter() - start, time.thread_time() - cpu
    unclean.close()
    return {
        "open_clean_ms": round(clean_ms, 2),
        "recovery_scan_gb_per_s": round(scanned / seconds / 1e9, 2),
        "recovery_scan_gb_per_cpu_s": round(scanned / cpu / 1e9, 2),
    }


def measure(directory: str = "", seconds: float = 2.0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for work in (append, append_and_flush, recovery):
        for name, size in SIZES.items():
            with tempfile.TemporaryDirectory(dir=directory or None) as folder:
                found.setdefault(work.__name__, {})[name] = work(f"{folder}/data", size, seconds)
    return found


if __name__ == "__main__":
    figures.main(measure)
