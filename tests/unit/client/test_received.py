"""Tests of how clients split fetched bytes into batches and decode the batches' records."""

from __future__ import annotations

import numpy as np
import pytest
from support import hand_made_log as by_hand
from support.row_codec import Row, encode_rows

from broker_lite.client import received
from broker_lite.client.arrays import binary_of, headers_of
from broker_lite.client.received import (
    Item,
    Record,
    Skipped,
    WalkResult,
    decode,
    decode_all,
    offsets_of,
    records,
    walk,
)
from broker_lite.errors import CorruptMessageError
from broker_lite.model import TopicPartition
from broker_lite.record import arrow
from broker_lite.record.arrays import fixed
from broker_lite.record.arrow import TIMESTAMP_TYPE, Columns
from broker_lite.record.batch import read_header, stamp
from broker_lite.record.walker import BatchWalker, WalkPolicy

WHERE = TopicPartition("t", 1)


def batch(base: int, values: list[bytes | None], epoch: int = 3) -> bytearray:
    columns = Columns(len(values), None, binary_of(values))
    buffer = bytearray(arrow.encode(columns, timestamp_ms=1000))
    stamp(buffer, read_header(buffer), base, epoch)
    return buffer


def taken(
    data: memoryview,
    tp: TopicPartition,
    offset: int,
    leader_epoch: int,
    *,
    at_boundary: bool = False,
    after_epoch: int = 0,
) -> WalkResult:
    policy = WalkPolicy(leader_epoch=leader_epoch)
    walker = BatchWalker(policy, offset, epoch=after_epoch, at_boundary=at_boundary)
    return walk(data, walker, tp)


def answer(*batches: bytes | bytearray) -> memoryview:
    return memoryview(bytearray(b"".join(batches)))


def test_fetch_response_is_split_into_consecutive_batches() -> None:
    found = taken(answer(batch(10, [b"a", b"b"]), batch(12, [b"c"])), WHERE, 11, 3)
    assert [each.header.base_offset for each in found.batches] == [10, 12]
    assert (found.next_offset, found.damage) == (13, None)
    rows = decode(found.batches[0], WHERE, 11, None)
    assert rows is not None
    assert records(WHERE, rows) == [Record("t", 1, 11, 1000, None, b"b", [])]


def test_incomplete_last_batch_is_left_to_the_next_fetch() -> None:
    whole, part = batch(0, [b"a"]), batch(1, [b"b"])
    found = taken(answer(whole, part[:-5]), WHERE, 0, 3)
    assert (len(found.batches), found.next_offset, found.damage) == (1, 1, None)


def test_decoded_batch_has_only_rows_within_the_requested_offset_range() -> None:
    (raw,) = taken(answer(batch(10, [b"a", b"b", b"c", b"d"])), WHERE, 11, 3).batches
    rows = decode(raw, WHERE, 11, 13)
    assert rows is not None
    assert (rows.first_row, rows.row_count) == (1, 2)
    assert offsets_of(rows).tolist() == [11, 12]
    assert decode(raw, WHERE, 14, 20) is None


@pytest.mark.parametrize(
    ("batches", "offset", "boundary"),
    [
        ([batch(10, [b"a"])], 12, False),  # The batch ends before the requested offset.
        ([batch(13, [b"a"])], 12, False),  # The batch begins after the requested offset.
        ([batch(11, [b"a", b"b"])], 12, True),  # The batch overlaps records that were read before.
        ([batch(12, [b"a"], epoch=9)], 12, False),  # The batch is of a later leader epoch.
        ([bytes(100)], 12, False),
        ([b"x" * 30], 12, False),
    ],
)
def test_inconsistent_batch_header_is_an_error(
    batches: list[bytes], offset: int, boundary: bool
) -> None:
    found = taken(answer(*batches), WHERE, offset, 3, at_boundary=boundary)
    assert found.batches == []
    assert found.next_offset == offset
    assert found.damage is not None
    assert "'t' partition 1 offset 12" in str(found.damage)


def test_valid_batches_before_a_corrupt_batch_are_returned() -> None:
    for second in (batch(2, [b"x"]), batch(1, [b"x"], epoch=2), bytearray(100)):
        found = taken(answer(batch(0, [b"a"]), second), WHERE, 0, 3)
        assert (len(found.batches), found.next_offset) == (1, 1)
        assert found.damage is not None


def test_leader_epoch_lower_than_in_the_previous_response_is_corruption() -> None:
    found = taken(answer(batch(1, [b"x"], epoch=2)), WHERE, 1, 3, after_epoch=3)
    assert found.batches == [] and found.damage is not None


def test_batch_with_a_wrong_crc_is_never_returned() -> None:
    buffer = batch(5, [b"value"])
    buffer[-1] ^= 1
    (raw,) = taken(answer(buffer), WHERE, 5, 3).batches
    with pytest.raises(CorruptMessageError, match="'t' partition 1 offset 5"):
        decode(raw, WHERE, 5, None)


def test_decoded_rows_keep_the_offset_gaps_of_their_batch() -> None:
    rows = [
        Row(20, 5, b"k", b"a", ()),
        Row(23, 6, None, b"b", [("h", b"x")]),
        Row(27, 7, b"", None, ()),
    ]
    buffer = bytearray(encode_rows(rows))
    header = read_header(buffer)
    stamp(buffer, header, 20, 3)
    found = taken(answer(buffer), WHERE, 21, 3)
    assert found.next_offset == 28
    decoded = decode(found.batches[0], WHERE, 21, 27)
    assert decoded is not None
    assert records(WHERE, decoded) == [Record("t", 1, 23, 6, None, b"b", [("h", b"x")])]


def test_decoded_records_have_keys_values_timestamps_and_headers() -> None:
    columns = Columns(
        3,
        binary_of([b"k", None, b""]),
        binary_of([b"v", None, b""]),
        fixed(np.array([7, 8, 9], np.int64), TIMESTAMP_TYPE),
        headers_of([[("a", b"1"), ("a", None)], None, None]),
    )
    buffer = bytearray(arrow.encode(columns, timestamp_ms=0))
    stamp(buffer, read_header(buffer), 0, 3)
    (raw,) = taken(answer(buffer), WHERE, 0, 3).batches
    rows = decode(raw, WHERE, 0, None)
    assert rows is not None
    assert records(WHERE, rows) == [
        Record("t", 1, 0, 7, b"k", b"v", [("a", b"1"), ("a", None)]),
        Record("t", 1, 1, 8, None, None, []),
        Record("t", 1, 2, 9, b"", b"", []),
    ]


def small(base: int, values: list[bytes], epoch: int = 3, attributes: int = 0) -> bytearray:
    """Return a batch in Kafka's record format, with offsets from ``base`` on."""
    rows = [Row(base + n, 1000 + base + n, None, value) for n, value in enumerate(values)]
    return encode_rows(rows, leader_epoch=epoch, attributes=attributes)


def found_in(items: list[Item], start: int = 0, end: int = 1 << 40) -> list[list[int] | Skipped]:
    """Decode batches; check that each value and timestamp belongs to its offset.

    Return a list of offsets for each group of batches that was decoded together.
    """
    seen: list[list[int] | Skipped] = []
    for found in decode_all([list(items)], WHERE, start, end):
        if isinstance(found, Skipped):
            seen.append(found)
            continue
        rows = records(WHERE, found)
        assert [row.value for row in rows] == [b"%d" % row.offset for row in rows]
        if not found.header.is_log_append_time and not found.header.is_columns:
            assert [row.timestamp_ms for row in rows] == [1000 + row.offset for row in rows]
        seen.append([row.offset for row in rows])
    return seen


def test_small_kafka_batches_of_equal_leader_epoch_and_attributes_are_decoded_together() -> None:
    batches = [small(2 * n, [b"%d" % (2 * n), b"%d" % (2 * n + 1)]) for n in range(6)]
    items: list[Item] = list(taken(answer(*batches), WHERE, 0, 3).batches)
    assert found_in(items) == [list(range(12))]
    assert found_in(items, 3, 8) == [list(range(3, 8))]
    assert found_in(items, 12, 13) == []
    assert found_in([*items[:2], Skipped(4, 6), *items[3:]]) == [
        [0, 1, 2, 3],
        Skipped(4, 6),
        list(range(6, 12)),
    ]


def test_kafka_batches_of_different_leader_epochs_or_attributes_are_decoded_separately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [
        small(0, [b"0"]),
        small(1, [b"1"]),
        small(2, [b"2"], epoch=4),
        small(3, [b"3"], epoch=4, attributes=1 << 3),
        small(4, [b"4"], epoch=4, attributes=1 << 3),
        batch(5, [b"5"], epoch=4),
        small(6, [b"6"], epoch=4),
        small(7, [b"7"], epoch=4),
        small(8, [b"8", b"9", b"10"], epoch=4),
    ]
    monkeypatch.setattr(received, "SMALL_ROWS", 3)
    items: list[Item] = list(taken(answer(*batches), WHERE, 0, 4).batches)
    assert found_in(items) == [[0, 1], [2], [3], [4], [5], [6, 7], [8, 9, 10]]


@pytest.mark.parametrize("which", range(4))
def test_error_for_batches_that_are_decoded_together_names_the_corrupt_batch(which: int) -> None:
    batches = [small(n, [b"%d" % n]) for n in range(4)]
    batches[which][-2] ^= 1
    items: list[Item] = list(taken(answer(*batches), WHERE, 0, 3).batches)
    seen = found_in(items)
    (bad,) = [each for each in seen if isinstance(each, Skipped)]
    assert (bad.first_offset, bad.next_offset) == (which, which + 1)
    assert f"partition 1 offset {which}: " in str(bad.damage)
    assert [n for each in seen if isinstance(each, list) for n in each] == [
        n for n in range(4) if n != which
    ]


def test_corrupt_batch_after_the_end_of_the_range_is_ignored() -> None:
    batches = [small(n, [b"%d" % n]) for n in range(4)]
    batches[3][-2] ^= 1
    items: list[Item] = list(taken(answer(*batches), WHERE, 0, 3).batches)
    assert found_in(items, 0, 3) == [[0, 1, 2]]


def test_control_and_aborted_batches_decode_to_no_rows() -> None:
    policy = WalkPolicy(aborted=by_hand.ABORTED)
    data = answer(*by_hand.contiguous())
    items: list[Item] = list(walk(data, BatchWalker(policy, 0), WHERE).batches)
    found = list(decode_all([items], WHERE, 0, by_hand.END))
    rows = [row for each in found if not isinstance(each, Skipped) for row in records(WHERE, each)]
    assert [row.offset for row in rows] == by_hand.COMMITTED
    assert [row.value for row in rows] == [by_hand.value_at(at) for at in by_hand.COMMITTED]


def test_control_batch_with_a_wrong_crc_is_corrupt() -> None:
    buffer = bytearray(by_hand.marker(0, 1, by_hand.COMMIT))
    buffer[-1] ^= 1
    (marker,) = walk(answer(buffer), BatchWalker(WalkPolicy(), 0), WHERE).batches
    with pytest.raises(CorruptMessageError, match="'t' partition 1 offset 0"):
        decode(marker, WHERE, 0, None)
