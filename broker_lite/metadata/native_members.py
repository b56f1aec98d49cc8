"""The members of native groups as the registries have them, for whoever shows them.

Read one by one, so what is shown may be of slightly different moments.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_lite.errors import UnsupportedVersionError
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import gather
from broker_lite.metadata.store import MetadataStore
from broker_lite.metadata.znodes import Owner, Subscription
from broker_lite.model import TopicPartition


class NativeMember(NamedTuple):
    """A consumer, and the partitions that it owns."""

    name: str
    subscription: Subscription
    owned: tuple[TopicPartition, ...]


async def read_members(store: MetadataStore, group: str) -> list[NativeMember]:
    """Every registered consumer, by name; none where there is no such group."""
    names = await store.children(znodes.consumers_path(group)) or []
    if not names:
        return []
    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for where, owner in (await _owners(store, group)).items():
        if owner.consumer in owned:
            owned[owner.consumer].append(where)
    paths = [znodes.consumer_path(group, name) for name in names]
    found = []
    for name, path, znode in zip(names, paths, await gather([store.get(p) for p in paths])):
        if znode is not None:
            try:
                subscription = znodes.decode_subscription(path, znode.data)
            except UnsupportedVersionError:
                subscription = Subscription((), None, 0)
            found.append(NativeMember(name, subscription, tuple(sorted(owned[name]))))
    return found


async def _owners(store: MetadataStore, group: str) -> dict[TopicPartition, Owner]:
    topics = await store.children(znodes.owners_path(group)) or []
    rows = await gather([store.children(znodes.topic_owners_path(group, t)) for t in topics])
    wheres = [
        TopicPartition(topic, int(name)) for topic, row in zip(topics, rows) for name in row or ()
    ]
    paths = [znodes.owner_path(group, *where) for where in wheres]
    found = {}
    for where, path, znode in zip(wheres, paths, await gather([store.get(p) for p in paths])):
        if znode is not None:
            found[where] = znodes.decode_owner(path, znode.data)
    return found
