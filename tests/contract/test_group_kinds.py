"""Test how an *open* group, which has offsets but has had no members, becomes a Kafka group or a
native (ZooKeeper-based) group."""

from __future__ import annotations

import pytest
from brokers import Broker, Cluster, create, run
from worlds import World

from broker_lite.errors import NotCoordinatorError
from broker_lite.metadata import znodes
from broker_lite.metadata.group_kind import is_open, made_native
from broker_lite.metadata.store import Operation
from broker_lite.model import CommittedOffset, TopicPartition

T0 = TopicPartition("t", 0)


async def commit(broker: Broker, offset: int) -> None:
    (error,) = (await broker.registry.groups.commit("g", {T0: CommittedOffset(offset)})).values()
    assert error is None


async def native_takeover(broker: Broker) -> list[Operation]:
    """Return the ZooKeeper operations by which a member converts ``g`` to a native
    (ZooKeeper-based) group."""
    group = await broker.store.get(znodes.group_path("g"))
    coordinator = await broker.store.get(znodes.coordinator_path("g"))
    assert group is not None
    assert is_open("g", znodes.decode_group("", group.data), coordinator)
    pending = await broker.store.children(znodes.pending_path("g"))
    return made_native("g", group, coordinator, has_pending=pending is not None)


def test_member_converts_an_empty_group_to_a_zk_based_group_and_keeps_its_offsets(
    world: World,
) -> None:
    """The conversion removes the coordinator's claim (its right to write), so the coordinator can
    no longer write to the group."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        registry = broker.registry
        await create(broker, "t", 1)
        await commit(broker, 5)
        claim = await registry.groups.claim("g")
        assert await registry.groups.is_open("g", "kafka")
        taking = await native_takeover(broker)
        await commit(broker, 6)
        assert await broker.store.write(taking) is None
        assert await registry.groups.kind("g") == "native"
        assert not await registry.groups.is_open("g", "native")
        claim.held = True  # Restore the state before the watch event of the conversion.
        with pytest.raises(NotCoordinatorError):
            await registry.groups.commit("g", {T0: CommittedOffset(1)}, claim)
        claim.held = True
        with pytest.raises(NotCoordinatorError):
            await registry.groups.begin_generation(claim, 1, is_empty=False, members=1)
        assert not await registry.groups.is_held(claim)
        assert (await registry.groups.fetch("g"))[T0].offset == 6
        # Brokers may still write offsets of a native group while it has no members.
        await commit(broker, 7)
        again = await registry.groups.claim("g")
        assert (again.kind, again.value.epoch) == ("native", claim.value.epoch + 2)
        await registry.group_deletion.delete("g")
        assert await registry.groups.kind("g") is None

    run(world, body)


def test_group_is_not_converted_to_a_zk_based_group_if_it_changes_meanwhile(
    world: World,
) -> None:
    """The group changes after the member read it, and before the member converts it.

    It gets another coordinator or a first generation, or is recreated with the same znode versions.
    """

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 1)
        await commit(one, 5)
        taking = await native_takeover(one)
        await two.registry.groups.claim("g")
        assert await one.store.write(taking) is not None
        await one.store.sync(znodes.group_path("g"))
        taking = await native_takeover(one)
        await two.registry.group_deletion.delete("g")
        for broker in (one, two):
            await broker.store.sync(znodes.group_path("g"))
            await commit(broker, 8)
        assert await one.store.write(taking) is not None
        await two.store.sync(znodes.group_path("g"))
        taking = await native_takeover(two)
        claim = await two.registry.groups.claim("g")
        await two.registry.groups.begin_generation(claim, 1, is_empty=False, members=1)
        assert await two.store.write(taking) is not None
        assert await two.registry.groups.kind("g") == "kafka"
        await two.registry.groups.begin_generation(claim, 2, is_empty=True)
        assert not await two.registry.groups.is_open("g", "kafka"), (
            "the group stays open after its first generation"
        )
        assert (await two.registry.groups.fetch("g"))[T0].offset == 8

    run(world, body)


@pytest.mark.parametrize("has_pending", [False, True])
def test_conversion_to_a_zk_based_group_fails_if_a_transaction_adds_offsets_meanwhile(
    world: World, has_pending: bool
) -> None:
    """The transaction adds offsets after the member read the group and before it converts it."""

    async def add(broker: Broker, number: int) -> None:
        claim = await broker.registry.groups.claim("g")
        value = znodes.PendingOffsets("copier", {T0: CommittedOffset(5)})
        transaction = znodes.TransactionKey(1000, 0, number)
        await broker.registry.groups.add_pending(claim, transaction, value)

    async def end(broker: Broker, number: int) -> None:
        transaction = znodes.TransactionKey(1000, 0, number)
        await broker.registry.groups.end_pending("g", transaction, is_commit=True)

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t", 1)
        await commit(broker, 1)
        if has_pending:
            await add(broker, 1)
            await end(broker, 1)
        taking = await native_takeover(broker)
        await add(broker, 2)
        assert await broker.store.write(taking) is not None
        assert await broker.registry.groups.kind("g") == "kafka"
        await end(broker, 2)
        claim = await broker.registry.groups.claim("g")
        assert await broker.store.write(await native_takeover(broker)) is None
        assert (await broker.registry.groups.fetch("g"))[T0].offset == 5
        with pytest.raises(NotCoordinatorError):
            value = znodes.PendingOffsets("copier", {T0: CommittedOffset(6)})
            await broker.registry.groups.add_pending(
                claim, znodes.TransactionKey(1000, 0, 3), value
            )

    run(world, body)
