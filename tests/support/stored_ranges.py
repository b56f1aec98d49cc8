"""Write a file of batches, and read its ranges as a consumer on the same machine does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_lite.client.in_place.local_files import LocalRange
from broker_lite.model import TopicPartition
from broker_lite.record.batch import read_header, stamp
from broker_lite.record.walker import BatchWalker, LogBatch, WalkPolicy
from broker_lite.wire.fetch import StoredRange
from support.data_calls import columns_batch, rows_batch

WHERE = TopicPartition("t", 0)
SIZES = [1, 3000, 40, 70_000, 5, 5, 5, 200_000, 1, 900, 64_000, 64_000, 2]


def write(path: Path, values: list[bytes], base: int = 0, epoch: int = 3) -> StoredRange:
    """Write row and column batches in turn, one for each value; return the file range of all."""
    with path.open("wb") as file:
        for n, value in enumerate(values):
            batch = memoryview(bytearray((rows_batch, columns_batch)[n % 2]([value])))
            stamp(batch, read_header(batch), base + n, epoch)
            file.write(batch)
    status = path.stat()
    return StoredRange(str(path), status.st_dev, status.st_ino, 0, status.st_size)


def opened(stored: StoredRange, offset: int = 0, *, reads_once: bool = False) -> LocalRange:
    """Open a file range whose first batch begins at ``offset``, with leader epochs up to 3."""
    walker = BatchWalker(WalkPolicy(leader_epoch=3), offset, epoch=0, at_boundary=True)
    return LocalRange(stored, walker, WHERE, reads_once=reads_once)


def read_all(found: LocalRange) -> Iterator[LogBatch]:
    while not found.is_read:
        got = found.read()
        assert got.damage is None
        assert got.batches
        yield from got.batches
    found.close()
