"""The controller: where partitions live and who leads them. ``step(event) -> effects``. Pure.

One broker at a time runs it; ``server/controller.py`` carries out the effects in order, each write
fenced by the controller epoch, and feeds no other event while a write is under way: so this holds
what ZooKeeper holds. A write that was done comes back as Written, and only then counts. One that
was refused ends in a new Loaded, which begins with what is really there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_lite.config import TopicConfig, parse, text
from broker_lite.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    LogbusError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import (
    NAME_LENGTH_MAX,
    BrokerView,
    LeaderAndIsr,
    PartitionView,
    ReplicaId,
    TopicPartition,
    TopicView,
    is_valid_name,
)
from broker_lite.replication.election import elect, leaderless_reason

PARTITIONS_PER_TOPIC_MAX = 1000
"""A topic is created by one write, and ZooKeeper takes 1 MB at once."""
STATES_PER_WRITE_MAX = 500
"""States of so many partitions are one write (about 300 bytes each)."""
NAMES_PER_WARNING_MAX = 5

_DEFAULT_CONFIG = text(TopicConfig())

# Events.


class Loaded(NamedTuple):
    """This broker became controller in ``controller_epoch``, or reads everything anew."""

    controller_epoch: int
    brokers: Mapping[int, BrokerView]
    topics: Mapping[str, TopicView]
    features: Mapping[str, int]


class BrokersChanged(NamedTuple):
    """All the live brokers; one with another broker epoch went and came back."""

    brokers: Mapping[int, BrokerView]


class TopicCreationRequested(NamedTuple):
    """``topic_id`` is a fresh random one; ``assignment`` overrides the two numbers."""

    token: int
    name: str
    topic_id: str
    partition_count: int
    replication_factor: int
    assignment: Sequence[Sequence[int]] | None
    config: Mapping[str, str]
    validate_only: bool = False


class TopicDeletionRequested(NamedTuple):
    token: int
    name_or_id: str


class PartitionsRequested(NamedTuple):
    """``partition_count`` is the topic's new one; ``assignment`` is for the added partitions."""

    token: int
    name: str
    partition_count: int
    assignment: Sequence[Sequence[int]] | None = None
    validate_only: bool = False


class ConfigChangeRequested(NamedTuple):
    """Settings to set (text) or to remove (None)."""

    token: int
    name: str
    changes: Mapping[str, str | None]
    validate_only: bool = False


# Effects.


class WriteTopic(NamedTuple):
    """Create the topic's znodes, all of them; it must not exist."""

    token: int
    topic: TopicView


class WritePartitions(NamedTuple):
    """Create the znodes of the partitions from ``first_added`` on and set the assignment."""

    token: int
    topic: TopicView
    first_added: int


class RemoveTopic(NamedTuple):
    """Delete the topic's znodes, all of them."""

    token: int
    topic: TopicView


class WriteConfig(NamedTuple):
    """Set the topic's settings to ``topic.config``."""

    token: int
    topic: TopicView


class StateChange(NamedTuple):
    """``state.version`` is the version that the write must find."""

    topic: str
    partition: int
    state: LeaderAndIsr


class WriteStates(NamedTuple):
    changes: tuple[StateChange, ...]


class WriteFeatures(NamedTuple):
    """Raise the cluster's features to what every live broker has."""

    features: Mapping[str, int]


class Answer(NamedTuple):
    """The end of a request: the topic as it is (or would be, or was), or an error."""

    token: int
    topic: TopicView | None = None
    error: LogbusError | None = None


class Warn(NamedTuple):
    """Something that a person must see."""

    text: str


Write = WriteTopic | WritePartitions | RemoveTopic | WriteConfig | WriteStates | WriteFeatures
ControllerEffect = Write | Answer | Warn


class Written(NamedTuple):
    """A write of ours was done."""

    write: Write


ControllerEvent = (
    Loaded
    | BrokersChanged
    | TopicCreationRequested
    | TopicDeletionRequested
    | PartitionsRequested
    | ConfigChangeRequested
    | Written
)


@dataclass(slots=True)
class _Held:
    """What ZooKeeper holds, as of the last write that was done."""

    controller_epoch: int
    brokers: Mapping[int, BrokerView]
    topics: dict[str, TopicView]
    features: dict[str, int]


class Controller:
    """Does nothing before its first Loaded."""

    def __init__(self) -> None:
        self._held: _Held | None = None
        self._next_placed = 0
        self._warned: dict[TopicPartition, str] = {}

    def step(self, event: ControllerEvent) -> list[ControllerEffect]:
        """Take in what happened; effects are to be carried out in the order of the list."""
        if isinstance(event, Loaded):
            self._held = _Held(
                event.controller_epoch, event.brokers, dict(event.topics), dict(event.features)
            )
            self._next_placed = sum(len(topic.partitions) for topic in event.topics.values())
            return self._decide()
        assert self._held is not None, event
        match event:
            case BrokersChanged():
                self._held.brokers = event.brokers
                return self._decide()
            case Written():
                return self._written(event.write)
        try:
            match event:
                case TopicCreationRequested():
                    return self._create(event)
                case TopicDeletionRequested():
                    return [RemoveTopic(event.token, self._find(event.name_or_id))]
                case PartitionsRequested():
                    return self._add_partitions(event)
                case ConfigChangeRequested():
                    return self._configure(event)
        except LogbusError as error:
            return [Answer(event.token, error=error)]
        raise AssertionError(event)

    # What follows from who lives.

    def _decide(self) -> list[ControllerEffect]:
        held = self._held
        assert held is not None
        effects: list[ControllerEffect] = []
        features = _features_of_all(held.features, held.brokers)
        if features != held.features:
            effects.append(WriteFeatures(features))
        changes = []
        reasons: dict[str, list[TopicPartition]] = {}
        warned: dict[TopicPartition, str] = {}
        for name, topic in held.topics.items():
            for view in topic.partitions:
                elected = elect(view.state, view.replicas, held.brokers, held.controller_epoch)
                if elected is not None:
                    changes.append(StateChange(name, view.partition, elected))
                reason = leaderless_reason(view.state, view.replicas, held.brokers)
                if reason is not None:
                    key = TopicPartition(name, view.partition)
                    warned[key] = reason
                    if self._warned.get(key) != reason:
                        reasons.setdefault(reason, []).append(key)
        self._warned = warned
        for at in range(0, len(changes), STATES_PER_WRITE_MAX):
            effects.append(WriteStates(tuple(changes[at : at + STATES_PER_WRITE_MAX])))
        effects += [Warn(_warning(keys, reason)) for reason, keys in reasons.items()]
        return effects

    # Requests.

    def _create(self, event: TopicCreationRequested) -> list[ControllerEffect]:
        held = self._held
        assert held is not None
        if not is_valid_name(event.name):
            raise InvalidTopicError(
                f"topic name {event.name[:60]!r}: give 1 to {NAME_LENGTH_MAX} letters, digits, "
                "dots, underscores or dashes"
            )
        if event.name in held.topics:
            raise TopicExistsError(f"topic {event.name!r} exists already")
        count = event.partition_count if event.assignment is None else len(event.assignment)
        if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitionsError(
                f"partitions={count}: give 1 to {PARTITIONS_PER_TOPIC_MAX} for topic {event.name!r}"
            )
        if event.assignment is None and event.replication_factor < 1:
            raise InvalidReplicationFactorError(
                f"replication_factor={event.replication_factor}: give at least 1"
            )
        replicas = self._place(count, event.replication_factor, event.assignment)
        config = dict(event.config)
        _check_config(event.name, config, len(replicas[0]))
        partitions = tuple(self._new_partition(p, row) for p, row in enumerate(replicas))
        topic = TopicView(event.name, event.topic_id, partitions, config)
        if event.validate_only:
            return [Answer(event.token, topic)]
        return [WriteTopic(event.token, topic)]

    def _add_partitions(self, event: PartitionsRequested) -> list[ControllerEffect]:
        topic = self._find(event.name)
        present = len(topic.partitions)
        if not present < event.partition_count <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitionsError(
                f"topic {event.name!r} has {present} partitions; {event.partition_count} were "
                f"asked for: give more, and at most {PARTITIONS_PER_TOPIC_MAX}"
            )
        factor = len(topic.partitions[0].replicas)
        added = event.partition_count - present
        if event.assignment is not None and len(event.assignment) != added:
            raise InvalidReplicaAssignmentError(
                f"{added} partitions are added to topic {event.name!r}, but the assignment names "
                f"{len(event.assignment)}"
            )
        rows = self._place(added, factor, event.assignment)
        if any(len(row) != factor for row in rows):
            raise InvalidReplicaAssignmentError(
                f"topic {event.name!r} has replication factor {factor}; each added partition needs "
                "as many replicas"
            )
        partitions = tuple(self._new_partition(present + i, row) for i, row in enumerate(rows))
        changed = dataclasses.replace(topic, partitions=topic.partitions + partitions)
        if event.validate_only:
            return [Answer(event.token, changed)]
        return [WritePartitions(event.token, changed, present)]

    def _configure(self, event: ConfigChangeRequested) -> list[ControllerEffect]:
        topic = self._find(event.name)
        config = dict(topic.config)
        for key, value in event.changes.items():
            if value is None:
                config.pop(key, None)
                # Removing an unknown setting is refused as setting it is.
                parse(TopicConfig, {key: _DEFAULT_CONFIG.get(key, "")})
            else:
                config[key] = value
        _check_config(event.name, config, len(topic.partitions[0].replicas))
        changed = dataclasses.replace(topic, config=config)
        if event.validate_only or config == dict(topic.config):
            return [Answer(event.token, changed)]
        return [WriteConfig(event.token, changed)]

    def _find(self, name_or_id: str) -> TopicView:
        held = self._held
        assert held is not None
        topic = held.topics.get(name_or_id)
        if topic is not None:
            return topic
        for topic in held.topics.values():
            if topic.topic_id == name_or_id:
                return topic
        if len(name_or_id) == 22 and not is_valid_name(name_or_id):
            raise UnknownTopicIdError(f"there is no topic with id {name_or_id}")
        raise UnknownTopicOrPartitionError(f"there is no topic {name_or_id!r}")

    # Placing.

    def _place(
        self, count: int, factor: int, assignment: Sequence[Sequence[int]] | None
    ) -> list[tuple[int, ...]]:
        held = self._held
        assert held is not None
        if assignment is not None:
            rows = [tuple(row) for row in assignment]
            _check_assignment(rows, held.brokers)
            return rows
        if factor > 1:
            raise InvalidReplicationFactorError(
                f"replication_factor={factor}: replication is not built yet; give 1"
            )
        live = sorted(held.brokers)
        if not live:
            raise BrokerNotAvailableError("no broker is registered; try again")
        first = self._next_placed
        return [(live[(first + partition) % len(live)],) for partition in range(count)]

    def _new_partition(self, partition: int, replicas: tuple[int, ...]) -> PartitionView:
        held = self._held
        assert held is not None
        isr = tuple(ReplicaId(b, held.brokers[b].directory_id) for b in replicas)
        leader = held.brokers[replicas[0]]
        state = LeaderAndIsr(
            leader.broker_id,
            0,
            isr,
            held.controller_epoch,
            leader_broker_epoch=leader.broker_epoch,
        )
        return PartitionView(partition, replicas, state)

    # What was done.

    def _written(self, write: Write) -> list[ControllerEffect]:
        held = self._held
        assert held is not None
        match write:
            case WriteTopic():
                held.topics[write.topic.name] = write.topic
                self._next_placed += len(write.topic.partitions)
            case WritePartitions():
                held.topics[write.topic.name] = write.topic
                self._next_placed += len(write.topic.partitions) - write.first_added
            case WriteConfig():
                held.topics[write.topic.name] = write.topic
            case RemoveTopic():
                del held.topics[write.topic.name]
            case WriteFeatures():
                held.features = dict(write.features)
                return []
            case WriteStates():
                self._adopt_states(held, write)
                return []
        return [Answer(write.token, write.topic)]

    def _adopt_states(self, held: _Held, write: WriteStates) -> None:
        by_topic: dict[str, dict[int, LeaderAndIsr]] = {}
        for change in write.changes:
            state = dataclasses.replace(change.state, version=change.state.version + 1)
            by_topic.setdefault(change.topic, {})[change.partition] = state
        for name, states in by_topic.items():
            topic = held.topics[name]
            partitions = tuple(
                dataclasses.replace(view, state=states.get(view.partition, view.state))
                for view in topic.partitions
            )
            held.topics[name] = dataclasses.replace(topic, partitions=partitions)


def _features_of_all(
    raised: Mapping[str, int], brokers: Mapping[int, BrokerView]
) -> dict[str, int]:
    """Each feature at the level that every live broker has; never lower than it was raised to."""
    features = dict(raised)
    levels = [broker.features for broker in brokers.values()]
    for name in levels[0] if levels else ():
        level = min(row.get(name, 0) for row in levels)
        if level > features.get(name, 0):
            features[name] = level
    return features


def _check_assignment(rows: list[tuple[int, ...]], brokers: Mapping[int, BrokerView]) -> None:
    for partition, row in enumerate(rows):
        if not row or len(set(row)) != len(row) or len(row) != len(rows[0]):
            raise InvalidReplicaAssignmentError(
                f"partition {partition} is assigned to brokers {list(row)}: give each partition "
                "the same number of different brokers, at least one"
            )
        if len(row) > 1:
            raise InvalidReplicationFactorError(
                f"partition {partition} is assigned to {len(row)} brokers: replication is not "
                "built yet; give one"
            )
        for broker_id in row:
            if broker_id not in brokers:
                raise InvalidReplicaAssignmentError(
                    f"partition {partition} is assigned to broker {broker_id}, which is not "
                    f"alive; live brokers: {sorted(brokers)}"
                )


def _check_config(topic: str, config: Mapping[str, str], replication_factor: int) -> None:
    try:
        parsed = parse(TopicConfig, config)
    except InvalidConfigError as error:
        raise type(error)(f"topic {topic!r}: {error.message}") from None
    if parsed.min_insync_replicas > replication_factor:
        raise InvalidConfigError(
            f"topic {topic!r}: min.insync.replicas={parsed.min_insync_replicas} is more than its "
            f"replication factor {replication_factor}; nothing could be acknowledged"
        )


def _warning(keys: list[TopicPartition], reason: str) -> str:
    names = ", ".join(str(key) for key in keys[:NAMES_PER_WARNING_MAX])
    more = f" and {len(keys) - NAMES_PER_WARNING_MAX} more" * (len(keys) > NAMES_PER_WARNING_MAX)
    return f"{names}{more}: {reason}"
