"""Measure the costs of a log on this disk; print one JSON object.

    python benchmarks/storage.py [--directory D] [--seconds S]

The figures are append, append and flush, group commit, lookups, recovery and opening. Ratios to the
bare system calls are from the same run. No figure writes more than 256 MiB, so that appends go to
the page cache, not to the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from broker_lite.config import GIB, TopicConfig
from broker_lite.model import PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, read_header, set_crc
from broker_lite.storage.files import OsFiles
from broker_lite.storage.inspection import check_directory
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager

KEY = PartitionKey("benchmarkAAAAAAAAAAAAA", 0)
CONFIG = TopicConfig(segment_bytes=GIB)
BYTES_MAX = 256 << 20
ROUNDS = 5


def make_batch(size: int, rows: int) -> bytearray:
    header = (0, size - 12, -1, fmt.MAGIC_ROWS, 0, 0, rows - 1, 1, 1, -1, -1, -1, rows)
    data = bytearray(fmt.HEADER.pack(*header) + os.urandom(size - fmt.HEADER_BYTES))
    set_crc(data)
    return data


class Bench:
    """Measures the costs of a log, each in a new data directory."""

    def __init__(self, directory: str, seconds: float) -> None:
        self.root = directory
        self.seconds = seconds
        self.count = 0

    def manager(self, path: str | None = None) -> LogManager:
        if path is None:
            self.count += 1
            path = f"{self.root}/{self.count}"
        manager = LogManager(OsFiles(), path, default_config=CONFIG)
        manager.data.start()
        manager.open_all(0)
        return manager

    def repeat(self, work: Callable[[], Any], limit: int) -> tuple[int, float, float]:
        """Run ``work`` repeatedly, at most ``limit`` times.

        Return the number of runs, their wall time and their processor time in seconds.
        """
        count, start, cpu = 0, time.perf_counter(), time.thread_time()
        end = start + self.seconds
        while time.perf_counter() < end and count < limit:
            for _ in range(16):
                work()
            count += 16
        return count, time.perf_counter() - start, time.thread_time() - cpu


def append(log: Log, data: bytearray, header: BatchHeader) -> None:
    log.append_as_leader(data, header, 1, 1000)


def bench_append(bench: Bench, size: int) -> dict[str, float]:
    data = make_batch(size, 10)
    header = read_header(data)
    manager = bench.manager()
    log = manager.create(KEY)
    limit = BYTES_MAX // size
    count, seconds, cpu = bench.repeat(lambda: append(log, data, header), limit)
    manager.close()
    raw_fd = os.open(f"{manager.data.path}/raw", os.O_RDWR | os.O_CREAT)
    at = 0

    def write() -> None:
        nonlocal at
        at += os.pwrite(raw_fd, data, at)

    raw_count, raw_seconds, raw_cpu = bench.repeat(write, limit)
    os.close(raw_fd)
    shutil.rmtree(manager.data.path)
    us, raw_us = seconds / count * 1e6, raw_seconds / raw_count * 1e6
    return {
        "us_per_append": round(us, 2),
        "mb_per_s": round(count * size / seconds / 1e6, 1),
        "cpu_us_per_append": round(cpu / count * 1e6, 2),
        "us_per_bare_pwrite": round(raw_us, 2),
        "cpu_us_over_bare_pwrite": round((cpu / count - raw_cpu / raw_count) * 1e6, 2),
    }


def bench_flush(bench: Bench, size: int) -> dict[str, float]:
    data = make_batch(size, 10)
    header = read_header(data)
    manager = bench.manager()
    log = manager.create(KEY)
    took: list[float] = []
    end = time.perf_counter() + bench.seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        append(log, data, header)
        log.flush()
        took.append(time.perf_counter() - start)
    manager.close()
    shutil.rmtree(manager.data.path)
    return {
        "ms_median": round(statistics.median(took) * 1e3, 3),
        "ms_p99": round(sorted(took)[len(took) * 99 // 100] * 1e3, 3),
        "mb_per_s": round(len(took) * size / sum(took) / 1e6, 1),
    }


def bench_group_commit(bench: Bench, size: int) -> dict[str, float]:
    """Measure the appends of a thread that never waits, while another thread flushes them."""
    data = make_batch(size, 10)
    header = read_header(data)
    manager = bench.manager()
    log = manager.create(KEY)
    arrived = threading.Event()
    running = True
    flushes = 0

    def flusher() -> None:
        nonlocal flushes
        while running:
            arrived.wait()
            arrived.clear()
            log.flush()
            flushes += 1

    def work() -> None:
        append(log, data, header)
        arrived.set()

    thread = threading.Thread(target=flusher)
    thread.start()
    start = time.perf_counter()
    count, _, _ = bench.repeat(work, BYTES_MAX // size)
    running = False
    arrived.set()
    thread.join()
    log.flush()
    seconds = time.perf_counter() - start
    manager.close()
    shutil.rmtree(manager.data.path)
    return {
        "mb_per_s_flushed": round(count * size / seconds / 1e6, 1),
        "appends_per_flush": round(count / max(flushes, 1), 1),
    }


def bench_reads(bench: Bench) -> dict[str, float]:
    size, count = 4096, 50_000
    data = make_batch(size, 10)
    header = read_header(data)
    manager = bench.manager()
    log = manager.create(KEY)
    for _ in range(count):
        append(log, data, header)
    end = log.log_end_offset
    rng = random.Random(1)
    offsets = [rng.randrange(end) for _ in range(20_000)]

    def per_call(work: Callable[[int], Any], values: list[int]) -> float:
        best = 1e9
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for value in values:
                work(value)
            best = min(best, time.perf_counter() - start)
        return round(best / len(values) * 1e6, 2)

    sequential, offset = [], 0
    while offset < end:
        sequential.append(offset)
        offset = log.reader.read(offset, 1 << 16, end).next_offset
    figures = {
        "tail_read_us": per_call(lambda o: log.reader.read(o, 1 << 20, end), [end - 10] * 20_000),
        "sequential_read_us": per_call(lambda o: log.reader.read(o, 1 << 16, end), sequential),
        "random_read_us": per_call(lambda o: log.reader.read(o, 1 << 16, end), offsets),
        "offset_for_bytes_us": per_call(
            lambda o: log.reader.offset_for_bytes(o, 1 << 20, end), offsets
        ),
    }
    manager.close()
    start = time.thread_time()
    assert not any(check.problems for check in check_directory(OsFiles(), manager.data.path))
    figures["verify_gb_per_cpu_s"] = round(count * size / (time.thread_time() - start) / 1e9, 2)
    shutil.rmtree(manager.data.path)
    return figures


def bench_open(bench: Bench) -> dict[str, float]:
    figures: dict[str, float] = {}
    for size, total in ((4096, BYTES_MAX // 2), (64 << 10, BYTES_MAX), (1 << 20, BYTES_MAX)):
        data = make_batch(size, 10)
        header = read_header(data)
        manager = bench.manager()
        log = manager.create(KEY)
        for _ in range(total // size):
            append(log, data, header)
        log.flush()
        name = f"{size >> 10}_kib_batches"
        manager.close_clean()
        start = time.perf_counter()
        clean = bench.manager(manager.data.path)
        figures[f"open_clean_ms_{name}"] = round((time.perf_counter() - start) * 1e3, 2)
        assert clean.reports[KEY].scanned_bytes == 0
        clean.close()
        for file in os.listdir(log.directory):
            if not file.endswith(".log"):
                os.unlink(f"{log.directory}/{file}")
        start, cpu = time.perf_counter(), time.thread_time()
        unclean = bench.manager(manager.data.path)
        scanned = unclean.reports[KEY].scanned_bytes
        seconds, cpu = time.perf_counter() - start, time.thread_time() - cpu
        figures[f"recovery_scan_gb_per_s_{name}"] = round(scanned / seconds / 1e9, 2)
        figures[f"recovery_scan_gb_per_cpu_s_{name}"] = round(scanned / cpu / 1e9, 2)
        unclean.close()
        shutil.rmtree(manager.data.path)
    return figures


def bench_many(bench: Bench, partitions: int) -> dict[str, float]:
    data = make_batch(1024, 10)
    header = read_header(data)
    manager = bench.manager()
    start = time.perf_counter()
    for p in range(partitions):
        append(manager.create(KEY._replace(partition=p)), data, header)
    created = time.perf_counter() - start
    manager.close_clean()
    start = time.perf_counter()
    again = bench.manager(manager.data.path)
    opened = time.perf_counter() - start
    start = time.perf_counter()
    again.checkpoint()
    again.checkpoint()
    idle = time.perf_counter()
    again.checkpoint()
    idle_ms = (time.perf_counter() - idle) * 1e3
    again.close()
    shutil.rmtree(manager.data.path)
    return {
        "create_ms_each": round(created / partitions * 1e3, 2),
        "open_clean_ms_each": round(opened / partitions * 1e3, 3),
        "idle_checkpoint_ms": round(idle_ms, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", help="on the disk to measure; default: a temporary one")
    parser.add_argument("--seconds", type=float, default=2.0, help="per figure")
    given = parser.parse_args()
    root = tempfile.mkdtemp(prefix="logbus-storage-", dir=given.directory)
    bench = Bench(root, given.seconds)
    sizes = {"1_kb": 1 << 10, "64_kb": 64 << 10, "1_mb": 1 << 20}
    try:
        figures: dict[str, Any] = {
            "append": {name: bench_append(bench, size) for name, size in sizes.items()},
            "append_and_flush": {name: bench_flush(bench, size) for name, size in sizes.items()},
            "group_commit": {name: bench_group_commit(bench, size) for name, size in sizes.items()},
            "read": bench_reads(bench),
            "open": bench_open(bench),
            "200_partitions": bench_many(bench, 200),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
