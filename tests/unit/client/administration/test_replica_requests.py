"""Tests of elections and reassignments whose first response is lost."""

from __future__ import annotations

from typing import Any

import pytest
from support.operation_player import OperationPlayer

from broker_lite.client.administration.replica_requests import elect_leaders, reassign
from broker_lite.client.transport.steps import Send, SendAll
from broker_lite.errors import (
    ElectionNotNeededError,
    LogbusError,
    NetworkError,
    NoReassignmentInProgressError,
)
from broker_lite.model import TopicPartition
from broker_lite.wire.calls import replicas as calls
from broker_lite.wire.calls.cluster import MetadataBroker, MetadataResponse

TP = TopicPartition("t", 0)
DEADLINE_MS = 10_000.0
METADATA = MetadataResponse(0, (MetadataBroker(1, "one", 1, None),), "c", 1, ())
ELECTED = calls.ElectLeadersResponse(
    0,
    0,
    (
        calls.ReplicaElectionResult(
            "t", (calls.PartitionResult(0, ElectionNotNeededError.code, None),)
        ),
    ),
)
MOVED = calls.AlterPartitionReassignmentsResponse(
    0,
    True,
    0,
    None,
    (
        calls.ReassignableTopicResponse(
            "t",
            (calls.ReassignablePartitionResponse(0, NoReassignmentInProgressError.code, None),),
        ),
    ),
)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("change", ["election", "reassignment"])
def test_repeated_election_or_reassignment_that_is_done_already_is_no_error(
    change: str, is_lost: bool
) -> None:
    """If the response to the first request is lost, that request may have made the change."""
    player = OperationPlayer()
    lost: list[LogbusError] = [NetworkError("the connection ended")] if is_lost else []

    def answer(step: Send | SendAll) -> Any:
        assert isinstance(step, Send)
        if step.exchange.name == "Metadata":
            return METADATA
        if lost:
            return lost.pop()
        return ELECTED if change == "election" else MOVED

    if change == "election":
        outcomes = player.run(
            elect_leaders(player.cluster, [TP], DEADLINE_MS, unclean=False), answer
        )
    else:
        outcomes = player.run(reassign(player.cluster, {TP: None}, DEADLINE_MS), answer)
    assert (outcomes[TP] is None) is is_lost
