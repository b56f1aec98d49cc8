"""One replica of one partition: Leader, Follower or Offline. ``step(now_ms, event) -> effects``.

Owned by one shell on one thread (``server/replica_manager.py`` or the simulator); holds no file,
socket or clock. README.md has the state diagram, the invariants and the effect order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from broker_lite.errors import (
    FencedLeaderEpochError,
    LogbusError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
)
from broker_lite.model import NO_EPOCH, LeaderAndIsr, PartitionKey, ReplicaId
from broker_lite.replication import isr as isr_arithmetic
from broker_lite.replication.effects import (
    Append,
    Effect,
    HighWatermark,
    Reply,
    StartEpoch,
    Sync,
)
from broker_lite.replication.election import leads
from broker_lite.replication.events import (
    ACKS_ALL,
    ACKS_NONE,
    Appended,
    AppendFailed,
    AppendRequested,
    Closed,
    EpochStarted,
    Event,
    FollowerFetched,
    LeaderAndIsrChanged,
    Limits,
    LimitsChanged,
    StorageFailed,
    Synced,
    Tick,
)
from broker_lite.replication.isr import CommittedIsr, IsrState


@dataclass(slots=True)
class Leader:
    """Takes appends in one leader epoch."""

    state: LeaderAndIsr
    isr: IsrState
    epoch_start_offset: int | None = None
    """Where this epoch begins in the log; None until the epoch file has it."""
    follower_ends: dict[ReplicaId, int] = field(default_factory=dict)
    """Flushed ends of the other replicas, as their fetches in this epoch told."""
    appending: dict[int, int] = field(default_factory=dict)
    """Token to acks of what was handed to the log and is not answered by it yet."""
    waiting: deque[Appended] = field(default_factory=deque)
    """acks=all that are in the log and wait for the high watermark, in the order of arrival."""
    unflushed_count: int = 0
    """Records handed to the log since the last Sync."""
    unflushed_since_ms: int = 0


@dataclass(slots=True)
class Follower:
    """Another replica leads, or none does, or our leadership is an earlier process's."""

    state: LeaderAndIsr


@dataclass(slots=True)
class Offline:
    """Serves nothing: before the first metadata, after a storage failure, when closed."""

    error: LogbusError
    final: bool
    """No metadata brings it back in this process."""


Role = Leader | Follower | Offline


class Partition:
    """``log_end_offset`` and ``flushed_end`` are those of the local log at the start.

    ``high_watermark`` is the checkpointed one, or the log start offset.
    """

    __slots__ = (
        "_limits",
        "flushed_end",
        "high_watermark",
        "key",
        "local",
        "log_end_offset",
        "role",
    )

    def __init__(
        self,
        key: PartitionKey,
        local: ReplicaId,
        *,
        log_end_offset: int,
        flushed_end: int,
        high_watermark: int,
    ) -> None:
        assert high_watermark <= flushed_end <= log_end_offset, (
            key,
            high_watermark,
            flushed_end,
            log_end_offset,
        )
        self.key = key
        self.local = local
        self.log_end_offset = log_end_offset
        self.flushed_end = flushed_end
        self.high_watermark = high_watermark
        self.role: Role = Offline(NotLeaderError(), final=False)
        self._limits = Limits()

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take in what happened; the effects are to be carried out in the order of the list."""
        match event:
            case AppendRequested():
                return self._request(now_ms, event)
            case Appended():
                return self._appended(event)
            case Synced():
                return self._synced(event.flushed_end)
            case Tick():
                return self._tick(now_ms)
            case FollowerFetched():
                return self._follower_fetched(event)
            case AppendFailed():
                return self._append_failed(event)
            case LeaderAndIsrChanged():
                return self._change_role(event)
            case LimitsChanged():
                return self._change_limits(event.limits)
            case EpochStarted():
                return self._epoch_started(event)
            case StorageFailed():
                return self._stop(event.error)
            case Closed():
                return self._stop(event.error)
        raise AssertionError(event)

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def leader_epoch(self) -> int:
        """The highest epoch that the metadata named, whoever leads; -1 before the first."""
        return NO_EPOCH if isinstance(self.role, Offline) else self.role.state.leader_epoch

    @property
    def in_flight_count(self) -> int:
        """Produces that wait for an append or for the high watermark."""
        role = self.role
        return len(role.appending) + len(role.waiting) if isinstance(role, Leader) else 0

    def check_leader(self, leader_epoch: int = NO_EPOCH) -> None:
        """Raise what a fetch or a listing must answer; ``leader_epoch`` is the client's, -1: any.

        Raises NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError, StorageError.
        """
        role = self.role
        if isinstance(role, Offline):
            raise role.error
        known = role.state.leader_epoch
        if leader_epoch != NO_EPOCH and leader_epoch != known:
            if leader_epoch < known:
                raise FencedLeaderEpochError(
                    f"{self.key} is in leader epoch {known}; the request is of {leader_epoch}"
                )
            raise UnknownLeaderEpochError(
                f"{self.key} is in leader epoch {known} here; the request is of {leader_epoch}"
            )
        if not isinstance(role, Leader):
            raise NotLeaderError()

    def latest_offset(self) -> int:
        """The high watermark; OffsetNotAvailableError while it is below the epoch's start."""
        self.check_leader()
        role = self.role
        assert isinstance(role, Leader)
        if role.epoch_start_offset is None or self.high_watermark < role.epoch_start_offset:
            raise OffsetNotAvailableError(
                f"{self.key}: the new leader does not know yet how far records are committed"
            )
        return self.high_watermark

    # Appends.

    def _request(self, now_ms: int, event: AppendRequested) -> list[Effect]:
        role = self.role
        if not isinstance(role, Leader):
            error = role.error if isinstance(role, Offline) else NotLeaderError()
            return _refusal(event, error)
        if event.acks == ACKS_ALL and not isr_arithmetic.is_enough(
            role.isr, self._limits.min_insync_replicas
        ):
            return _refusal(
                event,
                NotEnoughReplicasError(
                    f"{len(role.isr.replicas)} replicas are in sync; min.insync.replicas="
                    f"{self._limits.min_insync_replicas} are needed"
                ),
            )
        role.appending[event.token] = event.acks
        append = Append(event.token, event.payload, role.state.leader_epoch)
        if role.unflushed_count == 0:
            role.unflushed_since_ms = now_ms
        role.unflushed_count += event.record_count
        if role.unflushed_count < self._limits.flush_messages and self._limits.flush_ms > 0:
            return [append]
        role.unflushed_count = 0
        return [append, Sync()]

    def _appended(self, event: Appended) -> list[Effect]:
        if event.next_offset > self.log_end_offset:
            self.log_end_offset = event.next_offset
        role = self.role
        if not isinstance(role, Leader):
            return []
        acks = role.appending.pop(event.token, ACKS_NONE)
        if acks == ACKS_NONE:
            return []
        if acks != ACKS_ALL:
            return [Reply(event.token, event)]
        if event.next_offset <= self.high_watermark:
            return [Reply(event.token, event)]
        role.waiting.append(event)
        return []

    def _append_failed(self, event: AppendFailed) -> list[Effect]:
        role = self.role
        if not isinstance(role, Leader):
            return []
        acks = role.appending.pop(event.token, ACKS_NONE)
        return [] if acks == ACKS_NONE else [Reply(event.token, error=event.error)]

    # The high watermark.

    def _synced(self, flushed_end: int) -> list[Effect]:
        if flushed_end <= self.flushed_end:
            return []
        self.flushed_end = flushed_end
        if flushed_end > self.log_end_offset:
            self.log_end_offset = flushed_end
        return self._advance()

    def _follower_fetched(self, event: FollowerFetched) -> list[Effect]:
        role = self.role
        if not isinstance(role, Leader) or event.leader_epoch != role.state.leader_epoch:
            return []
        role.follower_ends[event.replica] = event.fetch_offset
        return self._advance()

    def _advance(self) -> list[Effect]:
        role = self.role
        if not isinstance(role, Leader) or role.epoch_start_offset is None:
            return []
        role.follower_ends[self.local] = self.flushed_end
        offset = isr_arithmetic.high_watermark(
            role.isr,
            role.follower_ends,
            min_insync_replicas=self._limits.min_insync_replicas,
            current=self.high_watermark,
        )
        if offset == self.high_watermark:
            return []
        self.high_watermark = offset
        effects: list[Effect] = [HighWatermark(offset)]
        waiting = role.waiting
        enough = isr_arithmetic.is_enough(role.isr, self._limits.min_insync_replicas)
        while waiting and waiting[0].next_offset <= offset:
            appended = waiting.popleft()
            if enough:
                effects.append(Reply(appended.token, appended))
            else:
                effects.append(Reply(appended.token, error=NotEnoughReplicasAfterAppendError()))
        return effects

    def _tick(self, now_ms: int) -> list[Effect]:
        role = self.role
        if (
            not isinstance(role, Leader)
            or role.unflushed_count == 0
            or now_ms - role.unflushed_since_ms < self._limits.flush_ms
        ):
            return []
        role.unflushed_count = 0
        return [Sync()]

    # Roles.

    def _change_limits(self, limits: Limits) -> list[Effect]:
        if limits == self._limits:
            return []
        self._limits = limits
        return self._advance()

    def _change_role(self, event: LeaderAndIsrChanged) -> list[Effect]:
        state, role = event.state, self.role
        self._limits = event.limits
        if isinstance(role, Offline):
            if role.final:
                return []
        elif state.leader_epoch < role.state.leader_epoch:
            return []
        mine = leads(state, self.local, event.broker_epochs)
        if isinstance(role, Leader) and mine and state.leader_epoch == role.state.leader_epoch:
            if state.version > role.state.version:
                role.state, role.isr = state, CommittedIsr(state.isr)
            return self._advance()
        replies = self._fail_pending(NotLeaderError())
        if not mine:
            self.role = Follower(state)
            return replies
        self.role = Leader(state, CommittedIsr(state.isr))
        return [StartEpoch(state.leader_epoch), Sync(), *replies]

    def _epoch_started(self, event: EpochStarted) -> list[Effect]:
        self.log_end_offset = max(self.log_end_offset, event.log_end_offset)
        self.flushed_end = max(self.flushed_end, event.flushed_end)
        role = self.role
        if not isinstance(role, Leader) or event.leader_epoch != role.state.leader_epoch:
            return []
        role.epoch_start_offset = event.log_end_offset
        return self._advance()

    def _stop(self, error: LogbusError) -> list[Effect]:
        replies = self._fail_pending(error)
        self.role = Offline(error, final=True)
        return replies

    def _fail_pending(self, error: LogbusError) -> list[Effect]:
        role = self.role
        if not isinstance(role, Leader):
            return []
        tokens = [appended.token for appended in role.waiting]
        tokens += [token for token, acks in role.appending.items() if acks != ACKS_NONE]
        role.waiting.clear()
        role.appending.clear()
        return [Reply(token, error=error) for token in tokens]


def _refusal(event: AppendRequested, error: LogbusError) -> list[Effect]:
    return [] if event.acks == ACKS_NONE else [Reply(event.token, error=error)]
