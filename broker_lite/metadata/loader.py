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
from broker_lite.metadata.notices import Notices, decode_notices
from broker_lite.metadata.store import MetadataStore
from broker_lite.model import BrokerView, LeaderAndIsr, PartitionView, StateChange, TopicView

READS_AT_ONCE_MAX = 100
"""Keeps a load of many partitions from holding the loop for long."""
TOPICS_AT_ONCE_MAX = 20
ATTEMPTS_MAX = 20

T = TypeVar("T")


class Seen(NamedTuple):
    """Topics as they were read, and the sequence of the last notice in them."""

    topics: Mapping[str, TopicView]
    sequence: int


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
    return Notices(znode.version, decode_notices(znode.data))


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
    changed: Mapping[str, Mapping[int, LeaderAndIsr | None] | None],
) -> dict[str, TopicView]:
    """``topics`` as of notices (``notices.Merged``); what they do not say is read."""
    fresh = dict(topics)
    reads = [_refresh(store, name, topics.get(name), told) for name, told in changed.items()]
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
    told: Mapping[int, LeaderAndIsr | None] | None,
) -> TopicView | None:
    if told is None or known is None or max(told) >= len(known.partitions):
        return await load_topic(store, name)
    unsaid = [partition for partition, state in told.items() if state is None]
    states = await load_states(store, name, unsaid)
    if len(states) != len(unsaid):
        return await load_topic(store, name)
    for partition, state in told.items():
        # What was read before may be newer. It is of the same topic: had that been made anew by
        # then, one of these notices would say so.
        if state is not None and state.version > known.partitions[partition].state.version:
            states[partition] = state
    views = tuple(
        dataclasses.replace(view, state=states.get(view.partition, view.state))
        for view in known.partitions
    )
    return dataclasses.replace(known, partitions=views)
