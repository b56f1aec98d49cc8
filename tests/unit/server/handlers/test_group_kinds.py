"""Tests of groups that ZooKeeper-based and Kafka members try to join, and of concurrent requests
that load a group."""

from __future__ import annotations

import asyncio

from support.handler_members import Member, both, coordinator, gathered
from support.handler_world import World, run

from broker_lite.errors import (
    InconsistentGroupProtocolError,
    LogbusError,
    NonEmptyGroupError,
    NotCoordinatorError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete
from broker_lite.model import TopicPartition
from broker_lite.native.events import PartitionStart
from broker_lite.native.member import NativeShell as NativeMember


def test_zk_based_group_refuses_kafka_members() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        store = world.stores[1]
        consumer = znodes.consumer_path("g", "c")
        native = znodes.encode_group(znodes.KIND_NATIVE)
        await store.write([Create(znodes.group_path("g"), native)])
        await store.write([Create(znodes.consumers_path("g"))])
        await store.write([Create(consumer, b"{}", ephemeral=True)])
        member = Member(world)
        assert await member.join() == InconsistentGroupProtocolError.code
        assert await Member(world).commit(1) == NonEmptyGroupError.code
        answer = await world.ask("ListGroups", 5)
        assert [(row.group_state, row.group_type) for row in answer.groups] == [
            ("Stable", "Native")
        ]
        await store.write([Delete(consumer)])
        assert await Member(world).commit(1) == 0
        assert await member.join() == InconsistentGroupProtocolError.code

    run(body)


class NativeReader:
    """A ZooKeeper-based member that records the committed offset from which it starts to read."""

    def __init__(self, world: World, name: str) -> None:
        self.refused: list[str] = []
        self.given: asyncio.Queue[int | None] = asyncio.Queue()
        """The committed offset of partition 0 at each assignment; None without a commit."""
        loop, subscription = asyncio.get_running_loop(), znodes.NativeSubscription(("t",), None, 1)
        self.member = NativeMember(
            "g", name, subscription, self,
            make_store=world.service.client, now_ms=lambda: loop.time() * 1000,
        )  # fmt: skip

    def assign(self, stream: int, tp: TopicPartition, start: PartitionStart) -> None:
        self.given.put_nowait(None if start.committed is None else start.committed.offset)

    def revoke(self, stream: int, tp: TopicPartition) -> None:
        self.member.settled(tp, None, 1)

    def lose(self, stream: int, tp: TopicPartition) -> None:
        raise AssertionError("nobody else is there")

    def renewed(self) -> None:
        """Ignore that the member may return records again, because this test fetches none."""

    def refuse(self, error: LogbusError) -> None:
        self.refused.append(error.name)


def test_first_member_determines_whether_a_group_is_zk_based_or_a_kafka_group() -> None:
    """Regression: a commit by a client that is no member made the group a Kafka group.

    ZooKeeper-based members could then not join a group into which offsets had been copied.
    """

    async def body(world: World) -> None:
        await world.start(group_initial_rebalance_delay_ms=3000)
        await world.make_topic("t")
        assert await Member(world).commit(5) == 0
        gathering = Member(world)
        joining = asyncio.ensure_future(gathering.join())
        await asyncio.sleep(1.0)
        native = NativeReader(world, "n")
        await native.member.start()
        assert await native.given.get() == 5
        # The native member converted the group before the Kafka member's join was answered.
        assert await joining == NotCoordinatorError.code
        gathering.id = ""
        assert await gathering.join() == InconsistentGroupProtocolError.code
        assert await Member(world).commit(6) == NonEmptyGroupError.code
        await native.member.close()
        assert await Member(world).commit(7) == 0
        assert await gathering.join() == InconsistentGroupProtocolError.code
        answer = await world.ask("DeleteGroups", 2, groups_names=["g"])
        assert answer.results[0].error_code == 0

        assert await Member(world).commit(8) == 0
        gathering.id = ""
        assert await gathering.join() == 0
        assert await gathering.leave() == [0, 0]
        late = NativeReader(world, "m")
        await late.member.start()
        await asyncio.sleep(1.0)
        assert late.refused == [InconsistentGroupProtocolError.name]
        await late.member.close()
        answer = await world.ask("ListGroups", 5)
        assert [(row.group_type, row.protocol_type) for row in answer.groups] == [
            ("Classic", "consumer")
        ]
        found = await world.brokers[1].registry.groups.fetch("g")
        assert [row.offset for row in found.values()] == [8]

    run(body)


def test_concurrent_requests_to_a_new_coordinator_load_the_group_once() -> None:
    """Regression: a describe request replaced the group state that concurrent joins had loaded.

    The new state lacked the members, and began a generation that already existed.
    """

    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("t")
        one, two = await gathered(world, 2)
        old = world.brokers.pop(one.broker)
        await old.registry.close()
        old.groups.close()
        (parts,) = world.brokers.values()
        while len(parts.registry.snapshot.brokers) > 1:
            await asyncio.sleep(0.1)
        left, go_on = parts.groups.has_former_members, asyncio.Event()

        async def late(group: str) -> bool:
            found = await left(group)
            await go_on.wait()
            return found

        parts.groups.has_former_members = late  # type: ignore[method-assign]
        describing = asyncio.ensure_future(parts.groups.find_described("g"))
        for member in (one, two):
            member.id, member.broker = "", coordinator(world, "g")
        assert await both(one.join(), two.join()) == [0, 0]
        await both(one.sync(), two.sync())
        go_on.set()
        assert await describing is parts.groups.find("g")
        assert (await one.heartbeat(), await two.heartbeat()) == (0, 0)

    run(body)
