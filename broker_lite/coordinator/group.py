"""The state machine of one Kafka consumer group: ``step(now_ms, event)`` returns operations.

A member is always in one of three states:
- It waits in JoinGroup for the rebalance to complete.
- It waits in SyncGroup for the assignment that the group's leader sends.
- It consumes, and must send a request within its session timeout.

A generation starts when its number is written to ZooKeeper. Its members are those that wait in
JoinGroup at that time. The next GroupTick is due at ``deadline_ms``; an earlier tick changes
nothing. ``server/coordinators/group_coordinator.py`` does the I/O, and calls ``step`` on the event
loop's thread."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from broker_lite.coordinator import effects as fx
from broker_lite.coordinator import events as ev
from broker_lite.coordinator.admission import refusal
from broker_lite.coordinator.members import (
    CONSUMER,
    Member,
    MemberView,
    Roster,
    choose_protocol,
    is_same_subscription,
    must_rejoin,
)
from broker_lite.errors import (
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    LogbusError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

NEVER = 1 << 62
NEW_MEMBER_WAIT_MS = 300_000
"""Milliseconds for which a new member may wait in its first JoinGroup. Then the group removes it,
because its client has probably gone."""


STATIC_WAIT_MIN_MS = 1000
"""Minimum milliseconds between two checks whether absent static members have come back, even if the
members' rebalance timeout is shorter."""


class State(StrEnum):
    """The states of a group, under the names that clients receive in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupView(NamedTuple):
    """A snapshot of a group for the answer to DescribeGroups. The protocol and the members'
    subscriptions are set only in the state Stable, as in Kafka."""

    state: State
    protocol_type: str
    protocol: str
    generation: int
    members: tuple[MemberView, ...]


class Group:
    """The state machine of one consumer group. ``generation`` is the last generation written to
    ZooKeeper.

    ``former`` describes the members of that generation, which joined at the group's previous
    coordinator. The first rebalance waits for them, because they consume until they contact this
    coordinator."""

    def __init__(
        self, name: str, limits: ev.GroupLimits, generation: int, former: ev.Former = ev.NO_FORMER
    ) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = generation
        self.deadline_ms = former.until_ms if former.members else NEVER
        self._limits = limits
        self._now_ms = 0
        self._effects: list[fx.Effect] = []
        self._roster = Roster(former)
        self._protocol: str | None = None
        self._written_empty: bool | None = None
        """Whether the generation that is being written to ZooKeeper has no members. None if no
        write is in flight."""
        self._join_deadline_ms = NEVER
        self._sync_deadline_ms = NEVER
        self._is_first = False
        """Whether the group was empty before this rebalance. If so, the rebalance waits longer for
        more members (``group.initial.rebalance.delay.ms``)."""
        self._initial_wait_left_ms = 0
        self._others_joined = False

    def step(self, now_ms: int, event: ev.Event) -> list[fx.Effect]:
        """Apply an event. Return the operations (effects) in the order in which the caller must
        carry them out. An invalid request is answered with an error."""
        self._now_ms = now_ms
        self._effects = []
        match event:
            case ev.Join():
                self._join(event)
            case ev.SyncGroup():
                self._sync(event)
            case ev.Heartbeat():
                self._reply(event.token, fx.HeartbeatResult(self._check_heartbeat(event)))
            case ev.Leave():
                self._leave(event)
            case ev.Commit():
                self._reply(event.token, fx.CommitResult(self._check_commit(event)))
            case ev.GenerationWritten():
                self._written(event.generation)
            case ev.GroupTick():
                self._tick()
            case ev.Resigned():
                self._resign(event.error)
        return self._effects

    # Properties and methods that describe the group.

    @property
    def size(self) -> int:
        """Number of members and of member ids that were assigned but have not joined yet
        (KIP-394)."""
        return self._roster.size

    @property
    def is_idle(self) -> bool:
        """Whether the caller can drop this group from memory: it has no members and none about to
        join, no member that joined at the previous coordinator can still consume, and no write is
        in flight."""
        is_empty = self.state is State.EMPTY and not self.size and self._roster.former is None
        return is_empty and self._written_empty is None

    @property
    def awaited(self) -> int:
        """Number of members that joined the group at its previous coordinator and may still be
        consuming."""
        former = self._roster.former
        return 0 if former is None else former.members

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for the members' metadata and assignments."""
        return self._roster.metadata_bytes + self._roster.assigned_bytes

    @property
    def assigned_bytes(self) -> int:
        """Bytes of the current assignments, which are kept until the leader's next SyncGroup
        replaces them."""
        return self._roster.assigned_bytes

    def growth(self, join: ev.Join) -> int:
        """Return by how many bytes the members' metadata grows if the member joins. The result is
        negative if the member's earlier metadata was larger."""
        own = self._roster.find(join.member_id, join.instance_id)
        return join.metadata_bytes - (0 if own is None else own.metadata_bytes)

    def view(self) -> GroupView:
        """Return a snapshot of the group, with its members in the order of joining.

        While members of the previous coordinator may still consume, the state is
        PreparingRebalance."""
        stable = self.state is State.STABLE
        protocol = self._protocol if stable else None
        state = self.state if self._roster.members else State.EMPTY
        return GroupView(
            State.PREPARING if self._roster.former is not None else state,
            self._roster.protocol_type or CONSUMER,
            protocol or "",
            self.generation,
            tuple(
                MemberView(
                    row.member_id,
                    row.instance_id,
                    row.client_id,
                    row.client_host,
                    row.metadata(protocol) if stable else b"",
                    row.assignment if stable else b"",
                )
                for row in self._roster.members.values()
            ),
        )

    def is_led_by(self, instance_id: str) -> bool:
        """Return whether the group is stable and the static member ``instance_id`` is its
        leader."""
        leads = self._roster.leader == self._roster.static.get(instance_id, "")
        return self.state is State.STABLE and leads

    def subscribed(self) -> frozenset[str] | None:
        """Return the topics to which members are subscribed; None if they are unknown."""
        return self._roster.subscribed(self._protocol)

    # Methods that handle joins.

    def _join(self, event: ev.Join) -> None:
        error = self.refusal(event)
        if error is None and event.member_id:
            error = self._join_known(event)
        elif error is None and event.instance_id in self._roster.static:
            self._return_static(event)
        elif error is None and event.must_ask_twice and event.instance_id is None:
            self._roster.pending[event.new_member_id] = self._now_ms + event.session_timeout_ms
            self._arm(self._now_ms + event.session_timeout_ms)
            error = MemberIdRequiredError(
                f"join group {self.name!r} again with the member id of this response"
            )
            self._reply(event.token, fx.JoinResult(error, event.new_member_id))
            return
        elif error is None:
            self._add(event, event.new_member_id)
        if error is not None:
            self._reply(event.token, fx.JoinResult(error, event.member_id))

    def refusal(self, event: ev.Join) -> LogbusError | None:
        """Return the error with which to refuse the join; None if the member may join."""
        return refusal(self.name, self._limits, self._roster, event)

    def _join_known(self, event: ev.Join) -> LogbusError | None:
        if event.member_id in self._roster.pending and event.instance_id is None:
            del self._roster.pending[event.member_id]
            self._add(event, event.member_id)
            return None
        error = self._roster.why_not(self.name, event.member_id, event.instance_id)
        if error is not None:
            return error
        member = self._roster.members[event.member_id]
        same = member.protocols == event.protocols
        leads = self._roster.leader == event.member_id
        if same and (self.state is State.COMPLETING or (self.state is State.STABLE and not leads)):
            # The member repeats a join whose answer was lost, or joins again unchanged: answer with
            # the current generation, without a rebalance.
            self._renew(member)
            self._reply(event.token, self._joined(member))
            return None
        self._roster.update(member, event)
        self._wait_for_join(member, event.token)
        return None

    def _add(self, event: ev.Join, member_id: str) -> None:
        member = Member(
            member_id,
            event.instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            self._now_ms + NEW_MEMBER_WAIT_MS,
        )
        self._roster.add(member, event.protocol_type)
        self._others_joined = True
        self._arm(member.session_deadline_ms)
        self._wait_for_join(member, event.token)

    def _return_static(self, event: ev.Join) -> None:
        """Let a restarted static member take the place of its earlier process, which is fenced.

        The member gets a new member id and keeps its assignment."""
        assert event.instance_id is not None
        old = self._roster.static[event.instance_id]
        led = self._roster.leader == old
        member = self._roster.members[old]
        fenced = FencedInstanceIdError(
            f"another process with group.instance.id {event.instance_id!r} has joined group "
            f"{self.name!r}; give each process its own group.instance.id"
        )
        self._answer_waiting(member, fenced)
        before = member.metadata(self._protocol)
        rejoins = must_rejoin(self._roster.protocol_type, before, member.assignment)
        self._roster.rename(member, event.new_member_id)
        self._roster.update(member, event)
        settled = (
            self.state is State.STABLE
            and not rejoins
            and is_same_subscription(
                self._roster.protocol_type, before, member.metadata(self._protocol)
            )
        )
        if settled and led and event.partition_counts is not None:
            # Rebalance if the assignment lacks partitions: they were added while the leader was
            # away, and the leader notices only partitions that are added after its return.
            settled = not self._roster.leaves_unassigned(self._protocol, event.partition_counts)
        if not settled or choose_protocol(list(self._roster.members.values())) != self._protocol:
            self._wait_for_join(member, event.token)
            return
        self._renew(member)
        member.has_synced = False
        self._sync_deadline_ms = self._now_ms + self._roster.rebalance_timeout_ms()
        self._arm(self._sync_deadline_ms)
        result = self._joined(member)
        if led and event.can_skip_assignment:
            result = result._replace(skip_assignment=True)
        elif led:
            # Before version 9, a JoinGroup response cannot tell the leader to skip the assignment.
            # Name the old member id as leader, so that the member takes itself for a follower and
            # assigns nothing.
            result = result._replace(leader=old, members=())
        self._reply(event.token, result)

    def _wait_for_join(self, member: Member, token: int) -> None:
        """Hold the answer to a join until the rebalance completes. If an earlier join of the member
        still waits, fail that one, because the new join replaces it."""
        self._answer_waiting(
            member,
            RebalanceInProgressError(
                f"a later JoinGroup request of member {member.member_id!r} of group {self.name!r} "
                "replaces this request"
            ),
        )
        member.join_token = token
        if self.state is State.PREPARING:
            self._begin_if_all_joined()
        else:
            self._rebalance()

    # Methods of a rebalance, which collects joins, writes the generation and answers the members.

    def _rebalance(self) -> None:
        if self.state is State.COMPLETING:
            again = RebalanceInProgressError(f"group {self.name!r} rebalances again; join again")
            for member in self._roster.members.values():
                if member.sync_token is not None:
                    self._answer_waiting(member, again)
                    self._renew(member)
        limits = self._limits
        former = self._roster.former
        is_delayed = limits.initial_rebalance_delay_ms > 0 or former is not None
        self._is_first = self.state is State.EMPTY and is_delayed
        wait_ms = self._roster.rebalance_timeout_ms()
        if self._is_first and former is not None:
            self._initial_wait_left_ms = 0
            wait_ms = min(wait_ms, max(former.until_ms - self._now_ms, 0))
        elif self._is_first:
            self._initial_wait_left_ms = max(wait_ms - limits.initial_rebalance_delay_ms, 0)
            self._others_joined = False
            wait_ms = limits.initial_rebalance_delay_ms
        self.state = State.PREPARING
        self._sync_deadline_ms = NEVER
        self._wait_until(self._now_ms + wait_ms)
        self._begin_if_all_joined()

    def _wait_until(self, join_deadline_ms: int) -> None:
        self._join_deadline_ms = join_deadline_ms
        self._arm(join_deadline_ms)

    def _begin_if_all_joined(self) -> None:
        if self.state is not State.PREPARING or self._roster.pending:
            return
        if self._is_first and not self._roster.have_former_returned:
            return
        if all(row.join_token is not None for row in self._roster.members.values()):
            self._begin_generation()

    def _join_deadline_passed(self) -> None:
        if self._is_first and self._others_joined and self._initial_wait_left_ms > 0:
            wait_ms = min(self._limits.initial_rebalance_delay_ms, self._initial_wait_left_ms)
            self._initial_wait_left_ms -= wait_ms
            self._others_joined = False
            self._wait_until(self._now_ms + wait_ms)
            return
        self._begin_generation()

    def _begin_generation(self) -> None:
        if self._written_empty is not None:
            # The write of the former, empty generation is in flight: begin the generation after it.
            # Clear the join deadline, which has passed: otherwise the group's timer would fire
            # again and again until the end of the write.
            self._join_deadline_ms = NEVER
            return
        for member in list(self._roster.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._remove(member)
        if self._roster.members and self._roster.first_waiting() is None:
            # The members that are left are static and absent. Wait until they return or their
            # sessions end.
            self._wait_for_static()
            return
        self._is_first = False
        self._join_deadline_ms = NEVER
        self._roster.former = None
        self._written_empty = not self._roster.members
        sessions = [row.session_timeout_ms for row in self._roster.members.values()]
        longest_ms = max(sessions, default=0)
        self._effects.append(
            fx.WriteGeneration(self.generation + 1, self._written_empty, len(sessions), longest_ms)
        )

    def _wait_for_static(self) -> None:
        wait_ms = max(self._roster.rebalance_timeout_ms(), STATIC_WAIT_MIN_MS)
        self._wait_until(self._now_ms + wait_ms)

    def _written(self, generation: int) -> None:
        """Start the generation that is now in ZooKeeper, with the members that wait in JoinGroup.

        If the last member left or the first one joined during the write, write another generation,
        because ZooKeeper also records whether a generation has members."""
        was_empty, self._written_empty = self._written_empty, None
        assert was_empty is not None and generation == self.generation + 1
        self.generation = generation
        if was_empty is not (not self._roster.members):
            self._begin_generation()
            return
        if not self._roster.members:
            self.state = State.EMPTY
            self._protocol = self._roster.leader = None
            return
        chosen = self._roster.first_waiting()
        if chosen is None:
            self._wait_for_static()
            return
        if (
            self._roster.leader is None
            or self._roster.members[self._roster.leader].join_token is None
        ):
            self._roster.leader = chosen
        self._protocol = choose_protocol(list(self._roster.members.values()))
        self.state = State.COMPLETING
        self._sync_deadline_ms = self._now_ms + self._roster.rebalance_timeout_ms()
        self._arm(self._sync_deadline_ms)
        for member in self._roster.members.values():
            token, member.join_token = member.join_token, None
            # An absent static member need not send SyncGroup before the sync deadline: it stays a
            # member until its session ends.
            member.has_synced = token is None
            if token is not None:
                member.is_new = False
                self._renew(member)
                self._reply(token, self._joined(member))

    def _joined(self, member: Member) -> fx.JoinResult:
        assert self._roster.leader is not None
        rows: tuple[fx.MemberRow, ...] = ()
        if member.member_id == self._roster.leader:
            rows = tuple(
                fx.MemberRow(row.member_id, row.instance_id, row.metadata(self._protocol))
                for row in self._roster.members.values()
            )
        return fx.JoinResult(
            None,
            member.member_id,
            self.generation,
            self._roster.protocol_type,
            self._protocol,
            self._roster.leader,
            rows,
        )

    def _sync(self, event: ev.SyncGroup) -> None:
        error = self._check_generation(event.member_id, event.instance_id, event.generation)
        if error is None and self.state is State.PREPARING:
            error = RebalanceInProgressError(f"group {self.name!r} rebalances; join again")
        elif error is None and (
            event.protocol_type not in (None, self._roster.protocol_type)
            or event.protocol_name not in (None, self._protocol)
        ):
            error = InconsistentGroupProtocolError(
                f"group {self.name!r} has protocol {self._protocol!r} of type "
                f"{self._roster.protocol_type!r}, not {event.protocol_name!r} of type "
                f"{event.protocol_type!r}; join again"
            )
        if error is not None:
            self._reply(event.token, fx.SyncResult(error))
            return
        member = self._roster.members[event.member_id]
        self._answer_waiting(
            member,
            RebalanceInProgressError(
                f"a later SyncGroup request of member {member.member_id!r} of group {self.name!r} "
                "replaces this request"
            ),
        )
        member.has_synced = True
        member.sync_token = event.token
        if self.state is State.COMPLETING and event.member_id == self._roster.leader:
            self._roster.assign(event.assignments)
            self.state = State.STABLE
            for row in self._roster.members.values():
                self._answer_sync(row)
        elif self.state is State.STABLE:
            self._answer_sync(member)

    def _answer_sync(self, member: Member) -> None:
        token, member.sync_token = member.sync_token, None
        if token is None:
            return
        self._renew(member)
        result = fx.SyncResult(None, member.assignment, self._roster.protocol_type, self._protocol)
        self._reply(token, result)

    # Methods that check requests, and that remove members.

    def _check_generation(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> LogbusError | None:
        error = self._roster.why_not(self.name, member_id, instance_id)
        if error is None and generation != self.generation:
            return IllegalGenerationError(
                f"group {self.name!r} is in generation {self.generation}, not {generation}; "
                "join again"
            )
        return error

    def _check_heartbeat(self, event: ev.Heartbeat) -> LogbusError | None:
        error = self._check_generation(event.member_id, event.instance_id, event.generation)
        if error is not None:
            return error
        self._renew(self._roster.members[event.member_id])
        if self.state is State.PREPARING:
            return RebalanceInProgressError(f"group {self.name!r} rebalances; join again")
        return None

    def _check_commit(self, event: ev.Commit) -> LogbusError | None:
        if event.is_transactional:
            return self._check_transactional(event)
        if event.generation < 0 and not self._roster.members:
            if self._roster.former is None:
                return None
            return CoordinatorLoadInProgressError(
                f"group {self.name!r} may have members that joined at its previous coordinator; "
                "commit again"
            )
        if event.generation < 0 and not event.member_id and event.instance_id is None:
            return UnknownMemberIdError(
                f"group {self.name!r} has members, so only members may commit; stop the members "
                "first"
            )
        error = self._check_generation(event.member_id, event.instance_id, event.generation)
        if error is not None:
            return error
        if self.state is State.COMPLETING or self._written_empty is not None:
            return RebalanceInProgressError(
                f"group {self.name!r} rebalances; commit again after the rebalance"
            )
        self._renew(self._roster.members[event.member_id])
        return None

    def _check_transactional(self, event: ev.Commit) -> LogbusError | None:
        if event.generation < 0 and not event.member_id and event.instance_id is None:
            return None
        if event.generation < 0 and not self._roster.members:
            return None
        error = self._check_generation(event.member_id, event.instance_id, event.generation)
        if error is None and self._written_empty is not None:
            # A new generation is being written. Refuse the commit: the member that gets the
            # partitions next could read the offsets before this commit is written.
            return IllegalGenerationError(
                f"generation {event.generation} of group {self.name!r} has ended; join again"
            )
        if error is None:
            self._renew(self._roster.members[event.member_id])
        return error

    def _leave(self, event: ev.Leave) -> None:
        errors: list[LogbusError | None] = []
        count = len(self._roster.members)
        for leaver in event.members:
            member_id = leaver.member_id
            if leaver.instance_id is not None and not member_id:
                member_id = self._roster.static.get(leaver.instance_id, "")
            if leaver.instance_id is None and self._roster.pending.pop(member_id, None) is not None:
                errors.append(None)
                continue
            error = self._roster.why_not(self.name, member_id, leaver.instance_id)
            if error is None:
                self._remove(self._roster.members[member_id])
            else:
                self._roster.note_leaver(error)
            errors.append(error)
        self._reply(event.token, fx.LeaveResult(tuple(errors)))
        self._after_removals(count)

    def _remove(self, member: Member) -> None:
        self._roster.remove(member)
        error = UnknownMemberIdError(
            f"member {member.member_id!r} has left group {self.name!r}; join again"
        )
        self._answer_waiting(member, error)

    def _after_removals(self, count_before: int) -> None:
        """Continue after a removal of members: start a rebalance, or complete the one in progress.

        ``count_before`` is the number of members before the removal."""
        if self.state in (State.STABLE, State.COMPLETING):
            if len(self._roster.members) < count_before:
                self._rebalance()
        elif self.state is State.PREPARING:
            if not self._roster.members and self._roster.former is None:
                self._is_first = False
            self._begin_if_all_joined()
        elif self._roster.former is not None and self._roster.have_former_returned:
            self._begin_generation()

    def _tick(self) -> None:
        now_ms, former = self._now_ms, self._roster.former
        count = len(self._roster.members)
        self._roster.pending = {
            key: until for key, until in self._roster.pending.items() if until > now_ms
        }
        for member in list(self._roster.members.values()):
            may_expire = member.is_new or not member.is_waiting
            if may_expire and member.session_deadline_ms <= now_ms:
                self._remove(member)
        if self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = NEVER
            for member in [row for row in self._roster.members.values() if not row.has_synced]:
                self._remove(member)
        self._after_removals(count)
        if self.state is State.PREPARING and self._join_deadline_ms <= now_ms:
            self._join_deadline_passed()
        elif self.state is State.EMPTY and former is not None and former.until_ms <= now_ms:
            self._begin_generation()
        self.deadline_ms = NEVER
        for until in self._roster.pending.values():
            self._arm(until)
        for member in self._roster.members.values():
            if member.is_new or not member.is_waiting:
                self._arm(member.session_deadline_ms)
        self._arm(min(self._join_deadline_ms, self._sync_deadline_ms))
        if self._roster.former is not None and self.state is State.EMPTY:
            self._arm(self._roster.former.until_ms)

    def _resign(self, error: LogbusError) -> None:
        for member in self._roster.members.values():
            self._answer_waiting(member, error)
        self.state = State.DEAD
        self.deadline_ms = NEVER

    # Methods that set deadlines and send replies.

    def _renew(self, member: Member) -> None:
        if not member.is_new:
            member.session_deadline_ms = self._now_ms + member.session_timeout_ms
            self._arm(member.session_deadline_ms)

    def _arm(self, at_ms: int) -> None:
        self.deadline_ms = min(self.deadline_ms, at_ms)

    def _answer_waiting(self, member: Member, error: LogbusError) -> None:
        join, sync = member.join_token, member.sync_token
        member.join_token = member.sync_token = None
        if join is not None:
            self._reply(join, fx.JoinResult(error, member.member_id))
        if sync is not None:
            self._reply(sync, fx.SyncResult(error))

    def _reply(self, token: int, result: fx.Result) -> None:
        self._effects.append(fx.GroupReply(token, result))
