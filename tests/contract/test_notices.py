"""Test that brokers apply partition states from change notices instead of reading state znodes.

The znode /changes holds a notice for each metadata change. Leader and ISR of a partition are its
*state*, which has its own znode.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from brokers import Broker, Cluster, create, run
from three_brokers import broker_of, has_version, isr_of, left, suspect, three, view_of, write
from worlds import World, until

from broker_lite.metadata import loader, notices, znodes
from broker_lite.metadata.notices import Notice, NoticeContent, Notices
from broker_lite.metadata.store import MetadataStore, Set, Znode
from broker_lite.model import ReplicaId

PARTITIONS = 20


def count_reads(store: MetadataStore) -> Counter[str]:
    """Count the znodes that a broker reads, by the last part of their paths; return the counter."""
    reads: Counter[str] = Counter()
    get = store.get

    async def counted(path: str, **options: Any) -> Znode | None:
        reads[path.rpartition("/")[2]] += 1
        return await get(path, **options)

    store.get = counted  # type: ignore[method-assign]
    return reads


def test_brokers_apply_partition_states_from_change_notifications_without_reading_znodes(
    world: World,
) -> None:
    """Regression: when a broker died, every other broker read a znode for each of its replicas."""

    async def body(cluster: Cluster) -> None:
        await three(cluster)
        await create(cluster.controller(), "t", PARTITIONS, factor=3)
        for partition in range(PARTITIONS):
            await cluster.led("t", partition)
        chief = cluster.controller().registry.snapshot.controller_id
        dead = next(number for number in (1, 2, 3) if number != chief)
        others = [b for b in cluster.running if b.registry._config.broker_id != dead]
        reads = [count_reads(broker.store) for broker in others]
        suspect(cluster, dead)
        for partition in range(PARTITIONS):
            await left(others, dead, partition)
        # The notice of a leader's write also has the znode's new version, so that the leader can
        # write again without a read.
        leader = broker_of(cluster, view_of(others[0]).state.leader)
        state = await write(leader, tuple(isr_of(leader)))
        assert state is not None
        for broker in others:
            await has_version(broker, state.version)
        again = await write(leader, (leader.registry._config.broker_id,))
        assert again is not None and again.version == state.version + 1
        for broker in others:
            await has_version(broker, again.version)
        assert [counter["state"] for counter in reads] == [0, 0]
        for partition in range(PARTITIONS):
            found = await loader.load_states(others[0].store, "t", [partition])
            assert {partition: view_of(others[0], partition).state} == found
            assert view_of(others[0], partition) == view_of(others[1], partition)

    run(world, body)


async def write_without_states(
    broker: Broker, news: NoticeContent, isr: tuple[ReplicaId, ...]
) -> None:
    """Write the state of t-0 as an older broker does: its change notice does not contain the
    partition's leader and ISR.
    """
    store, path = broker.store, znodes.state_path("t", 0)
    znode = await store.get(path)
    found = await store.get(znodes.CHANGES)
    assert znode is not None and found is not None
    state = dataclasses.replace(znodes.decode_state(path, znode.data, znode.version), isr=isr)
    known = notices.decode_notices(found.data)
    bare = tuple(Notice(each.sequence, NoticeContent(each.content.topics)) for each in known)
    notice = notices.announce(Notices(found.version, bare), news).write
    refused = await store.write([Set(path, znodes.encode_state(state), znode.version), notice])
    assert refused is None


def test_broker_reads_the_state_znode_of_a_partition_if_a_change_notification_lacks_the_state(
    world: World,
) -> None:
    """Older brokers write change notices without partition states. When an older broker adds its
    notice, it rewrites the list of all notices without the states."""

    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        await create(cluster.controller(), "t", 2, factor=3)
        await cluster.led("t", 0)
        await until(lambda: all(len(isr_of(b)) == 3 for b in brokers))
        one, *others = brokers
        before = view_of(one).state
        reads = [count_reads(broker.store) for broker in others]
        await write_without_states(one, NoticeContent({"t": [0]}), before.isr[:2])
        for broker in brokers:
            await has_version(broker, before.version + 1)
            assert view_of(broker).state.isr == before.isr[:2]
        assert [counter["state"] for counter in reads] == [1, 1]

    run(world, body)


def test_new_controller_starts_from_its_metadata_in_memory_without_reading_znodes(
    world: World,
) -> None:
    """Regression: the new controller read the znodes of all topics and partition states, which
    delayed elections."""

    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        chief = cluster.controller()
        await create(chief, "t", PARTITIONS, factor=3)
        for partition in range(PARTITIONS):
            await cluster.led("t", partition)
        others = [broker for broker in brokers if broker is not chief]
        reads = [count_reads(broker.store) for broker in others]
        suspect(cluster, chief.registry._config.broker_id)
        dead = chief.registry._config.broker_id
        for partition in range(PARTITIONS):
            await left(others, dead, partition)
            assert view_of(others[0], partition).state.leader != dead
        assert cluster.controller() in others
        assert [counter["state"] for counter in reads] == [0, 0]
        found = await loader.load_topics(others[0].store)
        assert dict(others[0].registry.snapshot.topics) == found
        # Check that the snapshot's versions are current: ZooKeeper accepts a write with them.
        await create(cluster.controller(), "u", 1, factor=2)

    run(world, body)


def test_reconnected_broker_reads_only_znodes_that_changed_while_it_was_disconnected(
    world: World,
) -> None:
    """Regression: after a ZooKeeper server had failed, the brokers connected to it read every
    topic's znodes."""

    async def body(cluster: Cluster) -> None:
        brokers = await three(cluster)
        chief = cluster.controller()
        topic_id = await create(chief, "t", PARTITIONS, factor=3)
        leader = broker_of(cluster, await cluster.led("t"))
        away = next(broker for broker in brokers if broker not in (chief, leader))
        await until(lambda: away.registry.snapshot.topics["t"].topic_id == topic_id)
        reads = count_reads(away.store)
        state = view_of(leader).state
        world.drop_connection(away.store)
        for _ in range(3):
            written = await write(leader, tuple(isr_of(leader)))
            assert written is not None
            state = written
            await has_version(leader, state.version)
        await has_version(away, state.version)
        await until(lambda: away.registry.connected)
        await create(chief, "u")
        await until(lambda: "u" in away.registry.snapshot.topics)
        # The broker reads only the state of the new topic's partition.
        assert (reads["state"], reads["t"]) == (1, 0)
        assert dict(away.registry.snapshot.topics) == await loader.load_topics(away.store)

    run(world, body)
