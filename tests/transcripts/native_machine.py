"""Drive the state machine of a consumer in a native (ZooKeeper-based) group by lines.

The simulated ZooKeeper answers at once and in order. Lines about other members change its znodes
directly. The output has every write (and why, if ZooKeeper refuses it), the notifications to
readers, and the state.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from sim.zk import ZkService

from broker_lite.metadata import znodes
from broker_lite.metadata.store import (
    Check,
    Create,
    Delete,
    Operation,
    SessionLost,
    Set,
    Suspended,
)
from broker_lite.metadata.znodes import Assignment, CoordinatorZnode, NativeSubscription, OwnerZnode
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native import events as ev
from broker_lite.native.machine import NativeMachine

Words = Mapping[str, str]
GROUP = "g"
TIMEOUT_MS = 6000
TURNS_MAX = 1000
PLACES = (znodes.consumers_path, znodes.owners_path, znodes.offsets_path)


class NativeVerb:
    """The state machine of a native group's consumer. The line ``native`` creates it, and the lines
    after it are its events.

    ``now=`` in a line sets the clock. The line ``at`` runs the timers until a given time.
    """

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        self.service = ZkService(random.Random(0))
        self.inbox: deque[ev.Event] = deque()
        self.lines: list[str] = []
        self.name = words["name"]
        self.admin: Any = self.service.open_session(Nobody())  # type: ignore[arg-type]
        self.session: Any = None
        self.others: dict[str, Any] = {}
        for path in znodes.PERSISTENT_PATHS:
            self.service.write(self.admin, [Create(path)])
        self.is_deaf = self.is_deaf_to_writes = False
        self.next_kind: Words = {}
        self.next_generation: int | None = None
        self.machine = NativeMachine(GROUP, self.name, _subscription(words))

    def deliver(self, event: Any) -> None:
        """Queue an event of a ZooKeeper watch for the consumer."""
        self.inbox.append(event)

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        self.lines = []
        getattr(self, f"_{verb}")(words)
        self._drain()
        return [*self.lines, self._state()]

    # The methods below are verbs of the consumer's connection, its readers and time.

    def _connect(self, words: Words) -> None:
        """Connect the consumer.

        With ``unanswered``, writes on this connection succeed but their responses are lost.
        """
        self.is_deaf_to_writes = "unanswered" in words
        is_new = self.session is None
        if is_new:
            self.session = self.service.open_session(self)  # type: ignore[arg-type]
        self.session.connected = True
        self._step(ev.SessionConnected(self.session.session_id, is_new, TIMEOUT_MS))

    def _suspend(self, words: Words) -> None:
        """Disconnect the consumer.

        With ``deaf``, writes in flight succeed but their responses are lost.
        """
        self.session.connected = False
        self.service.forget_watches(self.session)
        self.inbox.clear()
        self._step(Suspended())

    def _lose(self, words: Words) -> None:
        self._suspend(words)
        self.service.end_session(self.session)
        self.session = None
        self._step(SessionLost())

    def _settle(self, words: Words) -> None:
        offset = words.get("offset")
        final = None if offset is None else CommittedOffset(int(offset))
        grant = self.machine.ownership.owned.get(_tp(words["of"]))
        number = 0 if grant is None else grant.grant
        self._step(ev.Settled(_tp(words["of"]), final, int(words.get("grant", number))))

    def _commit(self, words: Words) -> None:
        rows = {
            _tp(name): CommittedOffset(int(offset))
            for name, offset in words.items()
            if name not in ("number", "now", "unanswered", "grant")
        }
        held = self.machine.ownership.owned
        grants = {tp: int(words.get("grant", held[tp].grant)) for tp in rows if tp in held}
        self.is_deaf = "unanswered" in words
        self._step(ev.StreamCommit(int(words["number"]), rows, grants))
        self._drain()
        self.is_deaf = False

    def _at(self, words: Words) -> None:
        until_ms = int(words["ms"])
        for _ in range(TURNS_MAX):
            wake_ms = self.machine.wake_ms
            if wake_ms is None or wake_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, wake_ms)
            self._step(ev.NativeTick())
            self._drain()
        self.now_ms = until_ms

    # The methods below are verbs of other members and of brokers.

    def _kind(self, words: Words) -> None:
        """Create the group's znode; ``is`` in the transcript's line gives its kind, native or
        kafka.

        With ``generation`` in the line, also write a coordinator of the group, with this
        generation number.
        """
        self._admin(Create(znodes.group_path(GROUP), znodes.encode_group(words["is"])))
        if "generation" in words:
            value = CoordinatorZnode(1, 7, 1, int(words["generation"]), 0, "7-1")
            path = znodes.coordinator_path(GROUP)
            self._admin(Create(path, znodes.encode_coordinator(value)))
            self._admin(Create(znodes.claim_path(GROUP, value.claim)))

    def _committed(self, words: Words) -> None:
        """Write an offset of the group, as a client outside the group does."""
        tp = _tp(words["of"])
        path = znodes.offset_path(GROUP, *tp)
        self._admin(Create(znodes.offsets_path(GROUP)))
        self._admin(Create(znodes.topic_offsets_path(GROUP, tp.topic)))
        self._admin(Create(path, _offset(int(words["offset"]))))

    def _pending(self, words: Words) -> None:
        """Add the offsets of an open transaction to the group, as the group's coordinator does."""
        self._admin(Create(znodes.pending_path(GROUP)))
        self._admin(Create(znodes.part_path(GROUP, words["part"])))

    def _ended(self, words: Words) -> None:
        """End a transaction by deleting the znode with its pending offsets."""
        self._admin(Delete(znodes.part_path(GROUP, words["part"])))

    def _made_again(self, words: Words) -> None:
        """Delete and recreate the group just before the consumer registers."""
        self.next_kind = {**words, "is": words["as"]}

    def _make_again(self) -> None:
        words, self.next_kind = self.next_kind, {}
        for place in PLACES:
            self._admin(Delete(place(GROUP)))
        self._admin(Delete(znodes.group_path(GROUP)))
        self._kind(words)
        for place in PLACES:
            self._admin(Create(place(GROUP)))

    def _claimed(self, words: Words) -> None:
        """Let a broker become the group's coordinator in ``generation``, just before the consumer
        makes the group ZooKeeper-based."""
        self.next_generation = int(words["generation"])

    def _claim(self) -> None:
        path, claim = znodes.coordinator_path(GROUP), znodes.claim_path(GROUP, "8-1")
        value = CoordinatorZnode(2, 8, 2, self.next_generation, 0, "8-1")
        self.next_generation = None
        self._admin(Set(path, znodes.encode_coordinator(value)))
        self._admin(Delete(znodes.claim_path(GROUP, "7-1")))
        self._admin(Create(claim))

    def _topic(self, words: Words) -> None:
        path = znodes.topic_path(words["name"])
        count = int(words["partitions"])
        topic_id = words.get("id", f"id-{words['name']}")
        data = znodes.encode_assignment(Assignment(topic_id, ((1,),) * count))
        is_there = self.service.peek(path) is not None
        if count == 0:
            self._admin(Delete(path))
        else:
            self._admin(Set(path, data) if is_there else Create(path, data))

    def _other(self, words: Words) -> None:
        name = words["name"]
        self.others[name] = session = self.service.open_session(Nobody())  # type: ignore[arg-type]
        if self.service.peek(znodes.group_path(GROUP)) is None:
            self._kind({"is": znodes.KIND_NATIVE})
            for place in PLACES:
                self._admin(Create(place(GROUP)))
        path = znodes.consumer_path(GROUP, name)
        data = znodes.encode_subscription(_subscription(words))
        self.service.write(session, [Create(path, data, ephemeral=True)])

    def _other_claims(self, words: Words) -> None:
        tp = _tp(words["of"])
        path = znodes.owner_path(GROUP, *tp)
        data = znodes.encode_owner(OwnerZnode(words["name"], 0))
        offset_path = znodes.offset_path(GROUP, *tp)
        znode = self.service.peek(offset_path)
        offset = Create(offset_path, _offset(-1)) if znode is None else Set(offset_path, znode.data)
        session = self.others[words["name"]]
        refused = self.service.write(session, [Create(path, data, ephemeral=True), offset])
        if refused is not None:
            self.lines.append(f"{words['name']} is refused: {refused.reason}")

    def _other_releases(self, words: Words) -> None:
        path = znodes.owner_path(GROUP, *_tp(words["of"]))
        self.service.write(self.others[words["name"]], [Delete(path)])

    def _other_ends(self, words: Words) -> None:
        self.service.end_session(self.others.pop(words["name"]))

    def _reset(self, words: Words) -> None:
        path = znodes.offset_path(GROUP, *_tp(words["of"]))
        self._admin(Set(path, _offset(int(words["offset"]))))

    def _unregister(self, words: Words) -> None:
        self._admin(Delete(znodes.consumer_path(GROUP, self.name)))

    def _offsets(self, words: Words) -> None:
        for topic in self.service.peek_children(znodes.offsets_path(GROUP)):
            for partition in self.service.peek_children(znodes.topic_offsets_path(GROUP, topic)):
                path = znodes.offset_path(GROUP, topic, int(partition))
                znode = self.service.peek(path)
                assert znode is not None
                offset = znodes.decode_offset(path, znode.data).offset
                self.lines.append(f"{topic}-{partition} at {offset} (version {znode.version})")

    def _admin(self, operation: Operation) -> None:
        refused = self.service.write(self.admin, [operation])
        assert refused is None, refused

    # The methods below run the state machine and print its effects.

    def _drain(self) -> None:
        for _ in range(TURNS_MAX):
            if not self.inbox:
                return
            self._step(self.inbox.popleft())
        self.lines.append("and so on: it never comes to rest")

    def _step(self, event: ev.Event) -> None:
        for effect in self.machine.step(self.now_ms, event):
            self._carry_out(effect)

    def _carry_out(self, effect: ev.Effect) -> None:
        service, session = self.service, self.session
        answer: ev.Event | None = None
        match effect:
            case ev.Get(tag, path, watch):
                answer = ev.Got(tag, service.get(session, path, watch))
            case ev.List(tag, path, watch):
                answer = ev.Listed(tag, service.children(session, path, watch))
            case ev.Write(tag, operations):
                me = znodes.consumer_path(GROUP, self.name)
                if self.next_kind and any(each.path == me for each in operations):
                    self._make_again()
                is_taking = any(each.path == znodes.coordinator_path(GROUP) for each in operations)
                if is_taking and self.next_generation is not None:
                    self._claim()
                refused = service.write(session, operations)
                text = "; ".join(map(_operation, operations))
                why = "" if refused is None else f" REFUSED: {refused.position} {refused.reason}"
                if "places" not in text:
                    self.lines.append(f"{self.now_ms}: {text}{why}")
                answer = None if self.is_deaf_to_writes else ev.WriteDone(tag, refused)
            case ev.Beat(tag):
                answer = ev.Beaten(tag)
            case ev.StreamAssign(stream, tp, start):
                at = "nowhere" if start.committed is None else start.committed.offset
                added = ", added later" if start.is_added else ""
                self.lines.append(f"{self.now_ms}: assign {_text(tp)} to {stream}, at {at}{added}")
            case ev.StreamRevoke(stream, tp):
                self.lines.append(f"{self.now_ms}: revoke {_text(tp)} from {stream}")
            case ev.StreamLose(stream, tp):
                self.lines.append(f"{self.now_ms}: lose {_text(tp)}, of {stream}")
            case ev.CommitAnswer(number, errors):
                rows = [f"{_text(tp)} {error.name}" for tp, error in errors.items()]
                self.lines.append(f"{self.now_ms}: commit {number}: {', '.join(rows) or 'done'}")
            case ev.RefuseJoin(error):
                self.lines.append(f"{self.now_ms}: refuse: {error.name}")
            case ev.Restart():
                self.lines.append(f"{self.now_ms}: restart")
        if answer is not None and not self.is_deaf:
            self.inbox.append(answer)

    def _state(self) -> str:
        machine = self.machine
        held = [
            _text(tp) + ("" if row.state == "owned" else f"({row.state})")
            for tp, row in sorted(machine.ownership.owned.items())
        ]
        claims = [_text(tp) for tp in sorted(machine.ownership.claims)]
        return (
            f"= {machine.phase}: owns {' '.join(held) or 'nothing'}"
            + (f", wants {' '.join(claims)}" if claims else "")
            + f"; may hand out until {machine.lease_until_ms}"
        )


class Nobody:
    """A watch listener that ignores all events."""

    def deliver(self, event: Any) -> None:
        """Ignore the watch event."""


def _subscription(words: Words) -> NativeSubscription:
    topics = tuple(words["topics"].split(",")) if "topics" in words else ()
    return NativeSubscription(topics, words.get("pattern"), int(words.get("streams", "1")))


def _tp(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def _text(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}" if tp.topic else "all"


def _offset(offset: int) -> bytes:
    return znodes.encode_offset(CommittedOffset(offset, topic_id="id-t"))


def _operation(operation: Operation) -> str:
    parts = operation.path.split("/")[3:]
    if isinstance(operation, Check) and not parts:
        return "if the group is as it was"
    if isinstance(operation, Set) and not parts:
        return f"make the group {znodes.decode_group('', operation.data)}"
    if isinstance(operation, Set) and parts == ["ids"]:
        return "note when"
    if not parts or (parts[0] in ("owners", "offsets") and len(parts) < 3) or parts == ["ids"]:
        return "places"
    name = "-".join(parts[1:])
    match operation:
        case Create() if parts == ["pending"]:
            return "have no pending offsets"
        case Delete() if parts == ["pending"]:
            return "if no offsets are pending"
        case Delete() if parts[0] == "coordinator":
            return f"end the claim {name}"
        case Create(path, data) | Set(path, data) if parts[0] == "coordinator":
            value = znodes.decode_coordinator(path, data)
            return f"leave it unclaimed, in epoch {value.epoch}, generation {value.generation}"
        case Check():
            return "if registered" if parts[0] == "ids" else "if the group is as it was"
        case Create() if parts[0] == "ids":
            return "register"
        case Create() if parts[0] == "owners":
            return f"own {name}"
        case Delete() if parts[0] == "owners":
            return f"disown {name}"
        case Delete() if parts[0] == "ids":
            return "register no more"
        case Create(path, data):
            return f"make offset {name} {znodes.decode_offset(path, data).offset}"
        case Set(path, data, version):
            return f"set offset {name} {znodes.decode_offset(path, data).offset} at {version}"
    return f"{type(operation).__name__.lower()} {name}"
