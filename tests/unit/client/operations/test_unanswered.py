"""Tests of operations whose request a broker does not answer, or answers only in part."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from support.client_world import ONE, TWO, Asked, World

from broker_lite.client.operations import group_requests, requests, transaction_requests
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.group_requests import CachedCoordinator
from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.transport.steps import spawn
from broker_lite.errors import LogbusError, UnknownServerError
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls import groups
from broker_lite.wire.calls.producers import InitProducerIdResponse

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
COMMITS = {T0: CommittedOffset(5), T1: CommittedOffset(6)}
COORDINATOR = groups.FindCoordinatorResponse(
    0, (groups.FoundCoordinator("g", 1, "one", 1, 0, None),)
)


def ended(world: World, operation: Generator[Any, Any, Any], passing_ms: float = 60_000) -> Any:
    """Run an operation, and return its result or error."""
    results: list[Any] = []
    spawn(world, operation, results.append)
    world.run(passing_ms)
    [result] = results
    return result


def answers(world: World, **responses: Any) -> None:
    """Answer each request of the named APIs with the given response."""

    def answer(response: Any) -> Any:
        def answered(asked: Asked) -> None:
            world.asked.remove(asked)
            world.call_soon(lambda: asked.on_answer(response))

        return answered

    for name, response in responses.items():
        world.automatic[ApiKey[name]] = answer(response)


@pytest.mark.parametrize("kind", ["producer id", "coordinator"])
def test_request_that_any_broker_can_answer_moves_on_from_a_hung_broker(kind: str) -> None:
    """Regression: the first broker used up the time of the operation, which then failed although
    another broker would have answered at once."""
    world = World()
    cluster = Cluster((ONE, TWO), world.now_ms, has_answered=True)

    def answer_of_two(response: Any) -> Any:
        def answered(asked: Asked) -> None:
            if asked.endpoint == TWO:
                world.asked.remove(asked)
                world.call_soon(lambda: asked.on_answer(response))

        return answered

    world.automatic[ApiKey.INIT_PRODUCER_ID] = answer_of_two(InitProducerIdResponse(0, 0, 7, 0))
    world.automatic[ApiKey.FIND_COORDINATOR] = answer_of_two(COORDINATOR)
    deadline_ms = world.now + 30_000
    if kind == "producer id":
        assert ended(world, requests.init_producer_id(cluster, deadline_ms), 6000) == (7, 0)
    else:
        found = ended(world, group_requests.find_coordinator(cluster, "g", deadline_ms), 6000)
        assert found == ONE


def test_commit_fails_for_partitions_that_the_commit_response_lacks() -> None:
    """Regression: a partition that the response lacked counted as committed."""
    world = World()
    cluster = Cluster((ONE,), world.now_ms, has_answered=True)
    row = groups.CommittedTopic("t", (groups.CommittedPartition(0, 0),))
    answers(
        world,
        FIND_COORDINATOR=COORDINATOR,
        OFFSET_COMMIT=groups.OffsetCommitResponse(0, (row,)),
        TXN_OFFSET_COMMIT=groups.OffsetCommitResponse(0, (row,)),
    )
    deadline_ms = world.now + 30_000
    done = ended(world, group_requests.commit_offsets(cluster, "g", COMMITS, deadline_ms))
    assert done[T0] is None
    assert isinstance(done[T1], UnknownServerError)
    in_transaction = transaction_requests.commit_offsets(
        cluster,
        CachedCoordinator("id"),
        (1, 0),
        OffsetsToCommit("g", COMMITS),
        deadline_ms,
        version=2,
    )
    error = ended(world, in_transaction)
    assert isinstance(error, UnknownServerError)
    assert str(T1) in error.message


def test_committed_offsets_contain_an_error_for_a_partition_missing_in_the_response() -> None:
    """Regression: the reader took the missing partition for one without a committed offset, started
    at the log's end and skipped records."""
    world = World()
    cluster = Cluster((ONE,), world.now_ms, has_answered=True)
    topic = groups.FetchedOffsetsTopic("t", (groups.FetchedOffset(0, -1, -1, "", 0),))
    answers(
        world,
        FIND_COORDINATOR=COORDINATOR,
        OFFSET_FETCH=groups.OffsetFetchResponse(0, (groups.FetchedOffsetsGroup("g", (topic,), 0),)),
    )
    deadline_ms = world.now + 30_000
    found = ended(world, group_requests.committed(cluster, "g", [T0, T1], deadline_ms))
    assert list(found) == [T1]
    assert isinstance(found[T1], LogbusError)
