"""The pure machines driven by lines of text, for the transcripts.

A line is a verb and ``key=value`` words; what comes back is one line an effect and one of state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker_lite.errors import LogbusError, NotLeaderError, StorageError
from broker_lite.model import (
    NO_BROKER,
    BrokerView,
    Endpoint,
    LeaderAndIsr,
    PartitionKey,
    ReplicaId,
    TopicView,
)
from broker_lite.replication import controller as c
from broker_lite.replication import effects as fx
from broker_lite.replication import events as ev
from broker_lite.replication.partition import Follower, Leader, Offline, Partition

Words = Mapping[str, str]

_ACKS = {"0": 0, "1": 1, "all": -1}


class PartitionMachine:
    """``partition``: one replica. ``now`` is set by ``now=`` and stays."""

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        self.machine = Partition(
            PartitionKey("T", 0),
            _replica(words["local"]),
            log_end_offset=int(words.get("log_end", "0")),
            flushed_end=int(words.get("flushed", "0")),
            high_watermark=int(words.get("high_watermark", "0")),
        )

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        if verb == "latest":
            try:
                return [f"latest {self.machine.latest_offset()}"]
            except LogbusError as error:
                return [f"error {error.name}"]
        if verb == "fetch":
            try:
                self.machine.check_leader(int(words["epoch"]))
                return ["served"]
            except LogbusError as error:
                return [f"error {error.name}"]
        make: Callable[[Words], ev.Event] = getattr(self, f"_{verb}")
        effects = self.machine.step(self.now_ms, make(words))
        ranks = [fx.ORDER[type(effect)] for effect in effects]
        assert ranks == sorted(ranks), effects
        return [*(_effect(effect) for effect in effects), self._state()]

    def _lead(self, words: Words) -> ev.Event:
        state = LeaderAndIsr(
            int(words["leader"]),
            int(words["epoch"]),
            tuple(_replica(word) for word in words["isr"].split(",")),
            1,
            int(words.get("version", "0")),
            int(words.get("elected", "7")),
        )
        limits = ev.Limits(
            int(words.get("min_insync", "1")),
            int(words.get("flush_messages", "1")),
            int(words.get("flush_ms", "1000")),
        )
        mine = frozenset(int(word) for word in words.get("registered", "7").split(","))
        return ev.LeaderAndIsrChanged(state, mine, limits)

    def _limits(self, words: Words) -> ev.Event:
        return ev.LimitsChanged(ev.Limits(int(words["min_insync"])))

    def _append(self, words: Words) -> ev.Event:
        return ev.AppendRequested(
            int(words["token"]), _ACKS[words["acks"]], "batch", int(words.get("records", "1"))
        )

    def _appended(self, words: Words) -> ev.Event:
        return ev.Appended(
            int(words["token"]),
            int(words["base"]),
            int(words["next"]),
            duplicate="duplicate" in words,
        )

    def _refused(self, words: Words) -> ev.Event:
        return ev.AppendFailed(int(words["token"]), LogbusError("a batch that the log refuses"))

    def _started(self, words: Words) -> ev.Event:
        return ev.EpochStarted(
            int(words["epoch"]), int(words["log_end"]), int(words.get("flushed", words["log_end"]))
        )

    def _synced(self, words: Words) -> ev.Event:
        return ev.Synced(int(words["end"]))

    def _follower(self, words: Words) -> ev.Event:
        return ev.FollowerFetched(
            _replica(words["replica"]), int(words["epoch"]), int(words["offset"])
        )

    def _tick(self, words: Words) -> ev.Event:
        return ev.Tick()

    def _disk_failed(self, words: Words) -> ev.Event:
        return ev.StorageFailed(StorageError("no space"))

    def _close(self, words: Words) -> ev.Event:
        return ev.Closed(NotLeaderError())

    def _state(self) -> str:
        machine = self.machine
        match machine.role:
            case Leader():
                role = f"leader of epoch {machine.leader_epoch}"
            case Follower():
                role = f"follower in epoch {machine.leader_epoch}"
            case Offline(error, final):
                role = f"offline{' for good' if final else ''} ({error.name})"
        return (
            f"= {role}: high watermark {machine.high_watermark}, flushed {machine.flushed_end}, "
            f"log end {machine.log_end_offset}, in flight {machine.in_flight_count}"
        )


class ControllerMachine:
    """``controller``: writes are done as soon as they are asked for, unless ``refuse`` is said."""

    def __init__(self, words: Words) -> None:
        self.machine = c.Controller()
        self.topics: dict[str, TopicView] = {}
        self.brokers: dict[int, BrokerView] = {}
        self.features: dict[str, int] = {}
        self._token = 0

    def do(self, verb: str, words: Words) -> list[str]:
        make: Callable[[Words], c.ControllerEvent] = getattr(self, f"_{verb}")
        lines: list[str] = []
        left = list(self.machine.step(make(words)))
        while left:
            effect = left.pop(0)
            lines.append(self._line(effect))
            if not isinstance(effect, c.Answer | c.Warn):
                self._keep(effect)
                left[:0] = self.machine.step(c.Written(effect))
        return lines or ["nothing to do"]

    def _elected(self, words: Words) -> c.ControllerEvent:
        self._set_brokers(words)
        return c.Loaded(int(words["epoch"]), self.brokers, self.topics, self.features)

    def _brokers(self, words: Words) -> c.ControllerEvent:
        self._set_brokers(words)
        return c.BrokersChanged(self.brokers)

    def _set_brokers(self, words: Words) -> None:
        self.brokers = {}
        features = {
            name: int(level)
            for name, _, level in (
                word.partition(":") for word in words.get("features", "").split(",") if word
            )
        }
        for word in words["live"].split(",") if words["live"] else ():
            broker, _, epoch = word.partition("@")
            replica = _replica(broker)
            self.brokers[replica.broker_id] = BrokerView(
                replica.broker_id,
                Endpoint("h", replica.broker_id),
                replica.directory_id,
                int(epoch),
                features=features,
            )

    def _create(self, words: Words) -> c.ControllerEvent:
        self._token += 1
        config = {
            key.replace("_", "."): value
            for key, value in words.items()
            if key not in ("name", "partitions", "factor", "assignment", "validate_only")
        }
        assignment = None
        if "assignment" in words:
            assignment = [
                [int(b) for b in row.split("+")] for row in words["assignment"].split(",")
            ]
        return c.TopicCreationRequested(
            self._token,
            words["name"],
            f"id-of-{words['name']}",
            int(words.get("partitions", "1")),
            int(words.get("factor", "1")),
            assignment,
            config,
            "validate_only" in words,
        )

    def _delete(self, words: Words) -> c.ControllerEvent:
        self._token += 1
        return c.TopicDeletionRequested(self._token, words["name"])

    def _grow(self, words: Words) -> c.ControllerEvent:
        self._token += 1
        return c.PartitionsRequested(self._token, words["name"], int(words["partitions"]))

    def _configure(self, words: Words) -> c.ControllerEvent:
        self._token += 1
        changes = {
            key.replace("_", "."): None if value == "-" else value
            for key, value in words.items()
            if key != "name"
        }
        return c.ConfigChangeRequested(self._token, words["name"], changes)

    def _keep(self, effect: c.Write) -> None:
        """What ZooKeeper would hold."""
        held = self.machine._held
        assert held is not None
        self.topics, self.features = held.topics, held.features

    def _line(self, effect: c.ControllerEffect) -> str:
        match effect:
            case c.WriteTopic(_, topic):
                rows = "; ".join(
                    f"{v.partition} on {list(v.replicas)} {_state(v.state)}"
                    for v in topic.partitions
                )
                return f"write topic {topic.name} {dict(topic.config)}: {rows}"
            case c.WritePartitions(_, topic, first):
                rows = "; ".join(
                    f"{v.partition} on {list(v.replicas)} {_state(v.state)}"
                    for v in topic.partitions[first:]
                )
                return f"write partitions of {topic.name}: {rows}"
            case c.RemoveTopic(_, topic):
                return f"remove topic {topic.name} ({topic.topic_id})"
            case c.WriteConfig(_, topic):
                return f"write config of {topic.name}: {dict(topic.config)}"
            case c.WriteStates(changes):
                rows = "; ".join(
                    f"{change.topic}-{change.partition} {_state(change.state)}"
                    for change in changes
                )
                return f"write states: {rows}"
            case c.WriteFeatures(features):
                return f"raise features: {dict(features)}"
            case c.Warn(text):
                return f"warn: {text}"
            case c.Answer(_, topic, error):
                return f"error {error}" if error else f"done: {topic.name}"  # type: ignore[union-attr]


Machine = PartitionMachine | ControllerMachine
MACHINES: dict[str, Any] = {"partition": PartitionMachine, "controller": ControllerMachine}


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


def _effect(effect: fx.Effect) -> str:
    match effect:
        case fx.Truncate(offset):
            return f"truncate to {offset}"
        case fx.StartEpoch(epoch):
            return f"start epoch {epoch}"
        case fx.Append(token, _, epoch):
            return f"append {token} in epoch {epoch}"
        case fx.Sync():
            return "sync"
        case fx.ProposeIsr(state):
            return f"propose {state}"
        case fx.HighWatermark(offset):
            return f"high watermark {offset}"
        case fx.Reply(token, appended, error):
            if error is not None:
                return f"reply {token}: {error.name}"
            assert appended is not None
            tail = ", a duplicate" if appended.duplicate else ""
            return f"reply {token}: [{appended.base_offset}, {appended.next_offset}){tail}"
