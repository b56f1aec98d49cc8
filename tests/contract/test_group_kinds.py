"""Which kind of members a group gets, where both may come: on both kinds of ZooKeeper."""

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


async def committed(broker: Broker, offset: int) -> None:
    (error,) = (await broker.registry.commit_offsets("g", {T0: CommittedOffset(offset)})).values()
    assert error is None


async def looked(broker: Broker) -> list[Operation]:
    """The write of a native member that finds the group open."""
    group = await broker.store.get(znodes.group_path("g"))
    coordinator = await broker.store.get(znodes.coordinator_path("g"))
    assert group is not None
    assert is_open("g", znodes.decode_group("", group.data), coordinator)
    return made_native("g", group, coordinator)


def test_a_native_member_takes_over_a_group_that_has_offsets_alone(world: World) -> None:
    """Whatever the broker that wrote them has on its way is refused, and no offset is lost."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        registry = broker.registry
        await create(broker, "t", 1)
        await committed(broker, 5)
        claim = await registry.claim_group("g")
        assert await registry.is_group_open("g", "kafka")
        taking = await looked(broker)
        await committed(broker, 6)
        assert await broker.store.write(taking) is None
        assert await registry.group_kind("g") == "native"
        assert not await registry.is_group_open("g", "native")
        claim.held = True  # its watch is late
        with pytest.raises(NotCoordinatorError):
            await registry.commit_offsets("g", {T0: CommittedOffset(1)}, claim)
        claim.held = True
        with pytest.raises(NotCoordinatorError):
            await registry.begin_generation(claim, 1, is_empty=False, members=1)
        assert not await registry.is_claim_held(claim)
        assert (await registry.fetch_offsets("g"))[T0].offset == 6
        # Brokers write its offsets as those of every native group without members.
        await committed(broker, 7)
        again = await registry.claim_group("g")
        assert (again.kind, again.value.epoch) == ("native", claim.value.epoch + 2)
        await registry.delete_group_offsets("g")
        assert await registry.group_kind("g") is None

    run(world, body)


def test_a_group_that_changes_while_a_native_member_looks_is_not_taken_over(world: World) -> None:
    """Another claim, a first generation, or another group of the name with the same versions."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 1)
        await committed(one, 5)
        taking = await looked(one)
        await two.registry.claim_group("g")
        assert await one.store.write(taking) is not None
        await one.store.sync(znodes.group_path("g"))
        taking = await looked(one)
        await two.registry.delete_group_offsets("g")
        for broker in (one, two):
            await broker.store.sync(znodes.group_path("g"))
            await committed(broker, 8)
        assert await one.store.write(taking) is not None
        await two.store.sync(znodes.group_path("g"))
        taking = await looked(two)
        claim = await two.registry.claim_group("g")
        await two.registry.begin_generation(claim, 1, is_empty=False, members=1)
        assert await two.store.write(taking) is not None
        assert await two.registry.group_kind("g") == "kafka"
        await two.registry.begin_generation(claim, 2, is_empty=True)
        assert not await two.registry.is_group_open("g", "kafka"), "it has had members"
        assert (await two.registry.fetch_offsets("g"))[T0].offset == 8

    run(world, body)
