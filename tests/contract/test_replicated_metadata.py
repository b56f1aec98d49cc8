"""Test the metadata of replicated partitions: suspected, draining and damaged brokers, ISR writes.

A broker that other brokers cannot reach is *suspected* before its ZooKeeper session expires.
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from brokers import Broker, Cluster, create, run
from three_brokers import (
    T0,
    broker_of,
    drains,
    has_version,
    isr_of,
    left,
    suspect,
    three,
    view_of,
    write,
)
from worlds import SimWorld, World, until

from broker_lite.errors import (
    CoordinationUnavailableError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    UnsupportedVersionError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import TopicsSnapshot
from broker_lite.metadata.store import Set
from broker_lite.model import (
    NO_BROKER,
    PartitionKey,
    StateChange,
    TopicPartition,
)
from broker_lite.replication.topics import partitions_max
from broker_lite.server.cluster.administration import NewTopic


def test_broker_suspected_to_be_dead_loses_leadership_before_its_session_expires(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await create(cluster.controller(), "t", 3, factor=3)
        chief = cluster.controller().registry.snapshot.controller_id
        dead = next(number for number in (1, 2, 3) if number != chief)
        await cluster.led("t", 2)
        suspect(cluster, dead)
        others = [b for b in cluster.running if b.registry._config.broker_id != dead]
        for partition in range(3):
            await left(others, dead, partition)
            assert view_of(others[0], partition).state.leader not in (dead, NO_BROKER)
        # No session has expired, so the suspicion caused the election.
        assert len(others[0].registry.snapshot.brokers) == 3
        # After the broker is reachable again, a leader may add it to the ISR.
        leader = broker_of(cluster, view_of(others[0]).state.leader)
        assert await write(leader, (1, 2, 3)) is None
        for broker in cluster.running:
            epoch = broker.registry.snapshot.brokers[dead].broker_epoch
            broker.registry.trust(dead, epoch)
        written = await write(leader, (1, 2, 3))
        assert written is not None
        await until(lambda: all(isr_of(b) == [1, 2, 3] for b in cluster.running))
        assert view_of(leader).state == written

    run(world, body)


def test_controller_suspected_to_be_dead_is_deposed_and_its_partitions_get_new_leaders(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        old = cluster.controller()
        dead = old.registry.snapshot.controller_id
        await create(old, "t", 3, factor=3)
        await cluster.led("t", 2)
        await cluster.kill(old)
        suspect(cluster, dead)
        await until(lambda: any(b.registry.is_controller for b in cluster.running))
        for partition in range(3):
            await left(cluster.running, dead, partition)
            assert await cluster.led("t", partition) != dead
        epochs = {b.registry.snapshot.controller_epoch for b in cluster.running}
        assert epochs == {2}

    run(world, body)


def test_controller_wrongly_suspected_to_be_dead_is_replaced_and_stays_a_broker(
    world: World,
) -> None:
    """A wrong suspicion deposes the controller, but its process stays registered as a broker."""

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        old = cluster.controller()
        number = old.registry.snapshot.controller_id
        others = [b for b in cluster.running if b is not old]
        for broker in others:
            epoch = broker.registry.snapshot.brokers[number].broker_epoch
            broker.registry.suspect(number, epoch)
        await until(lambda: any(b.registry.is_controller for b in others))
        await until(lambda: not old.registry.is_controller)
        await until(lambda: old.registry.snapshot.controller_id != number)

    run(world, body)


def test_suspicion_of_a_former_broker_process_does_not_apply_after_a_restart(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        [one, two, three_] = await three(cluster)
        await create(cluster.controller(), "t", 1, factor=3)
        await cluster.led("t")
        before = view_of(one).state
        for broker in (one, two, three_):
            broker.registry.suspect(2, 1)
            broker.registry.suspect(9, 1)
            broker.registry.trust(3, 5)
        assert (await write(broker_of(cluster, before.leader), (1, 2, 3))) is not None

    run(world, body)


def test_draining_broker_gives_up_leadership_and_leaves_the_isrs(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        controller = cluster.controller()
        await create(controller, "t", 3, factor=3)
        await create(controller, "single", 3)
        await cluster.led("t", 2)
        for broker in brokers[:2]:
            number = broker.registry._config.broker_id
            await broker.registry.drain()
            for partition in range(3):
                view = view_of(broker, partition)
                assert view.state.leader not in (number, NO_BROKER)
                assert number not in isr_of(broker, partition)
            # A partition whose only replica is on the draining broker keeps its leader.
            singles = broker.registry.snapshot.topics["single"].partitions
            assert [v.state.leader for v in singles if v.replicas == (number,)] == [number]
            # A leader cannot add the draining broker to the ISR again.
            leader = broker_of(cluster, view_of(broker).state.leader)
            await drains(leader, number)
            assert await write(leader, (1, 2, 3)) is None
        # The last broker can drain too, although no other replica can lead.
        await brokers[2].registry.drain()
        assert [view_of(brokers[2], p).state.leader for p in range(3)] == [3, 3, 3]

    run(world, body)


def test_broker_with_a_full_disk_gives_up_leadership_until_it_has_space(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        await create(cluster.controller(), "t", 3, factor=3)
        await cluster.led("t", 2)
        await brokers[0].registry.set_full(True)
        for partition in range(3):
            await left(brokers, 1, partition)
            assert all(view_of(broker, partition).state.leader in (2, 3) for broker in brokers)
        # After the disk has space again, a leader may add the broker to the ISR.
        leader = broker_of(cluster, view_of(brokers[1]).state.leader)
        assert await write(leader, (1, 2, 3)) is None
        await brokers[0].registry.set_full(False)
        await until(lambda: not leader.registry.snapshot.brokers[1].is_full)
        assert await write(leader, (1, 2, 3)) is not None

    run(world, body)


def test_start_of_draining_fails_within_seconds_if_zookeeper_does_not_answer() -> None:
    async def body(cluster: Cluster) -> None:
        [one, two, *_] = await three(cluster)

        async def no_answer(_: object) -> None:
            await asyncio.Event().wait()

        two.store.write = no_answer  # type: ignore[assignment, method-assign]
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(CoordinationUnavailableError, match="did not answer within 2 s"):
            await two.registry.drain()
        assert asyncio.get_running_loop().time() - began_s < 3  # The loop's time is virtual.
        del two.store.write
        cluster.world.service.stop()  # type: ignore[union-attr]
        with pytest.raises(CoordinationUnavailableError):
            await asyncio.wait_for(one.registry.drain(), 5)
        cluster.world.service.start()  # type: ignore[union-attr]
        await until(lambda: one.registry.connected)

    run(SimWorld(), body)


def test_drained_broker_may_join_isrs_after_a_restart(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        await create(cluster.controller(), "t", 1, factor=3)
        one = brokers[0]
        await one.registry.drain()
        cluster.running.remove(one)
        await one.registry.close()
        back = await cluster.start(1)
        await until(lambda: all(1 in b.registry.snapshot.brokers for b in cluster.running))
        for broker in cluster.running:
            assert not broker.registry.snapshot.brokers[1].draining
        await until(lambda: isr_of(back) == [2, 3])
        leader = broker_of(cluster, view_of(back).state.leader)
        assert await write(leader, (1, 2, 3)) is not None

    run(world, body)


def test_isr_write_with_an_old_znode_version_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        topic_id = await create(cluster.controller(), "t", 3, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        before = view_of(leader).state
        written = await write(leader, (1, 2))
        assert written is not None and written.version == before.version + 1
        # ZooKeeper refuses a write with the former version.
        registry = leader.registry
        [refused] = await registry.write_states([StateChange("t", 0, before, topic_id)])
        assert refused is None
        # A write of an equal state with the current version succeeds and increments the version.
        [again] = await registry.write_states([StateChange("t", 0, written, topic_id)])
        assert again == dataclasses.replace(written, version=written.version + 1)
        await until(lambda: all(view_of(b).state == again for b in cluster.running))
        # Results are in the order of the changes: one change is refused, the others are applied.
        views = [view_of(leader, partition) for partition in range(3)]
        changes = [
            StateChange("t", 0, before, topic_id),
            StateChange("t", 1, views[1].state, topic_id),
            StateChange("t", 9, before, topic_id),
            StateChange("t", 2, views[2].state, topic_id),
            StateChange("nothing", 0, before, topic_id),
        ]
        outcomes = await registry.write_states(changes)
        assert [outcome is not None for outcome in outcomes] == [False, True, False, True, False]
        assert await registry.write_states([]) == []

    run(world, body)


def test_dead_or_unassigned_brokers_cannot_join_the_isr(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller().registry
        [result] = await controller.administration.create_topics([NewTopic("t", 1, 2, [[1, 2]])])
        assert result.error is None
        leader = broker_of(cluster, await cluster.led("t"))
        assert await write(leader, (1, 2, 3)) is None
        assert await write(leader, (1,)) is not None
        await until(lambda: isr_of(leader) == [1])
        await cluster.kill(broker_of(cluster, 2))
        await until(lambda: 2 not in leader.registry.snapshot.brokers)
        assert await write(leader, (1, 2)) is None
        # A broker with another data directory is another replica, which cannot join either.
        await cluster.start(2, directory="another")
        await until(lambda: 2 in leader.registry.snapshot.brokers)
        assert await write(leader, (1, 2)) is None

    run(world, body)


def test_replica_removed_by_a_reassignment_cannot_join_the_isr(world: World) -> None:
    """The broker deletes the log of the removed replica.

    If the ISR contained the removed replica, a reassignment back to its broker could elect this
    replica, with an empty log.
    """

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller().registry
        [result] = await controller.administration.create_topics([NewTopic("t", 1, 2, [[1, 2]])])
        assert result.error is None
        leader = broker_of(cluster, await cluster.led("t"))
        key = TopicPartition("t", 0)
        assert await controller.administration.reassign({key: (1, 3)}) == {key: None}
        await until(lambda: 3 in view_of(leader).replicas)
        topics, sequence = leader.registry._fresh.topics, leader.registry._sequence
        assert await controller.administration.reassign({key: None}) == {key: None}
        # Simulate a leader that has not read the cancelled reassignment yet.
        leader.registry._states._topics_snapshot = lambda: TopicsSnapshot(topics, sequence)
        assert await write(leader, (1, 2, 3)) is None
        assert await write(leader, (1,)) is not None

    run(world, body)


def test_isr_write_for_a_deleted_topic_does_not_reach_the_recreated_topic(world: World) -> None:
    """The state znodes of both topics have the same version, and the leader may still know the
    deleted topic."""

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller().registry
        old_id = await create(cluster.controller(), "t", 1, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        state = view_of(leader).state
        topics, sequence = leader.registry._fresh.topics, leader.registry._sequence
        await controller.administration.delete_topics(["t"])
        await create(cluster.controller(), "t", 1, factor=3)
        await until(lambda: old_id not in leader.registry.snapshot.topics_by_id)
        # Simulate a leader that has read neither the deletion nor the creation yet.
        leader.registry._states._topics_snapshot = lambda: TopicsSnapshot(topics, sequence)
        shrunk = dataclasses.replace(state, isr=state.isr[:1])
        [outcome] = await leader.registry.write_states([StateChange("t", 0, shrunk, old_id)])
        assert outcome is None
        assert len(view_of(leader).state.isr) == 3

    run(world, body)


def test_isr_write_completes_after_an_outage_of_zookeeper(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await create(cluster.controller(), "t", 1, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        world.drop_connection(leader.store)
        await until(lambda: not leader.registry.connected)
        written = await write(leader, (1, 2))
        assert written is not None
        await until(lambda: all(view_of(b).state == written for b in cluster.running))

    run(world, body)


@pytest.mark.parametrize("seed", range(10))
def test_leader_rereads_the_isr_znode_after_a_lost_write_response(
    seed: int,
) -> None:
    world = SimWorld(seed)

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await create(cluster.controller(), "t", 1, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        world.service.lost_reply_rate = 0.5
        isrs: list[tuple[int, ...]] = [(1, 2), (1, 2, 3), (1, 3), (1,), (1, 2, 3)]
        for isr in isrs * 2:
            outcome = await write(leader, isr)
            znode = world.service.peek(znodes.state_path("t", 0))
            assert znode is not None
            there = znodes.decode_state("", znode.data, znode.version)
            if outcome is not None:
                assert there == outcome
            await has_version(leader, there.version)
        world.service.lost_reply_rate = 0.0

    run(world, body)


def test_isr_write_is_refused_if_the_leaders_session_expires_before_the_write() -> None:
    world = SimWorld()

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await create(cluster.controller(), "t", 1, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        leader.store.cut()  # type: ignore[attr-defined]
        waiting = asyncio.ensure_future(write(leader, (1, 2)))
        await asyncio.sleep(5)
        assert not waiting.done()
        leader.store.heal()  # type: ignore[attr-defined]
        assert await waiting is None

    run(world, body)


def test_isr_write_succeeds_after_the_controller_epoch_has_changed(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await create(cluster.controller(), "t", 1, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        store = leader.store
        epoch = await store.get(znodes.CONTROLLER_EPOCH)
        assert epoch is not None
        later = znodes.encode_controller_epoch(7)
        await store.write([Set(znodes.CONTROLLER_EPOCH, later, epoch.version)])
        assert await write(leader, (1, 2)) is not None

    run(world, body)


async def withdraw(broker: Broker, *partitions: PartitionKey) -> frozenset[PartitionKey]:
    """Remove a broker's replicas from their ISRs, as the broker does when it starts with damaged
    logs."""
    registry = broker.registry
    own = registry.snapshot.brokers[registry._config.broker_id]
    return await registry._states.withdraw(own.directory_id, partitions)


def test_corrupt_replica_leaves_the_isr_and_another_replica_leads(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        topic_id = await create(cluster.controller(), "t", 1, factor=3)
        single_id = await create(cluster.controller(), "single", 1)
        leader = broker_of(cluster, await cluster.led("t"))
        key, single = PartitionKey(topic_id, 0), PartitionKey(single_id, 0)
        before = view_of(leader).state
        assert await withdraw(leader, key) == {key}
        await until(lambda: before.leader not in isr_of(leader))
        state = view_of(leader).state
        assert state.leader not in (before.leader, NO_BROKER)
        assert state.leader_epoch > before.leader_epoch
        # If a follower's log is corrupt, the leader stays, in a new leader epoch.
        follower = next(
            b
            for b in cluster.running
            if b.registry._config.broker_id not in (before.leader, state.leader)
        )
        await until(lambda: view_of(follower).state == state)
        assert await withdraw(follower, key) == {key}
        await until(lambda: isr_of(follower) == [state.leader])
        assert view_of(follower).state.leader == state.leader
        assert view_of(follower).state.leader_epoch == state.leader_epoch + 1
        # The last in-sync replica stays in the ISR though damaged. Outside the ISR, damage has
        # no effect.
        last = broker_of(cluster, state.leader)
        await until(lambda: isr_of(last) == [state.leader])
        assert await withdraw(last, key, single) == frozenset()
        assert await withdraw(follower, key) == frozenset()

    run(world, body)


def test_broker_with_a_corrupt_log_leaves_the_isr_when_it_starts(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        topic_id = await create(cluster.controller(), "t", 1, factor=3)
        single_id = await create(cluster.controller(), "single", 1)
        leader = await cluster.led("t")
        dead = broker_of(cluster, leader)
        single = dead.registry.snapshot.topics["single"].partitions[0]
        await cluster.kill(dead)
        # Restart the broker before other brokers detect its failure.
        damaged = frozenset((PartitionKey(topic_id, 0), PartitionKey(single_id, 0)))
        back = await cluster.start(leader, damaged=damaged)
        assert leader not in isr_of(back)
        assert view_of(back).state.leader != leader
        now = back.registry.snapshot.topics["single"].partitions[0]
        assert now.state.isr == single.state.isr

    run(world, body)


def test_replicated_topics_are_refused_until_every_broker_is_upgraded(world: World) -> None:
    """Until then, no broker writes a format that a broker of the former version cannot read."""

    async def body(cluster: Cluster) -> None:
        old = await cluster.start(1, features={"metadata": 1, "columns": 1})
        await cluster.start(2)
        controller = cluster.controller()
        await until(lambda: len(controller.registry.snapshot.brokers) == 2)
        await create(controller, "t", 1)
        [result] = await controller.registry.administration.create_topics([NewTopic("u", 1, 2)])
        assert isinstance(result.error, UnsupportedVersionError)
        with pytest.raises(UnsupportedVersionError, match=r"brokers \[1\]"):
            await controller.registry.administration.reassign({T0: [1, 2]})
        await broker_of(cluster, 2).registry.drain()
        registered = await controller.store.get(znodes.broker_path(2))
        assert registered is not None and registered.data.startswith(b'{"version":1')
        cluster.running.remove(old)
        await old.registry.close()
        await cluster.start(1)
        await until(lambda: any(b.registry.is_controller for b in cluster.running))
        controller = cluster.controller()
        await until(lambda: controller.registry.snapshot.features.get("metadata") == 2)
        await create(controller, "u", 1, factor=2)

    run(world, body)


def test_topics_can_be_deleted_or_expanded_while_a_broker_is_down(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        controller = cluster.controller()
        await create(controller, "t", 2, factor=2)
        await create(controller, "u", 3, factor=3)
        away = next(b for b in brokers if b is not controller)
        number = away.registry._config.broker_id
        await cluster.kill(away)
        suspect(cluster, number)
        result = await controller.registry.administration.create_partitions("t", 4)
        assert result.error is None
        for partition in (2, 3):
            assert number not in view_of(controller, partition).replicas
        await controller.registry.administration.delete_topics(["u"])
        back = await cluster.start(number)
        assert "u" not in back.registry.snapshot.topics
        assert len(back.registry.snapshot.topics["t"].partitions) == 4

    run(world, body)


@pytest.mark.parametrize("name", ["n" * 249, "n" * 10])
def test_topic_with_the_maximum_number_of_partitions_is_reassigned_and_deleted(
    world: World, name: str
) -> None:
    """Each request to ZooKeeper stays within its size limit, with directory ids of real length."""
    most = partitions_max(name, 3)

    async def body(cluster: Cluster) -> None:
        for number in (1, 2, 3, 4):
            await cluster.start(number, directory=f"{number}" * 22)
        await until(lambda: all(len(b.registry.snapshot.brokers) == 4 for b in cluster.running))
        controller = cluster.controller().registry
        [made] = await controller.administration.create_topics(
            [NewTopic(name, assignment=[[1, 2, 3]] * most)]
        )
        assert made.error is None, made.error
        rows = {TopicPartition(name, number): [3, 2, 1] for number in range(most)}
        outcomes = await controller.administration.reassign(rows)
        assert set(outcomes.values()) == {None}
        await controller.administration.elect_leaders(None)
        topic = controller.snapshot.topics[name]
        assert {view.state.leader for view in topic.partitions} == {3}
        grown = await controller.administration.create_partitions(name, most + 1)
        assert isinstance(grown.error, InvalidPartitionsError)
        assert f"at most {most}" in str(grown.error)
        outcomes = await controller.administration.reassign({TopicPartition(name, 0): [4, 3, 2, 1]})
        [error] = outcomes.values()
        assert isinstance(error, InvalidReplicaAssignmentError)
        assert f"with replication factor 4 it can have at most {partitions_max(name, 4)}" in str(
            error
        )
        [refused] = await controller.administration.create_topics(
            [NewTopic("n" * 248, assignment=[[1, 2, 3, 4]] * 1000)]
        )
        assert isinstance(refused.error, InvalidPartitionsError)
        assert "give 1 to 948" in str(refused.error)
        assert "with replication factor 4, because one write to ZooKeeper" in str(refused.error)
        result = await controller.administration.delete_topics([name])
        assert result[0].error is None

    run(world, body)
