"""The role of a leader: it appends, serves followers, and decides high watermark and ISR.

- At most one change of the ISR is in flight. Until its result is known, the larger of the two ISRs
  determines the high watermark.
- A follower counts for the high watermark only after its first fetch in this leader epoch.
- A leader epoch starts once the leader epoch file on disk contains it.
- Only ``partition`` calls this module, on one thread."""

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
from broker_lite.model import NO_EPOCH, LeaderAndIsr, OffsetAndEpoch, ReplicaId
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
from broker_lite.replication.election import without_leader
from broker_lite.replication.events import (
    ACKS_ALL,
    ACKS_LEADER,
    Appended,
    AppendFailed,
    AppendRequested,
    EpochStarted,
    FollowerFetched,
    IsrRefused,
    ReplicaLimits,
)
from broker_lite.replication.isr import CommittedIsr, IsrState, PendingExpandIsr, PendingShrinkIsr
from broker_lite.replication.local_log import LocalLog

ISR_RETRY_MS = 500
"""Delay in ms between a refused ISR change and its retry."""
NEVER_MS = -(1 << 62)


@dataclass(slots=True)
class CaughtUp:
    """When a follower was last caught up: at ``at_ms`` it had every record of the leader."""

    at_ms: int
    fetched_ms: int
    leader_end: int
    """The leader's log end offset at ``fetched_ms``, the time of the follower's last fetch."""


@dataclass(slots=True)
class Leader:
    """The role of the leader of a partition, for one leader epoch."""

    state: LeaderAndIsr
    log: LocalLog
    limits: ReplicaLimits
    replicas: tuple[int, ...]
    """The ids of the brokers that are assigned to the partition."""
    isr: IsrState
    epoch_start_offset: int | None = None
    """The first offset of this leader epoch; None until the epoch file stores it."""
    follower_ends: dict[ReplicaId, int] = field(default_factory=dict)
    """The flushed end offset of each other replica, from its last fetch in this epoch."""
    caught_up: dict[ReplicaId, CaughtUp] = field(default_factory=dict)
    proposal: LeaderAndIsr | None = None
    """The state with a changed ISR that is being written to ZooKeeper or waits for a retry, or
    None."""
    refused_ms: int | None = None
    """When (ms) ZooKeeper last refused an ISR change of this leader, or None."""
    is_refused: bool = False
    """Whether ZooKeeper refused ``proposal``, which waits for a retry."""
    appending: dict[int, int] = field(default_factory=dict)
    """The acks value of each produce request whose append is incomplete, by the request's token."""
    waiting: deque[Appended] = field(default_factory=deque)
    """Appended batches with acks=all that wait for the high watermark, in order of arrival."""
    unflushed_count: int = 0
    """Records appended since the last Sync."""
    unflushed_since_ms: int = 0

    def begin(self, now_ms: int) -> list[Effect]:
        """Begin to lead: write the new leader epoch to the epoch file.

        Each ISR member has replica.lag.time.max.ms from now to catch up."""
        for replica in self.state.isr:
            self.caught_up[replica] = CaughtUp(now_ms, now_ms, self.log.log_end_offset)
        return [StartEpoch(self.state.leader_epoch), Sync()]

    def epoch_started(self, event: EpochStarted) -> list[Effect]:
        """Handle the completed write of the epoch file: set the epoch's first offset. From now on,
        the leader accepts followers' fetches."""
        if event.leader_epoch != self.state.leader_epoch:
            return []
        self.epoch_start_offset = event.log_end_offset
        return self.advance()

    @property
    def is_enough(self) -> bool:
        """Whether the ISR in the znode is large enough for acks=all (min.insync.replicas)."""
        return isr_arithmetic.is_enough(self.isr, self.limits.min_insync_replicas)

    @property
    def is_alone(self) -> bool:
        """Whether this replica is the only one in the ISR, with no ISR change in flight."""
        return self.isr.replicas == (self.log.replica,)

    def _damage(self) -> str:
        """Return the end of an error message: that this log is corrupt, so that no follower can
        fetch past that offset and join the ISR.

        The text is empty unless this leader is the only ISR member and its log is corrupt."""
        if self.log.damaged_from is None or not self.is_alone:
            return ""
        return (
            f"; the leader's log is corrupt at offset {self.log.damaged_from}, which followers "
            "cannot pass: see the leader's broker.log"
        )

    # Methods that handle appends.

    def requested(self, now_ms: int, event: AppendRequested) -> list[Effect]:
        """Append the batch of a produce request, or refuse acks=all while the ISR is too small.

        Adds a flush (Sync) if ``flush.messages`` or ``flush.ms`` requires one at once."""
        if event.acks == ACKS_ALL and not self.is_enough:
            error = NotEnoughReplicasError(
                f"{self.log.key}: {len(self.isr.replicas)} replicas are in sync, but acks=all "
                f"needs min.insync.replicas={self.limits.min_insync_replicas}; start the brokers "
                f"of the other replicas{self._damage()}"
            )
            return [Reply(event.token, error=error)]
        self.appending[event.token] = event.acks
        self.log.writes_in_flight += 1
        append = Append(event.token, event.payload, self.state.leader_epoch)
        if self.unflushed_count == 0:
            self.unflushed_since_ms = now_ms
        self.unflushed_count += event.record_count
        if self.unflushed_count < self.limits.flush_messages and self.limits.flush_ms > 0:
            return [append]
        self.unflushed_count = 0
        return [append, Sync()]

    def appended(self, event: Appended) -> list[Effect]:
        """Handle a completed append: answer acks=1; acks=all waits for the high watermark."""
        acks = self.appending.pop(event.token, None)
        if acks is None:
            return []
        if acks == ACKS_LEADER or event.next_offset <= self.log.high_watermark:
            return [Reply(event.token, event)]
        if not self.is_enough:
            return [Reply(event.token, error=NotEnoughReplicasAfterAppendError())]
        self.waiting.append(event)
        return []

    def append_failed(self, event: AppendFailed) -> list[Effect]:
        """Handle a failed append: answer the produce request with the error."""
        acks = self.appending.pop(event.token, None)
        return [] if acks is None else [Reply(event.token, error=event.error)]

    def fail_pending(self, error: LogbusError) -> list[Effect]:
        """Answer every pending produce request with ``error``."""
        tokens = [*(appended.token for appended in self.waiting), *self.appending]
        self.waiting.clear()
        self.appending.clear()
        return [Reply(token, error=error) for token in tokens]

    # Methods that advance the high watermark.

    def advance(self) -> list[Effect]:
        """Return the effects of a new high watermark: wake readers, and answer acks=all requests.

        Call it after the flushed ends, the ISR or the topic settings changed."""
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
        """Fail the waiting acks=all requests, because the ISR is smaller than
        min.insync.replicas."""
        error = NotEnoughReplicasAfterAppendError()
        effects: list[Effect] = [Reply(appended.token, error=error) for appended in self.waiting]
        self.waiting.clear()
        return effects

    # Methods that handle followers' fetches.

    def fetched(self, now_ms: int, event: FollowerFetched) -> list[Effect]:
        """Handle a follower's fetch in this leader epoch.

        The last effect, AnswerFollower, says how to answer it."""
        if (error := self._fetch_error(event)) is not None:
            return [AnswerFollower(error)]
        if (diverging := self._diverging(event)) is not None:
            # The fetch offset of a diverging follower must not count for the high watermark.
            return [AnswerFollower(diverging=diverging)]
        self.follower_ends[event.replica] = event.fetch_offset
        self._note_caught_up(now_ms, event)
        return [*self._expand(now_ms, event), *self.advance(), AnswerFollower()]

    def _fetch_error(self, event: FollowerFetched) -> LogbusError | None:
        if self.epoch_start_offset is None:
            return UnknownLeaderEpochError(
                f"{self.log.key}: leader epoch {event.leader_epoch} has not started on this "
                f"broker; retry"
            )
        replica = event.replica
        if replica.broker_id not in self.replicas and replica not in self.isr.maximal:
            return UnknownLeaderEpochError(
                f"{self.log.key} is not assigned to broker {replica.broker_id} in this broker's "
                f"metadata; retry"
            )
        if event.fetch_offset < event.log_start_offset:
            return OffsetOutOfRangeError(
                f"the follower fetches {self.log.key} from offset {event.fetch_offset}, but the "
                f"log begins at {event.log_start_offset}"
            )
        return None

    def _diverging(self, event: FollowerFetched) -> OffsetAndEpoch | None:
        """Return where the follower's last epoch, or the newest earlier one, ends in this log, so
        that the follower can truncate; None if both logs agree up to the fetch offset."""
        end = event.epoch_end
        if event.last_fetched_epoch == NO_EPOCH:
            if event.fetch_offset <= self.log.log_end_offset:
                return None
        elif end is not None:
            agrees = end.leader_epoch == event.last_fetched_epoch
            return None if agrees and event.fetch_offset <= end.offset else end
        return OffsetAndEpoch(self.log.log_end_offset, self.state.leader_epoch)

    def _note_caught_up(self, now_ms: int, event: FollowerFetched) -> None:
        """Update the time at which the follower was last caught up.

        A follower is caught up if its fetch offset reaches the leader's log end offset. If it
        reaches only the log end offset that the leader had at the follower's previous fetch, the
        follower was caught up at the time of that fetch."""
        end = self.log.log_end_offset
        known = self.caught_up.get(event.replica)
        at_ms = NEVER_MS if known is None else known.at_ms
        if event.fetch_offset >= end:
            at_ms = now_ms
        elif known is not None and event.fetch_offset >= known.leader_end:
            at_ms = max(at_ms, known.fetched_ms)
        self.caught_up[event.replica] = CaughtUp(at_ms, now_ms, end)

    # Methods that change the ISR.

    def _expand(self, now_ms: int, event: FollowerFetched) -> list[Effect]:
        """Propose to add the follower to the ISR, if it has all records that an ISR member must
        have.

        Those are the records below the high watermark and below the start of this leader epoch."""
        replica, members = event.replica, self.isr.maximal
        if (
            replica in members
            or self.proposal is not None
            or self._was_refused(now_ms)
            or not event.may_join
            or replica.broker_id not in self.replicas
            # Do not add a follower whose log starts at a lower offset: this leader has no records
            # with which the follower's first records could be compared.
            or event.follower_start < event.log_start_offset
            or any(member.broker_id == replica.broker_id for member in members)
            or event.fetch_offset < max(self.log.high_watermark, self.epoch_start_offset or 0)
        ):
            return []
        # Give the new member replica.lag.time.max.ms to reach the log end offset. The first ISR
        # members of the leader epoch had the same time, counted from the start of the epoch.
        self.caught_up[replica].at_ms = now_ms
        self.isr = PendingExpandIsr(self.state.isr, replica)
        return self._propose(dataclasses.replace(self.state, isr=(*self.state.isr, replica)))

    def tick(self, now_ms: int) -> list[Effect]:
        """Return the effects that are due by time.

        These are a flush, a removal of lagging followers from the ISR, and the retry of a refused
        ISR change."""
        effects: list[Effect] = []
        # Check the count of records, too: a change of flush.messages may have lowered the limit.
        if self.unflushed_count and (
            self.unflushed_count >= self.limits.flush_messages
            or now_ms - self.unflushed_since_ms >= self.limits.flush_ms
        ):
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
        # A member that has every record stays in the ISR even if it stops fetching. Whether its
        # broker is alive is for the controller to detect.
        is_at_end = self.follower_ends.get(replica) == self.log.log_end_offset
        return is_at_end or self._was_caught_up(now_ms, replica)

    def _was_caught_up(self, now_ms: int, replica: ReplicaId) -> bool:
        known = self.caught_up.get(replica)
        return known is not None and now_ms - known.at_ms <= self.limits.replica_lag_ms

    def lag_ms(self, now_ms: int) -> int:
        """Return for how long (ms) the slowest in-sync follower has lagged; 0 if no follower
        lags."""
        return max(
            (
                now_ms - self.caught_up[replica].at_ms
                for replica in self.state.isr
                if replica in self.caught_up
                and self.follower_ends.get(replica) != self.log.log_end_offset
            ),
            default=0,
        )

    def hand_over(self, now_ms: int) -> list[Effect]:
        """If this log is corrupt and another ISR member is caught up, propose a new leader epoch
        without a leader, so that the controller elects another member."""
        log, isr = self.log, self.state.isr
        if log.damaged_from is None or self.proposal is not None:
            return []
        others = tuple(replica for replica in isr if replica != log.replica)
        if not any(self._was_caught_up(now_ms, replica) for replica in others):
            return []
        self.isr = PendingShrinkIsr(isr, (log.replica,))
        return self._propose(without_leader(self.state, others, self.state.controller_epoch))

    def _propose(self, state: LeaderAndIsr) -> list[Effect]:
        self.proposal, self.is_refused = state, False
        return [ProposeIsr(state)]

    def refused(self, now_ms: int, event: IsrRefused) -> list[Effect]:
        """Handle a write of an ISR change that was refused or whose result is unknown.

        As ZooKeeper may have stored the change, the high watermark still waits for a replica that
        it would remove. It also waits for one that the change would add, until a later write or
        newer metadata shows the result. To find out, the leader tries to write the ISR without the
        added replica."""
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

    def adopt_state(self, state: LeaderAndIsr) -> list[Effect]:
        """Replace ``state`` by a newer one of the same leader epoch, which shows whether the ISR
        change in flight was written."""
        if state.version > self.state.version:
            self.state, self.isr = state, CommittedIsr(state.isr)
            self.proposal, self.is_refused = None, False
        return self.advance()
