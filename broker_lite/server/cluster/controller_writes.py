"""Convert the controller's writes to ZooKeeper operations and to notices that tell brokers what
changed, without I/O."""

from __future__ import annotations

import dataclasses

from broker_lite.metadata import znodes
from broker_lite.metadata.notices import (
    CLUSTER_CHANGED,
    NoticeContent,
    states_changed,
    topic_changed,
)
from broker_lite.metadata.store import Create, Delete, Operation, Set
from broker_lite.model import PartitionView, StateChange, TopicView
from broker_lite.replication.cluster_metadata import as_written
from broker_lite.replication.controller_effects import (
    RemoveDisks,
    RemoveTopic,
    Write,
    WriteAssignment,
    WriteConfig,
    WriteFeatures,
    WritePartitions,
    WriteStates,
    WriteTopic,
)


def notice_content(write: Write) -> NoticeContent:
    """Return the notice that tells other brokers what to read again after a controller's write."""
    match write:
        case WriteFeatures() | RemoveDisks():
            return CLUSTER_CHANGED
        case WriteStates():
            return states_changed(as_written(write.changes))
    return topic_changed(write.topic.name)


def operations_of(
    write: Write, *, features_version: int, directories: dict[str, znodes.DiskZnode]
) -> list[Operation]:
    """Return the ZooKeeper operations of a controller's write.

    ``features_version`` is the version of the znode /features. ``directories`` has the data
    directories of all brokers, by directory id; only the write RemoveDisks needs it."""
    match write:
        case WriteTopic():
            return _create_topic(write.topic)
        case WritePartitions():
            added = write.topic.partitions[write.first_added :]
            path = znodes.topic_path(write.topic.name)
            return [
                *_create_partitions(write.topic.name, added),
                Set(path, _assignment(write.topic)),
            ]
        case WriteAssignment():
            path = znodes.topic_path(write.topic.name)
            return [Set(path, _assignment(write.topic)), *map(set_state, write.states)]
        case RemoveTopic():
            return _delete_topic(write.topic)
        case WriteConfig():
            path = znodes.topic_config_path(write.topic.name)
            return [Set(path, znodes.encode_config(write.topic.config))]
        case WriteStates():
            return [set_state(change) for change in write.changes]
        case WriteFeatures():
            data = znodes.encode_features(write.features)
            return [Set(znodes.FEATURES, data, features_version)]
        case RemoveDisks():
            return [
                Delete(znodes.disk_path(directory_id))
                for directory_id, disk in directories.items()
                if disk.broker_id == write.broker_id
            ]


def set_state(change: StateChange) -> Set:
    """Return the operation that writes a partition's state if its znode still has the version
    ``change.state.version``."""
    return Set(
        znodes.state_path(change.topic, change.partition),
        znodes.encode_state(change.state),
        change.state.version,
    )


def _assignment(topic: TopicView) -> bytes:
    replicas = tuple(view.replicas for view in topic.partitions)
    moves = {
        view.partition: znodes.Move(view.adding, view.removing)
        for view in topic.partitions
        if view.is_reassigning
    }
    return znodes.encode_assignment(znodes.Assignment(topic.topic_id, replicas, moves))


def _create_topic(topic: TopicView) -> list[Operation]:
    return [
        Create(znodes.topic_path(topic.name), _assignment(topic)),
        Create(znodes.topic_config_path(topic.name), znodes.encode_config(topic.config)),
        Create(znodes.partitions_path(topic.name)),
        *_create_partitions(topic.name, topic.partitions),
    ]


def _create_partitions(topic: str, partitions: tuple[PartitionView, ...]) -> list[Operation]:
    operations: list[Operation] = []
    for view in partitions:
        state = dataclasses.replace(view.state, version=0)
        operations += [
            Create(znodes.partition_path(topic, view.partition)),
            Create(znodes.state_path(topic, view.partition), znodes.encode_state(state)),
        ]
    return operations


def _delete_topic(topic: TopicView) -> list[Operation]:
    operations: list[Operation] = []
    for view in topic.partitions:
        operations += [
            Delete(znodes.state_path(topic.name, view.partition)),
            Delete(znodes.partition_path(topic.name, view.partition)),
        ]
    return [
        *operations,
        Delete(znodes.partitions_path(topic.name)),
        Delete(znodes.topic_config_path(topic.name)),
        Delete(znodes.topic_path(topic.name)),
    ]
