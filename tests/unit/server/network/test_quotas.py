"""Tests of client quotas on one broker.

A client that exceeds its quota has a *debt*, which it works off by waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.security.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    WAIT_MS_MAX,
    Entity,
    entity_of,
)
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.network import quotas as quotas_module
from broker_lite.server.network.access import broker_client_id
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.server.network.quotas import ClientQuota, Quotas, timed
from broker_lite.wire.fetch import encode_response as encode_fetch
from broker_lite.wire.produce import ProduceResponse
from broker_lite.wire.produce import encode_response as encode_produce


class FixedClock(Clock):
    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.at_ms


def made(limits: Mapping[Entity, Mapping[str, float]]) -> tuple[Quotas, FixedClock, Metrics]:
    clock, metrics = FixedClock(), Metrics()
    quotas = Quotas(clock, metrics)
    quotas.apply(MetadataSnapshot(quotas=limits))
    return quotas, clock, metrics


def request(user: str, client_id: str) -> RequestContext:
    session = Session(1, "10.0.0.7:4711", principal=f"User:{user}")
    return RequestContext(0, 0, 0, client_id, 0, session, 0)


def quota_of(quotas: Quotas, user: str, client_id: str = "app") -> ClientQuota:
    found = quotas.of(request(user, client_id))
    assert found is not None
    return found


ALICE = entity_of([(USER, "alice")])
EVERYONE = entity_of([(USER, DEFAULT)])


def test_only_the_user_that_exceeds_its_quota_is_throttled() -> None:
    quotas, clock, metrics = made({ALICE: {PRODUCER_BYTE_RATE: 1000.0, CONSUMER_BYTE_RATE: 10.0}})
    alice = quota_of(quotas, "alice")
    assert alice.produced(1000) == 0
    assert alice.produced(500) == 500
    assert quota_of(quotas, "alice", "other").produced(0) == 500, (
        "all client ids of a user share the quota"
    )
    assert quotas.of(request("bob", "app")) is None
    assert alice.fetch_allowance() == 10 and alice.fetched(30) == 2000
    assert alice.fetch_allowance() == -20
    clock.at_ms += 500
    assert alice.produced(0) == 0
    assert metrics.value("quota_throttles", PRODUCER_BYTE_RATE) == 2
    assert metrics.value("request_throttle_seconds", CONSUMER_BYTE_RATE) == 2.0


def test_requests_of_brokers_have_no_quota() -> None:
    quotas, _, _ = made({EVERYONE: {PRODUCER_BYTE_RATE: 1.0}})
    assert quotas.of(request("ANONYMOUS", broker_client_id(2))) is None
    assert quotas.of(request("ANONYMOUS", "app")) is not None


def test_client_that_exceeded_its_quota_stays_throttled_after_the_quota_is_changed() -> None:
    quotas, _, _ = made({ALICE: {PRODUCER_BYTE_RATE: 100.0}})
    assert quota_of(quotas, "alice").produced(1100) == 10_000
    quotas.apply(MetadataSnapshot(quotas={ALICE: {PRODUCER_BYTE_RATE: 1000.0}}))
    assert quota_of(quotas, "alice").produced(0) == 1000
    quotas.apply(MetadataSnapshot(quotas={}))
    assert not quotas.is_on and quotas.of(request("alice", "app")) is None


def test_throttle_for_processing_time_is_at_most_one_second() -> None:
    quotas, clock, _ = made({ALICE: {REQUEST_PERCENTAGE: 10.0}})
    alice = quota_of(quotas, "alice")
    assert alice.limits_time and not alice.limits_fetches
    alice.spend_time(0.1)
    assert alice.answered() == 0
    alice.spend_time(0.2)
    assert alice.answered() == 1000
    clock.at_ms += 1500
    assert alice.produced(10) == 500, "the remaining debt is 500 ms"


def test_connections_beyond_the_connection_creation_rate_are_refused() -> None:
    quotas, clock, _ = made({entity_of([(IP, DEFAULT)]): {CONNECTION_CREATION_RATE: 2.0}})
    assert [quotas.may_connect("10.0.0.7") for _ in range(3)] == [True, True, False]
    assert quotas.may_connect("10.0.0.8")
    clock.at_ms += 500
    assert [quotas.may_connect("10.0.0.7") for _ in range(2)] == [True, False]


def test_number_of_clients_with_quota_state_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "CLIENTS_MAX", 10)
    quotas, clock, _ = made({entity_of([(CLIENT_ID, DEFAULT)]): {PRODUCER_BYTE_RATE: 10.0}})
    greedy = quota_of(quotas, "a", "greedy")
    assert greedy.produced(1010) == 100_000
    for number in range(100):
        assert quota_of(quotas, "a", f"client-{number}").produced(1) == 0
        clock.at_ms += 200
        assert len(quotas._buckets) <= 10 and len(quotas._clients) <= 10
    assert quota_of(quotas, "a", "greedy").produced(0) == 80_000, (
        "a client in debt is not dropped for idle ones"
    )


def test_processing_time_of_a_request_excludes_waits() -> None:
    ticks = iter(range(100))
    spent: list[float] = []

    async def inner(fail: bool) -> str:
        await asyncio.sleep(0)
        if fail:
            raise ValueError("inner")
        return "done"

    async def body() -> Any:
        with pytest.raises(ValueError, match="inner"):
            await timed(inner(True), lambda: float(next(ticks)), lambda _: None)
        return await timed(inner(False), lambda: float(next(ticks)), spent.append)

    assert asyncio.run(body()) == "done"
    assert spent == [1.0, 1.0]


def test_cancelling_a_timed_request_also_cancels_its_handler() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("inner")

    async def body() -> None:
        task = asyncio.ensure_future(_awaited(timed(waits(), lambda: 0.0, lambda _: None)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert ended == ["inner"]


async def _awaited(work: Any) -> None:
    await work


@pytest.mark.parametrize("rate", [1.0, 1e-308])
def test_throttle_beyond_the_maximum_throttle_time_continues_at_the_next_request(
    rate: float,
) -> None:
    quotas, clock, _ = made({ALICE: {PRODUCER_BYTE_RATE: rate, CONSUMER_BYTE_RATE: rate}})
    alice = quota_of(quotas, "alice")
    for wait_ms in (alice.produced(2_200_000), alice.fetched(2_200_000)):
        assert wait_ms == WAIT_MS_MAX
        encode_produce(ProduceResponse([], wait_ms), 9, 0)
        encode_fetch([], 12, 0, throttle_time_ms=wait_ms)
    clock.at_ms += WAIT_MS_MAX
    assert alice.produced(0) == WAIT_MS_MAX


def test_remaining_fetch_quota_of_a_client_is_negative_only_while_the_client_is_throttled() -> None:
    """A fetch larger than the remaining quota makes it negative, and the client is throttled."""
    quotas, clock, _ = made({ALICE: {CONSUMER_BYTE_RATE: 0.5}})
    alice = quota_of(quotas, "alice")
    for size, idle_ms in ((1, 0), (1, 2000), (1, 1000), (0, 500), (0, 1000)):
        waits, is_over = alice.fetched(size) > 0, alice.fetch_allowance() < 0
        assert waits is is_over
        clock.at_ms += idle_ms


def test_quota_state_of_a_client_is_stored_under_its_truncated_client_id() -> None:
    quotas, _, _ = made({entity_of([(CLIENT_ID, DEFAULT)]): {PRODUCER_BYTE_RATE: 10.0}})
    quota_of(quotas, "a", "x" * 30_000)
    names = [*quotas._clients, *quotas._buckets]
    assert names and all(len(part) < 300 for name in names for part in name)


def test_client_has_no_quota_before_its_login() -> None:
    quotas, _, _ = made({EVERYONE: {PRODUCER_BYTE_RATE: 1.0}})
    asked = request("ANONYMOUS", "app")
    asked.session.needs_login = True
    assert quotas.of(asked) is None and not quotas._clients
    asked.session.needs_login = False
    assert quotas.of(asked) is not None


def test_broker_with_too_many_clients_drops_quota_state_of_the_least_throttled_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas_module, "CLIENTS_MAX", 100)
    quotas, _, _ = made({entity_of([(CLIENT_ID, DEFAULT)]): {PRODUCER_BYTE_RATE: 10.0}})
    assert quota_of(quotas, "a", "greedy").produced(1010) == 100_000
    for number in range(100):
        assert quota_of(quotas, "a", f"client-{number}").produced(20 + number)
    assert len(quotas._buckets) == 91, "a tenth of the clients was dropped"
    assert quota_of(quotas, "a", "greedy").produced(0) == 100_000, (
        "the client with the largest debt stays"
    )
    assert quota_of(quotas, "a", "client-0").produced(0) == 0


def test_addresses_of_one_ipv6_network_share_the_default_connection_rate() -> None:
    quotas, _, _ = made({
        entity_of([(IP, DEFAULT)]): {CONNECTION_CREATION_RATE: 1.0},
        entity_of([(IP, "2001:db8::3")]): {CONNECTION_CREATION_RATE: 1.0},
    })  # fmt: skip
    asked = ("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1")
    assert [quotas.may_connect(each) for each in asked] == [True, False, True, True]
    assert not quotas._buckets, "rates of addresses use no client's place"
