"""Tests of DescribeClientQuotas, AlterClientQuotas and the quota controller_mutation_rate."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import kafka.protocol.admin as admin
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.handler_world import World, context_of, received, run

from broker_lite.errors import (
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    ThrottlingQuotaExceededError,
    UnknownTopicOrPartitionError,
)
from broker_lite.metadata.quotas import QUOTAS, entity_path, path_entity
from broker_lite.metadata.store import Create
from broker_lite.security.quotas import (
    CLIENT_ID,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    USER,
    Entity,
    QuotaTable,
)
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.dispatch import HANDLERS
from broker_lite.server.handlers.topic_creation import create_missing
from broker_lite.server.network.quotas import Quotas
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, Call, decode_call, encode_call
from broker_lite.wire.calls.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    DescribedQuotas,
)
from broker_lite.wire.calls.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    PartitionsToCreate,
)

ALICE = ((USER, "alice"),)
KEY = PRODUCER_BYTE_RATE
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)


async def ask(world: World, call: Call[Any], broker: int = 1, **parts: Any) -> Any:
    frame = memoryview(encode_call(call, 3, "app"))[4:]
    request = received(frame)
    context = dataclasses.replace(world.brokers[broker], **parts)
    if context.quotas.is_on:
        request = request._replace(quota=context.quotas.of(request))
    message = tables.decode(call.API_KEY, call.VERSION, frame, request.body_at)
    answer = await HANDLERS[call.API_KEY](context, request, message)
    octets = tables.encode(call.API_KEY, call.VERSION, 3, answer)
    return decode_call(call, memoryview(octets)[4:])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("user=alice", b"{}"),
        ("user=alice", b'{"version": 1, "quotas": {"producer_byte_rate": "much"}}'),
        ("garbage", b'{"version": 1, "quotas": {"producer_byte_rate": 5}}'),
    ],
)
def test_malformed_quota_znode_does_not_hide_other_quotas(name: str, data: bytes) -> None:
    async def body(world: World) -> None:
        await world.start(1)
        store, registry = world.stores[1], world.brokers[1].registry
        bob = ((USER, "bob"),)
        await ask(world, AlterClientQuotasRequest(bob, ((KEY, 7.0),)))
        assert await store.write([Create(f"{QUOTAS}/{name}", data)]) is None
        await registry._refresh_security([f"{QUOTAS}/{name}"])
        registry._publish()
        table = QuotaTable(registry.snapshot.quotas)
        assert table.limits("alice", "app") == {}
        assert table.limits("bob", "app")[KEY].rate == 7.0
        answer = await ask(world, DescribeClientQuotasRequest())
        assert DescribedQuotas(bob, ((KEY, 7.0),)) in answer.entries
        [found] = registry.unreadable_znodes
        assert found.path == f"{QUOTAS}/{name}"

    run(body)


@given(NAMES, st.one_of(st.none(), NAMES))
def test_every_quota_entity_has_its_own_znode_path(user: str, client_id: str | None) -> None:
    entity = Entity(((CLIENT_ID, client_id), (USER, user)))
    path = entity_path(entity)
    assert path_entity(path) == entity
    assert path.count("/") == 2


def test_client_quotas_are_described_by_every_broker_until_they_are_deleted() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        both = ((CLIENT_ID, "*"), (USER, DEFAULT))
        for call in (
            AlterClientQuotasRequest(
                ALICE, (("producer_byte_rate", 1024.0), ("request_percentage", 12.5))
            ),
            AlterClientQuotasRequest(both, (("consumer_byte_rate", 7.0),)),
        ):
            assert await ask(world, call) == (AlteredQuotas(0, None, call.entity),)
        await asyncio.sleep(1)
        for broker in (1, 2):
            answer = await ask(world, DescribeClientQuotasRequest(), broker)
            assert set(answer.entries) == {
                DescribedQuotas(
                    ALICE, (("producer_byte_rate", 1024.0), ("request_percentage", 12.5))
                ),
                DescribedQuotas(both, (("consumer_byte_rate", 7.0),)),
            }
        lifted = AlterClientQuotasRequest(
            ALICE, (("producer_byte_rate", None), ("request_percentage", None))
        )
        await ask(world, lifted, broker=2)
        await asyncio.sleep(1)
        (left,) = (await ask(world, DescribeClientQuotasRequest())).entries
        assert left.entity == both

    run(body)


def test_invalid_client_quota_is_refused_and_the_answer_names_its_entity() -> None:
    async def body(world: World) -> None:
        await world.start()
        for parts, key, value in (
            (ALICE, "producer_byte_rate", -1.0),
            (ALICE, "rate", 1.0),
            ((("group", "g"),), "producer_byte_rate", 1.0),
        ):
            (row,) = await ask(world, AlterClientQuotasRequest(parts, ((key, value),)))
            assert (row.error_code, row.entity) == (InvalidRequestError.code, parts)
            assert row.error_message
        assert not world.brokers[1].registry.snapshot.quotas

    run(body)


def test_quota_beyond_the_limit_of_entities_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_lite.metadata.quotas.QUOTAS_MAX", 1)

    async def body(world: World) -> None:
        await world.start()
        codes = []
        for name in ("alice", "bob", "alice"):
            (row,) = await ask(world, AlterClientQuotasRequest(((USER, name),), ((KEY, 7.0),)))
            codes.append(row.error_code)
        assert codes == [0, InvalidRequestError.code, 0]

    run(body)


@pytest.mark.parametrize("version", [0, 1])
def test_describe_client_quotas_with_an_invalid_filter_is_refused(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        kind = admin.DescribeClientQuotasRequest.ComponentData
        for components in (
            [kind(entity_type="group", match_type=2, match=None)],
            [kind(entity_type=USER, match_type=0, match=None)],
            [kind(entity_type=USER, match_type=3, match=None)],
            [kind(entity_type=USER, match_type=2, match=None)] * 2,
        ):
            answer = await world.ask(
                "DescribeClientQuotas", version, components=components, strict=False
            )
            assert answer.error_code == InvalidRequestError.code

    run(body)


def test_topic_creations_beyond_the_controller_mutation_rate_are_throttled() -> None:
    async def body(world: World) -> None:
        await world.start()
        rate = (("controller_mutation_rate", 1.0),)
        await ask(world, AlterClientQuotasRequest(((CLIENT_ID, "app"),), rate))
        parts = world.brokers[1]
        quotas = Quotas(parts.clock, parts.metrics)
        quotas.apply(parts.registry.snapshot)

        async def create(name: str, partitions: int) -> int:
            call = CreateTopicsRequest((CreatableTopic(name, partitions, 1),), 5000)
            return (await ask(world, call, quotas=quotas)).topics[0].error_code

        # The burst is 11 partitions. A request that exceeds the rest of the burst still passes.
        assert await create("a", 8) == 0
        assert await create("b", 8) == 0
        assert await create("c", 1) == ThrottlingQuotaExceededError.code
        assert parts.metrics.value("quota_throttles", "controller_mutation_rate") == 1
        await asyncio.sleep(6)
        assert await create("c", 1) == 0
        assert "c" in parts.registry.snapshot.topics
        for name, code in (("a", 0), ("b", ThrottlingQuotaExceededError.code)):
            deleted = await ask(world, DeleteTopicsRequest((name,)), quotas=quotas)
            assert deleted.responses[0].error_code == code

    run(body)


def test_refused_topic_creation_does_not_count_in_the_controller_mutation_rate() -> None:
    async def body(world: World) -> None:
        await world.start()
        rate = (("controller_mutation_rate", 1.0),)
        await ask(world, AlterClientQuotasRequest(((CLIENT_ID, "app"),), rate))
        quotas = Quotas(world.brokers[1].clock, world.brokers[1].metrics)
        quotas.apply(world.brokers[1].registry.snapshot)

        async def create(name: str, partitions: int) -> int:
            call = CreateTopicsRequest((CreatableTopic(name, partitions, 1),), 5000)
            return (await ask(world, call, quotas=quotas)).topics[0].error_code

        async def grow(name: str, partitions: int) -> int:
            call = CreatePartitionsRequest((PartitionsToCreate(name, partitions),), 5000)
            return (await ask(world, call, quotas=quotas)).results[0].error_code

        assert await create("a", 2_000_000_000) == InvalidPartitionsError.code
        assert await create("a", 1) == 0
        assert await grow("a", 2_000_000_000) == InvalidPartitionsError.code
        assert await grow("a", 2) == 0

    run(body)


async def auto_create(parts: BrokerContext, quotas: Quotas, *names: str) -> dict[str, int]:
    """Create topics as a Metadata request of client "app" does; return the error codes."""
    request = context_of(ApiKey.METADATA, 12, "app")
    return await create_missing(parts, request._replace(quota=quotas.of(request)), names)


@pytest.mark.parametrize("broker", [1, 2])
def test_automatic_topic_creations_count_against_the_controller_mutation_rate_quota(
    broker: int,
) -> None:
    """Regression: automatic creations were unlimited."""

    async def body(world: World) -> None:
        await world.start(2, num_partitions=8)
        rate = (("controller_mutation_rate", 1.0),)
        await ask(world, AlterClientQuotasRequest(((CLIENT_ID, "app"),), rate))
        parts = world.brokers[broker]
        while not parts.registry.snapshot.quotas:
            await asyncio.sleep(0.1)
        quotas = Quotas(parts.clock, parts.metrics)
        quotas.apply(parts.registry.snapshot)
        assert await auto_create(parts, quotas, "a", "b", "c") == {
            "c": UnknownTopicOrPartitionError.code
        }
        assert set(parts.registry.snapshot.topics) == {"a", "b"}
        await asyncio.sleep(6)
        assert await auto_create(parts, quotas, "c") == {}

    run(body)


def test_failed_automatic_topic_creation_does_not_count_in_the_controller_mutation_rate() -> None:
    async def body(world: World) -> None:
        await world.start(num_partitions=20, default_replication_factor=2)
        rate = (("controller_mutation_rate", 1.0),)
        await ask(world, AlterClientQuotasRequest(((CLIENT_ID, "app"),), rate))
        parts = world.brokers[1]
        quotas = Quotas(parts.clock, parts.metrics)
        quotas.apply(parts.registry.snapshot)
        for _ in range(2):
            assert await auto_create(parts, quotas, "a") == {
                "a": InvalidReplicationFactorError.code
            }

    run(body)
