"""``MemberShell``: runs the state machine of a Kafka group's member and carries out its effects.

It sends the machine's requests on the consumer's I/O thread, and passes assignment changes to the
thread that reads. Any thread may call its methods and read its public attributes. Everything else
runs on the I/O thread, also the callbacks ``on_change`` and ``on_update``, which must not block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from broker_lite.client.consuming.changes import Assign, Change, Lose, MemberIdentity, Revoke
from broker_lite.client.membership.errors import denied_member
from broker_lite.client.membership.events import (
    Answered,
    CallCoordinator,
    CallFailed,
    Close,
    Describe,
    Effect,
    Event,
    FindCoordinator,
    Idle,
    LeftGroup,
    MemberTick,
    Polled,
    RefreshTopics,
    Refuse,
    Start,
    Stopped,
    TopicFacts,
    UnreadableMember,
)
from broker_lite.client.membership.machine import MemberMachine
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.client.transport.steps import CallExchange, Operation, Send, Shell, spawn
from broker_lite.errors import InconsistentGroupProtocolError, LogbusError
from broker_lite.model import Endpoint, TopicPartition

logger = logging.getLogger("logbus.groups")

NATIVE = "Native"
"""The type, in a ListGroups response, of a group that coordinates through ZooKeeper."""
WHY_MS = 1500.0
"""Time limit (ms) of the request that finds out why the coordinator refused the member.

The request must end within the 3 s for which a new consumer waits for its first assignment."""
UPDATES = (Assign, Revoke, Lose, Idle, Refuse, LeftGroup)


class MemberShell:
    """Runs the state machine of one group member, and carries out the effects that it returns.

    ``is_alive()`` tells whether the user waits for records, or has asked for some since the last
    ``is_alive()``; if neither for max.poll.interval.ms, the member leaves. ``on_change`` receives
    each assignment change. ``on_update`` is called after any event that may let a waiting reader
    continue."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        group: str,
        *,
        topics: Sequence[str],
        pattern: str | None,
        config: MemberConfig,
        now_ms: Callable[[], float],
        is_alive: Callable[[], bool],
        on_change: Callable[[Change], None],
        on_update: Callable[[], None],
    ) -> None:
        self.machine = MemberMachine(group, topics, pattern, config)
        self.identity: MemberIdentity | None = None
        """The identity with which the consumer commits; None while it is not a member."""
        self.lease_until_ms: float = 0
        """The time (ms, on the clock ``now_ms``) until which the consumer may return records."""
        self.refused: LogbusError | None = None
        """The error with which the membership ended for good, or None."""
        self.is_idle = False
        """Whether the member has left the group because of max.poll.interval.ms."""
        self.is_closed = False
        self.is_settled = False
        """Whether the reader has the member's whole assignment, and the member need not join
        again."""
        self._shell = shell
        self._cluster = cluster
        self._group = group
        self._config = config
        self._now_ms = now_ms
        self._is_alive = is_alive
        self._on_change = on_change
        self._on_update = on_update
        self._coordinator: Endpoint | None = None
        self._timer = ResettableTimer(shell.later, self._tick)

    # Methods that the reader's thread calls.

    @property
    def has_joined(self) -> bool:
        """Whether the member has ever received an assignment, possibly an empty one."""
        return self.machine.has_joined

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        """Return whether the member still owns a partition by the assignment with this grant
        number. A partition that it lost and regained has another number."""
        return grant is not None and self.machine.owned.get(tp) == grant

    def start(self) -> None:
        """Begin to join the group."""
        self._post(Start())

    def stopped(self, number: int) -> None:
        """Tell the state machine that the reader released the partitions of the ``Revoke`` with
        this number."""
        self._post(Stopped(number))

    def polled(self) -> None:
        """Make the member join again: it had left the group because the user asked for no records,
        and the user asks again."""
        self.is_idle = False
        self._post(Polled())

    def refresh_topics(self) -> None:
        """Start a refresh of the topic metadata, without waiting for it."""
        self._post(RefreshTopics())

    def close(self) -> None:
        """Begin to leave the group. Afterwards ``is_closed`` is true, and ``on_update`` is
        called."""
        self._post(Close())

    def _post(self, event: Event) -> None:
        self._shell.call_soon(partial(self._step, event))

    # Methods that run on the shell's thread, which does the client's I/O.

    def _step(self, event: Event) -> None:
        now_ms, machine = self._now_ms(), self.machine
        was_held_back, had_joined = self.lease_until_ms <= now_ms, machine.has_joined
        self.is_settled = False
        effects = machine.step(int(now_ms), event)
        # Set the identity before the reader receives an assignment change, so that the reader then
        # commits with the new identity.
        self.identity = machine.identity
        self.lease_until_ms = machine.lease_until_ms
        for effect in effects:
            self._carry_out(effect)
        self.is_settled = machine.is_settled
        is_updated = machine.has_joined and not had_joined
        is_updated |= was_held_back and self.lease_until_ms > now_ms
        if is_updated or any(isinstance(effect, UPDATES) for effect in effects):
            self._on_update()
        self._timer.set_for(machine.wake_ms, self._now_ms())

    def _tick(self) -> None:
        self._step(MemberTick(self._is_alive()))

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Assign() | Revoke() | Lose():
                self._on_change(effect)
            case FindCoordinator(tag):
                self._spawn(tag, self._find())
            case Describe(tag, topics):
                self._spawn(tag, self._describe(topics))
            case CallCoordinator():
                self._call(effect)
            case Idle():
                self.is_idle = True
                logger.warning(
                    "group %s: this consumer asked for no records for max.poll.interval.ms=%d and "
                    "has left the group; it joins again at its next call",
                    self._group,
                    self._config.max_poll_interval_ms,
                )
            case UnreadableMember(member_id, error):
                logger.warning(
                    "group %s: member %s gets no partitions: this consumer leads the group and "
                    "cannot decode that member's subscription: %s",
                    self._group,
                    member_id,
                    error,
                )
            case Refuse(InconsistentGroupProtocolError() as error):
                # Either the group is native (coordinated through ZooKeeper), or its members support
                # other assignors. Look up the group's type to report the right cause.
                until_ms = self._shell.now_ms() + min(WHY_MS, self._config.request_timeout_ms)
                kind = group_requests.group_kind(self._cluster, self._group, until_ms)
                spawn(self._shell, kind, partial(self._mixed, error))
            case Refuse(error):
                self.refused = denied_member(error, self._cluster.user, self._group)
            case LeftGroup():
                self.is_closed = True

    def _spawn(self, tag: int, operation: Operation[Any]) -> None:
        spawn(self._shell, operation, lambda found: self._answered(tag, found))

    def _mixed(self, error: LogbusError, kind: Any) -> None:
        if kind == NATIVE:
            error = InconsistentGroupProtocolError(
                f"group {self._group!r} is a native group, which its members coordinate; give "
                "another group, or delete this one when it is empty: logbus groups delete "
                f"{self._group}; programs join it with coordination='zookeeper'"
            )
        self.refused = error
        self._on_update()

    def _answered(self, tag: int, result: Any) -> None:
        if isinstance(result, LogbusError):
            self._step(CallFailed(tag, result))
        else:
            self._step(Answered(tag, result))

    def _call(self, effect: CallCoordinator) -> None:
        assert self._coordinator is not None
        answered = partial(self._answered, effect.tag)
        exchange = CallExchange(effect.call)
        try:
            self._shell.request(
                Send(self._coordinator, exchange, effect.timeout_ms, effect.lane), answered
            )
        except LogbusError as error:
            self._shell.call_soon(partial(answered, error))

    def _deadline_ms(self) -> float:
        return self._shell.now_ms() + self._config.request_timeout_ms

    def _find(self) -> Operation[None]:
        self._coordinator = yield from group_requests.find_coordinator(
            self._cluster, self._group, self._deadline_ms()
        )

    def _describe(self, topics: tuple[str, ...] | None) -> Operation[dict[str, TopicFacts]]:
        view = self._cluster.view
        if topics is None or topics:
            view = yield from requests.refresh(self._cluster, topics, self._deadline_ms())
        return facts_of(view, topics)


def facts_of(view: ClusterView, topics: Sequence[str] | None) -> dict[str, TopicFacts]:
    """Return id and number of partitions of each existing topic among ``topics`` (None: all)."""
    names = view.topics if topics is None else topics
    return {
        name: TopicFacts(row.topic_id, len(row.partitions))
        for name in names
        if (row := view.topics.get(name)) is not None and row.error is None
    }
