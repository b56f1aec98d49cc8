"""Reads of the metadata snapshot's parts: brokers, topics, notices. Loop thread.

ZooKeeper has no reads of several znodes at one moment, so what was read is checked: a topic that
changed while its partitions were read is read again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from broker_lite.errors import WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import MetadataStore, Set
from broker_lite.model import BrokerView, LeaderAndIsr, PartitionView, StateChange, TopicView

READS_AT_ONCE_MAX = 100
"""Keeps a load of many partitions from holding the loop for long."""
TOPICS_AT_ONCE_MAX = 20
ATTEMPTS_MAX = 20

T = TypeVar("T")


class Notices(NamedTuple):
    """/changes as read: ``sequence`` is its version."""

    sequence: int
    changes: tuple[znodes.Change, ...]


class Announcement(NamedTuple):
    """A notice to be added: what to write, and what /changes holds once it was written."""

    write: Set
    after: Notices


def announce(notices: Notices, topics: Mapping[str, tuple[int, ...] | None]) -> Announcement:
    """Add a notice of changed topics (None) or states; nothing stands for the cluster itself."""
    change = znodes.Change(notices.sequence + 1, topics)
    kept = znodes.kept_changes((*notices.changes, change))
    write = Set(znodes.CHANGES, znodes.encode_changes(kept), notices.sequence)
    return Announcement(write, Notices(change.sequence, kept))


async def gather(
    reads: Sequence[Coroutine[Any, Any, T]], at_once: int = READS_AT_ONCE_MAX
) -> list[T]:
    """Await many reads, a bounded number at once, results in order."""
    results: list[T] = []
    for at in range(0, len(reads), at_once):
        try:
            results += await asyncio.gather(*reads[at : at + at_once])
        except BaseException:
            for read in reads[at + at_once :]:
                read.close()
            raise
    return results


async def load_brokers(store: MetadataStore, *, watch: bool = False) -> dict[int, BrokerView]:
    """The live brokers, by id. ``watch``: of broker ids coming and going."""
    names = await store.children(znodes.BROKER_IDS, watch=watch) or []
    paths = [znodes.broker_path(int(name)) for name in names]
    brokers = {}
    for path, znode in zip(paths, await gather([store.get(path) for path in paths])):
        if znode is not None:
            view = znodes.decode_registration(path, znode.data).view(znode.created_zxid)
            brokers[view.broker_id] = view
    return dict(sorted(brokers.items()))


async def load_disks(store: MetadataStore) -> dict[str, znodes.Disk]:
    """Every data directory that ever registered, by its id."""
    names = await store.children(znodes.BROKER_DISKS) or []
    paths = [znodes.disk_path(name) for name in names]
    disks = {}
    for name, path, znode in zip(names, paths, await gather([store.get(path) for path in paths])):
        if znode is not None:
            disks[name] = znodes.decode_disk(path, znode.data)
    return disks


async def load_features(store: MetadataStore) -> dict[str, int]:
    """The features that the cluster was raised to."""
    znode = await store.get(znodes.FEATURES)
    return {} if znode is None else znodes.decode_features(znodes.FEATURES, znode.data)


async def load_notices(store: MetadataStore, *, watch: bool = False) -> Notices:
    """The change notices; read before what they announce."""
    znode = await store.get(znodes.CHANGES, watch=watch)
    if znode is None:
        return Notices(-1, ())
    return Notices(znode.version, znodes.decode_changes(znodes.CHANGES, znode.data))


async def load_topics(store: MetadataStore) -> dict[str, TopicView]:
    """All topics, by name."""
    names = await store.children(znodes.TOPICS) or []
    topics = await gather([load_topic(store, name) for name in names], TOPICS_AT_ONCE_MAX)
    return {topic.name: topic for topic in topics if topic is not None}


async def load_topic(store: MetadataStore, name: str) -> TopicView | None:
    """One topic, whole, or None if there is none of this name."""
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
    raise WriteConflictError(f"topic {name!r} changes faster than it can be read")


async def reread_states(store: MetadataStore, changes: Sequence[StateChange]) -> list[StateChange]:
    """The states that these changes are about, as they are now."""
    paths = [znodes.state_path(change.topic, change.partition) for change in changes]
    znodes_read = await gather([store.get(path) for path in paths])
    return [
        change._replace(state=znodes.decode_state(path, znode.data, znode.version))
        for change, path, znode in zip(changes, paths, znodes_read)
        if znode is not None
    ]


async def load_states(
    store: MetadataStore, topic: str, partitions: Iterable[int]
) -> dict[int, LeaderAndIsr]:
    """The states of some partitions; one that has none is left out."""
    numbers = list(partitions)
    paths = [znodes.state_path(topic, partition) for partition in numbers]
    states = {}
    for partition, path, znode in zip(
        numbers, paths, await gather([store.get(path) for path in paths])
    ):
        if znode is not None:
            states[partition] = znodes.decode_state(path, znode.data, znode.version)
    return states


async def refresh_topics(
    store: MetadataStore,
    topics: Mapping[str, TopicView],
    changed: Mapping[str, frozenset[int] | None],
) -> dict[str, TopicView]:
    """``topics`` with what notices named read again: whole topics (None) or some states."""
    fresh = dict(topics)
    reads = [
        _refresh(store, name, topics.get(name), partitions) for name, partitions in changed.items()
    ]
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
    partitions: frozenset[int] | None,
) -> TopicView | None:
    if partitions is None or known is None:
        return await load_topic(store, name)
    states = await load_states(store, name, sorted(partitions))
    if len(states) != len(partitions) or max(partitions) >= len(known.partitions):
        return await load_topic(store, name)
    views = tuple(
        dataclasses.replace(view, state=states.get(view.partition, view.state))
        for view in known.partitions
    )
    return dataclasses.replace(known, partitions=views)


def merge_notices(
    notices: Notices, seen: int
) -> tuple[dict[str, frozenset[int] | None], bool] | None:
    """What the notices after ``seen`` name, and whether one of them is about the cluster itself.

    None if one is missing: somebody wrote at the same moment, or too many were written; then only
    reading everything helps.
    """
    changed: dict[str, frozenset[int] | None] = {}
    cluster = False
    wanted = set(range(seen + 1, notices.sequence + 1))
    for change in notices.changes:
        if change.sequence not in wanted:
            continue
        wanted.discard(change.sequence)
        cluster = cluster or not change.topics
        for topic, partitions in change.topics.items():
            known = changed.get(topic, frozenset())
            if partitions is None or known is None:
                changed[topic] = None
            else:
                changed[topic] = known | frozenset(partitions)
    return None if wanted else (changed, cluster)
