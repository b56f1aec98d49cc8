"""Tests of the metadata snapshot that a broker keeps in memory: its age, and waits for changes."""

from __future__ import annotations

import asyncio

import pytest
from support.handler_world import World, run

from broker_lite.model import ScramMechanism
from broker_lite.security.acls import (
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.security.quotas import Entity
from broker_lite.security.scram import KeyPair, ScramCredential
from broker_lite.server.cluster import registry as registry_module
from broker_lite.server.cluster.administration import NewTopic


def test_metadata_age_grows_only_while_zookeeper_is_unreachable() -> None:
    async def body(world: World) -> None:
        await world.start()
        registry = world.brokers[1].registry
        assert registry.metadata_age_s == 0
        world.service.stop()
        await asyncio.sleep(2)
        assert 1 < registry.metadata_age_s <= 2
        world.service.start()
        while registry.metadata_age_s:
            await asyncio.sleep(0.1)
        assert registry.connected

    run(body)


def test_topic_change_is_answered_even_if_a_later_change_overwrites_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a topic request waited until the metadata showed its change. A broker that read
    a later change at the same time, which overwrote the first, never had such metadata."""
    monkeypatch.setattr(registry_module, "VISIBLE_WITHIN_S", 3600)

    async def body(world: World) -> None:
        await world.start()
        administration = world.brokers[1].registry.administration

        async def delete() -> None:
            while (await administration.delete_topics(["t"]))[0].error is not None:
                await asyncio.sleep(0)

        async with asyncio.timeout(60):
            await asyncio.gather(administration.create_topics([NewTopic("t", 1, 1)]), delete())
            await administration.create_topics([NewTopic("u", 1, 1)])
            await asyncio.gather(
                administration.alter_topic_config("u", {"retention.ms": "1000"}),
                administration.alter_topic_config("u", {"segment.bytes": "100000"}),
            )
            await asyncio.gather(
                administration.alter_topic_config("u", {"retention.ms": "2000"}),
                administration.alter_topic_config("u", {"retention.ms": "1000"}),
            )
        config = world.brokers[1].registry.snapshot.topics["u"].config
        assert config == {"retention.ms": "1000", "segment.bytes": "100000"}

    run(body)


@pytest.mark.parametrize("what", ["user", "acls", "quotas"])
def test_broker_stops_waiting_for_a_metadata_write_that_was_overwritten(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Regression: if another change overwrote the broker's change before the broker read it, the
    broker waited for its own change until the time limit."""
    monkeypatch.setattr(registry_module, "VISIBLE_WITHIN_S", 3600)
    keys = (KeyPair(b"stored", b"server"),)
    topics = Pattern(ResourceKind.TOPIC, PatternType.LITERAL, "t")
    alice = Entity((("user", "alice"),))

    async def alter(world: World, broker_id: int, number: int) -> None:
        administration = world.brokers[broker_id].registry.administration
        match what:
            case "user":
                credential = ScramCredential(b"salt", 4096 + number, keys)
                await administration.alter_user(
                    "alice", lambda _: {ScramMechanism.SHA_256: credential}
                )
            case "acls":
                entry = Entry(f"User:{number}", "*", Operation.READ, Permission.ALLOW)
                await administration.alter_acls(topics, lambda _: frozenset({entry}))
            case "quotas":
                values = {"producer_byte_rate": float(number)}
                await administration.alter_quotas(alice, lambda _: values)

    async def body(world: World) -> None:
        await world.start(2)

        async def alter_all(broker_id: int) -> None:
            for number in range(20):
                await alter(world, broker_id, 2 * number + broker_id)

        async with asyncio.timeout(600):
            await asyncio.gather(alter_all(1), alter_all(2))

    run(body)
