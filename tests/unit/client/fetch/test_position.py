"""Tests of ``FetchPosition``, a reader's position in a partition, with fetch responses from
hand-made logs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support import hand_made_log as by_hand

from broker_lite.client.fetch.position import (
    KAFKA_LOG,
    REPAIR_MS,
    Corrupt,
    Failed,
    FetchPosition,
    Retry,
    Stored,
)
from broker_lite.client.received import LogTruncatedError, WalkResult
from broker_lite.errors import (
    CorruptMessageError,
    LogbusError,
    NetworkError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownServerError,
)
from broker_lite.model import NO_EPOCH, OffsetAndEpoch, TopicPartition
from broker_lite.record.batch import read_header, stamp
from broker_lite.wire.fetch import AbortedTransaction, FetchedPartition, StoredRange

WHERE = TopicPartition("t", 0)


def batch(first: int, end: int, epoch: int = 3) -> bytes:
    made = bytearray(by_hand.rows(range(first, end)))
    stamp(made, read_header(made), first, epoch)
    return bytes(made)


def answer(
    *batches: bytes,
    aborted: Sequence[AbortedTransaction] | None = None,
    diverging: OffsetAndEpoch | None = None,
    stored: StoredRange | None = None,
) -> FetchedPartition:
    records = memoryview(b"".join(batches))
    return FetchedPartition(
        0, 0, 100, 100, 0, records, aborted, diverging, leader_id=-1, leader_epoch=-1, stored=stored
    )


def at(offset: int = 0, last_epoch: int = NO_EPOCH, leader_epoch: int = 3) -> FetchPosition:
    position = FetchPosition(WHERE, "T", offset, last_epoch=last_epoch)
    position.request(leader_epoch, 1)
    return position


def read(position: FetchPosition, *batches: bytes, leader_epoch: int = 3) -> None:
    position.request(leader_epoch, 1)
    assert isinstance(position.evaluate(answer(*batches)), WalkResult)


def test_fetch_request_has_the_leader_epoch_and_the_epoch_of_the_last_record() -> None:
    position = at(5, last_epoch=2)
    topic_id, row = position.request(7, 1000)
    assert (topic_id, row.partition, row.fetch_offset, row.max_bytes) == ("T", 0, 5, 1000)
    assert (row.current_leader_epoch, row.last_fetched_epoch) == (7, 2)
    read(position, batch(5, 9, epoch=4), leader_epoch=7)
    assert position.request(7, 1)[1].fetch_offset == 9
    assert position.request(7, 1)[1].last_fetched_epoch == 4


def test_fetch_request_has_at_least_the_leader_epoch_of_the_last_record() -> None:
    """Regression: a reader with old metadata sent the epoch of a deposed leader, which then
    answered that the offset is out of range or that the log was truncated."""
    position = at(38, last_epoch=1, leader_epoch=0)
    assert position.request(0, 1)[1].current_leader_epoch == 1


def test_position_advances_past_offset_gaps_control_batches_and_aborted_batches() -> None:
    position = at(leader_epoch=0)
    found = position.evaluate(answer(*by_hand.contiguous(), aborted=by_hand.aborted_from(0)))
    assert isinstance(found, WalkResult) and found.damage is None
    assert position.offset == by_hand.END
    assert any(each.is_void for each in found.batches)


def test_empty_fetch_response_keeps_the_position() -> None:
    position = at(5)
    assert position.evaluate(answer()) == WalkResult([], 5, None, 3)
    assert position.offset == 5


def test_offset_gap_is_corrupt_in_a_logbus_log_and_valid_in_a_kafka_log() -> None:
    ours = at()
    assert isinstance(ours.evaluate(answer(batch(0, 2), batch(4, 6))), WalkResult)
    assert ours.offset == 2
    ours.request(3, 1)
    assert isinstance(ours.evaluate(answer(batch(4, 6))), Corrupt)
    theirs = FetchPosition(WHERE, "T", policy=KAFKA_LOG)
    assert isinstance(theirs.evaluate(answer(batch(0, 2), batch(4, 6))), WalkResult)
    assert theirs.offset == 6
    # The leader of a compacted log may return a batch that ends before the requested offset.
    assert isinstance(theirs.evaluate(answer(batch(2, 4), batch(8, 9))), WalkResult)
    assert theirs.offset == 9


def test_batch_of_an_earlier_leader_epoch_than_the_previous_batch_is_corrupt() -> None:
    position = at()
    read(position, batch(0, 2))
    assert isinstance(position.evaluate(answer(batch(2, 4, epoch=2))), Corrupt)


def test_batch_of_a_later_epoch_than_the_epoch_of_the_leader_is_corrupt() -> None:
    assert isinstance(at().evaluate(answer(batch(0, 2, epoch=4))), Corrupt)


def test_fetch_position_delivers_valid_batches_and_stops_before_a_corrupt_one() -> None:
    position = at()
    found = position.evaluate(answer(batch(0, 2), bytes(100)))
    assert isinstance(found, WalkResult) and found.damage is not None
    assert position.offset == 2


def test_local_read_skips_records_of_the_log_file_below_the_position() -> None:
    """A client on the broker's machine may get a range of a log file instead of records. The first
    batch of the range may begin below the position."""
    position = at(5)
    stored = StoredRange("/x", 1, 2, 0, 100)
    found = position.evaluate(answer(stored=stored))
    assert isinstance(found, Stored)
    assert (found.stored, found.walker.offset, position.offset) == (stored, 5, 5)
    batches = list(found.walker.walk(batch(4, 8)))
    position.advance(WalkResult(batches, 8, leader_epoch=3))
    assert (position.offset, position.lineage.last_epoch) == (8, 3)


def test_diverging_epoch_in_a_fetch_response_is_reported_as_log_truncation() -> None:
    position = at()
    read(position, batch(0, 4, epoch=1), batch(4, 8, epoch=3))
    position.request(5, 1)
    found = position.evaluate(answer(diverging=OffsetAndEpoch(6, 3)))
    assert isinstance(found, Failed) and isinstance(found.error, LogTruncatedError)
    assert (found.error.offset, found.error.epoch) == (6, 3)
    assert "topic 't' partition 0 offset 8" in str(found.error) and "offset 6 on" in str(
        found.error
    )


def test_fetch_request_omits_a_last_fetched_epoch_that_the_leader_does_not_know() -> None:
    """A leader epoch in which no record was written is unknown to later leaders."""
    position = at(8, last_epoch=3)
    position.request(5, 1)
    assert position.evaluate(answer(diverging=OffsetAndEpoch(8, 2))) == Retry(None)
    assert position.request(5, 1)[1].last_fetched_epoch == NO_EPOCH


@pytest.mark.parametrize(
    ("error", "evaluation"),
    [
        (NotLeaderError("moved"), Retry),
        (NetworkError("cut"), Retry),
        (UnknownServerError("broken"), Failed),
        (OffsetOutOfRangeError("aged out"), Failed),
        (CorruptMessageError("crc"), Corrupt),
    ],
)
def test_only_retriable_fetch_errors_are_retried(error: LogbusError, evaluation: type) -> None:
    position = at(5)
    found = position.evaluate(error)
    assert isinstance(found, evaluation)
    assert position.offset == 5
    if isinstance(found, Failed):
        assert "topic 't' partition 0 offset 5: " in str(found.error)


def test_consecutive_errors_are_counted_until_a_successful_fetch() -> None:
    position = at()
    error = NetworkError("cut")
    assert [position.evaluate(error) for _ in range(3)] == [Retry(error, n) for n in range(3)]
    position.evaluate(answer())
    assert position.evaluate(error) == Retry(error, 0)


def test_reader_waits_for_the_repair_of_a_corrupt_batch_only_if_other_replicas_exist() -> None:
    position = at()
    read(position, batch(0, 2))
    assert not position.awaits_repair(1000, has_copies=False)
    assert not position.repair_until_ms
    assert position.awaits_repair(1000, has_copies=True)
    assert position.lineage.last_epoch == NO_EPOCH, "the corrupt batch may hold a wrong epoch"
    # A second corrupt response does not extend the time limit of the repair.
    position.request(3, 1)
    assert isinstance(position.evaluate(answer(bytes(100))), Corrupt)
    assert position.awaits_repair(999 + REPAIR_MS, has_copies=True)
    assert not position.awaits_repair(1000 + REPAIR_MS, has_copies=True)
    read(position, batch(2, 3))
    assert not position.repair_until_ms


def test_position_advances_past_a_skipped_batch() -> None:
    position = at()
    position.awaits_repair(1000, has_copies=True)
    position.skip_to(7)
    assert (position.offset, position.repair_until_ms) == (7, 0)
    read(position, batch(7, 8))
    assert position.offset == 8
