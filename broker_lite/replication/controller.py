"""The state machine of the controller, which places replicas and elects leaders.

One broker at a time is the controller. The shell, ``server/cluster/controller.py``, does the I/O:
it calls ``step(now_ms, event)`` and carries out the returned effects in order.

Each write is fenced with the controller epoch, so that ZooKeeper refuses writes of an earlier
controller. The shell passes no other event while a write is in flight, so the state on which the
controller decides equals that in ZooKeeper.

- The controller updates its metadata only when the event Written reports a write as complete.
- If ZooKeeper refuses a write, the shell drops the remaining effects of that step and passes the
  current content of ZooKeeper as WriteRefused, StatesRead or Loaded; the controller decides again.
- A step returns its effects in this order: features, partition states, assignments, warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_lite.model import BrokerView, LeaderAndIsr, PartitionView, TopicPartition
from broker_lite.replication import reassignment, topics
from broker_lite.replication.cluster_metadata import ClusterMetadata, as_written
from broker_lite.replication.controller_effects import (
    Answer,
    ControllerEffect,
    RemoveDisks,
    RemoveTopic,
    Warn,
    Write,
    WriteAssignment,
    WriteConfig,
    WriteFeatures,
    WritePartitions,
    WriteStates,
    WriteTopic,
)
from broker_lite.replication.controller_events import (
    BrokersChanged,
    ControllerEvent,
    ControllerTick,
    Loaded,
    StatesRead,
    SuspectsChanged,
    WriteRefused,
    Written,
)
from broker_lite.replication.controller_requests import request
from broker_lite.replication.controller_writes import (
    assignment_write,
    state_writes,
    unclean_warning,
    warning,
    with_versions,
)
from broker_lite.replication.election import (
    elect,
    elect_preferred,
    elect_unclean,
    has_live_leader,
    leaderless_reason,
)

_UNCLEAN = "unclean.leader.election.enable"

Keys = Iterable[TopicPartition]


class _Decided(NamedTuple):
    """The decisions of one step.

    - ``states``: the new state of each partition that changes
    - ``moved``: the partitions whose reassignment is complete, by topic and partition number
    - ``reasons``: the partitions that a warning names, by the text of the warning"""

    states: dict[TopicPartition, LeaderAndIsr]
    moved: dict[str, dict[int, PartitionView]]
    reasons: dict[str, list[TopicPartition]]


class Controller:
    """The state machine of the controller. Its first event must be Loaded.

    ``rebalance_ms`` is the time for which a preferred replica must have been in sync before it
    leads again; with -1 only an operator's request makes it lead."""

    def __init__(self, rebalance_ms: int = -1) -> None:
        self._rebalance_ms = rebalance_ms
        self._metadata = ClusterMetadata(0, {}, {}, {}, frozenset())
        self._warned: dict[TopicPartition, str] = {}
        self._unpreferred: dict[TopicPartition, int] = {}
        """Partitions whose preferred replica could lead but does not, with the time (ms) at which
        this was first seen."""

    @property
    def due_ms(self) -> int | None:
        """When (ms) the next ControllerTick is due, to return a partition to its preferred leader.

        None if no partition waits for that."""
        if not self._unpreferred:
            return None
        return min(self._unpreferred.values()) + self._rebalance_ms

    def step(self, now_ms: int, event: ControllerEvent) -> list[ControllerEffect]:
        """Apply an event. Return the operations (effects) to carry out, in order."""
        if isinstance(event, Loaded):
            return self._load(now_ms, event)
        metadata = self._metadata
        match event:
            case BrokersChanged():
                metadata.set_brokers(event.brokers, event.suspects)
                return self._decide(now_ms, metadata.partition_keys())
            case SuspectsChanged():
                metadata.set_brokers(metadata.brokers, event.suspects)
                return self._decide(now_ms, metadata.partition_keys())
            case StatesRead():
                return self._decide(now_ms, metadata.adopt(event.states))
            case WriteRefused():
                metadata.adopt(event.states)
                return []
            case ControllerTick():
                return self._rebalance(now_ms)
            case Written():
                return self._written(now_ms, event.write)
            case _:
                return request(metadata, event)

    def _load(self, now_ms: int, event: Loaded) -> list[ControllerEffect]:
        metadata = self._metadata = ClusterMetadata(
            event.controller_epoch,
            event.brokers,
            dict(event.topics),
            dict(event.features),
            frozenset(event.known),
            placed_count=sum(len(topic.partitions) for topic in event.topics.values()),
        )
        metadata.set_brokers(event.brokers, event.suspects)
        keys = metadata.partition_keys()
        present = set(keys)
        self._unpreferred = {k: since for k, since in self._unpreferred.items() if k in present}
        return self._decide(now_ms, keys)

    # Methods that decide which partition states and assignments to write.

    def _decide(self, now_ms: int, keys: Keys) -> list[ControllerEffect]:
        metadata = self._metadata
        effects: list[ControllerEffect] = []
        features = _features_of_all(metadata.features, metadata.brokers)
        if features != metadata.features:
            effects.append(WriteFeatures(features))
        decided = _Decided({}, {}, {})
        for key in keys:
            self._decide_one(key, metadata.partition(key), decided)
            self._note_preferred(now_ms, key)
        effects += state_writes(metadata, decided.states)
        for name, moved in decided.moved.items():
            effects.append(assignment_write(metadata, name, moved))
        effects += [Warn(warning(rows, reason)) for reason, rows in decided.reasons.items()]
        return effects

    def _decide_one(self, key: TopicPartition, view: PartitionView, decided: _Decided) -> None:
        metadata = self._metadata
        live, epoch = metadata.live, metadata.controller_epoch
        finished = reassignment.finish(view, live, epoch)
        if finished is not None:
            decided.moved.setdefault(key.topic, {})[key.partition] = finished
            self._warned.pop(key, None)
            return
        state = elect(
            view.state,
            view.replicas,
            live,
            epoch,
            suspected=metadata.suspected,
            min_insync=topics.min_insync(metadata.topics[key.topic], view),
        )
        if not has_live_leader(state or view.state, live) and self._may_be_unclean(key):
            unclean = elect_unclean(view.state, view.replicas, live, metadata.brokers, epoch)
            if unclean is not None:
                reason = unclean_warning(view.state, unclean)
                decided.states[key] = unclean
                decided.reasons.setdefault(reason, []).append(key)
                self._warned.pop(key, None)
                return
        if state is not None:
            decided.states[key] = state
        leaderless = leaderless_reason(state or view.state, view.replicas, live)
        if leaderless is None:
            self._warned.pop(key, None)
        elif self._warned.get(key) != leaderless:
            self._warned[key] = leaderless
            decided.reasons.setdefault(leaderless, []).append(key)

    def _may_be_unclean(self, key: TopicPartition) -> bool:
        return self._metadata.topics[key.topic].config.get(_UNCLEAN, "false").lower() == "true"

    # Methods that return leadership to preferred leaders.

    def _note_preferred(self, now_ms: int, key: TopicPartition) -> None:
        if self._rebalance_ms < 0:
            return
        if self._preferred(key) is None:
            self._unpreferred.pop(key, None)
        else:
            self._unpreferred.setdefault(key, now_ms)

    def _preferred(self, key: TopicPartition) -> LeaderAndIsr | None:
        metadata = self._metadata
        topic = metadata.topics.get(key.topic)
        view = None if topic is None else topic.partition(key.partition)
        if view is None:
            return None
        return elect_preferred(view.state, view.target[0], metadata.live, metadata.controller_epoch)

    def _rebalance(self, now_ms: int) -> list[ControllerEffect]:
        states = {}
        for key, since in list(self._unpreferred.items()):
            state = self._preferred(key)
            if state is None:
                del self._unpreferred[key]
            elif now_ms >= since + self._rebalance_ms:
                states[key] = state
        return [*state_writes(self._metadata, states)]

    # Methods that apply completed writes.

    def _written(self, now_ms: int, write: Write) -> list[ControllerEffect]:
        metadata = self._metadata
        match write:
            case WriteTopic():
                metadata.topics[write.topic.name] = write.topic
                metadata.placed_count += len(write.topic.partitions)
            case WritePartitions():
                metadata.topics[write.topic.name] = write.topic
                metadata.placed_count += len(write.topic.partitions) - write.first_added
            case WriteConfig():
                metadata.topics[write.topic.name] = write.topic
                name, count = write.topic.name, len(write.topic.partitions)
                keys = [TopicPartition(name, number) for number in range(count)]
                return [Answer(write.token, write.topic), *self._decide(now_ms, keys)]
            case RemoveTopic():
                del metadata.topics[write.topic.name]
                self._forget(write.topic.name)
            case WriteFeatures():
                metadata.features = dict(write.features)
                return []
            case RemoveDisks():
                metadata.known -= {write.broker_id}
                return []
            case WriteStates():
                # Decide again about reassignments: each completes only while a target replica
                # leads, and a written state may have made a target replica the leader.
                return self._decide(now_ms, metadata.adopt(as_written(write.changes)))
            case WriteAssignment():
                before = metadata.topics[write.topic.name].partitions
                metadata.topics[write.topic.name] = with_versions(write)
                changed = [
                    TopicPartition(write.topic.name, new.partition)
                    for old, new in zip(before, write.topic.partitions)
                    if new != old
                ]
                return self._decide(now_ms, changed)
        return [Answer(write.token, write.topic)]

    def _forget(self, topic: str) -> None:
        for table in (self._warned, self._unpreferred):
            for key in [key for key in table if key.topic == topic]:
                del table[key]


def _features_of_all(
    raised: Mapping[str, int], brokers: Mapping[int, BrokerView]
) -> dict[str, int]:
    """Return, for each feature, the highest level that every registered broker supports.

    ``raised`` has the levels that the cluster has reached; they never decrease."""
    features = dict(raised)
    levels = [broker.features for broker in brokers.values()]
    for name in levels[0] if levels else ():
        level = min(row.get(name, 0) for row in levels)
        if level > features.get(name, 0):
            features[name] = level
    return features
