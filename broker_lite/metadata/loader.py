"""Read brokers, topics and change notices (which tell which metadata changed) from ZooKeeper.

ZooKeeper cannot read several znodes atomically. ``load_topic`` therefore reads a topic's znode
before and after the znodes of its partitions. If the version of the topic's znode differs, it reads
all these znodes again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.notices import Notices, decode_notices
from broker_lite.metadata.store import MetadataStore, Znode
from broker_lite.model import BrokerView, LeaderAndIsr, PartitionView, StateChange, TopicView

READS_AT_ONCE_MAX = 100
"""Maximum reads that ``gather`` has in flight, so that many reads do not block the event loop."""
TOPICS_AT_ONCE_MAX = 20
ATTEMPTS_MAX = 20

T = TypeVar("T")


class TopicsSnapshot(NamedTuple):
    """All topics by name, and the sequence number of the last change notice (``notices``) that they
    reflect."""

    topics: Mapping[str, TopicView]
    sequence: int


async def gather(
    reads: Sequence[Coroutine[Any, Any, T]], at_once: int = READS_AT_ONCE_MAX
) -> list[T]:
    """Await ``reads``, at most ``at_once`` of them concurrently. Return the results in order."""
    results: list[T] = []
    for at in range(0, len(reads), at_once):
        try:
            results += await asyncio.gather(*reads[at : at + at_once])
        except BaseException:
            for read in reads[at + at_once :]:
                read.close()
            raise
    return results


async def read_znodes(store: MetadataStore, paths: Iterable[str]) -> dict[str, Znode]:
    """Return the znodes that exist at ``paths``, by path, in the order of ``paths``."""
    names = list(paths)
    rows = await gather([store.get(path) for path in names])
    return {path: znode for path, znode in zip(names, rows) if znode is not None}


async def load_brokers(store: MetadataStore, *, watch: bool = False) -> dict[int, BrokerView]:
    """Return the live (registered) brokers, by id. With ``watch``, the next change of the set of
    brokers causes an event."""
    names = await store.children(znodes.BROKER_IDS, watch=watch) or []
    paths = [znodes.broker_path(int(name)) for name in names]
    brokers = {}
    for path, znode in (await read_znodes(store, paths)).items():
        view = znodes.decode_registration(path, znode.data).view(znode.created_zxid)
        brokers[view.broker_id] = view
    return dict(sorted(brokers.items()))


async def load_disks(store: MetadataStore) -> dict[str, znodes.DiskZnode]:
    """Return the owner and the start counter of every data directory with which a broker has ever
    registered, by directory id."""
    names = await store.children(znodes.BROKER_DISKS) or []
    paths = {znodes.disk_path(name): name for name in names}
    return {
        paths[path]: znodes.decode_disk(path, znode.data)
        for path, znode in (await read_znodes(store, paths)).items()
    }


async def load_features(store: MetadataStore) -> dict[str, int]:
    """Return the finalized feature levels of the cluster, by feature name (KIP-584)."""
    znode = await store.get(znodes.FEATURES)
    return {} if znode is None else znodes.decode_features(znodes.FEATURES, znode.data)


async def load_broker_configs(store: MetadataStore) -> dict[int, dict[str, str]]:
    """Return the broker settings that ZooKeeper stores, by broker id."""
    znode = await store.get(znodes.BROKER_CONFIGS)
    return {} if znode is None else znodes.decode_broker_configs(znodes.BROKER_CONFIGS, znode.data)


async def load_notices(store: MetadataStore, *, watch: bool = False) -> Notices:
    """Return the change notices, which name the znodes that changed. The caller must read these
    znodes afterwards: a change between the reads then causes another notice."""
    znode = await store.get(znodes.CHANGES, watch=watch)
    if znode is None:
        return Notices(-1, ())
    return Notices(znode.version, decode_notices(znode.data))


async def load_topics(store: MetadataStore) -> dict[str, TopicView]:
    """Return all topics, by name."""
    names = await store.children(znodes.TOPICS) or []
    topics = await gather([load_topic(store, name) for name in names], TOPICS_AT_ONCE_MAX)
    return {topic.name: topic for topic in topics if topic is not None}


async def load_topic(store: MetadataStore, name: str) -> TopicView | None:
    """Return a topic with all its partitions; None if it does not exist. Raises WriteConflictError
    if the topic changes during every attempt to read it."""
    path, config_path = znodes.topic_path(name), znodes.topic_config_path(name)
    for _ in range(ATTEMPTS_MAX):
        znode = await store.get(path)
        if znode is None:
            return None
        assignment = znodes.decode_assignment(path, znode.data)
        config = await store.get(config_path)
        states = await load_states(store, name, range(len(assignment.replicas)))
        again = await store.get(path)
        if again is None:
            return None
        if (
            (again.created_zxid, again.version) != (znode.created_zxid, znode.version)
            or config is None
            or len(states) != len(assignment.replicas)
        ):
            continue
        still = znodes.Move((), ())
        partitions = tuple(
            PartitionView(
                partition, row, states[partition], *assignment.moves.get(partition, still)
            )
            for partition, row in enumerate(assignment.replicas)
        )
        settings = znodes.decode_config(config_path, config.data)
        return TopicView(name, assignment.topic_id, partitions, settings)
    raise WriteConflictError(
        f"topic {name!r} changed during each of {ATTEMPTS_MAX} reads; try again"
    )


async def reread_states(store: MetadataStore, changes: Sequence[StateChange]) -> list[StateChange]:
    """Return ``changes`` with the state that each partition has in ZooKeeper now. Deleted
    partitions are left out."""
    paths = {znodes.state_path(change.topic, change.partition): change for change in changes}
    return [
        paths[path]._replace(state=znodes.decode_state(path, znode.data, znode.version))
        for path, znode in (await read_znodes(store, paths)).items()
    ]


async def load_states(
    store: MetadataStore, topic: str, partitions: Iterable[int]
) -> dict[int, LeaderAndIsr]:
    """Return the states of these partitions of a topic, by partition number. Partitions without a
    state in ZooKeeper are left out."""
    paths = {znodes.state_path(topic, partition): partition for partition in partitions}
    return {
        paths[path]: znodes.decode_state(path, znode.data, znode.version)
        for path, znode in (await read_znodes(store, paths)).items()
    }


async def refresh_topics(
    store: MetadataStore,
    topics: Mapping[str, TopicView],
    changed: Mapping[str, Mapping[int, LeaderAndIsr | None] | None],
) -> dict[str, TopicView]:
    """Return a copy of ``topics`` with the changes that change notices announce. ``changed`` has
    the form of ``notices.Merged.topics``. States that the notices do not contain are read from
    ZooKeeper."""
    fresh = dict(topics)
    reads = [_refresh(store, name, topics.get(name), states) for name, states in changed.items()]
    for name, topic in zip(changed, await gather(reads, TOPICS_AT_ONCE_MAX)):
        if topic is None:
            fresh.pop(name, None)
        else:
            fresh[name] = topic
    return fresh


async def _refresh(
    store: MetadataStore,
    name: str,
    known: TopicView | None,
    announced: Mapping[int, LeaderAndIsr | None] | None,
) -> TopicView | None:
    if announced is None or known is None or max(announced) >= len(known.partitions):
        return await load_topic(store, name)
    missing = [partition for partition, state in announced.items() if state is None]
    states = await load_states(store, name, missing)
    if len(states) != len(missing):
        return await load_topic(store, name)
    for partition, state in announced.items():
        # The known state may be newer than the state in the change notice, so compare the versions.
        # They are comparable because both states belong to the same topic id: the notice of a
        # recreated topic has no partition states.
        if state is not None and state.version > known.partitions[partition].state.version:
            states[partition] = state
    views = tuple(
        dataclasses.replace(view, state=states.get(view.partition, view.state))
        for view in known.partitions
    )
    return dataclasses.replace(known, partitions=views)
