"""The immutable snapshot of the cluster's metadata that every request reads.

``server/cluster/registry.py`` replaces the snapshot on the loop thread. A request uses one snapshot
from start to end.
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
from broker_lite.security.acls import Entry, Pattern
from broker_lite.security.quotas import Entity, Values
from broker_lite.security.scram import UserCredentials

TRANSACTION_FEATURE = "transaction.version"
"""Name of Kafka's feature for transactions. While its level is below TRANSACTION_LEVEL, brokers
write no records of transactions.
"""
TRANSACTION_LEVEL = 2


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """All brokers, topics and features of the cluster.

    ``version`` increases with each snapshot of this process. Versions of different brokers are
    unrelated.
    """

    cluster_id: str = ""
    brokers: Mapping[int, BrokerView] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    topics_by_id: Mapping[str, TopicView] = field(default_factory=dict)
    controller_id: int = NO_BROKER
    controller_epoch: int = 0
    features: Mapping[str, int] = field(default_factory=dict)
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The broker settings that ZooKeeper stores, by broker id."""
    users: Mapping[str, UserCredentials] = field(default_factory=dict)
    """The credentials of all users, by name."""
    acls: Mapping[Pattern, frozenset[Entry]] = field(default_factory=dict)
    quotas: Mapping[Entity, Values] = field(default_factory=dict)
    """The quotas of clients, by entity."""
    version: int = 0

    @property
    def has_transactions(self) -> bool:
        """Whether every broker supports transactions."""
        return self.features.get(TRANSACTION_FEATURE, 0) >= TRANSACTION_LEVEL

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        """Return a partition by topic name, or None if it does not exist."""
        view = self.topics.get(topic)
        if view is None or not 0 <= partition < len(view.partitions):
            return None
        return view.partitions[partition]

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """Return a broker's settings in ZooKeeper."""
        return self.broker_configs.get(broker_id, {})

    def leader(self, topic: str, topic_id: str, partition: int) -> tuple[int, int]:
        """Return the leader's broker id and the leader epoch of a partition, or (-1, -1) for an
        unknown partition.

        Finds the topic by ``topic``, else by ``topic_id``.
        """
        view = self.topics.get(topic) or self.topics_by_id.get(topic_id)
        if view is None or not 0 <= partition < len(view.partitions):
            return NO_BROKER, NO_EPOCH
        state = view.partitions[partition].state
        return state.leader, state.leader_epoch

    def partition_by_key(self, key: PartitionKey) -> PartitionView | None:
        """Return a partition by topic id, or None if it does not exist."""
        view = self.topics_by_id.get(key.topic_id)
        if view is None or not 0 <= key.partition < len(view.partitions):
            return None
        return view.partitions[key.partition]
