"""``MemberMachine``: a member of a Kafka group as a state machine without I/O.

``step(now_ms, event)`` receives an event and returns effects (``events`` defines both). The member
finds the coordinator, joins, assigns the partitions if it is the group leader, syncs, and sends
heartbeats until the next rebalance. It follows KIP-62 (heartbeats while the user processes
records), KIP-345 (static members), KIP-394 (a member id before the join) and KIP-429 (cooperative
members keep partitions during a join).

The lease, in which the consumer may return records, ends at ``lease_until_ms``: when the last
confirmed heartbeat was sent, plus the session timeout, less a margin. ``wake_ms`` is the time at
which the machine wants the next MemberTick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from broker_lite.client.consuming.changes import Assign, Lose, MemberIdentity, Revoke
from broker_lite.client.membership import assignors
from broker_lite.client.membership.errors import explained
from broker_lite.client.membership.events import (
    LANE_BEAT,
    LANE_JOIN,
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
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.membership.topics import SubscribedTopics
from broker_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    LogbusError,
    MemberIdRequiredError,
    NotCoordinatorError,
    ProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    error_of,
)
from broker_lite.model import TopicPartition
from broker_lite.wire.calls import members
from broker_lite.wire.consumer_protocol import decode_assignment, encode_assignment

MARGIN_PART = 10
"""The lease (the time in which records may be returned) ends one tenth of the session timeout
before the session does.

This margin suffices: nothing blocks between the check of the lease and the return of a record."""
BACKOFF_MAX_MS = 1000
"""Longest pause (ms) before a failed request is retried."""
JOIN_SLACK_MS = 5000
"""Milliseconds beyond the rebalance timeout for which the member waits for a join's response."""
NO_GENERATION = members.NO_GENERATION

NEW, ACTIVE, IDLE, CLOSING, ENDED = "new", "active", "idle", "closing", "ended"
RESTING, FINDING, JOINING, DESCRIBING, SYNCING = (
    "resting",
    "finding",
    "joining",
    "describing",
    "syncing",
)


class MemberMachine:
    """The group membership of one consumer, which subscribes to ``topics`` or to a ``pattern``."""

    def __init__(
        self, group: str, topics: Sequence[str], pattern: str | None, config: MemberConfig
    ) -> None:
        self.phase = NEW
        self.doing = RESTING
        self.member_id = ""
        self.generation = NO_GENERATION
        self.owned: dict[TopicPartition, int] = {}
        """The assigned partitions with their grant numbers, which differ for each assignment."""
        self.lease_until_ms = 0
        self.has_joined = False
        """Whether the member has ever received an assignment, possibly an empty one."""
        self._group = group
        self._topics = SubscribedTopics(topics, pattern)
        self._config = config
        self._now_ms = 0
        self._out: list[Effect] = []
        self._tag = 0
        self._pending: dict[int, tuple[int, Callable[[Any], None]]] = {}
        self._sent_ms = 0
        """The time (ms) at which the member sent the request whose response it handles now."""
        self._calm_ms = 0
        self._is_found = False
        self._must_join = False
        self._retry_ms = 0
        self._tries = 0
        self._beat_ms = 0
        self._beating: int | None = None
        self._alive_ms = 0
        self._refresh_ms = 0
        self._refreshing: int | None = None
        self._unread: frozenset[str] = frozenset()
        """Ids of members whose subscription this group leader could not decode."""
        self._protocol: str | None = None
        self._grants = 0
        self._topic_ids: dict[TopicPartition, str] = {}
        """The topic id that each owned partition had when it was assigned, if known then."""
        self._reported: frozenset[TopicPartition] = frozenset()
        """The partitions that the last JoinGroup reported as owned."""
        self._revocations: dict[int, set[TopicPartition]] = {}
        """The revoked partitions that the reader has not released yet, by the number of the
        ``Revoke``."""
        self._numbers = 0

    # Methods and properties for the caller of this machine.

    @property
    def identity(self) -> MemberIdentity | None:
        """The identity with which the consumer commits; None while it is not a member."""
        if self.generation == NO_GENERATION:
            return None
        return MemberIdentity(self.member_id, self.generation, self._config.instance_id)

    @property
    def is_settled(self) -> bool:
        """Whether the member has its assignment and need not join again."""
        return self.phase == ACTIVE and not self._must_join and self.doing == RESTING

    @property
    def wake_ms(self) -> int | None:
        """The time in ms at which the next MemberTick is due, or None."""
        if self.phase != ACTIVE:
            return None
        times = [self._alive_ms + self._config.max_poll_interval_ms]
        if self.doing == RESTING and not (self._is_found and self._waits_to_join()):
            times.append(self._retry_ms)
        if self._beats():
            times.append(self._beat_ms)
        if self._refreshing is None:
            times.append(self._refresh_ms)
        return min(times)

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Handle one event at the time ``now_ms``. Return the effects to carry out, in order."""
        self._now_ms, self._out = now_ms, []
        match event:
            case Start() if self.phase == NEW:
                self._begin()
            case Answered(tag, value):
                self._complete(tag, value)
            case CallFailed(tag, error):
                self._complete(tag, error)
            case Stopped(number):
                self._drop(self._revocations.pop(number, ()))
            case Polled() if self.phase == IDLE:
                self._begin()
            case RefreshTopics():
                self._refresh_ms = now_ms
            case MemberTick(is_alive):
                self._alive_ms = now_ms if is_alive else self._alive_ms
            case Close():
                self._close()
        if self.phase == ACTIVE:
            self._advance()
        out, self._out = self._out, []
        return out

    # Methods that send requests and handle the answers.

    def _call(self, call: Any, lane: str, then: Callable[[Any], None], timeout_ms: int = 0) -> int:
        tag = self._new_tag(then)
        self._out.append(
            CallCoordinator(tag, call, lane, timeout_ms or self._config.request_timeout_ms)
        )
        return tag

    def _new_tag(self, then: Callable[[Any], None]) -> int:
        self._tag += 1
        self._pending[self._tag] = (self._now_ms, then)
        return self._tag

    def _complete(self, tag: int, value: Any) -> None:
        pending = self._pending.pop(tag, None)
        if pending is not None:
            self._sent_ms, then = pending
            then(value)

    def _retry_later(self) -> None:
        self.doing = RESTING
        pause_ms = min(self._config.retry_backoff_ms << min(self._tries, 10), BACKOFF_MAX_MS)
        self._retry_ms = self._now_ms + pause_ms
        self._tries += 1

    # Methods that join the group and apply the assignment.

    def _begin(self) -> None:
        self.phase = ACTIVE
        self._must_join = True
        self._alive_ms = self._retry_ms = self._now_ms
        self._refresh_ms = self._now_ms

    def _advance(self) -> None:
        if self._now_ms - self._alive_ms >= self._config.max_poll_interval_ms:
            self._leave_idle()
            return
        if self._beats() and self._beat_ms <= self._now_ms:
            self._beat()
        if self._refreshing is None and self._refresh_ms <= self._now_ms:
            self._refresh()
        if self.doing != RESTING or self._retry_ms > self._now_ms:
            return
        if not self._is_found:
            self.doing = FINDING
            self._out.append(FindCoordinator(self._new_tag(self._coordinator_found)))
        elif not self._waits_to_join():
            self._release_then_join()

    def _coordinator_found(self, result: Any) -> None:
        if isinstance(result, LogbusError):
            if not result.retriable:
                self._end(result)
                return
            self._retry_later()
            return
        self.doing = RESTING
        self._is_found = True

    def _waits_to_join(self) -> bool:
        """Return whether to send no join now: the member need not join, or must wait first.

        The member waits for the release of revoked partitions, and for the topics that match its
        pattern."""
        is_blind = self._topics.are_unknown and self._refreshing is not None
        return not self._must_join or bool(self._revocations) or is_blind

    def _release_then_join(self) -> None:
        """Join the group; an eager member (``range``, ``sticky``) first releases all its
        partitions.

        A cooperative member keeps its partitions during the join."""
        if self._config.is_cooperative or not self.owned:
            self._join()
        else:
            self._revoke(frozenset(self.owned))

    def _revoke(self, tps: frozenset[TopicPartition]) -> None:
        self._numbers += 1
        self._revocations[self._numbers] = set(tps)
        self._out.append(Revoke(self._numbers, tps))

    def _join(self) -> None:
        config = self._config
        self._must_join = False
        self._reported = frozenset(self.owned)
        self.doing = JOINING
        protocols = tuple(
            members.JoinProtocol(
                name, assignors.metadata(name, self._topics.names, self.owned, self.generation)
            )
            for name in config.assignor_names
        )
        call = members.JoinGroupRequest(
            self._group,
            config.session_timeout_ms,
            config.gathering_ms,
            self.member_id,
            config.instance_id,
            protocols,
        )
        patience_ms = max(config.request_timeout_ms, config.gathering_ms + JOIN_SLACK_MS)
        self._call(call, LANE_JOIN, self._joined, patience_ms)

    def _joined(self, answer: Any) -> None:
        error = _error_of(answer)
        if isinstance(error, MemberIdRequiredError):
            self.member_id = answer.member_id
            self._join()
            return
        if error is not None:
            self._join_failed(error)
            return
        has_missed_one = NO_GENERATION < self.generation < answer.generation_id - 1
        if has_missed_one and self.owned:
            # This static member keeps its member id, but has missed a generation. In that
            # generation the group leader may have assigned this member's partitions to others,
            # because the leader knows only the partitions that a member's last JoinGroup request
            # reported. So drop the partitions.
            self._lose(frozenset(self.owned))
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self._protocol = answer.protocol_name
        self._topics.stop_leading()
        if answer.leader != answer.member_id or answer.protocol_name not in assignors.ASSIGNORS:
            self._sync(())
            return
        candidates, unread = assignors.candidates(answer.protocol_name, answer.members)
        self._out += [
            UnreadableMember(*row) for row in unread.items() if row[0] not in self._unread
        ]
        self._unread = frozenset(unread)
        topic_names = tuple(sorted({topic for each in candidates for topic in each.topics}))
        self.doing = DESCRIBING

        def described(topics: Any) -> None:
            if isinstance(topics, LogbusError):
                self._join_failed(topics)
                return
            skips = answer.skip_assignment
            self._topics.lead(topic_names, topics, assigns=not skips)
            self._lose_recreated(topics)
            self._sync(() if skips else self._shares(answer.protocol_name, candidates))

        self._out.append(Describe(self._new_tag(described), topic_names))

    def _shares(
        self, protocol: str, candidates: Sequence[assignors.Candidate]
    ) -> tuple[members.Assigned, ...]:
        shares = assignors.assign(protocol, candidates, self._topics.partition_counts)
        return tuple(members.Assigned(name, encode_assignment(s)) for name, s in shares.items())

    def _sync(self, assignments: tuple[members.Assigned, ...]) -> None:
        self.doing = SYNCING
        config = self._config
        identity = self.generation, self.member_id, config.instance_id
        call = members.SyncGroupRequest(self._group, *identity, self._protocol, assignments)
        patience_ms = max(config.request_timeout_ms, config.gathering_ms + JOIN_SLACK_MS)
        self._call(call, LANE_JOIN, self._synced, patience_ms)

    def _synced(self, answer: Any) -> None:
        error = _error_of(answer)
        if error is not None:
            self._join_failed(error)
            return
        try:
            share = frozenset(decode_assignment(answer.assignment))
        except ProtocolError as found:
            self._end(found)
            return
        self.doing = RESTING
        self.has_joined = True
        self._confirm()
        self._beat_ms = self._now_ms
        revoked = frozenset(self.owned.keys() - share)
        new = sorted(share - self.owned.keys())
        if revoked:
            self._revoke(revoked)
        if revoked or self._reported - share:
            # Join again. The join reports neither the revoked partitions nor those lost since the
            # last join as owned, so the leader can assign them to other members.
            self._must_join = True
        if new:
            grants = {tp: self._grants + n for n, tp in enumerate(new, 1)}
            self._grants += len(new)
            self.owned |= grants
            self._topic_ids |= self._topics.ids(new)
            self._out.append(Assign(grants))

    def _join_failed(self, error: LogbusError) -> None:
        """Handle a failed JoinGroup or SyncGroup, and join again after a backoff.

        Drop the member id, partitions or coordinator that the error makes invalid."""
        self._must_join = True
        self._retry_later()
        match error:
            case RebalanceInProgressError() | CoordinatorLoadInProgressError():
                pass
            case UnknownMemberIdError():
                self._lose_all()
                self.member_id = ""
            case IllegalGenerationError():
                self._lose_all()
            case NotCoordinatorError() | CoordinatorNotAvailableError():
                self._is_found = False
            case _ if error.retriable:
                self._is_found = False
            case _:
                self._end(error)

    # Methods that send heartbeats and extend the lease (the time in which records may be returned).

    def _beats(self) -> bool:
        return self._is_found and self.generation != NO_GENERATION and self._beating is None

    def _beat(self) -> None:
        self._beat_ms = self._now_ms + self._config.heartbeat_interval_ms
        call = members.HeartbeatRequest(
            self._group, self.generation, self.member_id, self._config.instance_id
        )
        generation = self.generation
        self._beating = self._call(
            call,
            LANE_BEAT,
            lambda answer: self._beaten(answer, generation),
            min(self._config.request_timeout_ms, self._config.session_timeout_ms),
        )

    def _beaten(self, answer: Any, generation: int) -> None:
        self._beating = None
        error = _error_of(answer)
        if error is None or isinstance(error, RebalanceInProgressError):
            # After a join, the coordinator evicts a member that sends no SyncGroup within the
            # rebalance timeout. A confirmed heartbeat between JoinGroup and SyncGroup must
            # therefore not extend the lease beyond this timeout.
            self._confirm(is_calm=error is None and self.doing not in (DESCRIBING, SYNCING))
        if error is None or generation != self.generation:
            return
        is_joining = self.doing in (JOINING, DESCRIBING, SYNCING)
        match error:
            case RebalanceInProgressError():
                if not is_joining:
                    self._must_join = True
            case CoordinatorLoadInProgressError():
                self._beat_ms = self._now_ms + self._config.retry_backoff_ms
            case IllegalGenerationError() | UnknownMemberIdError():
                # While a join or sync is in flight, ILLEGAL_GENERATION does not mean lost
                # partitions: the answer will report the new assignment, so keep them until then. In
                # all other cases drop the partitions, because other members may own them by now.
                if is_joining:
                    if isinstance(error, UnknownMemberIdError) and self.owned:
                        self._lose(frozenset(self.owned))
                else:
                    self._lose_all()
                    self._must_join = True
                    if isinstance(error, UnknownMemberIdError):
                        self.member_id = ""
            case _ if error.retriable:
                self._beat_ms = self._now_ms + self._config.retry_backoff_ms
                if not is_joining:
                    self._is_found = False
            case _:
                self._end(error)

    def _confirm(self, *, is_calm: bool = True) -> None:
        """Extend the lease (the time in which records may be returned) after a response. It counts
        from the sending of the request.

        In a rebalance (``is_calm`` is False), heartbeats do not suffice: the coordinator removes a
        member whose JoinGroup or SyncGroup does not arrive within the rebalance timeout. So the
        lease does not exceed that timeout."""
        self._tries = 0
        self._calm_ms = self._sent_ms if is_calm else self._calm_ms
        session_ms, gathering_ms = self._config.session_timeout_ms, self._config.gathering_ms
        until_ms = self._sent_ms + session_ms - session_ms // MARGIN_PART
        if not is_calm:
            until_ms = min(until_ms, self._calm_ms + gathering_ms - gathering_ms // MARGIN_PART)
        self.lease_until_ms = max(self.lease_until_ms, until_ms)

    # Methods that refresh the topics' metadata.

    def _refresh(self) -> None:
        self._refresh_ms = self._now_ms + self._config.metadata_max_age_ms
        self._refreshing = self._new_tag(self._refreshed)
        self._out.append(Describe(self._refreshing, self._topics.watched))

    def _refreshed(self, topics: Any) -> None:
        self._refreshing = None
        if isinstance(topics, LogbusError):
            self._refresh_ms = self._now_ms + BACKOFF_MAX_MS
            return
        if self._topics.learn(topics):
            self._must_join = True
        self._lose_recreated(topics)
        if self._topics.would_assign_otherwise(topics) and self.doing == RESTING:
            self._must_join = True

    def _lose_recreated(self, topics: Mapping[str, TopicFacts]) -> None:
        """Drop the owned partitions whose topic was recreated between two metadata refreshes."""
        lost = set()
        for tp in self.owned:
            row = topics.get(tp.topic)
            if row is None:
                continue
            if self._topic_ids.setdefault(tp, row.topic_id) != row.topic_id:
                lost.add(tp)
        if lost:
            self._lose(frozenset(lost))
            self._must_join = True

    # Methods that give up partitions, and that leave the group.

    def _lose(self, tps: frozenset[TopicPartition]) -> None:
        self._drop(tps)
        self._revocations = {n: left for n, row in self._revocations.items() if (left := row - tps)}
        self._out.append(Lose(tps))

    def _drop(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            del self.owned[tp]
            self._topic_ids.pop(tp, None)

    def _lose_all(self) -> None:
        """Drop all partitions, because the group's present generation does not include this
        member."""
        self.generation = NO_GENERATION
        self.lease_until_ms = 0
        self._topics.stop_leading()
        if self.owned:
            self._lose(frozenset(self.owned))

    def _forget(self) -> None:
        self._pending.clear()
        self._beating = self._refreshing = None
        self._must_join = False
        self.doing = RESTING

    def _leave(self, reason: str, then: Callable[[Any], None]) -> bool:
        """Send LeaveGroup, unless the member is static or unknown to the coordinator.

        Return whether LeaveGroup was sent, so that a response will follow."""
        if not self.member_id or self._config.instance_id is not None or not self._is_found:
            return False
        call = members.LeaveGroupRequest(self._group, self.member_id, None, reason)
        self._call(call, LANE_BEAT, then)
        return True

    def _leave_idle(self) -> None:
        """Leave the group, because the user asked for no records within max.poll.interval.ms
        (KIP-62)."""
        self._forget()
        self._leave("the consumer does not poll", lambda _: None)
        self._lose_all()
        self.member_id = ""
        self.phase = IDLE
        self._out.append(Idle())

    def _close(self) -> None:
        if self.phase in (CLOSING, ENDED):
            if self.phase == ENDED:
                self._out.append(LeftGroup())
            return
        was_active = self.phase == ACTIVE
        self._forget()
        self.phase = CLOSING
        is_leaving = was_active and self._leave("the consumer was closed", lambda _: self._finish())
        self._lose_all()
        if not is_leaving:
            self._finish()

    def _finish(self) -> None:
        self.phase = ENDED
        self._out.append(LeftGroup())

    def _end(self, error: LogbusError) -> None:
        self._forget()
        # Leave now. Otherwise other members would receive the partitions only after the session
        # timeout.
        self._leave("the consumer ended", lambda _: None)
        self._lose_all()
        self.phase = ENDED
        self._out.append(Refuse(explained(error, self._group, self._config)))


def _error_of(answer: Any) -> LogbusError | None:
    if isinstance(answer, LogbusError):
        return answer
    return error_of(answer.error_code)
