"""The controller's copy of the cluster metadata in ZooKeeper. Each completed write of the
controller updates the copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broker_lite.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
from broker_lite.model import (
    BrokerView,
    LeaderAndIsr,
    PartitionView,
    StateChange,
    TopicPartition,
    TopicView,
    is_valid_name,
)


@dataclass(slots=True)
class ClusterMetadata:
    """The cluster metadata from which the controller decides.

    - ``brokers``: all registered brokers, by id
    - ``known``: the ids of all brokers that ever registered and were not retired
    - ``suspects``: the broker epochs of the registered processes that are probably dead, by broker
      id
    - ``live``: the registered brokers that are not suspected to be dead; ``suspected``: the others
    - ``features``: the level of each feature that the cluster uses, by name"""

    controller_epoch: int
    brokers: Mapping[int, BrokerView]
    topics: dict[str, TopicView]
    features: dict[str, int]
    known: frozenset[int]
    suspects: Mapping[int, int] = field(default_factory=dict)
    live: Mapping[int, BrokerView] = field(default_factory=dict)
    suspected: Mapping[int, BrokerView] = field(default_factory=dict)
    placed_count: int = 0
    """Number of partitions placed on brokers so far. The placement of the next topic continues the
    rotation over the brokers from there."""

    def set_brokers(self, brokers: Mapping[int, BrokerView], suspects: Mapping[int, int]) -> None:
        """Set the registered brokers, and divide them into live and suspected ones.

        ``suspects`` has the broker epoch of each process that is probably dead, by broker id. A
        broker that has registered again under a newer epoch counts as live."""
        self.brokers = brokers
        self.suspects = suspects
        self.known |= frozenset(brokers)
        self.live = {
            broker_id: broker
            for broker_id, broker in brokers.items()
            if suspects.get(broker_id) != broker.broker_epoch
        }
        self.suspected = {
            broker_id: broker for broker_id, broker in brokers.items() if broker_id not in self.live
        }

    def topic(self, name: str) -> TopicView:
        """Return the topic. Raises UnknownTopicOrPartitionError if it does not exist."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        return topic

    def topic_named(self, name_or_id: str) -> TopicView:
        """Return the topic with this name or id.

        Raises UnknownTopicOrPartitionError or UnknownTopicIdError."""
        if name_or_id in self.topics:
            return self.topics[name_or_id]
        for topic in self.topics.values():
            if topic.topic_id == name_or_id:
                return topic
        if len(name_or_id) == 22 and not is_valid_name(name_or_id):
            raise UnknownTopicIdError(f"there is no topic with id {name_or_id}")
        raise UnknownTopicOrPartitionError(f"there is no topic {name_or_id!r}")

    def partition(self, key: TopicPartition) -> PartitionView:
        """Return the partition. Raises UnknownTopicOrPartitionError if it does not exist."""
        topic = self.topic(key.topic)
        view = topic.partition(key.partition)
        if view is None:
            raise UnknownTopicOrPartitionError(
                f"topic {key.topic!r} has no partition {key.partition}; its partitions are 0 to "
                f"{len(topic.partitions) - 1}"
            )
        return view

    def change(self, key: TopicPartition, state: LeaderAndIsr) -> StateChange:
        """Return the StateChange that writes ``state`` to the znode of partition ``key``."""
        return StateChange(key.topic, key.partition, state, self.topics[key.topic].topic_id)

    def partition_keys(self) -> list[TopicPartition]:
        """Return every partition of every topic."""
        return [
            TopicPartition(name, view.partition)
            for name, topic in self.topics.items()
            for view in topic.partitions
        ]

    def adopt(self, changes: Iterable[StateChange]) -> list[TopicPartition]:
        """Apply partition states that were read from ZooKeeper, if they are newer.

        States of topics that were deleted or created anew are ignored. Return the changed
        partitions."""
        newer: dict[str, dict[int, LeaderAndIsr]] = {}
        for change in changes:
            topic = self.topics.get(change.topic)
            if topic is None or topic.topic_id != change.topic_id:
                continue
            if change.partition >= len(topic.partitions):
                continue
            if change.state.version > topic.partitions[change.partition].state.version:
                newer.setdefault(change.topic, {})[change.partition] = change.state
        for name, states in newer.items():
            topic = self.topics[name]
            partitions = tuple(
                dataclasses.replace(view, state=states[view.partition])
                if view.partition in states
                else view
                for view in topic.partitions
            )
            self.topics[name] = dataclasses.replace(topic, partitions=partitions)
        return [TopicPartition(name, number) for name, row in newer.items() for number in row]


def as_written(changes: Iterable[StateChange]) -> list[StateChange]:
    """Return the state changes as ZooKeeper holds them after the write: one version higher."""
    return [
        change._replace(state=dataclasses.replace(change.state, version=change.state.version + 1))
        for change in changes
    ]
