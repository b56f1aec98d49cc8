"""Tests of changes of quotas and of passwords, which return once every live broker has applied the
change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.operation_player import OperationPlayer

from broker_lite.client.administration import quotas, users
from broker_lite.client.administration.admin_requests import CHECK_MS
from broker_lite.client.transport.steps import Operation, Send
from broker_lite.errors import LogbusError, NetworkError, RequestTimedOutError
from broker_lite.security.quotas import Entity
from broker_lite.wire.calls.cluster import MetadataBroker, MetadataRequest, MetadataResponse
from broker_lite.wire.calls.quotas import AlteredQuotas, DescribedClientQuotas, DescribedQuotas
from broker_lite.wire.calls.users import (
    AlteredUser,
    AlterUsersResponse,
    DescribedCredential,
    DescribedUser,
    DescribedUsers,
)

ALICE = Entity((("user", "alice"),))
CHANGE = {"producer_byte_rate": 1024.0}
DEADLINE_MS = 100.0
METADATA = MetadataResponse(
    0, tuple(MetadataBroker(each, "b", each, None) for each in (1, 2)), "c", 1, ()
)


def described(rate: float | None) -> DescribedClientQuotas:
    rows = () if rate is None else (DescribedQuotas(ALICE.parts, (("producer_byte_rate", rate),)),)
    return DescribedClientQuotas(0, None, rows)


def alter(*looks: tuple[Any, Any], address: str = "b") -> list[float]:
    """Alter a quota; return the pauses, in ms, between the checks of whether all brokers have
    applied it.

    ``looks`` holds, for each check, the responses of brokers 1 and 2. The last pair repeats. Broker
    1 makes the change. The client does not know this if ``address`` is an alias of its address.
    """
    player, answers = OperationPlayer(address), (AlteredQuotas(0, None, ALICE.parts),)
    operation = quotas.alter_quotas(player.cluster, ALICE, CHANGE, DEADLINE_MS)
    return pauses(player, operation, (answers,), looks)


def rotate(*looks: tuple[Any, Any]) -> list[float]:
    """Rotate alice's password; return the pauses as ``alter`` does."""
    player = OperationPlayer("b")
    operation = users.rotate_password(player.cluster, "alice", "new", 1000, DEADLINE_MS)
    answers = (scram_user(until_ms=5), AlterUsersResponse(0, (AlteredUser("alice", 0, None),)))
    return pauses(player, operation, answers, looks)


def scram_user(until_ms: int) -> DescribedUsers:
    """Return a broker's description of alice, whose former password is valid for ``until_ms``."""
    credential = DescribedCredential(1, 4096, b"salt", until_ms)
    return DescribedUsers(0, None, (DescribedUser("alice", 0, None, (credential,)),))


def pauses(
    player: OperationPlayer,
    operation: Operation[None],
    answers: Sequence[Any],
    looks: Sequence[tuple[Any, Any]],
) -> list[float]:
    """Run an operation. ``answers`` has the answers to its requests to one broker, and ``looks``
    those to its requests to both."""
    asked, left = iter(answers), list(looks)

    def answer(step: Any) -> Any:
        match step:
            case Send(_, exchange) if isinstance(exchange.call, MetadataRequest):
                return METADATA
            case Send():
                return next(asked)
        return list(left.pop(0) if len(left) > 1 else left[0])

    player.run(operation, answer)
    return player.pauses


def test_alter_quotas_returns_once_every_broker_shows_the_change() -> None:
    late, done = described(512.0), described(1024.0)
    assert alter((done, done)) == []
    assert alter((done, described(None)), (done, late), (done, done)) == [CHECK_MS, CHECK_MS]


def test_alter_quotas_times_out_if_a_broker_never_shows_the_change() -> None:
    with pytest.raises(RequestTimedOutError, match="the quotas changed, but not every broker"):
        alter((described(1024.0), described(512.0)))


@pytest.mark.parametrize("first", [1024.0, 2048.0])
def test_alter_quotas_does_not_time_out_if_another_change_of_the_quota_follows(
    first: float,
) -> None:
    """Regression: the call timed out, because after the later change no broker showed the first.
    The call now also accepts brokers with the same quota as broker 1, which wrote the first."""
    before, later = described(512.0), described(2048.0)
    assert alter((described(first), before), (later, before), (later, later)) == [CHECK_MS] * 2
    with pytest.raises(RequestTimedOutError, match="not every broker"):
        alter((described(first), before), (later, before))
    with pytest.raises(RequestTimedOutError, match="not every broker"):
        alter((later, later), address="balancer")


def test_alter_quotas_fails_if_a_broker_cannot_be_reached() -> None:
    lost: LogbusError = NetworkError("the connection ended")
    with pytest.raises(NetworkError, match="the connection ended"):
        alter((described(512.0), lost))


def test_rotate_password_returns_once_every_broker_accepts_the_new_password() -> None:
    """Regression: the command returned while some brokers still refused the new password."""
    late, done = scram_user(until_ms=5), scram_user(until_ms=1005)
    assert rotate((done, done)) == []
    assert rotate((done, late), (done, done)) == [CHECK_MS]
    with pytest.raises(RequestTimedOutError, match="user 'alice' changed, but not every broker"):
        rotate((done, late))
