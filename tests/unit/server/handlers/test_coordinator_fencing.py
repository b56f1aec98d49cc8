"""Tests of a group coordinator without a connection to ZooKeeper.

The coordinator asks other brokers whether its groups have moved to another coordinator.
"""

from __future__ import annotations

import asyncio

from support.handler_members import gathered
from support.handler_world import Calls, World, run

from broker_lite.errors import NetworkError, UnknownMemberIdError
from broker_lite.server.coordinators.coordinator_fencing import CoordinatorFencing
from broker_lite.wire.calls.groups import FindCoordinatorRequest, FindCoordinatorResponse


class Wire(Calls):
    """The requests to other brokers: all fail if ``is_cut``; those to broker ``silent`` wait 60
    s."""

    def __init__(self, world: World) -> None:
        super().__init__(world.brokers)
        self.is_cut = False
        self.asked = 0
        self.silent = 0

    async def ask(self, broker_id: int, call: FindCoordinatorRequest) -> FindCoordinatorResponse:
        self.asked += 1
        if broker_id == self.silent:
            await asyncio.sleep(60.0)
        if self.is_cut:
            raise NetworkError("no answer")
        return await self.send(broker_id, call)


def test_group_coordinator_cut_off_from_the_metadata_store_gives_up_groups_that_moved() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await world.make_topic("t")
        one, two = await gathered(world, 2, session_timeout_ms=60_000)
        parts, store = world.brokers[one.broker], world.stores[one.broker]
        wire = Wire(world)
        fencing = CoordinatorFencing(one.broker, parts.registry, parts.groups, wire.ask)
        await fencing.check()
        assert wire.asked == 0, "a coordinator that reaches ZooKeeper asks no broker"
        store.cut()
        await fencing.check()
        assert wire.asked == 2
        assert await one.heartbeat() == 0, "the other brokers still see the coordinator's session"
        await asyncio.sleep(20.0)
        assert one.broker not in world.brokers[one.broker % 3 + 1].registry.snapshot.brokers
        wire.is_cut = True
        await fencing.check()
        assert await one.heartbeat() == 0, "no broker has answered that the group moved"
        wire.is_cut = False
        await fencing.check()
        assert await one.heartbeat() == UnknownMemberIdError.code
        assert await two.heartbeat() == UnknownMemberIdError.code

    run(body)


def test_coordinator_is_fenced_by_the_first_answers_although_one_broker_is_silent() -> None:
    """Regression: the check waited for all answers before it used any.

    Each check asks only three brokers, so its cost does not grow with the cluster.
    """

    async def body(world: World) -> None:
        await world.start(5)
        await world.make_topic("t")
        one, _ = await gathered(world, 2, session_timeout_ms=60_000)
        parts = world.brokers[one.broker]
        wire = Wire(world)
        fencing = CoordinatorFencing(one.broker, parts.registry, parts.groups, wire.ask)
        world.stores[one.broker].cut()
        await asyncio.sleep(20.0)
        wire.silent = min(set(world.brokers) - {one.broker})
        looking = asyncio.ensure_future(fencing.check())
        await asyncio.sleep(0.5)
        assert not looking.done() and wire.asked == 3
        assert await one.heartbeat() == UnknownMemberIdError.code
        await looking

    run(body)


def test_group_members_stay_in_the_group_while_no_broker_reaches_zookeeper() -> None:
    async def body(world: World) -> None:
        await world.start(3)
        await world.make_topic("t")
        one, two = await gathered(world, 2, session_timeout_ms=60_000)
        parts = world.brokers[one.broker]
        fencing = CoordinatorFencing(one.broker, parts.registry, parts.groups, Wire(world).ask)
        world.service.stop()
        for _ in range(20):
            await asyncio.sleep(2.0)
            await fencing.check()
            assert (await one.heartbeat(), await two.heartbeat()) == (0, 0)
        world.service.start()
        await asyncio.sleep(2.0)
        assert await one.commit(7) == 0

    run(body)
