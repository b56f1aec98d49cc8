"""The snapshot of the cluster's metadata that every request reads: immutable, swapped whole.

Made by ``server/registry.py`` on the loop thread; a reader keeps the one it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_lite.model import (
    NO_BROKER,
    NO_EPOCH,
    BrokerView,
    PartitionKey,
    PartitionView,
    TopicView,
)


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """``version`` grows with every swap of this process; it means nothing to other brokers."""

    cluster_id: str = ""
    brokers: Mapping[int, BrokerView] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    topics_by_id: Mapping[str, TopicView] = field(default_factory=dict)
    controller_id: int = NO_BROKER
    controller_epoch: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    version: int = 0

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        """A partition by its topic's name, or None."""
        view = self.topics.get(topic)
        if view is None or not 0 <= partition < len(view.partitions):
            return None
        return view.partitions[partition]

    def leader(self, topic: str, topic_id: str, partition: int) -> tuple[int, int]:
        """Who leads a partition of a topic, named or by its id, and in which epoch; -1, -1 where
        that is not known."""
        view = self.topics.get(topic) or self.topics_by_id.get(topic_id)
        if view is None or not 0 <= partition < len(view.partitions):
            return NO_BROKER, NO_EPOCH
        state = view.partitions[partition].state
        return state.leader, state.leader_epoch

    def partition_by_key(self, key: PartitionKey) -> PartitionView | None:
        """A partition by its topic's id, or None: a deleted topic's id finds nothing."""
        view = self.topics_by_id.get(key.topic_id)
        if view is None or not 0 <= key.partition < len(view.partitions):
            return None
        return view.partitions[key.partition]
