"""Pass the lines of a transcript to the state machines.

A line has a verb and ``key=value`` words; the verb selects the state machine. The output has a line
for each effect that the machine returns (an operation that its caller must execute), and a line for
its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller_machine import ControllerMachine
from group_machine import GroupMachine
from membership_machine import MembershipMachine
from native_machine import NativeVerb
from producer_machine import ProducerMachine
from sink_machine import SinkMachine
from ticket_machine import TicketMachine
from transaction_machine import TransactionMachine

from broker_lite.errors import CorruptMessageError, LogbusError, NotLeaderError, StorageError
from broker_lite.model import (
    NO_BROKER,
    LeaderAndIsr,
    OffsetAndEpoch,
    PartitionKey,
    ReplicaId,
)
from broker_lite.replication import effects as fx
from broker_lite.replication import events as ev
from broker_lite.replication.follower import Follower
from broker_lite.replication.isr import CommittedIsr, IsrState, PendingExpandIsr, PendingShrinkIsr
from broker_lite.replication.leader import Leader
from broker_lite.replication.partition import Offline, Partition

Words = Mapping[str, str]

_ACKS = {"1": ev.ACKS_LEADER, "all": ev.ACKS_ALL}


class PartitionMachine:
    """The state machine of one replica. A transcript's line ``partition`` creates it, and the lines
    after it are its events. ``now=`` sets the clock.
    """

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        self.machine = Partition(
            PartitionKey("T", 0),
            _replica(words["local"]),
            log_end_offset=int(words.get("log_end", "0")),
            flushed_end=int(words.get("flushed", "0")),
            high_watermark=int(words.get("high_watermark", "0")),
            last_epoch=int(words.get("last_epoch", "-1")),
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
        limits = ev.ReplicaLimits(
            int(words.get("min_insync", "1")),
            int(words.get("flush_messages", "1")),
            int(words.get("flush_ms", "1000")),
            int(words.get("lag_ms", "10000")),
        )
        mine = frozenset(int(word) for word in words.get("registered", "7").split(","))
        replicas = tuple(int(word) for word in words.get("replicas", "1,2,3").split(","))
        return ev.LeaderAndIsrChanged(_state_in(words), mine, limits, replicas)

    def _isr_written(self, words: Words) -> ev.Event:
        return ev.IsrWritten(_state_in(words))

    def _isr_refused(self, words: Words) -> ev.Event:
        return ev.IsrRefused(_state_in(words))

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
            _replica(words["replica"]),
            int(words["epoch"]),
            int(words["offset"]),
            int(words.get("last_epoch", "-1")),
            _end(words.get("our_end")),
            int(words.get("our_start", "0")),
            int(words.get("start", words.get("our_start", "0"))),
            "draining" not in words,
        )

    def _fetched(self, words: Words) -> ev.Event:
        return ev.Fetched(
            int(words["epoch"]),
            int(words["offset"]),
            words.get("records"),
            int(words.get("hw", "0")),
            int(words.get("start", "0")),
        )

    def _diverged(self, words: Words) -> ev.Event:
        end = _end(words["leader_end"])
        assert end is not None
        return ev.FetchDiverged(
            int(words["epoch"]),
            int(words["offset"]),
            int(words["last_epoch"]),
            end,
            _end(words.get("own_end")),
        )

    def _out_of_range(self, words: Words) -> ev.Event:
        return ev.FetchOutOfRange(
            int(words["epoch"]), int(words["offset"]), int(words["leader_start"])
        )

    def _fetched_appended(self, words: Words) -> ev.Event:
        return ev.FetchedAppended(int(words["next"]), int(words["last_epoch"]))

    def _fetched_refused(self, words: Words) -> ev.Event:
        return ev.FetchedAppendFailed(CorruptMessageError("a checksum is wrong"))

    def _truncated(self, words: Words) -> ev.Event:
        end = int(words["end"])
        return ev.Truncated(end, end, int(words["last_epoch"]))

    def _corrupt(self, words: Words) -> ev.Event:
        return ev.CorruptionFound(int(words["offset"]))

    def _tick(self, words: Words) -> ev.Event:
        return ev.Tick()

    def _disk_failed(self, words: Words) -> ev.Event:
        return ev.StorageFailed(StorageError("no space"))

    def _close(self, words: Words) -> ev.Event:
        return ev.Closed(NotLeaderError())

    def _state(self) -> str:
        machine = self.machine
        match machine.role:
            case Leader(isr=isr):
                role = f"leader of epoch {machine.leader_epoch}{_isr(isr)}"
            case Follower():
                role = f"follower in epoch {machine.leader_epoch}"
            case Offline(error, final):
                role = f"offline{' for good' if final else ''} ({error.name})"
        damage = machine.log.damaged_from
        tail = "" if damage is None else f", damaged from {damage}"
        return (
            f"= {role}: high watermark {machine.high_watermark}, flushed {machine.flushed_end}, "
            f"log end {machine.log_end_offset}, in flight {machine.in_flight_count}{tail}"
        )


Machine = PartitionMachine | ControllerMachine
MACHINES: dict[str, Any] = {
    "partition": PartitionMachine,
    "controller": ControllerMachine,
    "group": GroupMachine,
    "membership": MembershipMachine,
    "native": NativeVerb,
    "producer": ProducerMachine,
    "sinks": SinkMachine,
    "tickets": TicketMachine,
    "transaction": TransactionMachine,
}


def _state(state: LeaderAndIsr) -> str:
    leader = "no leader" if state.leader == NO_BROKER else f"leader {state.leader}"
    return (
        f"({leader} elected@{state.leader_broker_epoch}, epoch {state.leader_epoch}, "
        f"isr {_names(state.isr)}, "
        f"controller {state.controller_epoch}, version {state.version})"
    )


def _state_in(words: Words) -> LeaderAndIsr:
    """Parse leader and ISR from a line. ``elected=7`` is the elected leader's broker epoch."""
    return LeaderAndIsr(
        int(words["leader"]),
        int(words["epoch"]),
        tuple(_replica(word) for word in words["isr"].split(",")),
        1,
        int(words.get("version", "0")),
        int(words.get("elected", "7")),
    )


def _isr(isr: IsrState) -> str:
    """Return the ISR as text. ``+`` marks a replica that joins, ``-`` a replica that leaves.

    The text is empty if the leader is the only member.
    """
    match isr:
        case CommittedIsr((_,)):
            return ""
        case CommittedIsr(replicas):
            tail = ""
        case PendingExpandIsr(replicas, joining):
            tail = f" +{_names((joining,))}"
        case PendingShrinkIsr(replicas, leaving):
            tail = f" -{_names(leaving)}"
    return f", isr {_names(replicas)}{tail}"


def _names(replicas: Sequence[ReplicaId]) -> str:
    return ",".join(f"{r.broker_id}:{r.directory_id}" for r in replicas)


def _end(word: str | None) -> OffsetAndEpoch | None:
    """Parse a leader epoch and its end offset from ``EPOCH@OFFSET``, or None from None."""
    if word is None:
        return None
    epoch, _, offset = word.partition("@")
    return OffsetAndEpoch(int(offset), int(epoch))


def _replica(word: str) -> ReplicaId:
    broker, _, directory = word.partition(":")
    return ReplicaId(int(broker), directory)


def _effect(effect: fx.Effect) -> str:
    match effect:
        case fx.StopFetching():
            return "stop fetching"
        case fx.Truncate(offset):
            return f"truncate to {offset}"
        case fx.StartAt(offset):
            return f"drop everything and start at {offset}"
        case fx.StartEpoch(epoch):
            return f"start epoch {epoch}"
        case fx.Append(token, _, epoch):
            return f"append {token} in epoch {epoch}"
        case fx.AppendFetched(payload, epoch):
            return f"append what epoch {epoch} sent: {payload}"
        case fx.Sync():
            return "sync"
        case fx.ProposeIsr(state):
            return f"propose {_state(state)}"
        case fx.HighWatermark(offset):
            return f"high watermark {offset}"
        case fx.RaiseStart(offset):
            return f"delete before {offset}"
        case fx.FetchFrom(leader, epoch, offset, last):
            return f"fetch from broker {leader} in epoch {epoch} at {offset}, last epoch {last}"
        case fx.Reply(token, appended, error):
            if error is not None:
                return f"reply {token}: {error.name}"
            assert appended is not None
            tail = ", a duplicate" if appended.duplicate else ""
            return f"reply {token}: [{appended.base_offset}, {appended.next_offset}){tail}"
        case fx.AnswerFollower(error, diverging):
            if error is not None:
                return f"answer: {error.name}"
            if diverging is not None:
                return f"answer: epoch {diverging.leader_epoch} ends here at {diverging.offset}"
            return "answer: records"
