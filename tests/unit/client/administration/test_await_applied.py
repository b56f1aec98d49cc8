"""Tests of a change of quotas, which returns once every live broker has applied the change."""

from __future__ import annotations

from typing import Any

import pytest
from support.operation_player import OperationPlayer

from broker_lite.client.administration import quotas
from broker_lite.client.administration.admin_requests import CHECK_MS
from broker_lite.client.transport.steps import Send
from broker_lite.errors import LogbusError, NetworkError, RequestTimedOutError
from broker_lite.security.quotas import Entity
from broker_lite.wire.calls.cluster import MetadataBroker, MetadataRequest, MetadataResponse
from broker_lite.wire.calls.quotas import AlteredQuotas, DescribedClientQuotas, DescribedQuotas

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
    player, left = OperationPlayer(address), list(looks)

    def answer(step: Any) -> Any:
        match step:
            case Send(_, exchange) if isinstance(exchange.call, MetadataRequest):
                return METADATA
            case Send():
                return (AlteredQuotas(0, None, ALICE.parts),)
        return list(left.pop(0) if len(left) > 1 else left[0])

    player.run(quotas.alter_quotas(player.cluster, ALICE, CHANGE, DEADLINE_MS), answer)
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
