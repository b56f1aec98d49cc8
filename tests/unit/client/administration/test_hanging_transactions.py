"""Tests of the outcome that an administrator's marker gives to a hanging transaction."""

from __future__ import annotations

import pytest

from broker_lite.client.administration.transactions import (
    Holder,
    OpenInLog,
    TransactionDescription,
)
from broker_lite.model import TopicPartition

TP = TopicPartition("t", 0)
ROW = OpenInLog(TP, 7, 5, 1, 100, 1_000)
"""A transaction of producer 7 and epoch 5, open from offset 100."""


@pytest.mark.parametrize(
    ("state", "epoch", "version", "tps", "outcome"),
    [
        ("CompleteCommit", 6, 2, (), "commit"),
        ("CompleteAbort", 6, 2, (), "abort"),
        ("CompleteCommit", 5, 1, (), "commit"),
        ("CompleteAbort", 5, 1, (), "abort"),
        # The coordinator has committed a later transaction, and no longer knows this one's outcome.
        ("CompleteCommit", 7, 2, (), "abort"),
        ("CompleteCommit", 6, 1, (), "abort"),
        ("Ongoing", 6, 2, (TP,), "abort"),
        # The commit is decided, and its marker is on the way.
        ("PrepareCommit", 6, 2, (TP,), "commit"),
        ("PrepareCommit", 6, 2, (), "abort"),
        ("PrepareAbort", 6, 2, (TP,), "abort"),
    ],
)
def test_outcome_is_commit_only_if_the_coordinator_committed_this_very_transaction(
    state: str, epoch: int, version: int, tps: tuple[TopicPartition, ...], outcome: str
) -> None:
    owner = TransactionDescription("etl", state, 7, epoch, 60_000, -1, tps, version)
    assert Holder(ROW, owner, 1_000).outcome == outcome


def test_outcome_is_abort_if_no_coordinator_knows_the_producer() -> None:
    assert Holder(ROW, None, 1_000).outcome == "abort"
