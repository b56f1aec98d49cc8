"""One partition replica of this broker: its log, its replication role, and the fetches that wait
on it.

All methods run on the event-loop thread. Events enter through ``deliver``; ``carry_out`` runs the
resulting effects in list order. No other code changes the log or the role. The disk thread that
owns the partition performs log writes and returns their outcomes as events. Replica fetches go to
the owner's ``fetchers``, ISR proposals to its ``isr_writes``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from broker_lite.errors import (
    CorruptMessageError,
    LogbusError,
    NotLeaderError,
    StorageError,
    UndecodableBatchError,
)
from broker_lite.model import LeaderAndIsr, ReplicaId
from broker_lite.replication.effects import (
    AnswerFollower,
    Append,
    AppendFetched,
    Effect,
    FetchFrom,
    HighWatermark,
    ProposeIsr,
    RaiseStart,
    Reply,
    StartAt,
    StartEpoch,
    StopFetching,
    Sync,
    Truncate,
)
from broker_lite.replication.events import (
    Appended,
    AppendFailed,
    CorruptionFound,
    EpochStarted,
    Event,
    FetchedAppendFailed,
    FollowerFetched,
    StorageFailed,
    Truncated,
)
from broker_lite.replication.leader import Leader
from broker_lite.replication.partition import Offline, Partition
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import TopicTraffic
from broker_lite.server.partitions.cache_policy import LARGE_BYTES, CachePolicy
from broker_lite.server.partitions.crc_cache import CrcCache
from broker_lite.server.partitions.disk import AppendJob, CallJob, Disk, FollowJob, Job, SyncJob
from broker_lite.server.partitions.isr_writes import IsrWrites
from broker_lite.server.partitions.purgatory import Waiters
from broker_lite.server.partitions.replica_fetcher import Fetchers
from broker_lite.storage.log import Log
from broker_lite.transactions.participant import Participant

logger = logging.getLogger("logbus.replicas")


class ReplicaOwner(Protocol):
    """The part of the replica manager that a replica uses."""

    clock: Clock
    disk: Disk
    fetchers: Fetchers
    isr_writes: IsrWrites
    unread_cached_bytes: int

    def replied(self, token: int, appended: Appended | None, error: LogbusError | None) -> None: ...

    def storage_failed(self, error: LogbusError) -> None: ...

    def traffic(self, topic: str) -> TopicTraffic: ...

    def call_soon(self, callback: Callable[[], None], /) -> object: ...

    def again_later(self, attempt: Callable[[], None]) -> None: ...

    def role_changed(self, replica: Replica) -> None: ...


class Replica:
    """One partition replica on this broker: its log, its role, and the fetches that wait on it."""

    __slots__ = (
        "_held",
        "_owner",
        "_unrepairable",
        "_worker",
        "assigned_count",
        "cache_policy",
        "closed",
        "crc_cache",
        "end_waiters",
        "follower_starts",
        "has_followers",
        "key",
        "log",
        "min_insync",
        "participant",
        "partition",
        "pending_columns",
        "role",
        "start_waiters",
        "topic",
        "traffic",
        "waiters",
    )

    def __init__(self, owner: ReplicaOwner, topic: str, log: Log, role: Partition) -> None:
        self._owner = owner
        self._worker = owner.disk.worker_of(log.key)
        self.key = log.key
        self.topic = topic
        self.traffic = owner.traffic(topic)
        self.partition = log.key.partition
        self.log = log
        self.role = role
        self.crc_cache = CrcCache(log.log_end_offset)
        self.cache_policy = CachePolicy(owner.unread_cached_bytes)
        self.waiters = Waiters()
        """Callbacks of consumer fetches that wait for the high watermark to advance."""
        self.end_waiters = Waiters()
        """Callbacks of follower fetches that wait for the log end or log start offset to change."""
        self.start_waiters = Waiters()
        """Callbacks of DeleteRecords requests that wait for followers to advance their log start
        offsets."""
        self.follower_starts: dict[ReplicaId, int] = {}
        """Log start offset of each follower, as reported in its last fetch of this leader epoch."""
        self.has_followers = False
        """Whether an append is reported before its flush, so that followers can fetch it. Disk
        threads read this flag.
        """
        self.assigned_count = self.min_insync = 1
        """Number of assigned replicas, and ``min.insync.replicas`` for acks=all."""
        self.pending_columns: set[int] = set()
        self.participant = Participant()
        """The producers whose transactions are verified for this replica in this leader epoch."""
        self._unrepairable = -1
        """The last logged damaged offset that no other replica can repair."""
        self._held: list[Job] | None = None
        """Disk jobs held back while a truncation is in progress; None when no truncation is."""
        self.closed = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def high_watermark(self) -> int:
        """The exclusive upper bound of the offsets that consumers may read."""
        return self.role.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The exclusive upper bound of the offsets that read_committed consumers may read."""
        return self.log.reader.last_stable_offset(self.role.high_watermark)

    def readable_end(self, is_committed: bool) -> int:
        """Return the exclusive end of the readable offsets. Raise OffsetNotAvailableError while a
        new leader has no high watermark.
        """
        latest = self.role.latest_offset()
        return self.last_stable_offset if is_committed else latest

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def state(self) -> LeaderAndIsr | None:
        """The leader and ISR in this broker's metadata; None while the replica is offline."""
        role = self.role.role
        return None if isinstance(role, Offline) else role.state

    @property
    def isr(self) -> tuple[ReplicaId, ...]:
        """The in-sync replicas in this broker's metadata; empty while the replica is offline."""
        state = self.state
        return () if state is None else state.isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether this replica leads and its ISR is smaller than the replica assignment."""
        return self.role.is_leader and len(self.isr) < self.assigned_count

    @property
    def is_below_min_isr(self) -> bool:
        """Whether this replica leads and its ISR is smaller than ``min.insync.replicas``."""
        return self.role.is_leader and len(self.isr) < self.min_insync

    @property
    def lag(self) -> int:
        """The number of records that the slowest in-sync follower has not flushed yet."""
        role = self.role.role
        if not isinstance(role, Leader):
            return 0
        end = self.role.log_end_offset
        return max((end - role.follower_ends.get(one, end) for one in role.state.isr), default=0)

    @property
    def unstable_count(self) -> int:
        """The number of records that open transactions hide from read_committed consumers."""
        if not self.role.is_leader:
            return 0
        return max(self.role.high_watermark - self.last_stable_offset, 0)

    def lag_ms(self, now_ms: int) -> int:
        """Return the longest time since an in-sync follower was caught up."""
        role = self.role.role
        return role.lag_ms(now_ms) if isinstance(role, Leader) else 0

    def check_leader(self, leader_epoch: int = -1) -> None:
        """Raise NotLeaderError if this replica does not lead, or a fencing error if the leader
        epoch differs."""
        try:
            self.role.check_leader(leader_epoch)
            return
        except NotLeaderError:
            pass  # Raise outside the handler: a chained exception would keep these frames alive.
        raise NotLeaderError(f"this broker does not lead {self}; refresh the metadata")

    def deliver(self, event: Event) -> None:
        """Apply the event to the role, carry out the effects, and wake the affected waiters."""
        owner = self._owner
        if self.pending_columns and isinstance(event, Appended | AppendFailed):
            # Record the column offsets first: the next high watermark shows the batch to readers
            # that accept rows only.
            self._note_columns(event)
        elif isinstance(event, StorageFailed):
            owner.storage_failed(event.error)
        elif isinstance(event, FetchedAppendFailed):
            self._fetched_append_failed(event.error)
        elif isinstance(event, AppendFailed) and isinstance(event.error, StorageError):
            owner.storage_failed(event.error)
        role = self.role
        before, end = role.role, role.log_end_offset
        effects = role.step(owner.clock.monotonic_ms(), event)
        if effects:
            self.carry_out(effects)
        if len(self.start_waiters):
            self.start_waiters.wake()
        if role.role is not before:
            self.leadership_changed()
        elif self.has_followers and role.log_end_offset != end:
            self.end_waiters.wake()
        if isinstance(event, EpochStarted):
            # The high watermark may already equal the epoch's start; it then does not advance, so
            # wake the waiters here.
            self.waiters.wake()

    def follower_fetched(self, event: FollowerFetched) -> AnswerFollower:
        """Apply a follower's fetch, carry out its acknowledgements, and return how to answer the
        fetch.
        """
        self.follower_starts[event.replica] = event.follower_start
        if len(self.start_waiters):
            self.start_waiters.wake()
        effects = self.role.step(self._owner.clock.monotonic_ms(), event)
        verdict = effects.pop()
        assert isinstance(verdict, AnswerFollower), effects
        if effects:
            self.carry_out(effects)
        return verdict

    async def followers_begin_at(self, offset: int) -> None:
        """Wait until the log start offset of every in-sync replica is at least ``offset``. Raise
        NotLeaderError if this replica loses leadership first."""
        moved = asyncio.Event()
        self.end_waiters.wake()
        self.start_waiters.add(moved.set)
        try:
            while not self._all_begin_at(offset):
                moved.clear()
                await moved.wait()
        finally:
            self.start_waiters.discard(moved.set)

    def _all_begin_at(self, offset: int) -> bool:
        self.check_leader()
        leader = self.role.role
        return isinstance(leader, Leader) and all(
            one == self.role.local or self.follower_starts.get(one, 0) >= offset
            for one in leader.isr.maximal
        )

    def _fetched_append_failed(self, error: LogbusError) -> None:
        """Log a failed append of fetched records; the role fetches the range again."""
        if isinstance(error, StorageError):
            self._owner.storage_failed(error)
            return
        logger.warning(
            "%s: cannot append the records fetched from the leader: %s",
            self,
            error,
            extra=log_event("replica_append_failed", tp=self),
        )
        if isinstance(error, CorruptMessageError):
            self._owner.fetchers.suspect(self)

    def _note_columns(self, event: Appended | AppendFailed) -> None:
        if event.token in self.pending_columns:
            self.pending_columns.discard(event.token)
            if isinstance(event, Appended):
                self.crc_cache.has_columns(event.next_offset)

    def carry_out(self, effects: list[Effect]) -> None:
        """Run the effects in list order, which replication correctness depends on.

        Wake readers last, so that producers' answers are sent before fetch answers are built.
        """
        has_advanced = False
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                assert isinstance(effect, Append)
                batch, epoch = effect.payload, effect.leader_epoch
                keep = batch.size_bytes < LARGE_BYTES or self._keeps(batch.size_bytes)
                self._put(AppendJob(self, effect.token, batch, epoch, keep))
            elif kind is Sync:
                self._put(SyncJob(self))
            elif kind is HighWatermark:
                has_advanced = True
                self.log.committed_end = self.role.high_watermark
            elif kind is Reply:
                assert isinstance(effect, Reply)
                self._owner.replied(effect.token, effect.appended, effect.error)
            elif kind is AppendFetched:
                assert isinstance(effect, AppendFetched)
                self._append_fetched(effect)
            elif kind is FetchFrom:
                assert isinstance(effect, FetchFrom)
                self._owner.fetchers.fetch(self, effect)
            else:
                self._carry_out_rare(effect)
        if has_advanced:
            self.waiters.wake_soon(self._owner.call_soon)

    def _carry_out_rare(self, effect: Effect) -> None:
        match effect:
            case StartEpoch(leader_epoch):
                self._start_epoch(leader_epoch)
            case Truncate(offset):
                self._shorten(effect, offset)
            case StartAt(offset):
                self._shorten(effect, offset)
            case StopFetching():
                self._owner.fetchers.stop(self)
            case ProposeIsr(state):
                self._owner.isr_writes.propose(self, state)
            case RaiseStart(offset):
                self._raise_start(offset)
            case _:
                raise AssertionError(effect)

    def _put(self, job: Job) -> None:
        """Queue the job on the disk thread, or hold it while a truncation is in progress."""
        if self._held is None:
            self._worker.put(job)
        else:
            self._held.append(job)

    def _append_fetched(self, effect: AppendFetched) -> None:
        self.crc_cache.appending(self._owner.clock.monotonic_ms(), self.role.log_end_offset)
        columns = self.crc_cache.has_columns
        keep = self._keeps(len(effect.payload))
        self._put(FollowJob(self, effect.payload, effect.leader_epoch, columns, keep))

    def _keeps(self, size: int) -> bool:
        """Return whether an append of ``size`` bytes should stay in memory for readers."""
        now_ms = self._owner.clock.monotonic_ms()
        if self.cache_policy.keeps(now_ms, size):
            return True
        self.crc_cache.evicting(now_ms)
        return False

    def _start_epoch(self, leader_epoch: int) -> None:
        log = self.log

        def start() -> EpochStarted:
            log.start_epoch(leader_epoch)
            return EpochStarted(leader_epoch, log.log_end_offset, log.flushed_end)

        self._change_log(start, f"cannot start leader epoch {leader_epoch}; retrying", self._put)

    def _shorten(self, effect: Truncate | StartAt, offset: int) -> None:
        """Truncate the log to ``offset``, or restart it empty at that offset.

        Hold later disk jobs until the truncation has finished, even when a full disk delays it. The
        next role may already queue appends, which the truncation must not remove.
        """
        log, now_ms = self.log, self._owner.clock.now_ms()
        if isinstance(effect, Truncate):
            lost = self.role.high_watermark - offset
            level = logging.WARNING if lost > 0 else logging.INFO
            logger.log(
                level,
                "%s: truncated from offset %d to %d%s",
                self,
                log.log_end_offset,
                offset,
                f", including {lost} records below the high watermark" if lost > 0 else "",
            )
        else:
            logger.warning(
                "%s: the leader's log starts at offset %d; restarting the log there",
                self,
                offset,
                extra=log_event("replica_restarted", tp=self),
            )
        self.crc_cache.truncated(offset)

        def cut() -> Truncated:
            if isinstance(effect, Truncate):
                log.truncate_to(offset, now_ms)
            else:
                log.start_at(offset, now_ms)
            return Truncated(log.log_end_offset, log.flushed_end, log.leader_epochs.latest)

        assert self._held is None, self
        self._held = []
        self._change_log(cut, "cannot truncate the log; retrying", self._worker.put)

    def _release_held(self) -> None:
        """Queue the held jobs after a truncation that succeeded or failed for good."""
        held, self._held = self._held, None
        for job in held or ():
            self._worker.put(job)

    def _change_log(
        self, change: Callable[[], Event], refused: str, put: Callable[[Job], None]
    ) -> None:
        """Run a log change on the disk thread in queue order, and deliver its event.

        If the disk is full, retry the change until it succeeds.
        """

        def done(event: Event | None, error: BaseException | None) -> None:
            if event is not None:
                if isinstance(event, Truncated):
                    self._release_held()
                self.deliver(event)
            elif self.log.failed or self.closed:
                self._release_held()
                self._failed(error)
            else:
                logger.error("%s: %s: %s", self, refused, error)
                self._owner.storage_failed(as_storage_error(error))
                self._owner.again_later(lambda: self._change_log(change, refused, put))

        put(CallJob(change, done))

    def _raise_start(self, offset: int) -> None:
        log, leader_role = self.log, self.role.role

        def done(_: object, error: BaseException | None) -> None:
            if error is None or self.closed:
                return
            logger.error(
                "%s: cannot delete records before offset %d: %s",
                self,
                offset,
                error,
                extra=log_event("delete_records_failed", tp=self),
            )
            if self.log.failed:
                self._failed(error)
            else:
                self._owner.again_later(again)

        def again() -> None:
            # Stop retrying after a role change: the next leader reports its own log start offset.
            if self.role.role is leader_role:
                self._raise_start(offset)

        self._put(CallJob(lambda: log.delete_records_before(offset), done))

    def _failed(self, error: BaseException | None) -> None:
        logger.error("%s: %s", self, error)
        if not self.closed:
            self.deliver(StorageFailed(as_storage_error(error)))

    def report_corruption(self, offset: int, error: LogbusError) -> None:
        """Log a corrupt batch that a reader found. If the data was damaged on disk, give up
        leadership to a replica with an intact copy. A batch that its producer encoded wrongly does
        not change leadership.
        """
        is_damage = not isinstance(error, UndecodableBatchError)
        logger.error(
            "topic %s partition %d offset %d: %s in %s: %s",
            self.topic,
            self.partition,
            offset,
            "corrupt batch on disk" if is_damage else "undecodable batch",
            self.key,
            error.message,
            extra=log_event("corrupt_batch", tp=self),
        )
        if is_damage:
            self.deliver(CorruptionFound(offset))
            role = self.role.role
            # Followers report the damage again with each fetch, so log it once.
            if isinstance(role, Leader) and role.is_alone and offset != self._unrepairable:
                self._unrepairable = offset
                logger.error(
                    "%s: no other replica is in sync, so none can repair offset %d. Followers "
                    "cannot pass it. Start the brokers that have a copy. If there is none, save "
                    "the rest (on_corrupt=skip), then delete the records up to the end of the "
                    "batch, which logbus storage inspect shows: "
                    "logbus topic trim %s --before OFFSET --partition %d",
                    self,
                    offset,
                    self.topic,
                    self.partition,
                )

    def log_lost_records(self, before: LeaderAndIsr | None) -> None:
        """Log the records lost in an unclean election, in which this replica led without being
        in sync."""
        now, role = self.state, self.role
        if before is None or now is None or not role.is_leader or role.local in before.isr:
            return
        if now.version == before.version + 1:
            logger.warning(
                "%s: leads from offset %d on although it was not in sync. Records that brokers %s "
                "held from that offset on are LOST, including acknowledged ones",
                self,
                role.log_end_offset,
                sorted(other.broker_id for other in before.isr),
                extra=log_event("unclean_leader", tp=self),
            )

    def leadership_changed(self) -> None:
        """Clear the follower offsets and verified producers, and wake all waiters. Each waiting
        fetch then checks leadership again.
        """
        self.follower_starts.clear()
        self.participant = Participant()
        self.waiters.wake()
        self.end_waiters.wake()
        self.start_waiters.wake()
        self._owner.role_changed(self)


def as_storage_error(error: BaseException | None) -> LogbusError:
    return error if isinstance(error, LogbusError) else StorageError(str(error))
