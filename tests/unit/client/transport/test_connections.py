"""Tests of which connection a request uses, and when a connection is replaced; without sockets.

A *lane* names one of several connections to a broker.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker_lite.client.transport.connections import Connections
from broker_lite.client.transport.steps import CallExchange, Send
from broker_lite.errors import ClosedError, InvalidRequestError, RequestTimedOutError
from broker_lite.model import Endpoint
from broker_lite.wire.calls.producers import InitProducerIdRequest

ONE, TWO = Endpoint("one", 1), Endpoint("two", 2)
REQUEST = CallExchange(InitProducerIdRequest())


def asked(
    connections: Connections, endpoint: Endpoint, lane: str = "", timeout_ms: float = 100
) -> tuple[Any, bool, list[Any]]:
    answers: list[Any] = []
    send = Send(endpoint, REQUEST, timeout_ms, lane)
    return *connections.request(send, 0, answers.append), answers


def test_each_broker_has_separate_connections_for_long_polls_and_other_requests() -> None:
    connections = Connections("test")
    first, is_new, _ = asked(connections, ONE)
    assert is_new and asked(connections, ONE)[:2] == (first, False)
    others = [asked(connections, TWO)[0], asked(connections, ONE, "tail")[0]]
    assert {first, *others} == set(connections) and len(others) == 2
    assert connections.get(ONE, "tail") is others[1]


def test_removing_a_closed_connection_keeps_the_connection_that_replaced_it() -> None:
    connections = Connections("test")
    first, _, answers = asked(connections, ONE)
    assert connections.disconnect(ONE, "") is first and isinstance(answers[0], ClosedError)
    second, is_new, _ = asked(connections, ONE)
    assert is_new and second is not first
    connections.forget(first)  # ``second`` has the same endpoint and lane.
    assert connections.get(ONE, "") is second
    connections.forget(second)
    assert connections.get(ONE, "") is None is connections.disconnect(ONE, "")


def test_overdue_response_closes_only_its_own_connection() -> None:
    connections = Connections("test")
    assert connections.next_deadline_ms() == float("inf")
    slow, _, answers = asked(connections, ONE, timeout_ms=50)
    _, _, others = asked(connections, TWO, timeout_ms=70)
    assert connections.next_deadline_ms() == 50 and connections.expire(49) == []
    assert connections.expire(50) == [slow] and not others
    assert isinstance(answers[0], RequestTimedOutError)
    connections.close()
    assert isinstance(others[0], ClosedError)


def test_request_that_cannot_be_encoded_opens_no_connection() -> None:
    connections = Connections("test")
    unsound = CallExchange(InitProducerIdRequest(producer_id=1 << 63))
    with pytest.raises(InvalidRequestError):
        connections.request(Send(ONE, unsound), 0, lambda _: None)
    assert list(connections) == []
