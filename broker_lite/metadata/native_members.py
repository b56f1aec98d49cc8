"""Read the members of a native group, a consumer group that coordinates through ZooKeeper, for
display. The znodes are read one by one, so the result may mix states of slightly different
times."""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import UnsupportedVersionError
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import gather, read_znodes
from broker_lite.metadata.store import MetadataStore
from broker_lite.metadata.znodes import NativeSubscription, OwnerZnode
from broker_lite.model import TopicPartition


class NativeMember(NamedTuple):
    """A registered member of a native group (which coordinates through ZooKeeper), with its
    subscription and the partitions that it owns."""

    name: str
    subscription: NativeSubscription
    owned: tuple[TopicPartition, ...]


async def read_members(store: MetadataStore, group: str) -> list[NativeMember]:
    """Return the registered members of a native group (without a coordinator), sorted by name;
    empty for a group that does not exist."""
    names = await store.children(znodes.consumers_path(group)) or []
    if not names:
        return []
    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for tp, owner in (await _owners(store, group)).items():
        if owner.consumer in owned:
            owned[owner.consumer].append(tp)
    paths = {znodes.consumer_path(group, name): name for name in names}
    members = []
    for path, znode in (await read_znodes(store, paths)).items():
        try:
            subscription = znodes.decode_subscription(path, znode.data)
        except UnsupportedVersionError:
            subscription = NativeSubscription((), None, 0)
        name = paths[path]
        members.append(NativeMember(name, subscription, tuple(sorted(owned[name]))))
    return members


async def _owners(store: MetadataStore, group: str) -> dict[TopicPartition, OwnerZnode]:
    topics = await store.children(znodes.owners_path(group)) or []
    rows = await gather([store.children(znodes.topic_owners_path(group, t)) for t in topics])
    paths = {
        znodes.owner_path(group, topic, int(name)): TopicPartition(topic, int(name))
        for topic, row in zip(topics, rows)
        for name in row or ()
    }
    return {
        paths[path]: znodes.decode_owner(path, znode.data)
        for path, znode in (await read_znodes(store, paths)).items()
    }
