"""Test range reads from the files of brokers on this machine, with fetches as the fallback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.log_batches import segments_of
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.client import read_range
from broker_lite.client.consuming.consumer import Consumer
from broker_lite.client.in_place import disk_parts, local_files, partitions
from broker_lite.client.in_place.disk_parts import ALIGNED_BYTES, DIRECT
from broker_lite.client.in_place.local_files import LocalRange
from broker_lite.client.received import WalkResult, offsets_of
from broker_lite.errors import CorruptMessageError, OffsetOutOfRangeError
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import NO_OFFSET, TopicPartition
from broker_lite.record.arrow import Columns
from broker_lite.wire.fetch import StoredRange

ROWS, BATCH = 20_000, 1000


class Reading:
    """A topic with records, one partition and one replica; ``opened`` has the file ranges that
    readers opened."""

    def __init__(self, bus: Bus, cluster: LocalCluster, topic: str) -> None:
        self.bus = bus
        self.opened: list[StoredRange] = []
        self.skipped: list[tuple[int, int]] = []
        bus.create_topic(topic, 1, replication_factor=1)
        self.tp = TopicPartition(topic, 0)
        with bus.producer() as producer:
            for first in range(0, ROWS, BATCH):
                values = [b"%0200d" % n for n in range(first, first + BATCH)]
                producer.send_columns(topic, Columns(BATCH, None, pa.array(values)), 0)
        self.view = bus.admin.cluster([topic])
        topic_id = self.view.topic_id(topic)
        (self.path,) = segments_of(cluster.directory, topic_id)

    def batches(self, start: int = 0, end: int = ROWS, **options: Any) -> Iterator[range]:
        for rows in read_range(
            self.tp,
            self.view.topic_id(self.tp.topic),
            self.view.leader_epoch(self.tp),
            start,
            end,
            bootstrap=self.bus.bootstrap_servers,
            on_skipped=lambda _, first, after: self.skipped.append((first, after)),
            **options,
        ):
            offsets = offsets_of(rows)
            assert (np.diff(offsets) == 1).all()
            assert rows.columns.value is not None
            assert int(rows.columns.value[rows.first_row].as_py()) == offsets[0]
            yield range(int(offsets[0]), int(offsets[-1]) + 1)

    def consumer(self, **options: Any) -> Consumer:
        return self.bus.consumer(self.tp.topic, start="earliest", **options)

    def consumed(self, consumer: Consumer, count: int) -> list[int]:
        """Return the offsets of the next rows that the consumer returns; check their values."""
        found: list[int] = []
        while len(found) < count:
            rows = consumer.poll_arrow(20.0, max_rows=count - len(found))
            assert rows.num_rows
            found += rows["offset"].to_pylist()
            assert int(rows["value"][-1].as_py()) == found[-1]
        return found

    def read(self, start: int = 0, end: int = ROWS, **options: Any) -> list[int]:
        return [offset for found in self.batches(start, end, **options) for offset in found]


@pytest.fixture
def reading(
    bus: Bus, cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Reading:
    found = Reading(bus, cluster, f"{topic}-files")

    class Seen(LocalRange):
        def __init__(self, stored: StoredRange, *rest: Any, **more: Any) -> None:
            super().__init__(stored, *rest, **more)
            found.opened.append(stored)

    monkeypatch.setattr(partitions, "LocalRange", Seen)
    return found


def test_large_offset_ranges_are_read_from_log_files_and_small_ones_are_fetched(
    reading: Reading,
) -> None:
    assert reading.read() == list(range(ROWS))
    assert [Path(stored.path) for stored in reading.opened] == [reading.path]
    assert reading.read(1234, 18_765, fetch_bytes=300_000) == list(range(1234, 18_765))
    assert len(reading.opened) == 2
    assert reading.read(ROWS - 10) == list(range(ROWS - 10, ROWS))
    assert reading.read(fetch_bytes=100_000) == list(range(ROWS)), "a limit is kept"
    assert reading.read(local_reads=False) == list(range(ROWS))
    assert len(reading.opened) == 2


def test_backlog_outside_the_page_cache_is_read_by_direct_io(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test makes all pages but the first look uncached, so reads must bypass the page cache.

    The first page stays cached because the broker reads it to look up the start offset.
    """

    def is_in_memory(fd: int, position: int) -> bool:
        return position < ALIGNED_BYTES

    monkeypatch.setattr(disk_parts, "is_in_memory", is_in_memory)
    monkeypatch.setattr(local_files, "is_in_memory", is_in_memory)
    cached_reads: list[int] = []
    read = LocalRange._pread

    def reading_cached(found: LocalRange, size: int) -> memoryview:
        cached_reads.append(size)
        return read(found, size)

    monkeypatch.setattr(LocalRange, "_pread", reading_cached)
    assert reading.read(1234, reads_once=True) == list(range(1234, ROWS))
    assert len(reading.opened) == 1
    try:
        os.close(os.open(reading.path, os.O_RDONLY | DIRECT))
    except OSError:
        return  # This file system has no direct reads, so all reads use the page cache.
    assert not (cached_reads and DIRECT)


def test_broker_lets_a_client_read_its_log_file_only_up_to_the_high_watermark(
    reading: Reading,
) -> None:
    reading.read()
    (stored,) = reading.opened
    assert stored.position + stored.length == reading.path.stat().st_size
    with pytest.raises(OffsetOutOfRangeError, match=f"ends at {ROWS}"):
        reading.read(ROWS + 1, ROWS + 2)


def test_client_on_another_machine_than_the_broker_fetches_records_over_the_network(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker reports another machine id, as if the reader were on another machine."""
    monkeypatch.setattr(partitions, "machine_id", lambda: bytes(16))
    assert reading.read() == list(range(ROWS))
    assert reading.opened == []


def test_client_that_may_not_open_the_log_file_fetches_records_over_the_network(
    reading: Reading,
) -> None:
    user, mode = os.geteuid(), reading.path.stat().st_mode
    reading.path.chmod(0)
    try:
        if user == 0:
            os.seteuid(65_534)  # Root ignores file permissions.
        assert reading.read() == list(range(ROWS))
    finally:
        os.seteuid(user)
        reading.path.chmod(mode)
    assert reading.opened == []


def test_reader_of_a_deleted_log_file_finishes_the_open_file_and_then_fetches_records(
    reading: Reading,
) -> None:
    """An open file stays readable after its deletion. Later reads must fetch from the broker."""
    found = reading.batches()
    first = next(found)
    aside = reading.path.rename(reading.path.with_suffix(".gone"))
    try:
        rest = [offset for part in found for offset in part]
        assert [*first, *rest] == list(range(ROWS))
        assert len(reading.opened) == 1
        assert reading.read() == list(range(ROWS))
        assert len(reading.opened) == 1
    finally:
        aside.rename(reading.path)


def test_reader_of_a_log_file_that_ends_early_fetches_the_remaining_records(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_lite.client.in_place.local_files.READ_BYTES", 200_000)
    reads = 0
    whole = LocalRange.read

    def cut_short(self: LocalRange) -> WalkResult:
        nonlocal reads
        reads += 1
        return whole(self) if reads < 4 else WalkResult([], NO_OFFSET)

    monkeypatch.setattr(LocalRange, "read", cut_short)
    assert reading.read() == list(range(ROWS))
    assert (reads, len(reading.opened)) == (4, 1)


def flip_a_bit_of_batch_seven(reading: Reading) -> int:
    """Flip a bit in the records of batch seven; return the size of a batch in bytes."""
    batch_bytes = reading.path.stat().st_size // (ROWS // BATCH)
    with reading.path.open("r+b") as file:
        file.seek(7 * batch_bytes + batch_bytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 255]))
    return batch_bytes


def test_corrupt_batch_in_a_log_file_fails_the_read_unless_on_corrupt_is_skip(
    reading: Reading,
) -> None:
    batch_bytes = flip_a_bit_of_batch_seven(reading)
    delivered: list[int] = []
    with pytest.raises(CorruptMessageError, match="partition 0 offset 7000: "):
        for found in reading.batches():
            delivered += found
    assert delivered == list(range(7000))
    good = [n for n in range(ROWS) if n // BATCH != 7]
    assert reading.read(on_corrupt="skip") == good
    assert reading.skipped == [(7000, 8000)]
    assert reading.opened
    with reading.path.open("r+b") as file:
        file.seek(12 * batch_bytes + 16)
        file.write(b"\x07")
    with pytest.raises(CorruptMessageError, match="partition 0 offset 12000"):
        reading.read(12_000)
    assert reading.read(8000, on_corrupt="skip") == [
        n for n in good if n >= 8000 and n // 1000 != 12
    ]


# The next tests use consumers. Their first fetch goes to the broker and locates its files.


def small(options: dict[str, Any]) -> dict[str, Any]:
    """Limit the size of the consumer's first fetch, so that the consumer reads the later records
    from a file."""
    return {"partition_fetch_bytes": 300_000, **options}


def test_consumer_reads_old_records_from_log_files_and_fetches_new_records(
    reading: Reading,
) -> None:
    with reading.consumer(**small({})) as consumer:
        assert reading.consumed(consumer, ROWS) == list(range(ROWS))
        assert [Path(stored.path) for stored in reading.opened] == [reading.path]
        with reading.bus.producer() as producer:
            producer.send(reading.tp.topic, b"%d" % ROWS).result()
        assert reading.consumed(consumer, 1) == [ROWS]
        consumer.seek(reading.tp, 5000)
        assert reading.consumed(consumer, 3000) == list(range(5000, 8000))
        consumer.pause()
        assert not consumer.poll(0.05)
        consumer.resume()
        assert reading.consumed(consumer, ROWS - 7999) == list(range(8000, ROWS + 1))
        assert len(reading.opened) > 1
    assert str(reading.path) not in open_files()


def open_files() -> list[str]:
    return [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]


def test_paused_consumer_closes_the_log_file_that_it_has_partly_read(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_lite.client.in_place.local_files.READ_BYTES", 200_000)
    monkeypatch.setattr("broker_lite.client.fetch.fetch_engine.AHEAD_BYTES", 400_000)
    with reading.consumer(**small({})) as consumer:
        reading.consumed(consumer, 4000)
        assert str(reading.path) in open_files()
        # While a paused consumer held a file open, a deleted segment would still use disk space.
        consumer.pause()
        until(lambda: str(reading.path) not in open_files(), what="the file stays open")
        consumer.resume()
        assert reading.consumed(consumer, 1000) == list(range(4000, 5000))
    assert str(reading.path) not in open_files()


@pytest.mark.parametrize("options", [{"local_reads": False}, {"partition_fetch_bytes": 100_000}])
def test_consumer_with_local_reads_disabled_opens_no_file(
    reading: Reading, options: dict[str, Any]
) -> None:
    with reading.consumer(**small(options)) as consumer:
        assert reading.consumed(consumer, ROWS) == list(range(ROWS))
    assert reading.opened == []


def test_consumer_fetches_from_the_broker_after_a_read_of_the_log_file_failed(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[WalkResult] = []

    def refuse(self: LocalRange) -> WalkResult:
        if given and given[-1].next_offset >= 10_000:
            raise OSError("the disk is gone")
        given.append(whole(self))
        return given[-1]

    whole = LocalRange.read
    monkeypatch.setattr("broker_lite.client.in_place.local_files.READ_BYTES", 200_000)
    monkeypatch.setattr(LocalRange, "read", refuse)
    with reading.consumer(**small({})) as consumer:
        assert reading.consumed(consumer, ROWS) == list(range(ROWS))
        assert len(reading.opened) == 1
        consumer.seek(reading.tp, 0)
        assert reading.consumed(consumer, ROWS) == list(range(ROWS))
        assert len(reading.opened) == 1, "the consumer opened another file"


def test_consumer_fetches_from_the_broker_the_batches_that_are_damaged_in_the_log_file(
    reading: Reading,
) -> None:
    """The consumer fails at the corrupt batch, or skips it, only if the batch that the broker sends
    is damaged too.
    """
    flip_a_bit_of_batch_seven(reading)
    with reading.consumer(**small({})) as consumer:
        assert reading.consumed(consumer, 7000) == list(range(7000))
        assert reading.opened
        with pytest.raises(CorruptMessageError, match="partition 0 offset 7000: "):
            consumer.poll(20.0)
    with reading.consumer(**small({"on_corrupt": "skip"})) as consumer:
        good = [n for n in range(ROWS) if n // BATCH != 7]
        assert reading.consumed(consumer, len(good)) == good
        assert consumer.skipped == [(reading.tp, 7000, 8000)]
