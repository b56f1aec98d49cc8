"""Tests of producer state: duplicates, sequence gaps, epochs, expiry and snapshots.

The log records the last five batches of each idempotent producer, and the producer's last refused
batch.
"""

from __future__ import annotations

import pytest
from support.stored import KEY, batch

from broker_lite import errors
from broker_lite.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from broker_lite.model import NO_OFFSET
from broker_lite.record.batch import read_header
from broker_lite.storage.producer_state import CorruptSnapshot, ProducerState, decode
from broker_lite.storage.refused_batches import RefusedBatch

LAST = (1 << 31) - 1


def header(sequence: int, rows: int = 1, *, epoch: int = 0, producer: int = 7):  # type: ignore[no-untyped-def]
    return read_header(batch(rows, producer=(producer, epoch, sequence)))


def state(*sequences: int, rows: int = 1, epoch: int = 0) -> ProducerState:
    made = ProducerState()
    for sequence in sequences:
        made.update(header(sequence, rows, epoch=epoch), made.next_offset, 0)
    return made


def judge(made: ProducerState, *args: int, forgot: bool = False, **kwargs: int):  # type: ignore[no-untyped-def]
    return made.check(KEY, header(*args, **kwargs), may_have_forgotten=forgot)


def test_batch_with_the_next_sequence_is_accepted() -> None:
    assert judge(state(0, 1, 2), 3) is None


@pytest.mark.parametrize("sequence", [4, 2000, LAST])
def test_batch_after_a_sequence_gap_is_refused(sequence: int) -> None:
    with pytest.raises(OutOfOrderSequenceError, match="the partition expects 3"):
        judge(state(0, 1, 2), sequence)


def test_repeated_batch_among_the_last_five_returns_its_original_offsets() -> None:
    made = state(0, 2, 4, 6, 8, 10, rows=2)
    for sequence in (2, 4, 6, 8, 10):
        found = judge(made, sequence, 2)
        assert (found.base_offset, found.next_offset) == (sequence, sequence + 2)


@pytest.mark.parametrize(("sequence", "rows"), [(0, 2), (2, 2), (1, 1), (0, 4)])
def test_repeated_batch_before_the_last_five_is_a_duplicate_without_offsets(
    sequence: int, rows: int
) -> None:
    made = state(0, 2, 4, 6, 8, 10, 12, rows=2)
    found = judge(made, sequence, rows)
    assert (found.base_offset, found.next_offset) == (NO_OFFSET, 4)


def test_old_sequence_that_may_be_missing_in_the_log_is_refused_as_out_of_order() -> None:
    unknown = ProducerState()
    unknown.forgot = True
    for sequence in (4, 6, 8, 10, 12, 14):
        unknown.update(header(sequence, 2), unknown.next_offset, 0)
    restored = decode(state(0, 2, 4, 6, 8, 10, rows=2).encode())
    # An earlier leader, which had no state for the producer, appended sequence 6 after sequence 2.
    skipped = state(0, 2, 6, 8, 10, 12, 14, rows=2)
    for made in (unknown, restored, skipped):
        with pytest.raises(OutOfOrderSequenceError):
            judge(made, 0, 2, forgot=True)
        made.forgot = True
        with pytest.raises(OutOfOrderSequenceError):
            judge(made, 0, 2)


def test_batch_before_the_last_five_is_a_duplicate_even_after_retention() -> None:
    """If the batch were refused, Java's producer would resend the appended batch until its delivery
    timeout."""
    made = state(0, 2, 4, 6, 8, 10, rows=2)
    made.update(header(0, producer=8), made.next_offset, -10)
    made.expire(0, 10)
    assert made.forgot
    assert judge(made, 0, 2, forgot=True).base_offset == NO_OFFSET
    for sequence in (0, 2, 4, 6, 8, 10):
        made.update(header(sequence, 2, epoch=1), made.next_offset, 0)
    assert judge(made, 0, 2, epoch=1, forgot=True).base_offset == NO_OFFSET


@pytest.mark.parametrize(("sequence", "rows"), [(0, 3), (1, 2), (LAST, 1), (LAST, 2), (14, 1)])
def test_batch_that_is_neither_an_exact_retry_nor_the_next_sequence_is_refused(
    sequence: int, rows: int
) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        judge(state(0, 2, 4, 6, 8, 10, rows=2), sequence, rows)


def test_retried_batch_with_a_different_record_count_is_refused() -> None:
    with pytest.raises(OutOfOrderSequenceError):
        judge(state(0, 2, rows=2), 2, 1)


def test_sequence_wraps_after_two_to_the_31() -> None:
    made = ProducerState()
    made.update(header(LAST - 1, 2), 0, 0)
    assert judge(made, 0) is None
    made.update(header(0), 2, 0)
    made.update(header(1), 3, 0)
    assert judge(made, LAST - 1, 2).base_offset == 0


def test_sequence_may_wrap_inside_a_batch() -> None:
    made = ProducerState()
    made.update(header(LAST, 3), 0, 0)
    assert judge(made, LAST, 3).next_offset == 3
    with pytest.raises(OutOfOrderSequenceError):
        judge(made, 3)
    assert judge(made, 2) is None


def test_batch_of_an_older_producer_epoch_is_fenced() -> None:
    made = state(0, 1, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        judge(made, 2, epoch=2)
    with pytest.raises(OutOfOrderSequenceError):
        judge(made, 2, epoch=4)
    assert judge(made, 0, epoch=4) is None
    made.update(header(0, epoch=4), 2, 0)
    with pytest.raises(InvalidProducerEpochError):
        judge(made, 2, epoch=3)


@pytest.mark.parametrize(("forgot", "marked"), [(True, False), (False, True)])
def test_unknown_producer_must_begin_at_sequence_zero_unless_its_state_may_have_expired(
    forgot: bool, marked: bool
) -> None:
    made = ProducerState()
    assert judge(made, 0) is None
    with pytest.raises(OutOfOrderSequenceError):
        judge(made, 17)
    made.forgot = marked
    assert judge(made, 17, forgot=forgot) is None


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        (3, None),
        (4, errors.StorageError),
        (8, errors.StorageError),
        (LAST, OutOfOrderSequenceError),
    ],
)
def test_batch_that_follows_a_refused_batch_gets_the_same_error(
    sequence: int, expected: type[Exception] | None
) -> None:
    refused = RefusedBatch(0, 3, errors.StorageError.code, "full")
    assert behind(state(0, 1, 2), refused, sequence) is expected


def test_sequence_gap_not_caused_by_a_refused_batch_is_an_out_of_order_error() -> None:
    appended = RefusedBatch(0, 2, errors.StorageError.code, "full")
    assert behind(state(0, 1, 2), appended, 4) is OutOfOrderSequenceError
    later = RefusedBatch(0, 9, errors.StorageError.code, "full")
    assert behind(state(0, 1, 2), later, 4) is OutOfOrderSequenceError


@pytest.mark.parametrize("forgot", [False, True])
def test_second_batch_of_a_new_producer_is_refused_if_the_first_was_refused(forgot: bool) -> None:
    """After a deletion of records, a log may have forgotten producers, so it accepts any sequence.

    If the log appended the producer's second batch, it could never append the refused first batch.
    """
    refused = RefusedBatch(0, 0, errors.NotEnoughReplicasError.code, "1 of 2")
    made = ProducerState()
    assert behind(made, refused, 5, forgot) is errors.NotEnoughReplicasError
    assert behind(made, refused, 0, forgot) is None


def test_batch_after_a_refused_batch_gets_the_same_error_even_if_the_sequence_wraps() -> None:
    made = ProducerState()
    made.update(header(LAST - 1), 0, 0)
    refused = RefusedBatch(0, LAST, errors.StorageError.code, "full")
    assert behind(made, refused, 0) is errors.StorageError
    assert behind(made, refused, LAST) is None


def behind(
    made: ProducerState, refused: RefusedBatch, sequence: int, forgot: bool = False
) -> type[Exception] | None:
    """Check a batch that follows the refused batch ``refused``. Return the type of its error; None
    if the batch is accepted."""
    try:
        made.check(KEY, header(sequence), may_have_forgotten=forgot, refused=refused)
    except errors.LogbusError as error:
        return type(error)
    return None


def test_expiry_removes_idle_producers_and_marks_the_producer_state_as_incomplete() -> None:
    made = ProducerState()
    made.update(header(0), 0, 100)
    made.update(header(0, producer=8), 1, 500)
    assert made.expire(1099, 1000) == 0 and not made.forgot
    assert made.expire(1100, 1000) == 1
    assert 7 not in made and 8 in made and made.forgot


def test_producer_with_an_open_transaction_does_not_expire() -> None:
    made = state(0)
    producer = made.get(7)
    assert producer is not None
    producer.transaction_start = 0
    assert made.expire(10**9, 1) == 0
    assert 7 in made


def test_batch_without_a_producer_id_adds_no_producer_to_the_state() -> None:
    made = ProducerState()
    made.update(read_header(batch(4)), 0, 0)
    assert (len(made), made.next_offset) == (0, 4)


def test_control_batch_raises_the_epoch_and_keeps_the_sequence() -> None:
    made = state(0)
    made.update(read_header(batch(producer=(7, 1, -1), attributes=0x30)), 1, 0)
    with pytest.raises(InvalidProducerEpochError):
        judge(made, 1, epoch=0)
    assert judge(made, 0, epoch=1) is None


def test_producer_snapshot_round_trips() -> None:
    made = state(*range(8), epoch=2)
    made.forgot = True
    again = decode(made.encode())
    assert (again.next_offset, again.forgot) == (8, True)
    producer = again.get(7)
    assert producer is not None
    assert (producer.epoch, len(producer.batches), producer.last_append_ms) == (2, 5, 0)
    assert again.encode() == made.encode()


def test_producer_snapshot_with_a_flipped_byte_or_a_truncation_is_corrupt() -> None:
    data = state(*range(3)).encode()
    for i in range(len(data)):
        broken = bytearray(data)
        broken[i] ^= 1
        with pytest.raises(CorruptSnapshot):
            decode(bytes(broken))
    for length in range(len(data)):
        with pytest.raises(CorruptSnapshot):
            decode(data[:length])


def test_forget_all_removes_all_producers_from_the_producer_state() -> None:
    made = state(0, 1)
    made.forget_all(50)
    assert (len(made), made.next_offset, made.forgot) == (0, 50, True)
