"""Tests of a participant: the state of transactions in one partition.

The participant accepts a producer's write only after the coordinator *verified* that the
transaction is open.
"""

from __future__ import annotations

import pytest

from broker_lite.errors import InvalidProducerEpochError
from broker_lite.transactions.participant import Participant, Verification

PID, EPOCH = 7, 3


def asked(participant: Participant, epoch: int = EPOCH) -> Verification:
    found = participant.admit(PID, epoch)
    assert found is not None
    return found


def test_later_writes_of_a_transaction_wait_until_its_first_write_is_verified() -> None:
    participant = Participant()
    first = asked(participant)
    second = asked(participant)
    assert first.token == second.token
    assert not participant.holds(second)
    assert participant.verify(first, number=1)
    assert participant.holds(first) and participant.holds(second)
    assert participant.admit(PID, EPOCH) is None


def test_write_after_a_refused_write_of_the_same_transaction_is_verified_again() -> None:
    participant = Participant()
    first = asked(participant)
    participant.refuse(first)
    assert len(participant) == 0
    assert not participant.holds(first)
    again = asked(participant)
    assert again.token != first.token
    assert not participant.verify(first)


def test_late_verification_does_not_apply_to_the_next_transaction() -> None:
    participant = Participant()
    late = asked(participant)
    assert participant.end(PID, EPOCH + 1)
    assert not participant.verify(late)
    assert not participant.holds(late)
    new = asked(participant, EPOCH + 1)
    assert not participant.verify(late), "a late answer must not verify the next transaction"
    assert participant.verify(new)


def test_verified_transaction_stays_valid_after_a_late_refusal_by_the_coordinator() -> None:
    participant = Participant()
    first = asked(participant)
    assert participant.verify(first)
    participant.refuse(first)
    assert participant.holds(first)


def test_write_that_was_waiting_when_a_marker_arrived_is_not_accepted() -> None:
    participant = Participant()
    first = asked(participant)
    assert participant.verify(first, number=1)
    assert participant.end(PID, EPOCH, number=1)
    assert not participant.holds(first)
    again = asked(participant)
    assert participant.verify(again, number=2)
    assert not participant.holds(first) and participant.holds(again)


def test_higher_producer_epoch_needs_a_new_verification_and_a_lower_one_is_refused() -> None:
    participant = Participant()
    first = asked(participant)
    second = asked(participant, EPOCH + 1)
    assert not participant.verify(first)
    assert participant.verify(second)
    with pytest.raises(InvalidProducerEpochError, match="wrote with epoch 4; epoch 3 is fenced"):
        participant.admit(PID, EPOCH)


def test_marker_of_an_earlier_transaction_does_not_invalidate_a_verified_transaction() -> None:
    participant = Participant()
    assert participant.verify(asked(participant), number=5)
    assert not participant.end(PID, EPOCH, number=4)
    assert participant.admit(PID, EPOCH) is None
    assert participant.end(PID, EPOCH, number=5)
    assert participant.admit(PID, EPOCH) is not None


def test_marker_with_only_producer_id_and_epoch_invalidates_a_verified_transaction() -> None:
    participant = Participant()
    assert participant.verify(asked(participant), number=5)
    assert participant.end(PID, EPOCH)
    assert len(participant) == 0


def test_marker_of_a_lower_producer_epoch_does_not_invalidate_a_verified_transaction() -> None:
    participant = Participant()
    assert participant.verify(asked(participant), number=5)
    assert participant.end(PID, EPOCH - 1), "the log itself refuses the marker's epoch"
    assert participant.admit(PID, EPOCH) is None


def test_lost_partition_leadership_invalidates_every_verified_transaction() -> None:
    participant = Participant()
    waiting = asked(participant)
    participant.clear()
    assert not participant.verify(waiting)
    assert asked(participant).token != waiting.token
