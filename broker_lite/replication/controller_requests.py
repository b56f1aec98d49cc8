"""Compute from the metadata the writes and the answer of each request to the controller."""

from __future__ import annotations

from broker_lite.errors import (
    BrokerIdNotRegisteredError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidConfigError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    LogbusError,
    PreferredLeaderNotAvailableError,
)
from broker_lite.model import LeaderAndIsr, PartitionView, TopicPartition
from broker_lite.replication import reassignment, topics
from broker_lite.replication.cluster_metadata import ClusterMetadata
from broker_lite.replication.controller_effects import (
    Answer,
    ControllerEffect,
    RemoveDisks,
    RemoveTopic,
    Warn,
    WriteConfig,
    WritePartitions,
    WriteTopic,
)
from broker_lite.replication.controller_events import (
    ConfigChangeRequested,
    ElectionRequested,
    PartitionsRequested,
    ReassignmentRequested,
    Request,
    RetirementRequested,
    TopicCreationRequested,
    TopicDeletionRequested,
)
from broker_lite.replication.controller_writes import (
    assignment_write,
    names_of,
    state_writes,
    unclean_warning,
    warning,
)
from broker_lite.replication.election import elect_preferred, elect_unclean, has_live_leader


def request(metadata: ClusterMetadata, event: Request) -> list[ControllerEffect]:
    """Return the effects that carry out a request, in order: ZooKeeper writes, then the answer.

    If the request fails or needs no write, return only an answer. If it creates, changes or deletes
    a topic, return only the write; the answer follows after its Written event."""
    try:
        match event:
            case TopicCreationRequested():
                topic = topics.create(metadata, event)
                if event.validate_only:
                    return [Answer(event.token, topic)]
                return [WriteTopic(event.token, topic)]
            case TopicDeletionRequested():
                return [RemoveTopic(event.token, topics.to_delete(metadata, event))]
            case PartitionsRequested():
                topic = topics.add_partitions(metadata, event)
                if event.validate_only:
                    return [Answer(event.token, topic)]
                first = len(metadata.topics[topic.name].partitions)
                return [WritePartitions(event.token, topic, first)]
            case ConfigChangeRequested():
                topic = topics.configure(metadata, event)
                same = topic.config == dict(metadata.topics[topic.name].config)
                if event.validate_only or same:
                    return [Answer(event.token, topic)]
                return [WriteConfig(event.token, topic)]
            case ReassignmentRequested():
                return _reassign(metadata, event)
            case ElectionRequested():
                return _elect(metadata, event)
            case RetirementRequested():
                return _retire(metadata, event)
    except LogbusError as error:
        return [Answer(event.token, error=error)]


def _reassign(metadata: ClusterMetadata, event: ReassignmentRequested) -> list[ControllerEffect]:
    topics.check_replicated(metadata, "a reassignment")
    moved: dict[str, dict[int, PartitionView]] = {}
    outcomes: dict[TopicPartition, LogbusError | None] = {}
    for key, target in event.targets.items():
        try:
            view = metadata.partition(key)
            if target is None:
                new = reassignment.cancel(str(key), view, metadata.live, metadata.controller_epoch)
            else:
                if not event.may_change_factor and len(target) != len(view.target):
                    raise InvalidReplicationFactorError(
                        f"partition {key} has {len(view.target)} replicas, not {len(target)}; "
                        "the request does not allow a change of the replication factor"
                    )
                _check_target(metadata, key, len(target))
                new = reassignment.begin(
                    str(key), view, target, metadata.live, metadata.controller_epoch
                )
        except LogbusError as error:
            outcomes[key] = error
            continue
        outcomes[key] = None
        if new != view:
            moved.setdefault(key.topic, {})[key.partition] = new
    writes = [assignment_write(metadata, name, row) for name, row in moved.items()]
    return [*writes, Answer(event.token, outcomes=outcomes)]


def _check_target(metadata: ClusterMetadata, key: TopicPartition, factor: int) -> None:
    topic = metadata.topics[key.topic]
    most = topics.partitions_max(topic.name, factor)
    if len(topic.partitions) > most:
        raise InvalidReplicaAssignmentError(
            f"topic {topic.name!r} has {len(topic.partitions)} partitions; with replication "
            f"factor {factor} it can have at most {most}: give fewer replicas"
        )
    try:
        topics.checked_config(key.topic, topic.config, factor)
    except InvalidConfigError as error:
        raise InvalidReplicaAssignmentError(error.message) from None


def _elect(metadata: ClusterMetadata, event: ElectionRequested) -> list[ControllerEffect]:
    outcomes: dict[TopicPartition, LogbusError | None] = {}
    states: dict[TopicPartition, LeaderAndIsr] = {}
    reasons: dict[str, list[TopicPartition]] = {}
    for key in metadata.partition_keys() if event.partitions is None else event.partitions:
        try:
            view = metadata.partition(key)
            state = _elected(metadata, key, view, event.unclean)
        except ElectionNotNeededError as error:
            if event.partitions is not None:
                outcomes[key] = error
            continue
        except LogbusError as error:
            outcomes[key] = error
            continue
        outcomes[key] = None
        states[key] = state
        if event.unclean:
            reasons.setdefault(unclean_warning(view.state, state), []).append(key)
    warnings = [Warn(warning(rows, reason)) for reason, rows in reasons.items()]
    return [*state_writes(metadata, states), *warnings, Answer(event.token, outcomes=outcomes)]


def _elected(
    metadata: ClusterMetadata, key: TopicPartition, view: PartitionView, unclean: bool
) -> LeaderAndIsr:
    if unclean:
        if has_live_leader(view.state, metadata.live):
            raise ElectionNotNeededError(f"{key} is already led by broker {view.state.leader}")
        state = elect_unclean(
            view.state, view.replicas, metadata.live, metadata.brokers, metadata.controller_epoch
        )
        if state is not None:
            return state
        if not any(broker_id in metadata.live for broker_id in view.replicas):
            raise EligibleLeadersNotAvailableError(
                f"{key}: none of brokers {list(view.replicas)} is live: start one"
            )
        raise EligibleLeadersNotAvailableError(
            f"{key} gets no unclean election: one of the in-sync brokers "
            f"{[replica.broker_id for replica in view.state.isr]} is still registered, and has all "
            "records: wait until it is reachable or its ZooKeeper session ends"
        )
    preferred = view.target[0]
    if view.state.leader == preferred and has_live_leader(view.state, metadata.live):
        raise ElectionNotNeededError(f"{key} is already led by its preferred broker {preferred}")
    state = elect_preferred(view.state, preferred, metadata.live, metadata.controller_epoch)
    if state is None:
        why = "is not alive" if preferred not in metadata.live else "is not in sync"
        raise PreferredLeaderNotAvailableError(f"{key}: its preferred broker {preferred} {why}")
    return state


def _retire(metadata: ClusterMetadata, event: RetirementRequested) -> list[ControllerEffect]:
    broker_id = event.broker_id
    if broker_id in metadata.brokers:
        raise InvalidRequestError(
            f"broker {broker_id} cannot be retired while it is running: stop it first"
        )
    if broker_id not in metadata.known:
        raise BrokerIdNotRegisteredError(f"broker {broker_id} was never registered")
    keys = [
        key for key in metadata.partition_keys() if broker_id in metadata.partition(key).replicas
    ]
    if keys:
        raise InvalidRequestError(
            f"broker {broker_id} holds replicas of {names_of(keys)}: move them to other brokers "
            "first (logbus topic reassign)"
        )
    return [RemoveDisks(broker_id), Answer(event.token)]
