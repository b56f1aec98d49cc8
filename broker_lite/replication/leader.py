"""A replica that leads: appends, followers' fetches, the high watermark, the ISR.

One ISR change is under way at most, and until it is decided the larger ISR counts. Followers count
by what they said in this epoch, which begins once the epoch file has it. Used by ``partition``, on
its thread.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field

from broker_lite.errors import (
    LogbusError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from broker_lite.model import NO_BROKER, NO_EPOCH, LeaderAndIsr, OffsetAndEpoch, ReplicaId
from broker_lite.replication import isr as isr_arithmetic
from broker_lite.replication.effects import (
    AnswerFollower,
    Append,
    Effect,
    HighWatermark,
    ProposeIsr,
    Reply,
    StartEpoch,
    Sync,
)
from broker_lite.replication.events import (
    ACKS_ALL,
    ACKS_NONE,
    Appended,
    AppendFailed,
    AppendRequested,
    EpochStarted,
    FollowerFetched,
    IsrRefused,
    Limits,
)
from broker_lite.replication.isr import (
    CommittedIsr,
    IsrState,
    PendingExpandIsr,
    PendingShrinkIsr,
)
from broker_lite.replication.local_log import LocalLog

ISR_RETRY_MS = 500
"""After a refused change of the ISR the next waits so long."""
NEVER_MS = -(1 << 62)


@dataclass(slots=True)
class CaughtUp:
    """When a follower last had everything that the leader had."""

    at_ms: int
    fetched_ms: int
    leader_end: int
    """The leader's end at ``fetched_ms``, when the follower's last fetch came."""


@dataclass(slots=True)
class Leader:
    """Takes appends in one leader epoch."""

    state: LeaderAndIsr
    log: LocalLog
    limits: Limits
    replicas: tuple[int, ...]
    """The brokers that the partition is assigned to."""
    isr: IsrState
    epoch_start_offset: int | None = None
    """Where this epoch begins in the log; None until the epoch file has it."""
    follower_ends: dict[ReplicaId, int] = field(default_factory=dict)
    """Flushed ends of the other replicas, as their fetches in this epoch told."""
    caught_up: dict[ReplicaId, CaughtUp] = field(default_factory=dict)
    proposal: LeaderAndIsr | None = None
    """The change of the ISR that is being written."""
    refused_ms: int | None = None
    """When a change was last refused."""
    is_refused: bool = False
    """``proposal`` was refused and is asked for again."""
    appending: dict[int, int] = field(default_factory=dict)
    """Token to acks of what was handed to the log and is not answered by it yet."""
    waiting: deque[Appended] = field(default_factory=deque)
    """acks=all that are in the log and wait for the high watermark, in the order of arrival."""
    unflushed_count: int = 0
    """Records handed to the log since the last Sync."""
    unflushed_since_ms: int = 0

    def begin(self, now_ms: int) -> list[Effect]:
        """The role was taken. Members of the ISR get the whole lag to be heard of."""
        for replica in self.state.isr:
            self.caught_up[replica] = CaughtUp(now_ms, now_ms, self.log.log_end_offset)
        return [StartEpoch(self.state.leader_epoch), Sync()]

    def epoch_started(self, event: EpochStarted) -> list[Effect]:
        if event.leader_epoch != self.state.leader_epoch:
            return []
        self.epoch_start_offset = event.log_end_offset
        return self.advance()

    @property
    def is_enough(self) -> bool:
        """Whether acks=all may be promised."""
        return isr_arithmetic.is_enough(self.isr, self.limits.min_insync_replicas)

    # Appends.

    def requested(self, now_ms: int, event: AppendRequested) -> list[Effect]:
        """Append a produce; with acks=all only while enough replicas are in sync. It is flushed at
        once where ``flush.messages`` or ``flush.ms`` says so."""
        if event.acks == ACKS_ALL and not self.is_enough:
            error = NotEnoughReplicasError(
                f"{len(self.isr.replicas)} replicas are in sync; min.insync.replicas="
                f"{self.limits.min_insync_replicas} are needed"
            )
            return [Reply(event.token, error=error)]
        self.appending[event.token] = event.acks
        self.log.writes_under_way += 1
        append = Append(event.token, event.payload, self.state.leader_epoch)
        if self.unflushed_count == 0:
            self.unflushed_since_ms = now_ms
        self.unflushed_count += event.record_count
        if self.unflushed_count < self.limits.flush_messages and self.limits.flush_ms > 0:
            return [append]
        self.unflushed_count = 0
        return [append, Sync()]

    def appended(self, event: Appended) -> list[Effect]:
        """Answer acks=1; keep acks=all until the high watermark has passed the batch."""
        acks = self.appending.pop(event.token, ACKS_NONE)
        if acks == ACKS_NONE:
            return []
        if acks != ACKS_ALL or event.next_offset <= self.log.high_watermark:
            return [Reply(event.token, event)]
        if not self.is_enough:
            return [Reply(event.token, error=NotEnoughReplicasAfterAppendError())]
        self.waiting.append(event)
        return []

    def append_failed(self, event: AppendFailed) -> list[Effect]:
        acks = self.appending.pop(event.token, ACKS_NONE)
        return [] if acks == ACKS_NONE else [Reply(event.token, error=event.error)]

    def fail_pending(self, error: LogbusError) -> list[Effect]:
        """Answer every produce that waits; each is answered once."""
        tokens = [appended.token for appended in self.waiting]
        tokens += [token for token, acks in self.appending.items() if acks != ACKS_NONE]
        self.waiting.clear()
        self.appending.clear()
        return [Reply(token, error=error) for token in tokens]

    # The high watermark.

    def advance(self) -> list[Effect]:
        """Whatever follows from ends, ISR or limits as they are now."""
        if self.epoch_start_offset is None:
            return []
        if not self.is_enough:
            return self._fail_waiting()
        log = self.log
        self.follower_ends[log.replica] = log.flushed_end
        offset = isr_arithmetic.high_watermark(
            self.isr,
            self.follower_ends,
            min_insync_replicas=self.limits.min_insync_replicas,
            current=log.high_watermark,
        )
        if offset == log.high_watermark:
            return []
        log.high_watermark = offset
        effects: list[Effect] = [HighWatermark(offset)]
        waiting = self.waiting
        while waiting and waiting[0].next_offset <= offset:
            appended = waiting.popleft()
            effects.append(Reply(appended.token, appended))
        return effects

    def _fail_waiting(self) -> list[Effect]:
        """The high watermark stands still while too few are in sync: say so at once."""
        error = NotEnoughReplicasAfterAppendError()
        effects: list[Effect] = [Reply(appended.token, error=error) for appended in self.waiting]
        self.waiting.clear()
        return effects

    # Followers.

    def fetched(self, now_ms: int, event: FollowerFetched) -> list[Effect]:
        """A follower's fetch in this epoch; ends with the one AnswerFollower."""
        if (error := self._fetch_error(event)) is not None:
            return [AnswerFollower(error)]
        if (diverging := self._diverging(event)) is not None:
            # It says nothing of what the follower has of ours.
            return [AnswerFollower(diverging=diverging)]
        self.follower_ends[event.replica] = event.fetch_offset
        self._note_caught_up(now_ms, event)
        return [*self._expand(now_ms, event), *self.advance(), AnswerFollower()]

    def _fetch_error(self, event: FollowerFetched) -> LogbusError | None:
        if self.epoch_start_offset is None:
            return UnknownLeaderEpochError(
                f"{self.log.key}: leader epoch {event.leader_epoch} is about to begin here"
            )
        replica = event.replica
        if replica.broker_id not in self.replicas and replica not in self.isr.maximal:
            return UnknownLeaderEpochError(
                f"{self.log.key} is not assigned to broker {replica.broker_id} as far as is known"
            )
        if event.fetch_offset < event.log_start_offset:
            return OffsetOutOfRangeError(
                f"offset {event.fetch_offset} of {self.log.key} is before the log's start, "
                f"{event.log_start_offset}"
            )
        return None

    def _diverging(self, event: FollowerFetched) -> OffsetAndEpoch | None:
        """Where our log leaves the follower's, if it does before ``fetch_offset``."""
        end = event.epoch_end
        if event.last_fetched_epoch == NO_EPOCH:
            if event.fetch_offset <= self.log.log_end_offset:
                return None
        elif end is not None:
            agrees = end.leader_epoch == event.last_fetched_epoch
            return None if agrees and event.fetch_offset <= end.offset else end
        return OffsetAndEpoch(self.log.log_end_offset, self.state.leader_epoch)

    def _note_caught_up(self, now_ms: int, event: FollowerFetched) -> None:
        """Our end is taken before the read, so what is appended meanwhile counts next time."""
        end = self.log.log_end_offset
        known = self.caught_up.get(event.replica)
        at_ms = NEVER_MS if known is None else known.at_ms
        if event.fetch_offset >= end:
            at_ms = now_ms
        elif known is not None and event.fetch_offset >= known.leader_end:
            at_ms = max(at_ms, known.fetched_ms)
        self.caught_up[event.replica] = CaughtUp(at_ms, now_ms, end)

    # The ISR.

    def _expand(self, now_ms: int, event: FollowerFetched) -> list[Effect]:
        """Take in a follower that has everything committed and the beginning of this epoch."""
        replica, members = event.replica, self.isr.maximal
        if (
            replica in members
            or self.proposal is not None
            or self._was_refused(now_ms)
            or not event.may_join
            or replica.broker_id not in self.replicas
            # What it holds from before our start cannot be compared with anything.
            or event.follower_start < event.log_start_offset
            or any(member.broker_id == replica.broker_id for member in members)
            or event.fetch_offset < max(self.log.high_watermark, self.epoch_start_offset or 0)
        ):
            return []
        # It has the whole lag to reach our end, as the members had when the epoch began.
        self.caught_up[replica].at_ms = now_ms
        self.isr = PendingExpandIsr(self.state.isr, replica)
        return self._propose(dataclasses.replace(self.state, isr=(*self.state.isr, replica)))

    def tick(self, now_ms: int) -> list[Effect]:
        """What time alone makes due: a flush, who leaves the ISR, a proposal that was refused."""
        effects: list[Effect] = []
        if self.unflushed_count and now_ms - self.unflushed_since_ms >= self.limits.flush_ms:
            self.unflushed_count = 0
            effects.append(Sync())
        if self.epoch_start_offset is None:
            return effects
        if self.proposal is None:
            effects += self.hand_over(now_ms) or self._shrink(now_ms)
        elif self.is_refused and not self._was_refused(now_ms):
            effects += self._propose(self.proposal)
        return effects

    def _was_refused(self, now_ms: int) -> bool:
        return self.refused_ms is not None and now_ms - self.refused_ms < ISR_RETRY_MS

    def _shrink(self, now_ms: int) -> list[Effect]:
        leaving = tuple(
            replica
            for replica in self.state.isr
            if replica != self.log.replica and not self._keeps_up(now_ms, replica)
        )
        if not leaving:
            return []
        self.isr = PendingShrinkIsr(self.state.isr, leaving)
        isr = tuple(replica for replica in self.state.isr if replica not in leaving)
        return self._propose(dataclasses.replace(self.state, isr=isr))

    def _keeps_up(self, now_ms: int, replica: ReplicaId) -> bool:
        # One that has everything may be silent: whether it lives is the controller's to find out.
        is_at_end = self.follower_ends.get(replica) == self.log.log_end_offset
        return is_at_end or self._was_caught_up(now_ms, replica)

    def _was_caught_up(self, now_ms: int, replica: ReplicaId) -> bool:
        known = self.caught_up.get(replica)
        return known is not None and now_ms - known.at_ms <= self.limits.replica_lag_ms

    def hand_over(self, now_ms: int) -> list[Effect]:
        """End this epoch, if our log is damaged and another of the ISR is there to go on."""
        log, isr = self.log, self.state.isr
        if log.damaged_from is None or self.proposal is not None:
            return []
        others = tuple(replica for replica in isr if replica != log.replica)
        if not any(self._was_caught_up(now_ms, replica) for replica in others):
            return []
        self.isr = PendingShrinkIsr(isr, (log.replica,))
        return self._propose(
            dataclasses.replace(
                self.state,
                leader=NO_BROKER,
                leader_epoch=self.state.leader_epoch + 1,
                isr=others,
                leader_broker_epoch=NO_EPOCH,
            )
        )

    def _propose(self, state: LeaderAndIsr) -> list[Effect]:
        self.proposal, self.is_refused = state, False
        return [ProposeIsr(state)]

    def refused(self, now_ms: int, event: IsrRefused) -> list[Effect]:
        """Not written now; but a write that was given up may still have arrived.

        Who leaves counts anyway. Who joins counts until something else is written over it: the
        ISR as it was, if nobody else writes. New metadata settles it too.
        """
        if event.state != self.proposal:
            return []
        self.refused_ms = now_ms
        if not isinstance(self.isr, PendingExpandIsr):
            self.proposal, self.isr = None, CommittedIsr(self.state.isr)
        elif self.proposal == self.state:
            self.is_refused = True
        else:
            return self._propose(self.state)
        return []

    def take(self, state: LeaderAndIsr) -> list[Effect]:
        """The state znode as it is now, in this leader epoch; decides what was proposed."""
        if state.version > self.state.version:
            self.state, self.isr = state, CommittedIsr(state.isr)
            self.proposal, self.is_refused = None, False
        return self.advance()
