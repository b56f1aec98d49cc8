"""Tests of transactions in one log: last stable offset, aborted transactions, and recovery."""

from __future__ import annotations

import dataclasses

import pytest
from support.stored import SMALL, Disk, append, batch

from broker_lite.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogbusError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header
from broker_lite.record.control import Marker, OpenTransaction
from broker_lite.storage.log import Log
from broker_lite.storage.lookups import first_at, offset_for_max_timestamp, offset_for_timestamp
from broker_lite.storage.reader import LogReader

TRANSACTIONAL = fmt.ATTRIBUTE_TRANSACTIONAL


def write(log: Log, producer: int = 7, epoch: int = 0, sequence: int = 0, **fields: int) -> int:
    """Append a transactional batch of one row; return the row's offset."""
    data = batch(producer=(producer, epoch, sequence), attributes=TRANSACTIONAL, **fields)
    return append(log, data).base_offset


def end(
    log: Log, producer: int = 7, *, commit: bool = False, epoch: int = 0, coordinator: int = 1
) -> LogbusError | None:
    marker = Marker(producer, epoch, coordinator, commit)
    return log.append_markers([marker], 1, 0).errors[0]


def aborted(log: Log, start: int = 0, stop: int = 1 << 40) -> list[tuple[int, int, int]]:
    return [
        (one.producer_id, one.first_offset, one.last_offset)
        for one in log.reader.aborted_in(start, stop)
    ]


def stable(log: Log, high_watermark: int | None = None) -> int:
    return log.reader.last_stable_offset(
        log.log_end_offset if high_watermark is None else high_watermark
    )


# Open transactions and uncommitted markers bound the last stable offset.


def test_last_stable_offset_without_transactions_is_the_high_watermark() -> None:
    disk = Disk()
    disk.write(3)
    assert disk.log.reader.unstable is None and disk.log.reader.transactions_from == -1
    assert stable(disk.log, 2) == 2


def test_open_transaction_bounds_the_last_stable_offset() -> None:
    log = Disk().log
    append(log)
    write(log)
    append(log)
    assert stable(log) == 1
    assert stable(log, 0) == 0
    assert log.reader.transactions_from == 1


@pytest.mark.parametrize("commit", [True, False])
def test_marker_above_the_high_watermark_bounds_the_last_stable_offset(commit: bool) -> None:
    log = Disk().log
    write(log)
    assert end(log, commit=commit) is None
    assert log.log_end_offset == 2
    assert [stable(log, high_watermark) for high_watermark in (0, 1, 2)] == [0, 0, 2]


def test_oldest_open_transaction_bounds_the_last_stable_offset() -> None:
    log = Disk().log
    for producer in (1, 2, 3):
        write(log, producer)
    end(log, 2)
    assert stable(log) == 0
    end(log, 1)
    assert stable(log) == 2
    end(log, 3)
    assert stable(log) == log.log_end_offset


def test_ended_transaction_does_not_hold_back_stable_offset_once_its_marker_is_committed() -> None:
    log = Disk().log
    for sequence in range(5):
        write(log, sequence=sequence)
        end(log)
    assert log.reader.unstable is not None and len(log.reader.unstable.ended) == 5
    log.committed_end = log.log_end_offset
    write(log, sequence=5)
    assert log.reader.unstable.ended == ()


def test_readers_see_an_open_transaction_before_they_see_its_first_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that sees the new log end must also see the transaction that the append opened."""
    log = Disk().log
    seen: list[tuple[int, object]] = []

    class Watched(LogReader):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "tail":
                seen.append((value[0], self.unstable))  # type: ignore[index]
            super().__setattr__(name, value)

    monkeypatch.setattr(log.reader, "__class__", Watched)
    write(log)
    ((end_offset, unstable),) = seen
    assert end_offset == 1 and unstable is not None


# The log accepts or refuses transactional batches and markers.


def test_non_transactional_batch_of_a_producer_with_an_open_transaction_is_refused() -> None:
    log = Disk().log
    write(log)
    with pytest.raises(InvalidTxnStateError, match="open transaction"):
        append(log, batch(producer=(7, 0, 1)))
    end(log)
    assert append(log, batch(producer=(7, 0, 1))).base_offset == 2


def test_batch_over_an_open_transaction_of_an_older_epoch_is_refused() -> None:
    """An unclean election may lose a transaction's marker. The records of the next transaction
    would then get the outcome of both."""
    log = Disk().log
    write(log)
    with pytest.raises(InvalidTxnStateError, match=r"epoch 1, but .* epoch 0 is still open"):
        write(log, epoch=1)
    end(log, commit=True)
    assert write(log, epoch=1) == 2


def test_duplicate_of_a_transactional_batch_returns_its_offset() -> None:
    log = Disk().log
    write(log)
    data = batch(producer=(7, 0, 0), attributes=TRANSACTIONAL)
    assert append(log, data).duplicate


def test_unknown_producer_of_transaction_version_2_must_begin_at_sequence_0() -> None:
    disk = Disk()
    disk.write(3)
    disk.log.delete_records_before(2)
    data = batch(producer=(7, 3, 4), attributes=TRANSACTIONAL)
    with pytest.raises(OutOfOrderSequenceError, match="must begin at sequence 0"):
        disk.log.append_as_leader(data, read_header(data), 1, 0, begins_at_zero=True)
    assert append(disk.log, data).base_offset == 3


def test_marker_of_an_empty_transaction_fences_late_batches_of_the_transaction() -> None:
    """A batch may reach a new leader after its transaction was aborted at the former leader."""
    log = Disk().log
    marked = log.append_markers([Marker(7, 1, 1, False, True)], 1, 0)
    assert marked == (0, 1, (None,))
    with pytest.raises(InvalidProducerEpochError):
        write(log)
    assert write(log, epoch=1) == 1


def test_repeated_marker_is_not_appended_again() -> None:
    log = Disk().log
    write(log)
    repeated = Marker(7, 1, 1, False, True)
    for _ in range(2):
        assert log.append_markers([repeated], 1, 0).errors == (None,)
        assert log.log_end_offset == 2


def test_marker_of_a_deposed_coordinator_is_refused() -> None:
    log = Disk().log
    write(log)
    end(log, coordinator=5)
    write(log, sequence=1)
    assert isinstance(end(log, coordinator=4), TransactionCoordinatorFencedError)
    assert end(log, coordinator=5) is None
    # The coordinator epoch is checked even if no transaction is open.
    assert isinstance(end(log, coordinator=4), TransactionCoordinatorFencedError)


@pytest.mark.parametrize(
    ("raises_epoch", "epoch", "is_refused"),
    [(True, 3, True), (True, 4, False), (False, 2, True), (False, 3, False), (False, 4, False)],
)
def test_marker_with_a_lower_epoch_than_its_transaction_version_requires_is_refused(
    raises_epoch: bool, epoch: int, is_refused: bool
) -> None:
    log = Disk().log
    write(log, epoch=3)
    (error,) = log.append_markers([Marker(7, epoch, 1, True, raises_epoch)], 1, 0).errors
    assert isinstance(error, InvalidProducerEpochError) is is_refused
    assert log.log_end_offset == 1 + (not is_refused)


def test_marker_of_a_hanging_transaction_is_refused_once_its_producer_has_written_again() -> None:
    log = Disk().log
    write(log, 1)
    end(log, 1, coordinator=4)
    write(log, 1, sequence=1)
    write(log, 2, epoch=3)
    found = log.open_transactions()
    assert found == [OpenTransaction(1, 0, 4, 2, 2), OpenTransaction(2, 3, -1, 3, 3)]
    write(log, 1, sequence=2)
    markers = [one.marker(False) for one in found]
    assert [type(each) for each in log.append_markers(markers, 1, 0).errors] == [
        InvalidTxnStateError,
        type(None),
    ]
    (still,) = log.open_transactions()
    assert still == OpenTransaction(1, 0, 4, 2, 4)
    # Another marker has ended the transaction of producer 2, so this one is not appended.
    end_offset = log.log_end_offset
    (error,) = log.append_markers([markers[1]], 1, 0).errors
    assert isinstance(error, InvalidTxnStateError) and log.log_end_offset == end_offset
    assert log.append_markers([still.marker(True)], 1, 0).errors == (None,)
    assert log.open_transactions() == []
    assert aborted(log) == [(1, 0, 1), (2, 3, 5)]


def test_marker_raises_the_producers_epoch() -> None:
    log = Disk().log
    write(log)
    log.append_markers([Marker(7, 1, 1, True, True)], 1, 0)
    with pytest.raises(InvalidProducerEpochError):
        write(log, sequence=1)
    assert write(log, epoch=1) == 2


def test_markers_of_one_request_are_written_in_one_append() -> None:
    log = Disk().log
    for producer in (1, 2, 3):
        write(log, producer, epoch=2)
    markers = [
        Marker(1, 2, 1, True),
        Marker(2, 1, 1, True),  # The producer epoch is too old.
        Marker(3, 2, 1, False),
        Marker(1, 2, 1, True),  # The marker repeats the first one.
        Marker(9, 0, 1, True),  # The producer is unknown.
    ]
    info = log.append_markers(markers, 1, 0)
    assert (info.base_offset, info.next_offset) == (3, 6)
    refused = [type(error).__name__ for error in info.errors]
    assert refused == ["NoneType", "InvalidProducerEpochError", "NoneType", "NoneType", "NoneType"]
    assert stable(log) == 1


# The reader lists the aborted transactions of a range of offsets.


def test_aborted_transactions_of_an_offset_range_are_listed() -> None:
    log = Disk().log
    write(log, 1)  # offset 0
    write(log, 2)  # offset 1
    end(log, 1, commit=True)  # offset 2
    end(log, 2)  # offset 3
    append(log)  # offset 4
    write(log, 3)  # offset 5
    end(log, 3)  # offset 6
    assert aborted(log) == [(2, 1, 3), (3, 5, 6)]
    assert aborted(log, 0, 1) == []
    assert aborted(log, 0, 2) == [(2, 1, 3)]
    assert aborted(log, 3, 5) == [(2, 1, 3)]
    assert aborted(log, 4, 5) == []


def test_transaction_aborted_in_a_later_segment_is_listed() -> None:
    disk = Disk()
    log = disk.log
    write(log)
    while log.reader.segment_count < 3:
        append(log, batch(size=1500))
    end(log)
    write(log, sequence=1)
    marker = log.log_end_offset
    end(log)
    assert aborted(log, 0, 1)[0][1:] == (0, marker - 2)
    assert len(aborted(log, 0, 1)) == 1


@pytest.mark.parametrize("is_clean", [True, False])
def test_transactions_that_span_segments_are_known_after_a_restart(is_clean: bool) -> None:
    disk = Disk()
    fill_segments(disk.log)
    expected = aborted(disk.log)
    assert len(expected) > 5
    before = stable(disk.log), disk.log.reader.transactions_from
    disk.log.flush()
    disk.manager.checkpoint()
    disk.reopen(clean=is_clean)
    assert aborted(disk.log) == expected
    assert (stable(disk.log), disk.log.reader.transactions_from) == before
    assert isinstance(end(disk.log, 99, coordinator=0), TransactionCoordinatorFencedError)
    end(disk.log, 99, coordinator=2)
    assert stable(disk.log) == disk.log.log_end_offset


def fill_segments(log: Log, count: int = 60) -> None:
    """Fill segments with plain, committed and aborted batches; leave the last transaction of
    producer 99 open."""
    for i in range(count):
        producer = 1 + i % 3
        write(log, producer, sequence=i // 3, size=400)
        if i % 4 == 3:
            end(log, producer, commit=i % 8 == 3)
        append(log, batch(size=300))
    for producer in (1, 2, 3):
        end(log, producer)
    write(log, 99)
    end(log, 99, commit=True)
    write(log, 99, sequence=1)
    append(log)


@pytest.mark.parametrize("damage", ["remove", "flip", "shrink"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_lost_transaction_index_is_rebuilt_from_the_log(damage: str, which: int) -> None:
    disk = Disk()
    fill_segments(disk.log)
    expected = aborted(disk.log)
    disk.manager.close_clean()
    name = disk.names(".txnindex")[which]
    if damage == "remove":
        disk.remove(name)
    elif damage == "flip":
        disk.flip(name, disk.open(name).size // 2)
    else:
        disk.shrink(name, 34)
    disk.reopen()
    assert aborted(disk.log) == expected


def test_aborted_transactions_are_known_although_all_indexes_and_snapshots_were_lost() -> None:
    disk = Disk()
    fill_segments(disk.log)
    expected = aborted(disk.log)
    disk.manager.close_clean()
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        for name in disk.names(suffix):
            disk.remove(name)
    disk.reopen()
    assert aborted(disk.log) == expected
    assert disk.log.reader.transactions_from == 0


def test_log_without_transactions_writes_files_that_older_versions_can_read() -> None:
    disk = Disk()
    for sequence in range(40):
        append(disk.log, batch(size=400, producer=(7, 0, sequence)))
    disk.manager.close_clean()
    assert disk.names(".txnindex") == []
    for name in disk.names(".snapshot"):
        assert disk.content(name)[4:6] == b"\0\1"
    for name in disk.names(".index"):
        assert disk.content(name)[6:8] == b"\0\0"


def test_producer_snapshot_contains_a_marker_that_is_not_yet_committed() -> None:
    disk = Disk()
    write(disk.log)
    end(disk.log)
    disk.reopen(clean=True)
    assert [stable(disk.log, high_watermark) for high_watermark in (1, 2)] == [0, 2]


# Truncation removes batches and markers of transactions.


def test_truncation_reopens_a_transaction_whose_marker_it_removes() -> None:
    log = Disk().log
    write(log)
    append(log)
    end(log)
    assert stable(log) == 3
    log.truncate_to(2)
    assert aborted(log) == []
    assert stable(log) == 0
    end(log, commit=True)
    assert aborted(log) == [] and stable(log) == 3


def test_truncation_drops_a_transaction_whose_first_batch_it_removes() -> None:
    log = Disk().log
    append(log)
    write(log)
    append(log)
    log.truncate_to(1)
    assert stable(log) == 1 and log.reader.unstable is None
    append(log)
    assert stable(log) == 2


@pytest.mark.parametrize("cut", [1, 17, 40, 41, 60, 100, 138])
def test_truncation_and_restart_keep_the_aborted_transactions_below_the_new_end(cut: int) -> None:
    disk, other = Disk(), Disk()
    fill_segments(disk.log)
    fill_segments(other.log)
    disk.log.flush()
    disk.log.truncate_to(cut)
    expected = [one for one in aborted(other.log) if one[2] < disk.log.log_end_offset]
    assert aborted(disk.log) == expected
    held = stable(disk.log)
    fill_after = [append(disk.log).base_offset for _ in range(30)]
    assert fill_after[0] == cut
    assert stable(disk.log) == (held if held < cut else disk.log.log_end_offset)
    disk.log.flush()
    disk.reopen()
    assert aborted(disk.log) == expected


def test_truncation_at_the_offset_of_a_producer_snapshot_forgets_later_aborted_transactions() -> (
    None
):
    disk = Disk()
    write(disk.log, 6)
    disk.reopen(clean=True)
    write(disk.log)
    end(disk.log)
    while disk.log.reader.segment_count < 2:
        append(disk.log)
    disk.reopen()
    disk.log.truncate_to(1)
    assert aborted(disk.log) == []
    assert stable(disk.log) == 0


def test_log_reset_to_a_new_start_offset_has_no_transactions() -> None:
    log = Disk().log
    write(log)
    end(log)
    write(log, sequence=1)
    log.start_at(50)
    assert log.reader.unstable is None and log.reader.transactions_from == -1
    assert aborted(log, 50) == []
    append(log)
    assert stable(log) == 51


def test_full_truncation_to_a_lower_offset_also_lowers_the_high_watermark() -> None:
    """Regression: ``start_at`` removed batches but kept their high watermark. New markers below it
    counted as committed."""
    log = Disk().log
    log.start_at(100)
    append(log)
    log.committed_end = 101
    log.start_at(50)
    write(log)
    end(log)
    assert stable(log, 51) == 50


# Retention and deleted records affect open transactions.


def test_retention_keeps_the_segments_of_an_open_transaction() -> None:
    disk = Disk(dataclasses.replace(SMALL, retention_bytes=0))
    log = disk.log
    append(log, batch(size=3000))
    append(log, batch(size=3000))
    write(log)
    for _ in range(3):
        append(log, batch(size=3000))
    assert len(log.apply_retention(0, stable(log))) == 1
    assert log.log_start_offset <= stable(log)
    end(log)
    assert len(log.apply_retention(0, stable(log))) > 0


def test_deleting_records_of_an_open_transaction_advances_the_last_stable_offset() -> None:
    disk = Disk()
    log = disk.log
    write(log)
    for _ in range(4):
        append(log)
    log.delete_records_before(3)
    assert stable(log) == 3
    disk.log.flush()
    disk.reopen()
    assert stable(disk.log) == 3
    end(disk.log)
    assert stable(disk.log) == disk.log.log_end_offset
    assert [one[0] for one in aborted(disk.log, 3)] == [7]


# A follower derives the transactions from the fetched batches.


def test_follower_records_the_same_transactions_as_its_leader() -> None:
    leader, follower = Disk(), Disk()
    fill_segments(leader.log)
    offset = 0
    while offset < leader.log.log_end_offset:
        piece = leader.log.reader.read(offset, 3000, leader.log.log_end_offset)
        follower.log.append_as_follower(memoryview(bytearray(piece.read())), 1, 0)
        offset = piece.next_offset
        held = follower.log.reader.last_stable_offset(offset)
        assert held <= leader.log.reader.last_stable_offset(leader.log.log_end_offset)
    assert aborted(follower.log) == aborted(leader.log)
    assert stable(follower.log) == stable(leader.log)
    assert follower.log.reader.transactions_from == leader.log.reader.transactions_from


def test_last_stable_offset_is_not_below_a_log_start_offset_within_a_batch() -> None:
    """The open transaction's batch begins below the log start. If this follower led with the
    batch's offset as last stable offset, Spark would report data loss."""
    leader, follower = Disk(), Disk()
    rows = batch(10, producer=(7, 0, 0), attributes=TRANSACTIONAL)
    append(leader.log, rows)
    follower.log.start_at(5)
    piece = leader.log.reader.read(5, 3000, 10)
    follower.log.append_as_follower(memoryview(bytearray(piece.read())), 1, 0)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (5, 10)
    assert stable(follower.log) == 5 and stable(follower.log, 3) == 3


# Lookups by timestamp return no markers.


def test_timestamp_lookups_skip_transaction_markers() -> None:
    log = Disk().log
    write(log, timestamp=1000)
    log.append_markers([Marker(7, 0, 1, True)], 1, 9000)
    newest = offset_for_max_timestamp(log.reader, log.log_end_offset, [])
    assert newest is not None and newest.offset == 0
    assert offset_for_timestamp(log.reader, 2000, log.log_end_offset, []) is None
    assert first_at(log.reader, 1, log.log_end_offset) is None
