"""Tests, without sockets, of a group's deletion when connections are lost before the response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.operation_player import OperationPlayer, coordinator_of

from broker_lite.client.administration.admin_requests import delete_group
from broker_lite.errors import GroupIdNotFoundError, LogbusError, NetworkError
from broker_lite.wire.calls import groups
from broker_lite.wire.calls.group_removal import DeletedGroup, DeleteGroupsResponse

OK, NOT_COORDINATOR, NOT_AVAILABLE, NOT_FOUND = 0, 16, 15, 69


def play(said: Sequence[int | LogbusError]) -> int:
    """Delete group g and return the number of DeleteGroups requests that this needed.

    ``said`` holds the outcome of each request: the response's error code, or the error of a lost
    connection.
    """
    player, left = OperationPlayer(), list(said)

    def answer(step: Any) -> Any:
        if isinstance(step.exchange.call, groups.FindCoordinatorRequest):
            return coordinator_of("g")
        found = left.pop(0)
        if isinstance(found, LogbusError):
            return found
        return DeleteGroupsResponse(0, (DeletedGroup("g", found),))

    player.run(delete_group(player.cluster, "g", 60_000.0), answer)
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
