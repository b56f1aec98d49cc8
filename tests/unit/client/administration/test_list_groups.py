"""All groups are all brokers' groups: one that does not tell of its own is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker_lite.client.administration.admin_requests import list_groups
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Pause, Send, SendAll
from broker_lite.errors import (
    CoordinatorLoadInProgressError,
    InvalidRequestError,
    LogbusError,
    NetworkError,
)
from broker_lite.model import Endpoint
from broker_lite.wire.calls import cluster as cluster_calls
from broker_lite.wire.calls import groups

Tells = str | int | LogbusError
"""What a broker says: the group that it keeps, an error's code, or nothing."""


def answer_of(said: Tells) -> Any:
    match said:
        case str():
            row = groups.ListedGroup(said, "consumer", "Stable", "Classic")
            return groups.ListGroupsResponse(0, 0, (row,))
        case int():
            return groups.ListGroupsResponse(0, said, ())
    return said


def play(rounds: Sequence[dict[int, Tells]], deadline_ms: float = 20_000.0) -> tuple[Any, float]:
    """The operation while the live brokers say these; the last round goes on. The groups' names, or
    the error; and how long it took, where a broker that says nothing takes the time it is given."""
    now, at = 0.0, 0
    cluster = Cluster((Endpoint("b", 1),), lambda: now)
    operation = list_groups(cluster, deadline_ms)
    result: Any = None
    try:
        while True:
            step = operation.send(result)
            here = rounds[min(at, len(rounds) - 1)]
            match step:
                case Pause(delay_ms):
                    now, result = now + delay_ms, None
                case Send():
                    brokers = tuple(
                        cluster_calls.MetadataBroker(each, "b", each, None) for each in here
                    )
                    result = cluster_calls.MetadataResponse(0, brokers, "c", 1, ())
                case SendAll(sends):
                    said = [here[send.endpoint.port] for send in sends]
                    if any(isinstance(each, NetworkError) for each in said):
                        now += max(send.timeout_ms for send in sends)
                    result = [answer_of(each) for each in said]
                    at += 1
    except StopIteration as stop:
        return [row.group_id for row in stop.value], now
    except LogbusError as error:
        return error, now


def test_a_broker_that_loads_is_asked_again() -> None:
    loads = CoordinatorLoadInProgressError.code
    assert play([{1: "b", 2: loads}, {1: "b", 2: loads}, {1: "b", 2: "a"}])[0] == ["a", "b"]


def test_the_groups_of_a_broker_that_hangs_are_waited_for_until_others_keep_them() -> None:
    """They were left out without a word: a check of all lags passed, and a mirror's last copy went
    without their offsets."""
    hangs = NetworkError("no answer")
    found, took_ms = play([{1: "b", 2: hangs}, {1: "b"}, {1: "a"}])
    assert found == ["b"] and 5_000 <= took_ms < 6_000


@pytest.mark.parametrize("said", [NetworkError("no answer"), CoordinatorLoadInProgressError.code])
def test_one_that_never_tells_is_named(said: Tells) -> None:
    error, took_ms = play([{1: "b", 2: said}])
    assert isinstance(error, LogbusError) and "broker 2 does not tell of its groups" in str(error)
    assert 19_000 <= took_ms <= 20_001


def test_what_no_second_attempt_mends_is_raised_at_once() -> None:
    error, took_ms = play([{1: "b", 2: InvalidRequestError.code}])
    assert isinstance(error, InvalidRequestError) and took_ms == 0
