"""Tests of ``lag_of_groups``, which requests the lags of many groups in few requests.

The groups' coordinators move to other brokers or fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.operation_player import OperationPlayer

from broker_lite.client.administration.many_groups import GROUPS_AT_ONCE, GroupLag, lag_of_groups
from broker_lite.client.transport.steps import Send, SendAll
from broker_lite.errors import GroupIdNotFoundError, NetworkError, NotCoordinatorError
from broker_lite.wire.calls import groups

Answer = Callable[[int, str], int | NetworkError]
"""Returns the error code for a group and a port."""


def play(
    names: list[str],
    home: Callable[[str, int], int],
    code: Callable[[str, int, int], Any],
    empty: frozenset[str] = frozenset(),
) -> tuple[dict[str, GroupLag], list[list[int]]]:
    """Run ``lag_of_groups``. Return its result, and for each set of requests that it sends together
    the number of groups in each request.

    ``round`` is the number of backoffs (``Pause``) so far. ``home(group, round)`` returns the port
    of the group's coordinator. ``code(group, port, round)`` returns the coordinator's error code,
    or a network error.
    """
    player, sizes = OperationPlayer("b"), []

    def respond(step: Any) -> Any:
        rounds = len(player.pauses)
        if isinstance(step, SendAll):
            sizes.append([asked(send) for send in step.sends])
            return [answer(send, code, rounds) for send in step.sends]
        rows = [
            groups.FoundCoordinator(key, 0, "b", home(key, rounds), 0, None)
            for key in step.exchange.call.coordinator_keys
        ]
        return groups.FindCoordinatorResponse(0, tuple(rows))

    operation = lag_of_groups(player.cluster, names, lambda: 0.0, 20_000.0, empty=empty)
    return player.run(operation, respond), sizes


def asked(send: Send) -> int:
    return len(send.exchange.call.groups)


def answer(send: Send, code: Callable[[str, int, int], Any], rounds: int) -> Any:
    call, port = send.exchange.call, send.endpoint.port
    if isinstance(call, groups.OffsetFetchRequest):
        names = [row.group_id for row in call.groups]
        if isinstance(code(names[0], port, rounds), NetworkError):
            return code(names[0], port, rounds)
        return groups.OffsetFetchResponse(
            0, tuple(groups.FetchedOffsetsGroup(name, (), 0) for name in names)
        )
    return groups.DescribeGroupsResponse(
        0,
        tuple(
            groups.DescribedGroup(code(name, port, rounds), None, name, "Empty", "consumer", "", ())
            for name in call.groups
            if not isinstance(code(name, port, rounds), NetworkError)
        ),
    )


def test_groups_of_one_coordinator_are_split_into_requests_of_limited_size() -> None:
    names = [f"g{n}" for n in range(250)]
    found, sizes = play(names, lambda name, _: 1 + int(name[1:]) % 2, lambda *_: 0)
    assert list(found) == names
    assert {row.state for row in found.values()} == {"Empty"}
    assert sizes == [[GROUPS_AT_ONCE] * 4, [25] * 4]


def test_group_lag_does_not_describe_groups_known_to_be_empty() -> None:
    names = ["a", "b", "c"]
    found, sizes = play(names, lambda *_: 1, lambda *_: 0, frozenset("ac"))
    assert {row.state for row in found.values()} == {"Empty"} and list(found) == names
    assert sizes == [[3, 1]]


def test_moved_group_is_requested_from_its_new_coordinator() -> None:
    moved = NotCoordinatorError.code

    def code(name: str, port: int, _: int) -> int:
        return moved if (name, port) == ("b", 1) else 0

    found, sizes = play(["a", "b"], lambda name, rounds: 2 if rounds else 1, code)
    assert {name: row.error for name, row in found.items()} == {"a": None, "b": None}
    assert sizes == [[2, 2], [1, 1]]


def test_unreachable_coordinator_fails_only_its_own_groups() -> None:
    gone = NetworkError("refused")

    def code(name: str, port: int, _: int) -> Any:
        return gone if port == 2 else GroupIdNotFoundError.code if name == "none" else 0

    found, _ = play(["a", "b", "none"], lambda name, _: 2 if name == "b" else 1, code)
    assert found["b"].error is gone and not found["b"].partitions
    assert (found["a"].state, found["a"].error) == ("Empty", None)
    assert (found["none"].state, found["none"].error) == ("Dead", None)
