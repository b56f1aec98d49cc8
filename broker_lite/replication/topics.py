"""Validate requests that create, change or delete topics, and compute the resulting topic.

``controller_requests`` turns that topic into a write to ZooKeeper."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from broker_lite.config import TopicConfig, min_insync_of, parse, text
from broker_lite.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicExistsError,
    UnsupportedVersionError,
)
from broker_lite.model import (
    FIRST_EPOCH,
    NAME_LENGTH_MAX,
    LeaderAndIsr,
    PartitionView,
    ReplicaId,
    TopicView,
    is_valid_name,
)
from broker_lite.replication.cluster_metadata import ClusterMetadata
from broker_lite.replication.controller_events import (
    ConfigChangeRequested,
    PartitionsRequested,
    TopicCreationRequested,
    TopicDeletionRequested,
)
from broker_lite.replication.placement import check_rows, default_factor, place

WRITE_BYTES_MAX = 985_000
"""Maximum bytes of the one ZooKeeper write that creates, reassigns or deletes a topic.

ZooKeeper accepts 1 MB; the rest is for the change notice in the same write, which tells brokers
what changed. The limit bounds a topic's number of partitions, because the creation is the largest
such write."""
REPLICATION_LEVEL = 2
"""The lowest level of the feature "metadata" at which brokers support replication."""

_MIN_INSYNC = "min.insync.replicas"
_DEFAULT_CONFIG = text(TopicConfig())

_KEPT_BY_STATE = ("retention.ms", "retention.bytes", "unclean.leader.election.enable")
"""Settings that cannot change for an internal topic, because transaction state could be lost."""


def create(metadata: ClusterMetadata, event: TopicCreationRequested) -> TopicView:
    """Return the topic that the request creates. Raises the error that refuses the request."""
    if not is_valid_name(event.name):
        raise InvalidTopicError(
            f"topic name {event.name[:60]!r}: give 1 to {NAME_LENGTH_MAX} letters, digits, "
            "dots, underscores or dashes"
        )
    if event.name in metadata.topics:
        raise TopicExistsError(f"topic {event.name!r} exists already")
    count = event.partition_count if event.assignment is None else len(event.assignment)
    factor = event.replication_factor
    # Check the count before the placement, because a request may ask for 2**31 partitions.
    _check_count(event.name, count, _replica_count(metadata, event))
    if event.assignment is None and factor is not None and factor < 1:
        raise InvalidReplicationFactorError(f"replication_factor={factor}: give at least 1")
    rows = _rows(metadata, count, factor, event.assignment)
    config = checked_config(event.name, event.config, len(rows[0]))
    partitions = tuple(_partition(metadata, number, row) for number, row in enumerate(rows))
    return TopicView(event.name, event.topic_id, partitions, config)


def to_delete(metadata: ClusterMetadata, event: TopicDeletionRequested) -> TopicView:
    """Return the topic that the request deletes. Raises the error that refuses the request."""
    topic = metadata.topic_named(event.name_or_id)
    if topic.is_internal:
        raise InvalidTopicError(
            f"topic {topic.name!r} cannot be deleted, because it has the state of all transactions"
        )
    return topic


def add_partitions(metadata: ClusterMetadata, event: PartitionsRequested) -> TopicView:
    """Return the topic with the added partitions. Raises the error that refuses the request."""
    topic = metadata.topic_named(event.name)
    if topic.is_internal:
        raise InvalidTopicError(
            f"topic {topic.name!r} has a fixed number of partitions, because with another number "
            "transactional ids would map to partitions without their state"
        )
    present = len(topic.partitions)
    factor = len(topic.partitions[0].target)
    most = partitions_max(event.name, factor)
    if not present < event.partition_count <= most:
        raise InvalidPartitionsError(
            f"topic {event.name!r} has {present} partitions; {event.partition_count} were "
            f"requested: give more than {present}, and at most {most}"
        )
    added = event.partition_count - present
    if event.assignment is not None and len(event.assignment) != added:
        raise InvalidReplicaAssignmentError(
            f"{added} partitions are added to topic {event.name!r}, but the assignment lists "
            f"brokers for {len(event.assignment)}; list brokers for each added partition"
        )
    rows = _rows(metadata, added, factor, event.assignment)
    if any(len(row) != factor for row in rows):
        raise InvalidReplicaAssignmentError(
            f"topic {event.name!r} has replication factor {factor}; each added partition needs "
            "as many replicas"
        )
    partitions = tuple(_partition(metadata, present + i, row) for i, row in enumerate(rows))
    return dataclasses.replace(topic, partitions=topic.partitions + partitions)


def configure(metadata: ClusterMetadata, event: ConfigChangeRequested) -> TopicView:
    """Return the topic with its settings changed as the request asks.

    Raises InvalidConfigError or UnknownTopicOrPartitionError."""
    topic = metadata.topic_named(event.name)
    config = dict(topic.config)
    for key, value in event.changes.items():
        if value is None:
            config.pop(key, None)
            # Refuse an unknown setting even if it is only reset.
            parse(TopicConfig, {key: _DEFAULT_CONFIG.get(key, "")})
        else:
            config[key] = value
    config = checked_config(event.name, config, min(len(view.target) for view in topic.partitions))
    if topic.is_internal:
        for key in _KEPT_BY_STATE:
            if config.get(key) != topic.config.get(key):
                raise InvalidConfigError(
                    f"topic {event.name!r} keeps {key}={topic.config.get(key)}: another value "
                    "could lose the state of open transactions. Leave this setting out"
                )
    return dataclasses.replace(topic, config=config)


def checked_config(
    topic: str, config: Mapping[str, str], replication_factor: int
) -> dict[str, str]:
    """Return the settings with each value in its canonical text, however the request spells it.

    Raises InvalidConfigError for an invalid setting, and if ``min.insync.replicas`` exceeds
    ``replication_factor``."""
    try:
        parsed = parse(TopicConfig, config)
    except InvalidConfigError as error:
        raise type(error)(f"topic {topic!r}: {error.message}") from None
    if parsed.min_insync_replicas > replication_factor:
        raise InvalidConfigError(
            f"topic {topic!r}: min.insync.replicas={parsed.min_insync_replicas} is more than its "
            f"replication factor {replication_factor}; no acks=all request could succeed"
        )
    spelled = text(parsed)
    return {key: spelled[key] for key in config}


def min_insync(topic: TopicView, view: PartitionView) -> int:
    """Return how many of the partition's replicas acks=all requires: the topic's
    min.insync.replicas, by default a majority of the replicas."""
    return min_insync_of(topic.config.get(_MIN_INSYNC), len(view.target))


def check_replicated(metadata: ClusterMetadata, what: str) -> None:
    """Raise UnsupportedVersionError if any broker runs a version without replication.

    ``what`` names the refused operation in the message."""
    if metadata.features.get("metadata", 0) < REPLICATION_LEVEL:
        old = [
            broker.broker_id
            for broker in metadata.brokers.values()
            if broker.features.get("metadata", 0) < REPLICATION_LEVEL
        ]
        raise UnsupportedVersionError(
            f"{what}: brokers {old} run a version without replication; upgrade them"
        )


def _rows(
    metadata: ClusterMetadata,
    count: int,
    factor: int | None,
    assignment: Sequence[Sequence[int]] | None,
) -> list[tuple[int, ...]]:
    if assignment is not None:
        check_rows(assignment, metadata.live)
        if len(assignment[0]) > 1:
            check_replicated(metadata, f"{len(assignment[0])} replicas")
        return [tuple(row) for row in assignment]
    requested_factor = factor or default_factor(len(metadata.known))
    if requested_factor > 1:
        check_replicated(metadata, f"{requested_factor} replicas")
    try:
        return place(count, requested_factor, metadata.live, first=metadata.placed_count)
    except InvalidReplicationFactorError as error:
        away = sorted(metadata.known - set(metadata.live))
        if factor or not away:
            raise
        raise InvalidReplicationFactorError(
            f"{error.message}; the default counts all known brokers: start brokers {away}, "
            "or retire them (logbus broker retire)"
        ) from None


def partitions_max(name: str, factor: int) -> int:
    """Return the maximum number of partitions of a topic with this name and replication factor.

    One write of at most WRITE_BYTES_MAX creates all partitions. Each has two znodes: both paths
    contain the topic's name, and one znode lists every replica."""
    return WRITE_BYTES_MAX // (2 * len(name) + 310 + 58 * factor)


def _replica_count(metadata: ClusterMetadata, event: TopicCreationRequested) -> int:
    """Return the requested replication factor, or the nearest one from 1 to the number of known
    brokers.

    It is for ``partitions_max``, which runs before the check that refuses an invalid factor."""
    if event.assignment:
        count = len(event.assignment[0])
    else:
        count = event.replication_factor or default_factor(len(metadata.known))
    return min(max(count, 1), max(len(metadata.known), 1))


def _check_count(name: str, count: int, factor: int) -> None:
    most = partitions_max(name, factor)
    if not 1 <= count <= most:
        raise InvalidPartitionsError(
            f"topic {name[:60]!r}: {count} partitions; give 1 to {most} with replication factor "
            f"{factor}, because one write to ZooKeeper, of at most 1 MB, creates them all"
        )


def _partition(metadata: ClusterMetadata, number: int, replicas: tuple[int, ...]) -> PartitionView:
    brokers = [metadata.live[broker_id] for broker_id in replicas]
    able = [broker for broker in brokers if broker.takes_records] or brokers
    isr = tuple(ReplicaId(broker.broker_id, broker.directory_id) for broker in able)
    leader = able[0]
    state = LeaderAndIsr(
        leader.broker_id,
        FIRST_EPOCH,
        isr,
        metadata.controller_epoch,
        leader_broker_epoch=leader.broker_epoch,
    )
    return PartitionView(number, replicas, state)
