"""How the controller puts what it decided into writes and words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from broker_lite.model import LeaderAndIsr, PartitionView, TopicPartition, TopicView
from broker_lite.replication.controller_effects import (
    STATES_PER_WRITE_MAX,
    WriteAssignment,
    WriteStates,
)
from broker_lite.replication.holding import Holding, as_written

NAMES_PER_WARNING_MAX = 5


def state_writes(held: Holding, states: Mapping[TopicPartition, LeaderAndIsr]) -> list[WriteStates]:
    """The writes of these states."""
    changes = [held.change(key, state) for key, state in states.items()]
    return [
        WriteStates(tuple(changes[at : at + STATES_PER_WRITE_MAX]))
        for at in range(0, len(changes), STATES_PER_WRITE_MAX)
    ]


def assignment_write(
    held: Holding, name: str, moved: Mapping[int, PartitionView]
) -> WriteAssignment:
    """The write of some partitions' replicas, with what changes in their states."""
    topic = held.topics[name]
    partitions = tuple(moved.get(view.partition, view) for view in topic.partitions)
    states = tuple(
        held.change(TopicPartition(name, new.partition), new.state)
        for old, new in zip(topic.partitions, partitions)
        if new.state != old.state
    )
    return WriteAssignment(dataclasses.replace(topic, partitions=partitions), states)


def with_versions(write: WriteAssignment) -> TopicView:
    """The topic as ZooKeeper holds it after the write: changed states have a higher version."""
    written = {change.partition: change.state for change in as_written(write.states)}
    partitions = tuple(
        dataclasses.replace(view, state=written.get(view.partition, view.state))
        for view in write.topic.partitions
    )
    return dataclasses.replace(write.topic, partitions=partitions)


def what_is_lost(before: LeaderAndIsr, state: LeaderAndIsr) -> str:
    """Of an unclean election, for people."""
    had = sorted({replica.broker_id for replica in before.isr})
    return (
        f"UNCLEAN election: broker {state.leader} leads although it was not in sync; records that "
        f"it lacks and that only brokers {had} had are LOST, acknowledged ones too"
    )


def warning(keys: Sequence[TopicPartition], reason: str) -> str:
    """About some partitions."""
    return f"{names_of(keys)}: {reason}"


def names_of(keys: Sequence[TopicPartition]) -> str:
    """The first of them, and how many more there are."""
    names = ", ".join(str(key) for key in keys[:NAMES_PER_WARNING_MAX])
    more = f" and {len(keys) - NAMES_PER_WARNING_MAX} more" * (len(keys) > NAMES_PER_WARNING_MAX)
    return f"{names}{more}"
