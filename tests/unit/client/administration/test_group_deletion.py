"""Tests, without sockets, of a group's deletion when connections are lost before the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker_lite.client.administration.admin_requests import delete_group
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Pause, Send
from broker_lite.errors import GroupIdNotFoundError, LogbusError, NetworkError
from broker_lite.model import Endpoint
from broker_lite.wire.calls import groups
from broker_lite.wire.calls.group_removal import DeletedGroup, DeleteGroupsResponse

OK, NOT_COORDINATOR, NOT_AVAILABLE, NOT_FOUND = 0, 16, 15, 69


def play(said: Sequence[int | LogbusError]) -> int:
    """Delete group g and return the number of DeleteGroups requests that this needed.

    ``said`` holds the outcome of each request: the response's error code, or the error of a lost
    connection.
    """
    now, left = 0.0, list(said)
    cluster = Cluster((Endpoint("one", 1),), lambda: now)
    operation = delete_group(cluster, "g", 60_000.0)
    step = next(operation)
    try:
        while True:
            if isinstance(step, Pause):
                now += step.delay_ms
                step = operation.send(None)
                continue
            assert isinstance(step, Send)
            call: Any = step.exchange.call  # type: ignore[attr-defined]
            if isinstance(call, groups.FindCoordinatorRequest):
                row = groups.FoundCoordinator("g", 1, "one", 1, 0, None)
                step = operation.send(groups.FindCoordinatorResponse(0, (row,)))
                continue
            answer = left.pop(0)
            if isinstance(answer, LogbusError):
                step = operation.throw(answer)
            else:
                step = operation.send(DeleteGroupsResponse(0, (DeletedGroup("g", answer),)))
    except StopIteration:
        return len(said) - len(left)


@pytest.mark.parametrize("first", [NetworkError("the connection ended"), NOT_AVAILABLE])
def test_retried_deletion_of_a_deleted_group_succeeds(first: int | LogbusError) -> None:
    """The first request may have deleted the group, so the retry ignores GROUP_ID_NOT_FOUND."""
    assert play([first, NOT_COORDINATOR, NOT_FOUND]) == 3
    assert play([first, OK]) == 2


def test_deletion_of_an_unknown_group_fails() -> None:
    for said in ([NOT_FOUND], [NOT_COORDINATOR, NOT_FOUND]):
        with pytest.raises(GroupIdNotFoundError):
            play(said)
