"""Drive the state machine of a Kafka group by lines of text.

Times are in milliseconds.

- ``now=`` sets the clock until another line sets it.
- ``group generation=0 delay=0 size=1000`` creates the group. The first rebalance of an empty group
  waits ``delay`` for more members. The group has at most ``size`` members.
- With ``former=2 until=5000``, the coordinator takes over a group that had two members. They may
  consume until they contact this coordinator, or until 5000.
- ``join who=a`` is the first join of a member; ``join who=a id=a-1`` is a later join.
- ``protocols=range:t+u,sticky:t`` sets the member's protocols and subscriptions.
- ``owned=t-0+t-1`` sets the member's partitions.
- ``has=t-3`` says that topic t has three partitions.
- ``assign=a-1:work`` assigns the bytes ``work`` to member a-1; ``share=a-1:t-0`` assigns it
  partition t-0, encoded as consumers do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from broker_lite.coordinator import effects as fx
from broker_lite.coordinator import events as ev
from broker_lite.coordinator.group import NEVER, Group
from broker_lite.coordinator.members import subscribed_topics
from broker_lite.errors import LogbusError, NotCoordinatorError
from broker_lite.model import TopicPartition
from broker_lite.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_member,
)

Words = Mapping[str, str]


class GroupMachine:
    """The state machine of a Kafka group. A transcript's line ``group`` creates it, and the lines
    after it are its events.

    The line ``written`` reports that ZooKeeper has stored the generation.
    """

    def __init__(self, words: Words) -> None:
        limits = ev.GroupLimits(
            initial_rebalance_delay_ms=int(words.get("delay", "0")),
            size_max=int(words.get("size", "1000")),
            member_bytes_max=int(words.get("bytes", "1000")),
            group_bytes_max=int(words.get("total", "10000")),
        )
        self.now_ms = 0
        former = ev.Former(int(words.get("former", "0")), int(words.get("until", "0")))
        self.machine = Group("g", limits, int(words.get("generation", "0")), former)
        self._labels: dict[int, str] = {}
        self._ids = 0

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        if verb == "view":
            return self._view()
        make: Callable[[Words], ev.Event] = getattr(self, f"_{verb}")
        event = make(words)
        if not isinstance(event, ev.GenerationWritten | ev.GroupTick | ev.Resigned):
            self._labels[event.token] = f"{verb} {words.get('who', '')}".strip()
        effects = self.machine.step(self.now_ms, event)
        return [*(self._line(effect) for effect in effects), self._state()]

    # The methods below parse events.

    def _join(self, words: Words) -> ev.Event:
        rows = [row.partition(":") for row in words.get("protocols", "range:t").split(",") if row]
        self._ids += "id" not in words
        return ev.Join(
            self._token(),
            words.get("id", ""),
            words.get("instance"),
            "client",
            "/127.0.0.1",
            int(words.get("session", "10000")),
            int(words.get("rebalance", "60000")),
            words.get("type", "consumer"),
            tuple(
                ev.Protocol(name, _subscription(topics, words.get("owned", "")))
                for name, _, topics in rows
            ),
            f"{words['who']}-{self._ids}",
            "old" not in words,
            "v8" not in words,
            _counts(words["has"]) if "has" in words else None,
        )

    def _sync(self, words: Words) -> ev.Event:
        rows = (row.partition(":") for row in words.get("assign", "").split(",") if row)
        return ev.SyncGroup(
            self._token(),
            words["id"],
            words.get("instance"),
            int(words.get("generation", self.machine.generation)),
            (
                *((member, work.encode()) for member, _, work in rows),
                *(
                    (member, encode_assignment(_tps(share)))
                    for member, _, share in (
                        row.partition(":") for row in words.get("share", "").split(",") if row
                    )
                ),
            ),
            words.get("type"),
            words.get("protocol"),
        )

    def _heartbeat(self, words: Words) -> ev.Event:
        generation = int(words.get("generation", self.machine.generation))
        return ev.Heartbeat(self._token(), words["id"], words.get("instance"), generation)

    def _leave(self, words: Words) -> ev.Event:
        rows = (row.partition("/") for row in words["members"].split(","))
        return ev.Leave(self._token(), tuple(ev.Leaver(row[0], row[2] or None) for row in rows))

    def _commit(self, words: Words) -> ev.Event:
        generation = self.machine.generation if "id" in words else -1
        return ev.Commit(
            self._token(),
            words.get("id", ""),
            words.get("instance"),
            int(words.get("generation", generation)),
            "in_transaction" in words,
        )

    def _written(self, words: Words) -> ev.Event:
        return ev.GenerationWritten(self.machine.generation + 1)

    def _tick(self, words: Words) -> ev.Event:
        return ev.GroupTick()

    def _resigned(self, words: Words) -> ev.Event:
        return ev.Resigned(NotCoordinatorError())

    def _token(self) -> int:
        return len(self._labels)

    # The methods below print effects and the state.

    def _line(self, effect: fx.Effect) -> str:
        if isinstance(effect, fx.WriteGeneration):
            return f"write generation {effect.generation}{' (empty)' * effect.is_empty}"
        return f"{self._labels[effect.token]}: {_result(effect.result)}"

    def _state(self) -> str:
        due = self.machine.deadline_ms
        view = self.machine.view()
        names = " ".join(row.member_id for row in view.members)
        extra = f", {self.machine.size - len(view.members)} expected"
        return (
            f"= {view.state} in generation {view.generation}: {names or 'nobody'}"
            f"{extra * (self.machine.size > len(view.members))}"
            f"; due {'never' if due == NEVER else due}"
        )

    def _view(self) -> list[str]:
        view = self.machine.view()
        topics = self.machine.subscribed()
        lines = [f"{view.state} {view.protocol_type} {view.protocol or '-'}, {_topics(topics)}"]
        for row in view.members:
            lines.append(
                f"{row.member_id} {row.instance_id or '-'} {row.client_id} {row.client_host} "
                f"{_topics(subscribed_topics(row.metadata))} <- {_work(row.assignment) or '-'}"
            )
        return lines


def _result(result: Any) -> str:
    if isinstance(result, fx.LeaveResult):
        return ", ".join(_error(error) for error in result.errors)
    if result.error is not None:
        return _error(result.error) + (
            f" for {result.member_id}" if getattr(result, "member_id", "") else ""
        )
    if isinstance(result, fx.SyncResult):
        return f"{_work(result.assignment) or 'nothing'} ({result.protocol_name})"
    if not isinstance(result, fx.JoinResult):
        return "ok"
    rows = " ".join(
        f"{row.member_id}{'/' + row.instance_id if row.instance_id else ''}"
        f"[{_topics(subscribed_topics(row.metadata))}]"
        for row in result.members
    )
    role = f"leads {rows}" if rows else f"follows {result.leader}"
    skip = ", nothing to assign" * result.skip_assignment
    return f"{result.member_id} in {result.generation} by {result.protocol_name}, {role}{skip}"


def _error(error: LogbusError | None) -> str:
    return "ok" if error is None else error.name


def _work(assignment: bytes) -> str:
    if not assignment.startswith(b"\0"):
        return assignment.decode()
    return "+".join(f"{topic}-{partition}" for topic, partition in decode_assignment(assignment))


def _counts(text: str) -> dict[str, int]:
    """Parse partition counts of topics: ``t-3`` means that t has three partitions."""
    return dict(_tps(text))


def _tps(text: str) -> list[TopicPartition]:
    rows = (row.rpartition("-") for row in text.split("+") if row)
    return [TopicPartition(topic, int(partition)) for topic, _, partition in rows]


def _subscription(topics: str, owned: str = "") -> bytes:
    """Return the encoded subscription of a consumer; version 0 if it owns no partition.

    ``topics`` may be ``!`` for undecodable bytes, or ``-`` for no bytes.
    """
    if topics == "!":
        return b"\0\0?"
    if topics == "-":
        return b""
    if owned:
        return encode_member(Subscription(tuple(topics.split("+")), b"", tuple(_tps(owned))), 1)
    names = [name.encode() for name in topics.split("+") if name]
    rows = b"".join(struct.pack(f">h{len(name)}s", len(name), name) for name in names)
    return struct.pack(">hi", 0, len(names)) + rows + struct.pack(">i", 0)


def _topics(topics: frozenset[str] | None) -> str:
    return "unreadable" if topics is None else "+".join(sorted(topics)) or "none"
