"""Tests of ``list_groups``, which sends ListGroups to all brokers, and again if one fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.operation_player import OperationPlayer

from broker_lite.client.administration.admin_requests import list_groups
from broker_lite.client.transport.steps import Send
from broker_lite.errors import (
    CoordinatorLoadInProgressError,
    InvalidRequestError,
    LogbusError,
    NetworkError,
)
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import groups

Tells = str | int | LogbusError
"""A broker's response: the name of its group, an error code, or a network error."""


def answer_of(said: Tells) -> Any:
    match said:
        case str():
            row = groups.ListedGroup(said, "consumer", "Stable", "Classic")
            return groups.ListGroupsResponse(0, 0, (row,))
        case int():
            return groups.ListGroupsResponse(0, said, ())
    return said


def play(rounds: Sequence[dict[int, Tells]], deadline_ms: float = 20_000.0) -> tuple[Any, float]:
    """Run ``list_groups``; return the groups' names or the error, and the elapsed ms.

    Each of ``rounds`` maps the live brokers to their responses to one round of requests. The last
    round repeats. A network error takes as long as the request's time-out.
    """
    player, at = OperationPlayer("b"), 0

    def answer(step: Any) -> Any:
        nonlocal at
        here = rounds[min(at, len(rounds) - 1)]
        if isinstance(step, Send):
            brokers = tuple(cluster_calls.MetadataBroker(each, "b", each, None) for each in here)
            return cluster_calls.MetadataResponse(0, brokers, "c", 1, ())
        said = [here[send.endpoint.port] for send in step.sends]
        if any(isinstance(each, NetworkError) for each in said):
            player.now_ms += max(send.timeout_ms for send in step.sends)
        at += 1
        return [answer_of(each) for each in said]

    try:
        listed = player.run(list_groups(player.cluster, deadline_ms), answer)
    except LogbusError as error:
        return error, player.now_ms
    return [row.group_id for row in listed], player.now_ms


def test_list_groups_repeats_the_request_to_a_broker_that_still_loads_its_groups() -> None:
    loads = CoordinatorLoadInProgressError.code
    assert play([{1: "b", 2: loads}, {1: "b", 2: loads}, {1: "b", 2: "a"}])[0] == ["a", "b"]


def test_list_groups_waits_until_other_brokers_take_over_from_a_hung_broker() -> None:
    """Otherwise a check of all groups' lags would pass without the groups of the hung broker."""
    hangs = NetworkError("no answer")
    found, took_ms = play([{1: "b", 2: hangs}, {1: "b"}, {1: "a"}])
    assert found == ["b"] and 5_000 <= took_ms < 6_000


@pytest.mark.parametrize("said", [NetworkError("no answer"), CoordinatorLoadInProgressError.code])
def test_list_groups_error_names_the_broker_that_never_answers(said: Tells) -> None:
    error, took_ms = play([{1: "b", 2: said}])
    assert isinstance(error, LogbusError) and "broker 2 did not list its groups" in str(error)
    assert 19_000 <= took_ms <= 20_001


def test_list_groups_raises_a_non_retriable_error_at_once() -> None:
    error, took_ms = play([{1: "b", 2: InvalidRequestError.code}])
    assert isinstance(error, InvalidRequestError) and took_ms == 0
