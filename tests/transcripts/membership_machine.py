"""Drive the state machine of a consumer in a Kafka group by lines of text.

The lines ``joined``, ``synced``, ``beaten`` and ``left`` answer the member's requests; ``broken
of=…`` fails a request. Lookups of the coordinator and of topics are answered at once, with the
values of the lines ``coordinator`` and ``topics``. ``at`` advances the time; meanwhile the member's
reader polls, unless it is ``stuck``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_lite.client.membership import assignors
from broker_lite.client.membership import events as ev
from broker_lite.client.membership.machine import MemberMachine
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.errors import CoordinatorNotAvailableError, NetworkError
from broker_lite.model import TopicPartition
from broker_lite.wire.calls import members
from broker_lite.wire.consumer_protocol import (
    decode_assignment,
    decode_member,
    encode_assignment,
)

Words = Mapping[str, str]
NAMES = {
    members.JoinGroupRequest: "join",
    members.SyncGroupRequest: "sync",
    members.HeartbeatRequest: "beat",
    members.LeaveGroupRequest: "leave",
}
TURNS_MAX = 1000


class MembershipMachine:
    """The state machine of a group member. A transcript's lines after the first are its events.

    The first line is ``membership topics=t assignors=range session=10000 beat=1000 poll=60000``.
    """

    def __init__(self, words: Words) -> None:
        self.now_ms = 0
        self.lines: list[str] = []
        self.asked: dict[str, int] = {}
        self.revocation = 0
        self.is_there = True
        self.topics: dict[str, ev.TopicFacts] = {}
        config = MemberConfig(
            session_timeout_ms=int(words.get("session", "10000")),
            heartbeat_interval_ms=int(words.get("beat", "1000")),
            max_poll_interval_ms=int(words.get("poll", "60000")),
            metadata_max_age_ms=int(words.get("look", "30000")),
            group_instance_id=words.get("instance", ""),
            assignors=words.get("assignors", "range"),
        )
        topics = tuple(name for name in words.get("topics", "").split(",") if name)
        self.machine = MemberMachine("g", topics, words.get("pattern"), config)

    def do(self, verb: str, words: Words) -> list[str]:
        self.now_ms = int(words.get("now", self.now_ms))
        self.lines = []
        getattr(self, f"_{verb}")(words)
        return [*self.lines, self._state()]

    # The methods below parse events.

    def _topics(self, words: Words) -> None:
        """Set topics: ``t=3`` has 3 partitions, ``t=3/b`` another topic id; ``t=0`` is deleted."""
        for name, text in words.items():
            count, _, topic_id = text.partition("/")
            if int(count):
                self.topics[name] = ev.TopicFacts(topic_id or "a", int(count))
            else:
                self.topics.pop(name, None)

    def _coordinator(self, words: Words) -> None:
        self.is_there = words["is"] == "there"

    def _start(self, words: Words) -> None:
        self._step(ev.Start())

    def _joined(self, words: Words) -> None:
        rows = []
        protocol = words.get("protocol", "range")
        for row in words.get("members", "").split(";"):
            if row:
                name, topics, *owned = row.split(":")
                data = assignors.metadata(
                    protocol, topics.split("+"), _tps(owned[0] if owned else ""), 1
                )
                if topics == "!":
                    data = b"no subscription"
                rows.append(members.JoinedMember(name, None, data))
        member_id = words.get("id", self.machine.member_id or "me")
        answer = members.JoinGroupResponse(
            0,
            int(words.get("error", "0")),
            int(words.get("generation", "-1")),
            members.CONSUMER,
            protocol,
            member_id if rows else "other",
            "skip" in words,
            member_id,
            tuple(rows),
        )
        self._answer("join", answer)

    def _synced(self, words: Words) -> None:
        share = encode_assignment(_tps(words.get("share", "")))
        code = int(words.get("error", "0"))
        self._answer("sync", members.SyncGroupResponse(0, code, None, None, share))

    def _beaten(self, words: Words) -> None:
        self._answer("beat", members.HeartbeatResponse(0, int(words.get("error", "0"))))

    def _left(self, words: Words) -> None:
        self._answer("leave", members.LeaveGroupResponse(0, 0, ()))

    def _broken(self, words: Words) -> None:
        tag = self.asked.pop(words["of"])
        self._step(ev.CallFailed(tag, NetworkError("the connection ended")))

    def _stopped(self, words: Words) -> None:
        self._step(ev.Stopped(int(words.get("number", self.revocation))))

    def _polled(self, words: Words) -> None:
        self._step(ev.Polled())

    def _look(self, words: Words) -> None:
        self._step(ev.RefreshTopics())

    def _close(self, words: Words) -> None:
        self._step(ev.Close())

    def _at(self, words: Words) -> None:
        until_ms = int(words["ms"])
        for _ in range(TURNS_MAX):
            wake_ms = self.machine.wake_ms
            if wake_ms is None or wake_ms > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = max(self.now_ms, wake_ms)
            self._step(ev.MemberTick("stuck" not in words))
        raise AssertionError("the machine does not settle")

    # The methods below carry out and print effects.

    def _answer(self, name: str, answer: Any) -> None:
        self._step(ev.Answered(self.asked.pop(name), answer))

    def _step(self, event: ev.Event) -> None:
        for effect in self.machine.step(self.now_ms, event):
            self.lines.append(f"{self.now_ms}: {self._told(effect)}")
            match effect:
                case ev.FindCoordinator(tag):
                    away = CoordinatorNotAvailableError()
                    self._step(
                        ev.Answered(tag, None) if self.is_there else ev.CallFailed(tag, away)
                    )
                case ev.Describe(tag, names):
                    found = {
                        name: row
                        for name, row in self.topics.items()
                        if names is None or name in names
                    }
                    self._step(ev.Answered(tag, found))
                case ev.CallCoordinator(tag, call, _, _):
                    self.asked[NAMES[type(call)]] = tag
                case ev.Revoke(number, _):
                    self.revocation = number

    def _told(self, effect: ev.Effect) -> str:
        match effect:
            case ev.FindCoordinator():
                return "find the coordinator"
            case ev.Describe(_, names):
                return f"look at {'all topics' if names is None else ' '.join(names)}"
            case ev.CallCoordinator(_, call, _, _):
                return self._asks(call)
            case ev.Assign(grants):
                return f"assign {_listed(grants)}"
            case ev.Revoke(number, tps):
                return f"revoke {_listed(tps)} (number {number})"
            case ev.Lose(tps):
                return f"lose {_listed(tps)}"
            case ev.UnreadableMember(member_id, error):
                return f"cannot read {member_id}: {error}"
            case ev.Refuse(error):
                return f"refuse: {error}"
            case _:
                return type(effect).__name__.lower()

    def _asks(self, call: Any) -> str:
        match call:
            case members.JoinGroupRequest():
                said = []
                for row in call.protocols:
                    member = decode_member(row.metadata)
                    owned = f" has {_listed(member.owned)}" if member.owned else ""
                    said.append(f"{row.name}[{' '.join(member.topics)}{owned}]")
                static = f" static {call.group_instance_id}" if call.group_instance_id else ""
                return f"join as {call.member_id or 'nobody'}{static} by {' '.join(said)}"
            case members.SyncGroupRequest():
                rows = [
                    f"{row.member_id}: {_listed(decode_assignment(row.assignment))}"
                    for row in call.assignments
                ]
                return f"sync {call.generation_id}" + (f", give {'; '.join(rows)}" if rows else "")
            case members.HeartbeatRequest():
                return f"beat {call.generation_id}"
            case _:
                return f"leave as {call.member_id}: {call.reason}"

    def _state(self) -> str:
        machine = self.machine
        identity = machine.identity
        who = "no member" if identity is None else f"{identity.member_id} in {identity.generation}"
        owned = f", owns {_listed(machine.owned)}" if machine.owned else ""
        lease = f"; may hand out until {machine.lease_until_ms}" if machine.lease_until_ms else ""
        return f"= {machine.phase}, {machine.doing}: {who}{owned}{lease}"


def _tps(text: str) -> list[TopicPartition]:
    found = []
    for row in text.split("+"):
        if row:
            topic, _, partition = row.rpartition("-")
            found.append(TopicPartition(topic, int(partition)))
    return found


def _listed(tps: Any) -> str:
    return " ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(tps)) or "nothing"
