"""The immutable snapshot of the cluster's metadata that requests read.

``server/cluster/registry.py`` replaces the snapshot when metadata changes, on the event loop's
thread. A request uses one snapshot from start to end, so it never sees half a change.
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
"""Name of Kafka's feature for transactions. Below level TRANSACTION_LEVEL, brokers write no
transaction records, because older brokers of the cluster could not read them."""
TRANSACTION_LEVEL = 2


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """All brokers, topics, features and security settings of the cluster at one time.

    ``version`` increases with each snapshot of this process. The versions of different brokers are
    unrelated."""

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
    """The quotas, by entity: a user, a client id, a pair of both, or an IP address."""
    version: int = 0

    @property
    def has_transactions(self) -> bool:
        """Whether every broker supports transactions."""
        return self.features.get(TRANSACTION_FEATURE, 0) >= TRANSACTION_LEVEL

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        """Return a partition by topic name; None if it does not exist."""
        view = self.topics.get(topic)
        return None if view is None else view.partition(partition)

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        """Return the settings that ZooKeeper stores for a broker."""
        return self.broker_configs.get(broker_id, {})

    def leader(self, topic: str, topic_id: str, partition: int) -> tuple[int, int]:
        """Return the leader's broker id and the leader epoch of a partition; (-1, -1) if unknown.

        Finds the topic by the name ``topic``, or by ``topic_id`` if no topic has that name."""
        view = self.topics.get(topic) or self.topics_by_id.get(topic_id)
        found = None if view is None else view.partition(partition)
        if found is None:
            return NO_BROKER, NO_EPOCH
        return found.state.leader, found.state.leader_epoch

    def partition_by_key(self, key: PartitionKey) -> PartitionView | None:
        """Return a partition by topic id and number; None if it does not exist."""
        view = self.topics_by_id.get(key.topic_id)
        return None if view is None else view.partition(key.partition)
