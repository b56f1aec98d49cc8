"""Tests of lookups of records by timestamp and by offset."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support import hand_made_log as by_hand
from support import poison
from support.row_codec import Row, encode_rows
from support.stored import Disk, append, batch, segment_name

from broker_lite.errors import CorruptMessageError
from broker_lite.model import ListedOffset
from broker_lite.record import arrow, newest_time
from broker_lite.record import format as fmt
from broker_lite.record.arrow import Columns
from broker_lite.record.batch import read_header, set_max_timestamp
from broker_lite.storage.lookups import first_at, offset_for_max_timestamp, offset_for_timestamp
from broker_lite.storage.scan import CorruptRange


def columns(*times: int) -> bytearray:
    values = pa.array([b"v"] * len(times), pa.binary())
    timestamp = pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    table = Columns(len(times), None, values, timestamp, None)
    return bytearray(arrow.encode(table, timestamp_ms=0))


def rows(*times: int) -> bytearray:
    return bytearray(encode_rows([Row(i, t, None, b"v", ()) for i, t in enumerate(times)]))


def rows_of_old_sarama(*times: int) -> bytearray:
    """Return a row batch that sarama before 1.46 has sent, as a broker stores it.

    sarama does not set the maximum timestamp in the header, so brokers compute it from the records.
    """
    data = rows(*times)
    set_max_timestamp(data, read_header(data), -1)
    newest_time.fill_in(memoryview(data))
    return data


@pytest.mark.parametrize("make", [columns, rows, rows_of_old_sarama])
def test_timestamp_lookup_finds_the_first_record_at_or_after_the_timestamp(make: object) -> None:
    log = Disk().log
    for times in ((10, 30, 20), (25, 26), (50, 5, 60)):
        append(log, make(*times))  # type: ignore[operator]

    def found(timestamp: int, end: int = 8) -> tuple[int, int] | None:
        listed = offset_for_timestamp(log.reader, timestamp, end, [])
        return listed and listed[:2]

    assert found(0) == found(10) == (0, 10)
    assert found(11) == found(30) == (1, 30)
    assert found(31) == found(50) == (5, 50)
    assert found(60) == (7, 60)
    assert found(61) is None
    assert found(60, end=7) is None
    assert offset_for_max_timestamp(log.reader, 8, []) == ListedOffset(7, 60, 1)
    assert offset_for_max_timestamp(log.reader, 5, []) == ListedOffset(1, 30, 1)
    assert offset_for_max_timestamp(log.reader, 0, []) is None
    log.delete_records_before(2)
    assert found(15) == (2, 20)
    assert found(21) == (3, 25)


@pytest.mark.parametrize("make", [columns, rows])
def test_lookup_of_the_newest_timestamp_ignores_deleted_records(make: object) -> None:
    log = Disk().log
    for times in ((90, 10), (80, 20, 30), (40, 5)):
        append(log, make(*times))  # type: ignore[operator]
    newest = {0: (0, 90), 1: (2, 80), 2: (2, 80), 3: (5, 40), 4: (5, 40), 5: (5, 40), 6: (6, 5)}
    for start, wanted in newest.items():
        log.delete_records_before(start)
        assert offset_for_max_timestamp(log.reader, 7, []) == ListedOffset(*wanted, 1)
    log.delete_records_before(7)
    assert offset_for_max_timestamp(log.reader, 7, []) is None


def test_timestamp_lookup_returns_the_maximum_timestamp_of_an_undecodable_batch() -> None:
    """If the lookup raised an error instead, no later batch could be found by timestamp."""
    log = Disk().log
    append(log, bytearray(poison.backwards(3, "lz4")))
    append(log, columns(2000))
    assert offset_for_timestamp(log.reader, 500, 4, []) == ListedOffset(0, 1000, 1)
    assert offset_for_timestamp(log.reader, 1001, 4, []) == ListedOffset(3, 2000, 1)
    assert first_at(log.reader, 1, 4) == ListedOffset(1, 1000, 1)
    log.delete_records_before(1)
    assert offset_for_max_timestamp(log.reader, 3, []) == ListedOffset(1, 1000, 1)


def test_timestamp_lookup_does_not_decompress_a_batch_beyond_the_limit() -> None:
    log = Disk().log
    large = bytes(fmt.BROKER_DECOMPRESSED_BYTES_MAX)
    made = [Row(0, 10, None, large), Row(1, 20, None, b"")]
    append(log, encode_rows(made, codec=fmt.CODEC_ZSTD))
    assert offset_for_timestamp(log.reader, 15, 2, []) == ListedOffset(0, 20, 1)
    assert first_at(log.reader, 1, 2) == ListedOffset(1, 20, 1)


def test_timestamp_lookup_works_across_several_segments_and_restarts() -> None:
    disk = Disk()
    for i in range(120):
        append(disk.log, columns(1000 + 10 * (i ^ 3)))
    for log in disk.lives():
        for timestamp in range(995, 2200, 7):
            wanted = next((i for i in range(120) if 1000 + 10 * (i ^ 3) >= timestamp), None)
            listed = offset_for_timestamp(log.reader, timestamp, 120, [])
            assert (listed and listed.offset) == wanted
        assert offset_for_max_timestamp(log.reader, 120, []) == ListedOffset(
            116, 1000 + 10 * (116 ^ 3), 1
        )


@pytest.mark.parametrize("at", [35, 70], ids=["header", "body"])
def test_timestamp_lookup_skips_and_reports_a_corrupt_batch(at: int) -> None:
    disk = Disk()
    for times in ((10, 20), (30, 40), (50, 60)):
        append(disk.log, rows(*times))
    size = len(rows(10, 20))
    disk.flip(segment_name(0), size + at)
    damage: list[CorruptRange] = []
    assert offset_for_timestamp(disk.log.reader, 15, 6, damage) == ListedOffset(1, 20, 1)
    assert damage == []
    assert offset_for_timestamp(disk.log.reader, 35, 6, damage) == ListedOffset(4, 50, 1)
    assert [(bad.first_offset, bad.next_offset) for bad in damage] == [(2, 4)]


def test_timestamp_lookup_never_finds_records_without_a_timestamp() -> None:
    log = Disk().log
    append(log, batch(timestamp=-1))
    assert offset_for_timestamp(log.reader, 0, 1, []) is None


@pytest.mark.parametrize("make", [columns, rows])
def test_lookup_of_a_record_by_offset_returns_the_first_record_at_or_after_the_offset(
    make: object,
) -> None:
    log = Disk().log
    for times in ((10, 30, 20), (25, 26), (50, 5, 60)):
        append(log, make(*times))  # type: ignore[operator]
    found = [first_at(log.reader, offset, 8) for offset in range(9)]
    assert [listed and listed[:2] for listed in found] == [
        *enumerate((10, 30, 20, 25, 26, 50, 5, 60)),
        None,
    ]
    assert first_at(log.reader, 4, 4) is None
    log.delete_records_before(2)
    assert first_at(log.reader, 0, 8) == ListedOffset(2, 20, 1)


def test_timestamp_lookups_skip_control_and_empty_batches_offset_gaps_and_aborted_rows() -> None:
    log = Disk().log
    log.append_as_follower(memoryview(b"".join(by_hand.contiguous())), by_hand.EPOCH, 0)
    for offset in range(48):
        expected = next(found for found in by_hand.COMMITTED if found >= offset)
        assert first_at(log.reader, offset, by_hand.END) == ListedOffset(
            expected, by_hand.TIME_MS, by_hand.EPOCH
        )
    assert first_at(log.reader, 48, by_hand.END) is None
    log.delete_records_before(19)
    found = offset_for_timestamp(log.reader, by_hand.TIME_MS, by_hand.END, [])
    assert found == ListedOffset(24, by_hand.TIME_MS, by_hand.EPOCH)


def test_lookup_of_a_record_by_offset_skips_a_batch_that_is_already_known_as_corrupt() -> None:
    disk = Disk()
    for times in ((10, 20), (30, 40), (50, 60)):
        append(disk.log, rows(*times))
    size = len(rows(10, 20))
    disk.flip(segment_name(0), size + 3)
    with pytest.raises(CorruptMessageError):
        first_at(disk.log.reader, 2, 6)
    assert first_at(disk.log.reader, 2, 6) == ListedOffset(4, 50, 1)


def test_lookup_of_a_record_by_offset_returns_minus_one_if_the_record_has_no_timestamp() -> None:
    log = Disk().log
    append(log, rows(-1, -1))
    assert [first_at(log.reader, offset, 2) for offset in (0, 1)] == [
        ListedOffset(0, -1, 1),
        ListedOffset(1, -1, 1),
    ]
