"""Test replica placement in the metadata: reassignments, elections, replication factors."""

from __future__ import annotations

import pytest
from brokers import Cluster, create, run
from three_brokers import (
    T0,
    broker_of,
    isr_of,
    suspect,
    three,
    view_of,
    write,
)
from worlds import World, until

from broker_lite.errors import (
    BrokerIdNotRegisteredError,
    ElectionNotNeededError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
)
from broker_lite.model import (
    TopicPartition,
)
from broker_lite.server.cluster.administration import NewTopic


def test_reassignment_moves_a_partition_to_other_brokers(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await cluster.start(4)
        controller = cluster.controller()
        await until(lambda: len(controller.registry.snapshot.brokers) == 4)
        [result] = await controller.registry.administration.create_topics(
            [NewTopic("t", 1, 2, [[1, 2]])]
        )
        assert result.error is None
        assert await cluster.led("t") == 1
        assert await controller.registry.administration.reassign({T0: [3, 4]}) == {T0: None}
        view = view_of(controller)
        assert view.replicas == (3, 4, 1, 2)
        assert (view.adding, view.removing, view.target) == ((3, 4), (1, 2), (3, 4))
        leader = broker_of(cluster, 1)
        await until(lambda: view_of(leader).adding == (3, 4))
        assert await write(leader, (1, 2, 3)) is not None
        await until(lambda: isr_of(leader) == [1, 2, 3])
        assert await write(leader, (1, 2, 3, 4)) is not None
        await until(lambda: all(view_of(b).replicas == (3, 4) for b in cluster.running))
        after = view_of(controller)
        assert (after.adding, after.removing, after.state.leader) == ((), (), 3)
        assert isr_of(controller) == [3, 4]
        # Start a reassignment to the former brokers; the second request cancels it.
        assert await controller.registry.administration.reassign({T0: [1, 2]}) == {T0: None}
        assert await controller.registry.administration.reassign({T0: None}) == {T0: None}
        assert view_of(controller).replicas == (3, 4)

    run(world, body)


def test_next_controller_completes_a_reassignment(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        old = cluster.controller()
        chief = old.registry.snapshot.controller_id
        here, there = [number for number in (1, 2, 3) if number != chief]
        [result] = await old.registry.administration.create_topics([NewTopic("t", 1, 1, [[here]])])
        assert result.error is None
        await old.registry.administration.reassign({T0: [there]})
        await cluster.kill(old)
        suspect(cluster, chief)
        await until(lambda: any(b.registry.is_controller for b in cluster.running))
        leader = broker_of(cluster, here)
        await until(lambda: view_of(leader).adding == (there,))
        assert await write(leader, (here, there)) is not None
        await until(lambda: all(view_of(b).replicas == (there,) for b in cluster.running))
        assert view_of(leader).state.leader == there

    run(world, body)


def test_reassignment_to_a_missing_broker_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller()
        await create(controller, "t", 1, factor=2)
        outcomes = await controller.registry.administration.reassign({T0: [1, 9]})
        assert isinstance(outcomes[T0], InvalidReplicaAssignmentError)
        assert "broker 9, which is not alive; live brokers: [1, 2, 3]" in str(outcomes[T0])
        assert view_of(controller).adding == ()

    run(world, body)


def test_replication_factor_above_the_broker_count_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller().registry
        [result] = await controller.administration.create_topics([NewTopic("t", 1, 4)])
        assert isinstance(result.error, InvalidReplicationFactorError)
        assert "only 3 brokers are live (ids 1, 2, 3)" in str(result.error)
        assert "t" not in controller.snapshot.topics

    run(world, body)


def test_min_insync_replicas_above_the_replication_factor_is_refused(world: World) -> None:
    """The topic's creation, a change of the setting, and a reassignment to fewer replicas are
    refused."""

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller().registry
        setting = {"min.insync.replicas": "3"}
        [result] = await controller.administration.create_topics(
            [NewTopic("t", 1, 2, None, setting)]
        )
        assert isinstance(result.error, InvalidConfigError)
        assert "min.insync.replicas=3 is more than its replication factor 2" in str(result.error)
        await create(cluster.controller(), "t", 1, factor=3, **setting)
        with pytest.raises(InvalidConfigError, match="more than its replication factor 3"):
            await controller.administration.alter_topic_config("t", {"min.insync.replicas": "4"})
        outcomes = await controller.administration.reassign({T0: [1, 2]})
        assert isinstance(outcomes[T0], InvalidReplicaAssignmentError)
        assert "no acks=all request could succeed" in str(outcomes[T0])
        assert view_of(cluster.controller()).removing == ()

    run(world, body)


def test_default_replication_factor_counts_every_broker_that_is_not_retired(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        controller = cluster.controller()
        [result] = await controller.registry.administration.create_topics([NewTopic("t", 2)])
        assert result.replication_factor == 3
        away = next(b for b in brokers if b is not controller)
        number = away.registry._config.broker_id
        cluster.running.remove(away)
        await away.registry.close()
        await until(lambda: number not in controller.registry.snapshot.brokers)
        [result] = await controller.registry.administration.create_topics([NewTopic("u", 1)])
        assert f"start brokers [{number}], or retire them" in str(result.error)
        with pytest.raises(InvalidRequestError, match="holds replicas of t-0, t-1"):
            await controller.registry.administration.retire_broker(number)
        with pytest.raises(BrokerIdNotRegisteredError):
            await controller.registry.administration.retire_broker(9)
        rest = [n for n in (1, 2, 3) if n != number]
        outcomes = await controller.registry.administration.reassign(
            {TopicPartition("t", p): rest for p in range(2)}
        )
        assert set(outcomes.values()) == {None}
        await controller.registry.administration.retire_broker(number)
        [result] = await controller.registry.administration.create_topics([NewTopic("u", 1)])
        assert result.replication_factor == 2

    run(world, body)


def test_leadership_returns_to_the_preferred_replica_though_the_clock_is_set_back(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster, rebalance_ms=100)
        await create(cluster.controller(), "t", 1, factor=3)
        await cluster.led("t")
        preferred = view_of(brokers[0]).replicas[0]
        one = broker_of(cluster, preferred)
        cluster.running.remove(one)
        await one.registry.close()
        await until(lambda: preferred not in isr_of(cluster.running[0]))
        back = await cluster.start(preferred)
        leader = broker_of(cluster, await cluster.led("t"))
        assert leader is not back
        await until(lambda: preferred in leader.registry.snapshot.brokers)
        assert await write(leader, (1, 2, 3)) is not None
        cluster.wall_ms = 0
        await until(lambda: view_of(back).state.leader == preferred)

    run(world, body)


def test_preferred_leaders_are_elected_on_request(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        await three(cluster)
        controller = cluster.controller()
        await create(controller, "t", 1, factor=3)
        preferred = await cluster.led("t")
        outcomes = await controller.registry.administration.elect_leaders([T0])
        assert isinstance(outcomes[T0], ElectionNotNeededError)
        assert await controller.registry.administration.elect_leaders(None) == {}
        replicas = view_of(controller).replicas
        turned = [*replicas[1:], replicas[0]]
        await controller.registry.administration.reassign({T0: turned})
        assert view_of(controller).state.leader == preferred
        assert await controller.registry.administration.elect_leaders(None) == {T0: None}
        assert view_of(controller).state.leader == turned[0]

    run(world, body)
