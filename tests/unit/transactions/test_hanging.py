"""Tests of the decision how to end a transaction that is open in a log and silent."""

from __future__ import annotations

import pytest

from broker_lite.model import PartitionKey, TopicPartition
from broker_lite.record.control import OpenTransaction
from broker_lite.transactions.hanging import (
    CoordinatorAnswers,
    KnownTransaction,
    LedTransaction,
    SilentTransactions,
    Verdict,
)

OPEN = OpenTransaction(7, 5, 1, 100, 104)
"""A transaction of producer 7 and epoch 5, open from offset 100."""
KEY = PartitionKey("AAECAwQFBgcICQoLDA0ODw", 0)
ROW = LedTransaction(KEY, TopicPartition("t", 0), 3, OPEN)
OTHER = KnownTransaction(8, 5, "CompleteCommit")
LATER = KnownTransaction(7, 6, "CompleteCommit")


def judge(answers: dict[int, tuple[KnownTransaction, ...]]) -> Verdict:
    """Return the verdict on ``OPEN`` after these answers, by partition."""
    found = CoordinatorAnswers((0, 1, 2))
    for partition, known in answers.items():
        found.add(partition, known)
    return found.judge(OPEN)


def of_state(state: str) -> KnownTransaction:
    return KnownTransaction(7, 5, state)


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("CompleteCommit", Verdict.COMMIT),
        ("CompleteAbort", Verdict.ABORT),
        ("Ongoing", Verdict.OPEN),
        ("PrepareCommit", Verdict.OPEN),
        ("PrepareAbort", Verdict.OPEN),
        ("PrepareEpochFence", Verdict.OPEN),
        ("A state of a later version", Verdict.OPEN),
    ],
)
@pytest.mark.parametrize("missing", [{}, {0: (), 1: (OTHER,)}])
def test_one_coordinator_that_knows_the_transaction_decides(
    state: str, verdict: Verdict, missing: dict[int, tuple[KnownTransaction, ...]]
) -> None:
    assert judge({**missing, 2: (OTHER, of_state(state))}) is verdict


@pytest.mark.parametrize("known", [(), (OTHER,), (LATER,)])
def test_transaction_that_no_coordinator_knows_is_aborted(
    known: tuple[KnownTransaction, ...],
) -> None:
    assert judge({0: known, 1: (), 2: ()}) is Verdict.FORGOTTEN


@pytest.mark.parametrize("answers", [{}, {0: ()}, {0: (LATER,), 2: ()}])
def test_transaction_stays_open_until_all_coordinators_have_answered(
    answers: dict[int, tuple[KnownTransaction, ...]],
) -> None:
    assert judge(answers) is Verdict.UNANSWERED


def test_transaction_is_silent_after_the_full_time_without_a_change() -> None:
    silent = SilentTransactions(1000)
    assert silent.observe(500, [ROW]) == []
    assert silent.observe(1499, [ROW]) == []
    assert silent.observe(1500, [ROW]) == [ROW]
    assert silent.observe(9000, [ROW]) == [ROW]


@pytest.mark.parametrize(
    "changed",
    [
        ROW._replace(transaction=OPEN._replace(last_offset=105)),
        ROW._replace(leader_epoch=4),
    ],
    ids=["another batch", "another leader epoch"],
)
def test_change_of_a_transaction_starts_its_time_anew(changed: LedTransaction) -> None:
    silent = SilentTransactions(1000)
    assert silent.observe(0, [ROW]) == []
    assert silent.observe(1000, [changed]) == []
    assert silent.observe(1999, [changed]) == []
    assert silent.observe(2000, [changed]) == [changed]


def test_transaction_that_ended_is_forgotten() -> None:
    silent = SilentTransactions(1000)
    silent.observe(0, [ROW])
    assert silent.observe(500, []) == []
    assert silent.observe(1000, [ROW]) == []
