"""The state machine of one replica of a partition, in the role Leader, Follower or Offline.

The caller, ``server/partitions/replica_manager.py`` or the simulator in tests, does the I/O: it
calls ``step(now_ms, event)`` on one thread and carries out the returned effects. This module
changes the roles, which ``leader`` and ``follower`` implement. README.md has the state diagram, the
invariants and the order of effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_lite.errors import (
    FencedLeaderEpochError,
    LogbusError,
    NotLeaderError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
)
from broker_lite.model import FIRST_EPOCH, NO_EPOCH, LeaderAndIsr, PartitionKey, ReplicaId
from broker_lite.replication.effects import AnswerFollower, Effect, Reply, in_order
from broker_lite.replication.election import leads
from broker_lite.replication.events import (
    Appended,
    AppendFailed,
    AppendRequested,
    Closed,
    CorruptionFound,
    EpochStarted,
    Event,
    FetchDiverged,
    Fetched,
    FetchedAppended,
    FetchedAppendFailed,
    FetchOutOfRange,
    FollowerFetched,
    IsrRefused,
    IsrWritten,
    LeaderAndIsrChanged,
    StorageFailed,
    Synced,
    Tick,
    Truncated,
)
from broker_lite.replication.follower import Follower
from broker_lite.replication.isr import CommittedIsr
from broker_lite.replication.leader import Leader
from broker_lite.replication.local_log import LocalLog


@dataclass(slots=True)
class Offline:
    """The role of a replica that answers each request with ``error``.

    A replica is offline before its first metadata, after a storage failure, and after the event
    Closed."""

    error: LogbusError
    final: bool
    """Whether the replica stays offline until the broker process ends."""


Role = Leader | Follower | Offline


class Partition:
    """The state machine of one replica of a partition.

    ``log_end_offset``, ``flushed_end`` and ``last_epoch`` describe the opened local log.
    ``high_watermark`` is at first the log start offset."""

    __slots__ = ("log", "role")

    def __init__(
        self,
        key: PartitionKey,
        local: ReplicaId,
        *,
        log_end_offset: int,
        flushed_end: int,
        high_watermark: int,
        last_epoch: int = NO_EPOCH,
    ) -> None:
        assert high_watermark <= flushed_end <= log_end_offset, (
            key,
            high_watermark,
            flushed_end,
            log_end_offset,
        )
        self.log = LocalLog(key, local, log_end_offset, flushed_end, high_watermark, last_epoch)
        self.role: Role = Offline(NotLeaderError(), final=False)

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Apply an event. Return the operations (effects) to carry out, in order."""
        match event:
            case AppendRequested():
                return self._request(now_ms, event)
            case Appended():
                return self._appended(event)
            case Synced():
                return self._synced(event.flushed_end)
            case FollowerFetched():
                return self._follower_fetched(now_ms, event)
            case Tick():
                return self._tick(now_ms)
            case AppendFailed():
                return self._append_failed(event)
            case LeaderAndIsrChanged():
                return self._change_role(now_ms, event)
            case EpochStarted():
                return self._epoch_started(event)
            case Truncated():
                return self._truncated(event)
            case IsrWritten():
                return self._isr_written(event.state)
            case IsrRefused():
                return self._isr_refused(now_ms, event)
            case CorruptionFound():
                return self._corruption_found(now_ms, event.offset)
            case StorageFailed() | Closed():
                return self._stop(event.error)
            case _:
                return self._fetch_answered(event)

    @property
    def key(self) -> PartitionKey:
        return self.log.key

    @property
    def local(self) -> ReplicaId:
        return self.log.replica

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def flushed_end(self) -> int:
        return self.log.flushed_end

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def leader_epoch(self) -> int:
        """The highest leader epoch in the metadata so far; -1 before the first metadata."""
        return NO_EPOCH if isinstance(self.role, Offline) else self.role.state.leader_epoch

    @property
    def in_flight_count(self) -> int:
        """Number of produce requests that wait for an append or for the high watermark."""
        role = self.role
        return len(role.appending) + len(role.waiting) if isinstance(role, Leader) else 0

    @property
    def awaits_flush(self) -> bool:
        """Whether this replica leads and has appended records for which it has not requested a
        flush (Sync) yet."""
        role = self.role
        return isinstance(role, Leader) and role.unflushed_count > 0

    def check_leader(self, leader_epoch: int = NO_EPOCH) -> None:
        """Raise an error unless this replica leads, and so can answer a client's request.

        ``leader_epoch`` is the epoch in the request; -1 omits its check. Raises NotLeaderError,
        FencedLeaderEpochError, UnknownLeaderEpochError, or the error of a replica in the role
        Offline."""
        role = self.role
        if isinstance(role, Offline):
            # Clear the traceback: each raise of the same exception adds frames to it.
            raise role.error.with_traceback(None)
        known = role.state.leader_epoch
        if leader_epoch != NO_EPOCH and leader_epoch != known:
            if leader_epoch < known:
                raise FencedLeaderEpochError(
                    f"{self.key} is in leader epoch {known}, but the request is for the earlier "
                    f"epoch {leader_epoch}; refresh the metadata"
                )
            raise UnknownLeaderEpochError(
                f"{self.key} is in leader epoch {known} on this broker, but the request is for the "
                f"later epoch {leader_epoch}; retry"
            )
        if not isinstance(role, Leader):
            raise NotLeaderError()

    def latest_offset(self) -> int:
        """Return the high watermark, for ListOffsets.

        Raise OffsetNotAvailableError while it is below the first offset of the leader epoch: a new
        leader may not know how far its predecessor's high watermark was (KIP-207). A new partition
        returns 0 at once, as in Kafka: no client has seen a higher offset, and some clients, such
        as kafkajs, give up after a retriable error."""
        self.check_leader()
        role = self.role
        assert isinstance(role, Leader)
        start = role.epoch_start_offset
        if role.state.leader_epoch == FIRST_EPOCH and self.log_end_offset == 0:
            start = 0
        if start is None or self.high_watermark < start:
            raise OffsetNotAvailableError(
                f"{self.key}: the new leader's high watermark has not reached the start of its "
                "epoch yet; retry"
            )
        return self.high_watermark

    # Methods that handle requests of clients and followers.

    def _request(self, now_ms: int, event: AppendRequested) -> list[Effect]:
        role = self.role
        if isinstance(role, Leader):
            return role.requested(now_ms, event)
        error = role.error if isinstance(role, Offline) else NotLeaderError()
        return [Reply(event.token, error=error)]

    def _follower_fetched(self, now_ms: int, event: FollowerFetched) -> list[Effect]:
        try:
            # check_leader accepts -1 from a client. A follower must name its leader epoch, so -1
            # becomes 0, which the check refuses.
            self.check_leader(max(event.leader_epoch, 0))
        except LogbusError as error:
            return [AnswerFollower(error)]
        assert isinstance(self.role, Leader)
        return self.role.fetched(now_ms, event)

    # Methods that handle results of disk operations, answers of the leader, and ticks.

    def _appended(self, event: Appended) -> list[Effect]:
        self.log.written(event.next_offset)
        if isinstance(self.role, Leader):
            return self.role.appended(event)
        return self._resume()

    def _append_failed(self, event: AppendFailed) -> list[Effect]:
        self.log.writes_in_flight -= 1
        if isinstance(self.role, Leader):
            return self.role.append_failed(event)
        return self._resume()

    def _synced(self, flushed_end: int) -> list[Effect]:
        more = self.log.synced(flushed_end)
        if isinstance(self.role, Leader):
            return self.role.advance() if more else []
        return self.role.synced() if isinstance(self.role, Follower) else []

    def _epoch_started(self, event: EpochStarted) -> list[Effect]:
        log = self.log
        log.last_epoch = max(log.last_epoch, event.leader_epoch)
        log.log_end_offset = max(log.log_end_offset, event.log_end_offset)
        log.synced(event.flushed_end)
        if isinstance(self.role, Leader):
            return self.role.epoch_started(event)
        return self._resume()

    def _truncated(self, event: Truncated) -> list[Effect]:
        self.log.truncated(event)
        return self._resume()

    def _resume(self) -> list[Effect]:
        return self.role.resume() if isinstance(self.role, Follower) else []

    def _fetch_answered(self, event: Event) -> list[Effect]:
        """Handle the leader's answer to a fetch, or the result of an append of fetched batches.

        If the replica is no longer a follower, update only ``log``, the offsets of its own log."""
        role = self.role if isinstance(self.role, Follower) else None
        match event:
            case Fetched():
                return role.fetched(event) if role else []
            case FetchDiverged():
                return role.diverged(event) if role else []
            case FetchOutOfRange():
                return role.out_of_range(event) if role else []
            case FetchedAppended():
                self.log.last_epoch = event.last_epoch
                if role is not None:
                    return role.appended(event)
                self.log.written(event.next_offset)
                return []
            case FetchedAppendFailed():
                self.log.writes_in_flight -= 1
                return role.failed() if role else []
        raise AssertionError(event)

    def _tick(self, now_ms: int) -> list[Effect]:
        role = self.role
        if isinstance(role, Leader):
            return role.tick(now_ms)
        return role.tick() if isinstance(role, Follower) else []

    # Methods that handle written and refused ISR changes, and corrupt batches.

    def _isr_written(self, state: LeaderAndIsr) -> list[Effect]:
        role = self.role
        if isinstance(role, Offline) or state.leader_epoch < role.state.leader_epoch:
            return []
        if state.leader_epoch > role.state.leader_epoch:
            # A replica proposes a new leader epoch only to give up the leadership or to leave the
            # ISR, so it is a follower in the new epoch.
            return self._follow(state)
        return role.adopt_state(state)

    def _isr_refused(self, now_ms: int, event: IsrRefused) -> list[Effect]:
        role = self.role
        if isinstance(role, Leader):
            return role.refused(now_ms, event)
        return role.refused(event) if isinstance(role, Follower) else []

    def _corruption_found(self, now_ms: int, offset: int) -> list[Effect]:
        log, role = self.log, self.role
        if log.damaged_from is None or offset < log.damaged_from:
            log.damaged_from = offset
        return role.hand_over(now_ms) if isinstance(role, Leader) else self._resume()

    # Methods that change the role.

    def _change_role(self, now_ms: int, event: LeaderAndIsrChanged) -> list[Effect]:
        state, role = event.state, self.role
        if isinstance(role, Leader):
            role.limits, role.replicas = event.limits, event.replicas
        if isinstance(role, Offline):
            if role.final:
                return []
        elif state.leader_epoch < role.state.leader_epoch:
            return []
        mine = leads(state, self.local, event.broker_epochs)
        if (
            not isinstance(role, Offline)
            and state.leader_epoch == role.state.leader_epoch
            and mine is isinstance(role, Leader)
        ):
            return role.adopt_state(state)
        return self._lead(now_ms, event) if mine else self._follow(state)

    def _lead(self, now_ms: int, event: LeaderAndIsrChanged) -> list[Effect]:
        before = self._leave()
        role = self.role = Leader(
            event.state, self.log, event.limits, event.replicas, CommittedIsr(event.state.isr)
        )
        return in_order([*role.begin(now_ms), *before])

    def _follow(self, state: LeaderAndIsr) -> list[Effect]:
        before, role = self._leave(), self.role
        follower = self.role = Follower(
            state,
            self.log,
            # Whether the leader may have counted an earlier fetch of this broker in this leader
            # epoch: a fetch of this process, if it had a role in the epoch, or of an earlier
            # process, if this one had no role yet.
            isinstance(role, Offline) or role.state.leader_epoch == state.leader_epoch,
        )
        return in_order([*follower.begin(), *before])

    def _leave(self) -> Sequence[Effect]:
        """Return the effects that end the current role: fail produce requests, or cancel the
        fetch."""
        role = self.role
        if isinstance(role, Leader):
            return role.fail_pending(NotLeaderError())
        return role.stop() if isinstance(role, Follower) else []

    def _stop(self, error: LogbusError) -> list[Effect]:
        role = self.role
        self.role = Offline(error, final=True)
        if isinstance(role, Leader):
            return role.fail_pending(error)
        return role.stop() if isinstance(role, Follower) else []
