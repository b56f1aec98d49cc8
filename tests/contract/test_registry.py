"""Test the registries of several brokers together, on the simulated and on a real ZooKeeper.

A broker's *registry* registers the broker, keeps a snapshot of the metadata, and may be the
controller.
"""

from __future__ import annotations

import asyncio

import pytest
from brokers import Cluster, create, run
from worlds import RealWorld, SimWorld, World, until

from broker_lite.errors import (
    BrokerIdTakenError,
    CompactionNotBuiltError,
    CoordinationUnavailableError,
    InconsistentClusterIdError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    LogbusError,
    NotControllerError,
    StaleDirectoryError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from broker_lite.metadata import store as metadata_store
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Set
from broker_lite.metadata.zookeeper.blocking import read_brokers, read_group_offsets
from broker_lite.model import (
    NO_BROKER,
    CommittedOffset,
    Endpoint,
    ReplicaId,
    TopicPartition,
)
from broker_lite.server.cluster.administration import NewTopic
from broker_lite.server.cluster.registry import (
    SUPPORTED_FEATURES,
)


def test_brokers_see_each_other_and_elect_one_controller(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await asyncio.gather(*(cluster.start(number) for number in (1, 2, 3)))
        await until(lambda: all(len(b.registry.snapshot.brokers) == 3 for b in brokers))
        assert sum(broker.registry.is_controller for broker in brokers) == 1
        one = brokers[0].registry.snapshot
        assert one.brokers[2].endpoint == Endpoint("127.0.0.1", 9002)
        assert one.brokers[2].directory_id == "directory-2"
        assert one.brokers[2].broker_epoch == brokers[1].registry.broker_epoch
        ids = {broker.registry.snapshot.cluster_id for broker in brokers}
        assert len(ids) == 1 and len(ids.pop()) == 22
        await until(lambda: all(b.registry.snapshot.controller_id > 0 for b in brokers))
        assert {b.registry.snapshot.controller_epoch for b in brokers} == {1}
        await until(lambda: brokers[0].registry.snapshot.features == SUPPORTED_FEATURES)

    run(world, body)


def test_created_topics_are_placed_round_robin_and_seen_by_all_brokers(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        for number in (1, 2, 3):
            await cluster.start(number)
        controller = cluster.controller()
        topic_id = await create(controller, "t", 6, **{"retention.ms": "1000"})
        assert controller.registry.snapshot.topics["t"].topic_id == topic_id
        for broker in cluster.running:
            await until(lambda broker=broker: "t" in broker.registry.snapshot.topics)
            topic = broker.registry.snapshot.topics_by_id[topic_id]
            assert [view.replicas for view in topic.partitions] == [(1,), (2,), (3,)] * 2
            assert dict(topic.config) == {"retention.ms": "1000"}
            for view in topic.partitions:
                broker_id = view.replicas[0]
                assert view.state.leader == broker_id
                assert view.state.isr == (ReplicaId(broker_id, f"directory-{broker_id}"),)
                live = broker.registry.snapshot.brokers[broker_id]
                assert view.state.leader_broker_epoch == live.broker_epoch
        await create(controller, "u", 1)
        await create(controller, "v", 1)
        assert await cluster.led("u") == 1
        assert await cluster.led("v") == 2

    run(world, body)


def test_broker_runs_with_more_topics_than_fit_into_one_zk_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 30_000
    monkeypatch.setattr(metadata_store, "REQUEST_BYTES_MAX", limit)

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        names = [f"{number:03}{'x' * 200}" for number in range(limit // 200)]
        for name in names:
            await create(broker, name)
        await asyncio.sleep(5)
        assert broker.fatal == []
        assert set(broker.registry.snapshot.topics) == set(names)

    run(SimWorld(), body)


def test_error_of_a_refused_topic_request_says_how_to_correct_it(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.start(1)
        other = await cluster.start(2)
        controller = cluster.controller().registry
        await create(cluster.controller(), "there")
        wrong: list[tuple[NewTopic, type[LogbusError], str]] = [
            (NewTopic("a/b", 1, 1), InvalidTopicError, "letters"),
            (NewTopic("there", 1, 1), TopicExistsError, "exists"),
            (NewTopic("n", 0, 1), InvalidPartitionsError, "1 to 2662"),
            (NewTopic("n", 2663, 1), InvalidPartitionsError, "1 to 2662 with replication factor 1"),
            (
                NewTopic("n", 2**31 - 1),
                InvalidPartitionsError,
                "with replication factor 2, because one",
            ),
            (NewTopic("n", 1, 0), InvalidReplicationFactorError, "at least 1"),
            (NewTopic("n", 1, 3), InvalidReplicationFactorError, "only 2 brokers are live"),
            (NewTopic("n", 1, 1, [[9]]), InvalidReplicaAssignmentError, "live brokers: [1, 2]"),
            (NewTopic("n", 1, 1, [[1, 1]]), InvalidReplicaAssignmentError, "none twice"),
            (NewTopic("n", 1, 1, [[]]), InvalidReplicaAssignmentError, "at least one"),
            (
                NewTopic("n", 1, 1, None, {"retention.mss": "1"}),
                InvalidConfigError,
                "'retention.ms'",
            ),
            (
                NewTopic("n", 1, 1, None, {"cleanup.policy": "compact"}),
                CompactionNotBuiltError,
                "delete",
            ),
            (
                NewTopic("n", 1, 1, None, {"min.insync.replicas": "2"}),
                InvalidConfigError,
                "replication factor 1",
            ),
        ]
        for topic, kind, text in wrong:
            [result] = await controller.administration.create_topics([topic])
            assert type(result.error) is kind, (topic, result.error)
            assert text in str(result.error)
        [result] = await controller.administration.create_topics(
            [NewTopic("n", 2, 1)], validate_only=True
        )
        assert result.error is None and result.partitions == 2
        assert "n" not in controller.snapshot.topics
        [result] = await controller.administration.delete_topics(["nothing"])
        assert isinstance(result.error, UnknownTopicOrPartitionError)
        for call in (
            other.registry.administration.create_topics([NewTopic("n", 1, 1)]),
            other.registry.administration.delete_topics(["there"]),
            other.registry.administration.create_partitions("there", 2),
            other.registry.administration.alter_topic_config("there", {}),
        ):
            with pytest.raises(NotControllerError):
                await call

    run(world, body)


def test_topics_can_be_expanded_reconfigured_and_recreated(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.start(1)
        other = (await cluster.start(2)).registry
        controller = cluster.controller().registry
        first_id = await create(cluster.controller(), "t", 1)
        await until(lambda: "t" in other.snapshot.topics)

        result = await controller.administration.create_partitions("t", 3)
        assert result.error is None and result.partitions == 3
        await until(lambda: len(other.snapshot.topics["t"].partitions) == 3)
        result = await controller.administration.create_partitions("t", 2)
        assert isinstance(result.error, InvalidPartitionsError)
        result = await controller.administration.create_partitions("t", 5, assignment=[[1]])
        assert isinstance(result.error, InvalidReplicaAssignmentError)

        view = await controller.administration.alter_topic_config(
            "t", {"retention.ms": "5", "segment.ms": "7"}
        )
        assert dict(view.config) == {"retention.ms": "5", "segment.ms": "7"}
        await controller.administration.alter_topic_config("t", {"segment.ms": None})
        await until(lambda: dict(other.snapshot.topics["t"].config) == {"retention.ms": "5"})
        for change in ({"segment.ms": "soon"}, {"segment.m": None}):
            with pytest.raises(InvalidConfigError):
                await controller.administration.alter_topic_config("t", change)

        [deleted] = await controller.administration.delete_topics([first_id])
        assert (deleted.name, deleted.error) == ("t", None)
        assert "t" not in controller.snapshot.topics
        second_id = await create(cluster.controller(), "t", 1)
        assert second_id != first_id
        await until(lambda: second_id in other.snapshot.topics_by_id)
        assert first_id not in other.snapshot.topics_by_id

    run(world, body)


def test_dead_controller_is_replaced_and_its_partitions_lose_their_leader(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        for number in (1, 2, 3):
            await cluster.start(number)
        old = cluster.controller()
        old_id = old.registry.snapshot.controller_id
        await create(old, "t", 3)
        dead = next(
            v for v in old.registry.snapshot.topics["t"].partitions if v.replicas == (old_id,)
        )
        await cluster.kill(old)
        await until(lambda: any(broker.registry.is_controller for broker in cluster.running))
        new = cluster.controller()
        # The dead broker's partition loses its leader, keeps its ISR and reports the reason.
        await until(
            lambda: new.registry.snapshot.partition("t", dead.partition).state.leader == NO_BROKER  # type: ignore[union-attr]
        )
        now = new.registry.snapshot.partition("t", dead.partition)
        assert now is not None
        assert now.state.isr == dead.state.isr
        assert now.state.leader_epoch > dead.state.leader_epoch
        down = f"broker {old_id} is down"
        await until(lambda: down in str(new.registry.leaderless_reason("t", dead.partition)))
        await until(lambda: new.registry.snapshot.controller_epoch >= 2)
        await create(new, "u", 2)
        # Restart the broker with the same directory: it leads again in a higher leader epoch.
        back = await cluster.start(old_id)
        assert await cluster.led("t", dead.partition) == old_id
        again = back.registry.snapshot.partition("t", dead.partition)
        assert again is not None
        assert again.state.leader_epoch >= dead.state.leader_epoch + 2
        assert again.state.leader_broker_epoch == back.registry.broker_epoch
        assert back.registry.leaderless_reason("t", dead.partition) is None

    run(world, body)


def test_deposed_controller_is_fenced_before_it_learns_of_its_successor(world: World) -> None:
    """ZooKeeper refuses the former controller's write, because its successor has changed
    /controller_epoch."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t")
        epoch = await broker.store.get(znodes.CONTROLLER_EPOCH)
        assert epoch is not None
        later = znodes.encode_controller_epoch(2)
        await broker.store.write([Set(znodes.CONTROLLER_EPOCH, later, epoch.version)])
        [result] = await broker.registry.administration.create_topics([NewTopic("u", 1, 1)])
        assert isinstance(result.error, NotControllerError)
        assert await broker.store.get(znodes.topic_path("u")) is None
        # The only broker becomes controller again, in a new controller epoch.
        await until(lambda: broker.registry.is_controller)
        await until(lambda: broker.registry.snapshot.controller_epoch == 3)
        await create(broker, "u")

    run(world, body)


def test_brokers_elect_a_controller_after_its_znode_is_deleted(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await two.store.write([Delete(znodes.CONTROLLER)])
        for broker in (one, two):
            await until(lambda broker=broker: broker.registry.snapshot.controller_epoch == 2)
        await until(lambda: one.registry.is_controller != two.registry.is_controller)
        await create(cluster.controller(), "t")

    run(world, body)


def test_restarted_broker_registers_before_its_former_session_expires(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        first = await cluster.start(1)
        other = await cluster.start(2)
        await create(cluster.controller(), "t", 2)
        was_controller = first.registry.is_controller
        assert was_controller
        old_epoch = first.registry.broker_epoch
        state = first.registry.snapshot.partition("t", 0)
        await cluster.kill(first)
        loop = asyncio.get_running_loop()
        started = loop.time()
        second = await cluster.start(1)
        if isinstance(world, SimWorld):
            assert loop.time() - started < world.session_timeout_ms / 1000
        assert second.registry.broker_epoch > old_epoch
        # The new process must lead in a new leader epoch.
        await until(
            lambda: (
                second.registry.snapshot.partition("t", 0).state.leader_broker_epoch  # type: ignore[union-attr]
                == second.registry.broker_epoch
            )
        )
        renewed = second.registry.snapshot.partition("t", 0)
        assert state is not None and renewed is not None
        assert renewed.state.leader_epoch > state.state.leader_epoch
        assert await cluster.led("t", 0) == 1
        await create(cluster.controller(), "u")
        await until(lambda: "u" in other.registry.snapshot.topics)

    run(world, body)


def test_broker_restarted_with_another_data_directory_does_not_lead_its_old_partitions(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(cluster: Cluster) -> None:
        controller = await cluster.start(1)
        lost = await cluster.start(2)
        await create(controller, "t", 2)
        await lost.registry.close()
        cluster.running.remove(lost)
        await until(lambda: 2 not in controller.registry.snapshot.brokers)
        empty = await cluster.start(2, directory="another")
        await until(lambda: 2 in controller.registry.snapshot.brokers)
        await until(lambda: "runs with data directory another" in caplog.text)
        view = empty.registry.snapshot.partition("t", 1)
        assert view is not None
        assert view.state.isr == (ReplicaId(2, "directory-2"),)
        reason = controller.registry.leaderless_reason("t", 1)
        assert reason is not None
        assert "another" in reason and "directory-2" in reason
        # The broker may lead new partitions at once.
        await create(controller, "u", 2)
        await cluster.led("u", 0)
        await cluster.led("u", 1)
        # Restart the broker with its former directory.
        await empty.registry.close()
        cluster.running.remove(empty)
        await cluster.start(2)
        assert await cluster.led("t", 1) == 2

    run(world, body)


def test_broker_id_of_another_live_broker_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.start(1)
        with pytest.raises(BrokerIdTakenError, match=r"give this broker another broker\.id"):
            await cluster.start(1, directory="another")

    run(world, body)


def test_rolled_back_or_copied_data_directory_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        for _ in range(3):
            broker = await cluster.start(1)
            await broker.registry.close()
            cluster.running.remove(broker)
        for counter in (2, 3):
            with pytest.raises(StaleDirectoryError, match="rolled back or copied"):
                await cluster.start(1, counter=counter)
        await cluster.start(1, counter=4)

    run(world, body)


def test_data_directory_of_another_broker_id_is_refused(world: World) -> None:
    """With the directory, this broker would set aside the other broker's replicas, and later delete
    them as stray logs."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await broker.registry.close()
        cluster.running.remove(broker)
        with pytest.raises(InvalidConfigError, match=r"of broker 1: set broker\.id=1, or"):
            await cluster.start(2, directory="directory-1")
        await cluster.start(1)

    run(world, body)


def test_data_directory_of_another_cluster_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        with pytest.raises(InconsistentClusterIdError, match="has no cluster"):
            await cluster.start(1, cluster_id="A" * 22)
        broker = await cluster.start(2)
        cluster_id = broker.registry.snapshot.cluster_id
        with pytest.raises(InconsistentClusterIdError, match=cluster_id):
            await cluster.start(1, cluster_id="A" * 22)
        await cluster.start(1, cluster_id=cluster_id)

    run(world, body)


def test_broker_without_the_finalized_feature_levels_of_the_cluster_is_refused(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        one = await cluster.start(1, features={"columns": 2, "x": 1})
        await until(lambda: one.registry.snapshot.features == {"columns": 2, "x": 1})
        with pytest.raises(UnsupportedVersionError, match="uses feature columns at level 2"):
            await cluster.start(2, features={"columns": 1, "x": 1})
        await cluster.start(2, features={"columns": 3, "x": 1, "y": 1})
        assert one.registry.snapshot.features == {"columns": 2, "x": 1}

    run(world, body)


def test_broker_registers_again_after_its_session_expires(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        for number in (1, 2):
            await cluster.start(number)
        broker = cluster.controller()
        await create(broker, "t", 2)
        number = broker.registry.snapshot.controller_id
        epoch = broker.registry.broker_epoch
        await world.expire(broker.store)
        await until(lambda: broker.registry.broker_epoch > epoch)
        assert broker.registry.broker_epochs == {epoch, broker.registry.broker_epoch}
        assert broker.registry.session_losses.n == 1
        await until(lambda: any(b.registry.is_controller for b in cluster.running))
        for partition in (0, 1):
            await cluster.led("t", partition)
        for running in cluster.running:
            await until(
                lambda running=running: (
                    running.registry.snapshot.brokers[number].broker_epoch
                    == broker.registry.broker_epoch
                )
            )
        await until(lambda: any(b.registry.is_controller for b in cluster.running))
        await create(cluster.controller(), "u", 1)
        assert not broker.fatal

    run(world, body)


def test_broker_registers_again_after_its_znode_is_deleted(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        epoch = one.registry.broker_epoch
        await two.store.write([Delete(znodes.broker_path(1))])
        await until(lambda: one.registry.broker_epoch > epoch)
        await until(lambda: len(two.registry.snapshot.brokers) == 2)

    run(world, body)


def test_broker_stops_when_a_later_process_registers_with_its_data_directory(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one = await cluster.start(1)
        await cluster.start(1)
        await until(lambda: one.fatal)
        assert isinstance(one.fatal[0], StaleDirectoryError)

    run(world, body)


def test_producer_ids_are_unique(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        seen = await asyncio.gather(
            *(broker.registry.next_producer_id() for broker in (one, two) for _ in range(1500))
        )
        assert len(set(seen)) == 3000

    run(world, body)


def test_broker_registrations_and_the_controller_survive_dropped_connections(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        controller = cluster.controller()
        await create(controller, "t", 2)
        epoch = one.registry.broker_epoch
        for broker in (one, two):
            world.drop_connection(broker.store)
        await until(lambda: not one.registry.connected or not two.registry.connected)
        await until(lambda: one.registry.connected and two.registry.connected)
        await create(cluster.controller(), "u", 2)
        for broker in (one, two):
            await until(lambda broker=broker: "u" in broker.registry.snapshot.topics)
        assert one.registry.broker_epoch == epoch
        assert cluster.controller() is controller

    run(world, body)


def test_broker_starts_although_it_loses_its_zookeeper_connection_meanwhile(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        for number in range(20):
            store = world.store()
            start = asyncio.ensure_future(cluster.start(number, store=store))
            await asyncio.sleep((0.001 if isinstance(world, SimWorld) else 0.002) * number)
            world.drop_connection(store)
            await start
            await until(lambda: all(broker.registry.connected for broker in cluster.running))

    run(world, body)


def test_topic_is_created_although_zookeepers_response_is_lost(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        for number in range(10):
            creation = asyncio.ensure_future(create(broker, f"t{number}", 3))
            await asyncio.sleep(0.001 * number if isinstance(world, SimWorld) else 0.0003 * number)
            world.drop_connection(broker.store)
            topic_id = await creation
            assert broker.registry.snapshot.topics[f"t{number}"].topic_id == topic_id
            await until(lambda: broker.registry.connected)

    run(world, body)


def test_topic_missing_only_in_a_brokers_stale_metadata_is_not_reported_deleted(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        for number in (1, 2):
            await cluster.start(number)
        ahead = cluster.controller()
        behind = next(broker for broker in cluster.running if broker is not ahead)
        old = await create(ahead, "old")
        await until(lambda: "old" in behind.registry.snapshot.topics)
        keeper = behind.registry._keeper
        assert keeper is not None
        keeper.cancel()
        new = await create(ahead, "new")
        assert await behind.registry.deleted_topics([old, new]) == frozenset()
        assert await ahead.registry.deleted_topics([old, new]) == frozenset()
        await ahead.registry.administration.delete_topics(["old"])
        assert await ahead.registry.deleted_topics([old, new]) == {old}

    run(world, body)


def test_topic_with_a_thousand_partitions_survives_the_stop_of_a_broker(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "n" * 200, 1000)
        await until(lambda: "n" * 200 in two.registry.snapshot.topics)
        assert len(one.registry.snapshot.topics["n" * 200].partitions) == 1000
        await two.registry.close()
        cluster.running.remove(two)
        await until(
            lambda: (
                sum(
                    view.state.leader == NO_BROKER
                    for view in one.registry.snapshot.topics["n" * 200].partitions
                )
                == 500
            )
        )

    run(world, body)


def test_broker_refuses_to_start_on_znodes_of_another_program(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        store = world.store()
        await store.start(lambda event: None)
        await store.write([Create("/cluster"), Create("/cluster/id", b'{"version":"1","id":"x"}')])
        await store.close()
        with pytest.raises(UnsupportedVersionError, match="/cluster/id"):
            await cluster.start(1)

    run(world, body)


def test_brokers_recover_after_an_outage_of_zookeeper(world: World) -> None:
    """This test runs only on the simulation.

    tests/faults has a test that stops a real ZooKeeper.
    """
    if isinstance(world, RealWorld):
        return

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 2)
        epochs = [one.registry.broker_epoch, two.registry.broker_epoch]
        world.service.stop()
        assert not one.registry.connected
        with pytest.raises(CoordinationUnavailableError):
            await cluster.running[0].registry.administration.create_topics([NewTopic("u", 1, 1)])
        with pytest.raises(CoordinationUnavailableError):
            await two.registry.groups.commit("g", {TopicPartition("t", 0): CommittedOffset(1)})
        await asyncio.sleep(20)
        world.service.start()
        await until(lambda: one.registry.connected and two.registry.connected)
        await two.registry.groups.commit("g", {TopicPartition("t", 0): CommittedOffset(1)})
        await create(cluster.controller(), "u", 2)
        assert [one.registry.broker_epoch, two.registry.broker_epoch] == epochs

    run(world, body)


def test_client_reads_brokers_and_group_offsets_directly_from_zookeeper(
    world: World,
) -> None:
    if isinstance(world, SimWorld):
        return

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(10)
        await cluster.start(9)
        topic_id = await create(cluster.controller(), "t", 11)
        offsets = {TopicPartition("t", n): CommittedOffset(n) for n in (10, 2)}
        await broker.registry.groups.commit("g/1", offsets)
        loop = asyncio.get_running_loop()
        endpoints = await loop.run_in_executor(None, read_brokers, world.address)
        assert endpoints == [Endpoint("127.0.0.1", 9009), Endpoint("127.0.0.1", 9010)]
        found = await loop.run_in_executor(None, read_group_offsets, world.address, "g/1")
        assert list(found) == [TopicPartition("t", 2), TopicPartition("t", 10)]
        assert found[TopicPartition("t", 2)] == CommittedOffset(2, -1, "", topic_id, 1234)
        assert await loop.run_in_executor(None, read_group_offsets, world.address, "no") == {}

    run(world, body)
