"""Tests of the expiry of groups and their offsets after offsets.retention.minutes."""

from __future__ import annotations

import asyncio

from support.handler_members import Member, gathered
from support.handler_world import World, run

from broker_lite.errors import GroupIdNotFoundError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Set
from broker_lite.model import CommittedOffset, TopicPartition


def test_zk_based_group_without_members_expires_after_offsets_retention() -> None:
    async def body(world: World) -> None:
        await world.start(offsets_retention_minutes=60, offsets_retention_check_ms=60_000)
        await world.make_topic("t")
        parts, store = world.brokers[1], world.stores[1]
        consumer = znodes.consumer_path("g", "c")
        native = znodes.encode_group(znodes.KIND_NATIVE)
        await store.write([Create(znodes.group_path("g"), native)])
        await store.write([Create(znodes.consumers_path("g"))])
        assert await Member(world).commit(1) == 0
        await store.write([Create(consumer, b"{}", ephemeral=True)])
        for _ in range(5):
            await asyncio.sleep(1200)
            await parts.groups.expire()
        kept = await parts.registry.groups.fetch("g")
        assert len(kept) == 1, "a group with a member does not expire"
        await store.write([Delete(consumer)])
        await parts.groups.expire()
        await asyncio.sleep(3500)
        await parts.groups.expire()
        assert await parts.registry.groups.kind("g") == "native", (
            "the retention time begins when the last member leaves"
        )
        await asyncio.sleep(150)
        await parts.groups.expire()
        assert await parts.registry.groups.kind("g") is None

    run(body)


def test_zookeeper_based_group_whose_last_member_leaves_during_a_check_does_not_expire() -> None:
    """Regression: if the last member left after the expiry check had read the members, the group's
    retention time counted from the last commit, not from the leave (seed 31751 of the simulation
    ``either_kind.py``).
    """

    async def body(world: World) -> None:
        await world.start(offsets_retention_minutes=60, offsets_retention_check_ms=60_000)
        await world.make_topic("t")
        parts, store = world.brokers[1], world.stores[1]
        groups, consumer = parts.registry.groups, znodes.consumer_path("g", "c")
        native = znodes.encode_group(znodes.KIND_NATIVE)
        await store.write([Create(znodes.group_path("g"), native)])
        await store.write([Create(znodes.consumers_path("g"))])
        assert await Member(world).commit(1) == 0
        await store.write([Create(consumer, b"{}", ephemeral=True)])
        await parts.groups.expire()
        await asyncio.sleep(100 * 60)
        note = groups.note_members

        async def note_before_the_member_leaves(group: str, *, is_empty: bool) -> None:
            await note(group, is_empty=is_empty)
            await store.write([Delete(consumer)])

        groups.note_members = note_before_the_member_leaves  # type: ignore[method-assign]
        await parts.groups.expire()
        groups.note_members = note  # type: ignore[method-assign]
        await parts.groups.expire()
        assert len(await groups.fetch("g")) == 1
        await asyncio.sleep(61 * 60)
        await parts.groups.expire()
        assert await groups.kind("g") is None

    run(body)


def test_offsets_that_a_mirror_stores_do_not_expire() -> None:
    async def body(world: World) -> None:
        await world.start(offsets_retention_minutes=60, offsets_retention_check_ms=60_000)
        await world.make_topic("t")
        registry = world.brokers[1].registry
        for group in ("logbus-mirror-x", "g"):
            await registry.groups.commit(group, {TopicPartition("t", 0): CommittedOffset(1)})
        await asyncio.sleep(100 * 60)
        for parts in world.brokers.values():
            await parts.groups.expire()
        assert list(await registry.groups.kinds()) == ["logbus-mirror-x"]

    run(body)


def test_member_that_leaves_before_the_expiry_check_still_delays_the_groups_expiry() -> None:
    """Regression: a broker did not notice members that joined and left between two of its checks.

    It then counted the retention time of such a group from the last commit.
    """

    async def body(world: World) -> None:
        await world.start(offsets_retention_minutes=60, offsets_retention_check_ms=600_000)
        await world.make_topic("t")
        parts, store = world.brokers[1], world.stores[1]
        native = znodes.encode_group(znodes.KIND_NATIVE)
        await store.write([Create(znodes.group_path("g"), native)])
        await store.write([Create(znodes.consumers_path("g"))])
        assert await Member(world).commit(1) == 0
        path = znodes.offset_path("g", "t", 0)
        for _ in range(6):
            await parts.groups.expire()
            znode = await store.get(path)
            assert znode is not None
            # A member claims the partition, which writes this znode, and leaves before the check.
            await store.write([Set(path, znode.data, znode.version)])
            await asyncio.sleep(1200)
            await parts.groups.expire()
            assert await parts.registry.groups.kind("g") == "native"
            await asyncio.sleep(1200)
        await asyncio.sleep(1200)
        await parts.groups.expire()
        assert await parts.registry.groups.kind("g") is None

    run(body)


def test_kafka_group_without_members_expires_after_offsets_retention() -> None:
    async def body(world: World) -> None:
        await world.start(offsets_retention_minutes=60, offsets_retention_check_ms=60_000)
        await world.make_topic("t")
        parts = world.brokers[1]
        (one,) = await gathered(world, 1, session_timeout_ms=1_800_000)
        assert await one.commit(3) == 0
        idle = Member(world, "idle")
        assert await idle.commit(4) == 0
        passing = Member(world, "passing")
        assert await passing.join() == 0
        assert set(await passing.leave()) == {0}
        for _ in range(5):
            await asyncio.sleep(1200)
            assert await one.heartbeat() == 0
            await parts.groups.expire()
        kept = set(await parts.registry.groups.kinds())
        assert kept == {"g"}, "a group with a member does not expire"
        assert set(await one.leave()) == {0}
        await asyncio.sleep(3500)
        await parts.groups.expire()
        assert await parts.registry.groups.kind("g") == "kafka"
        await asyncio.sleep(150)
        await parts.groups.expire()
        assert await parts.registry.groups.kind("g") is None
        answer = await world.ask("DescribeGroups", 6, groups=["g"])
        assert answer.groups[0].error_code == GroupIdNotFoundError.code

    run(body)
