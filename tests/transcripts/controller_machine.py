"""Drive the controller's state machine by lines of text.

Every line may have these fields:
- ``now=`` sets the clock.
- ``conflict=t-0:1:A+2:B`` makes the first write of partition states fail, because the leader of t-0
  has set its ISR to brokers 1 and 2 with the directories A and B. The controller then decides
  again, as in production.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from broker_lite.model import (
    NO_BROKER,
    BrokerView,
    Endpoint,
    LeaderAndIsr,
    PartitionView,
    ReplicaId,
    StateChange,
    TopicPartition,
    TopicView,
)
from broker_lite.replication import controller_effects as fx
from broker_lite.replication import controller_events as ev
from broker_lite.replication.cluster_metadata import ClusterMetadata
from broker_lite.replication.controller import Controller

Words = Mapping[str, str]

_FEATURES = {"metadata": 2}
_CREATION = ("name", "partitions", "factor", "assignment", "validate_only", "now")


class ControllerMachine:
    """The controller's state machine. A transcript's line ``controller`` creates it, and the lines
    after it are its events.

    Each write that the controller decides on completes at once.
    """

    def __init__(self, words: Words) -> None:
        self.machine = Controller(int(words.get("rebalance", "-1")))
        self.topics: dict[str, TopicView] = {}
        self.brokers: dict[int, BrokerView] = {}
        self.features: dict[str, int] = {} if "old" in words else dict(_FEATURES)
        self.known: set[int] = set()
        self.suspects: dict[int, int] = {}
        self.now_ms = 0
        self._token = 0

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        make: Callable[[Words], ev.ControllerEvent] = getattr(self, f"_{verb}")
        event = make(words)
        conflict = again = words.get("conflict")
        lines: list[str] = []
        left = list(self.machine.step(self.now_ms, event))
        while left or (again and conflict is None):
            if not left:
                again = None
                left = list(self.machine.step(self.now_ms, ev.SuspectsChanged(self.suspects)))
                continue
            effect = left.pop(0)
            if conflict and isinstance(effect, fx.WriteStates | fx.WriteAssignment):
                lines.append(f"refused: {self._line(effect)}")
                self.machine.step(self.now_ms, ev.WriteRefused([self._by_leader(conflict)]))
                conflict = None
                if not isinstance(event, ev.Request | ev.ControllerTick):
                    event = ev.SuspectsChanged(self.suspects)
                left = list(self.machine.step(self.now_ms, event))
                continue
            lines.append(self._line(effect))
            if not isinstance(effect, fx.Answer | fx.Warn):
                left[:0] = self.machine.step(self.now_ms, ev.Written(effect))
        metadata = self._metadata()
        self.topics, self.features = metadata.topics, metadata.features
        self.known = set(metadata.known)
        return lines or ["nothing to do"]

    # The methods below parse events.

    def _elected(self, words: Words) -> ev.ControllerEvent:
        self._set_brokers(words)
        known = {int(word) for word in words.get("known", "").split(",") if word}
        return ev.Loaded(
            int(words["epoch"]),
            self.brokers,
            self.topics,
            self.features,
            self.known | known,
            self.suspects,
        )

    def _brokers(self, words: Words) -> ev.ControllerEvent:
        self._set_brokers(words)
        return ev.BrokersChanged(self.brokers, self.suspects)

    def _suspects(self, words: Words) -> ev.ControllerEvent:
        self._set_suspects(words)
        return ev.SuspectsChanged(self.suspects)

    def _tick(self, words: Words) -> ev.ControllerEvent:
        return ev.ControllerTick()

    def _leader_wrote(self, words: Words) -> ev.ControllerEvent:
        return ev.StatesRead([self._by_leader(words["state"])])

    def _late_notice(self, words: Words) -> ev.ControllerEvent:
        """Return the event of a late read: the partition state has an old version."""
        change = self._by_leader(words["state"])
        version = int(words["version"])
        return ev.StatesRead(
            [change._replace(state=dataclasses.replace(change.state, version=version))]
        )

    def _create(self, words: Words) -> ev.ControllerEvent:
        config = {
            key.replace("_", "."): value for key, value in words.items() if key not in _CREATION
        }
        assignment = None
        if "assignment" in words:
            assignment = [_brokers(row) for row in words["assignment"].split(",")]
        factor = words.get("factor", "1")
        return ev.TopicCreationRequested(
            self._next_token(),
            words["name"],
            f"id-of-{words['name']}",
            int(words.get("partitions", "1")),
            None if factor == "default" else int(factor),
            assignment,
            config,
            "validate_only" in words,
        )

    def _delete(self, words: Words) -> ev.ControllerEvent:
        return ev.TopicDeletionRequested(self._next_token(), words["name"])

    def _grow(self, words: Words) -> ev.ControllerEvent:
        return ev.PartitionsRequested(self._next_token(), words["name"], int(words["partitions"]))

    def _configure(self, words: Words) -> ev.ControllerEvent:
        changes = {
            key.replace("_", "."): None if value == "-" else value
            for key, value in words.items()
            if key != "name"
        }
        return ev.ConfigChangeRequested(self._next_token(), words["name"], changes)

    def _reassign(self, words: Words) -> ev.ControllerEvent:
        targets = {
            _key(word): None if row == "-" else _brokers(row)
            for word, row in words.items()
            if word not in ("now", "conflict")
        }
        return ev.ReassignmentRequested(self._next_token(), targets)

    def _elect(self, words: Words) -> ev.ControllerEvent:
        partitions = None
        if "partitions" in words:
            partitions = [_key(word) for word in words["partitions"].split(",")]
        return ev.ElectionRequested(self._next_token(), "unclean" in words, partitions)

    def _retire(self, words: Words) -> ev.ControllerEvent:
        return ev.RetirementRequested(self._next_token(), int(words["broker"]))

    # The methods below parse words.

    def _set_brokers(self, words: Words) -> None:
        """Set the live brokers from ``live=1:A@10,2:B@11/rack,3:C@12~``.

        A broker has an id, a directory, a broker epoch and perhaps a rack. ``~`` marks a draining
        broker, and an exclamation mark a broker with a full disk.
        """
        features = dict(_FEATURES)
        if "features" in words:
            rows = (word.partition(":") for word in words["features"].split(","))
            features = {name: int(level) for name, _, level in rows}
        self.brokers = {}
        for word in words["live"].split(",") if words["live"] else ():
            broker, _, rack = word.rstrip("~!").partition("/")
            name, _, epoch = broker.partition("@")
            replica = _replica(name)
            self.brokers[replica.broker_id] = BrokerView(
                replica.broker_id,
                Endpoint("h", replica.broker_id),
                replica.directory_id,
                int(epoch),
                rack or None,
                features,
                "~" in word,
                "!" in word,
            )
        self._set_suspects(words)

    def _set_suspects(self, words: Words) -> None:
        """Set the processes that are suspected to be dead. ``suspected=2@11`` is broker 2 with
        broker epoch 11."""
        rows = (word.partition("@") for word in words.get("suspected", "").split(",") if word)
        self.suspects = {int(broker): int(epoch) for broker, _, epoch in rows}

    def _by_leader(self, word: str) -> StateChange:
        """Parse a partition state (leader, leader epoch, ISR) that the partition's leader writes.

        ``t-0:1:A+2:B`` sets the ISR of t-0 to brokers 1 and 2 with directories A and B, and
        increments the version. ``t-0!:2:B`` is the write of a leader that resigned because its log
        is damaged.
        """
        name, _, isr = word.partition(":")
        key = _key(name.rstrip("!"))
        view = self._metadata().partition(key)
        state = dataclasses.replace(
            view.state,
            isr=tuple(_replica(replica) for replica in isr.split("+")),
            version=view.state.version + 1,
        )
        if name.endswith("!"):
            epoch = state.leader_epoch + 1
            state = dataclasses.replace(
                state, leader=NO_BROKER, leader_epoch=epoch, leader_broker_epoch=-1
            )
        return self._metadata().change(key, state)

    def _metadata(self) -> ClusterMetadata:
        assert self.machine._metadata is not None
        return self.machine._metadata

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    # The methods below convert effects to text.

    def _line(self, effect: fx.ControllerEffect) -> str:
        match effect:
            case fx.WriteTopic(_, topic):
                return f"write topic {topic.name} {dict(topic.config)}: {_rows(topic.partitions)}"
            case fx.WritePartitions(_, topic, first):
                return f"write partitions of {topic.name}: {_rows(topic.partitions[first:])}"
            case fx.WriteAssignment(topic, states):
                rows = "; ".join(_placed(view) for view in topic.partitions)
                changed = "; ".join(_change(change) for change in states) or "no states"
                return f"write assignment of {topic.name}: {rows}, with {changed}"
            case fx.RemoveTopic(_, topic):
                return f"remove topic {topic.name} ({topic.topic_id})"
            case fx.WriteConfig(_, topic):
                return f"write config of {topic.name}: {dict(topic.config)}"
            case fx.WriteStates(changes):
                return f"write states: {'; '.join(_change(change) for change in changes)}"
            case fx.WriteFeatures(features):
                return f"raise features: {dict(features)}"
            case fx.RemoveDisks(broker_id):
                return f"forget the directories of broker {broker_id}"
            case fx.Warn(text):
                return f"warn: {text}"
            case fx.Answer(_, topic, error, outcomes):
                if error is not None:
                    return f"error {error}"
                if topic is not None:
                    return f"done: {topic.name}"
                rows = "; ".join(f"{key} {outcome or 'yes'}" for key, outcome in outcomes.items())
                return f"done: {rows}" if rows else "done"


def _rows(views: tuple[PartitionView, ...]) -> str:
    return "; ".join(f"{_placed(view)} {_state(view.state)}" for view in views)


def _placed(view: PartitionView) -> str:
    moves = ""
    if view.adding or view.removing:
        moves = f" adding {list(view.adding)} removing {list(view.removing)}"
    return f"{view.partition} on {list(view.replicas)}{moves}"


def _change(change: StateChange) -> str:
    return f"{change.topic}-{change.partition} {_state(change.state)}"


def _state(state: LeaderAndIsr) -> str:
    leader = "no leader" if state.leader == NO_BROKER else f"leader {state.leader}"
    isr = ",".join(f"{r.broker_id}:{r.directory_id}" for r in state.isr)
    return (
        f"({leader} elected@{state.leader_broker_epoch}, epoch {state.leader_epoch}, isr {isr}, "
        f"controller {state.controller_epoch}, version {state.version})"
    )


def _replica(word: str) -> ReplicaId:
    broker, _, directory = word.partition(":")
    return ReplicaId(int(broker), directory)


def _key(word: str) -> TopicPartition:
    topic, _, partition = word.rpartition("-")
    return TopicPartition(topic, int(partition))


def _brokers(word: str) -> list[int]:
    return [int(broker) for broker in word.split("+") if broker]
