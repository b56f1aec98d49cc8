"""Convert the controller's decisions to writes for ZooKeeper and to warnings for the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from broker_lite.model import LeaderAndIsr, PartitionView, TopicPartition, TopicView
from broker_lite.replication.cluster_metadata import ClusterMetadata, as_written
from broker_lite.replication.controller_effects import (
    STATES_PER_WRITE_MAX,
    WriteAssignment,
    WriteStates,
)

NAMES_PER_WARNING_MAX = 5


def state_writes(
    metadata: ClusterMetadata, states: Mapping[TopicPartition, LeaderAndIsr]
) -> list[WriteStates]:
    """Return the writes of these partition states; a write has at most ``STATES_PER_WRITE_MAX``."""
    changes = [metadata.change(key, state) for key, state in states.items()]
    return [
        WriteStates(tuple(changes[at : at + STATES_PER_WRITE_MAX]))
        for at in range(0, len(changes), STATES_PER_WRITE_MAX)
    ]


def assignment_write(
    metadata: ClusterMetadata, name: str, moved: Mapping[int, PartitionView]
) -> WriteAssignment:
    """Return the write that assigns new replicas to some partitions of a topic.

    It includes the partition states that change with the assignment."""
    topic = metadata.topics[name]
    partitions = tuple(moved.get(view.partition, view) for view in topic.partitions)
    states = tuple(
        metadata.change(TopicPartition(name, new.partition), new.state)
        for old, new in zip(topic.partitions, partitions)
        if new.state != old.state
    )
    return WriteAssignment(dataclasses.replace(topic, partitions=partitions), states)


def with_versions(write: WriteAssignment) -> TopicView:
    """Return the topic that ``write`` stores in ZooKeeper: the version of each written state is one
    higher than in ``write``."""
    written = {change.partition: change.state for change in as_written(write.states)}
    partitions = tuple(
        dataclasses.replace(view, state=written.get(view.partition, view.state))
        for view in write.topic.partitions
    )
    return dataclasses.replace(write.topic, partitions=partitions)


def unclean_warning(before: LeaderAndIsr, state: LeaderAndIsr) -> str:
    """Return the warning for an unclean election. It names the new leader, and the brokers of the
    former ISR, whose records may be lost."""
    had = sorted({replica.broker_id for replica in before.isr})
    return (
        f"UNCLEAN election: broker {state.leader} leads although it was not in sync; records that "
        f"it lacks and that only brokers {had} had are LOST, including acknowledged records"
    )


def warning(keys: Sequence[TopicPartition], reason: str) -> str:
    """Return a warning of the form "<partitions>: <reason>"."""
    return f"{names_of(keys)}: {reason}"


def names_of(keys: Sequence[TopicPartition]) -> str:
    """Return the names of the first ``NAMES_PER_WARNING_MAX`` partitions, and how many more there
    are."""
    names = ", ".join(str(key) for key in keys[:NAMES_PER_WARNING_MAX])
    more = f" and {len(keys) - NAMES_PER_WARNING_MAX} more" * (len(keys) > NAMES_PER_WARNING_MAX)
    return f"{names}{more}"
