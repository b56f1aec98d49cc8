"""Connect the state machine of a partition replica (package ``replication``) with log and network.

``deliver`` passes an event to the state machine; ``carry_out`` runs the operations (effects) that
it returns, in order. No other code changes the log or the state machine. The append thread of the
partition writes the log and returns the results as events. ``Fetchers`` sends the replica's fetches
to its leader, and ``IsrWrites`` writes its proposed ISR changes to ZooKeeper."""

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
    UnreadableRecordsError,
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
from broker_lite.server.metrics import Counter, TopicTraffic
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
    """The part of ``ReplicaManager`` that a replica uses."""

    clock: Clock
    disk: Disk
    fetchers: Fetchers
    isr_writes: IsrWrites
    unread_cached_bytes: int
    corrupt_reads: Counter

    def replied(self, token: int, appended: Appended | None, error: LogbusError | None) -> None: ...

    def storage_failed(self, error: LogbusError) -> None: ...

    def traffic(self, topic: str) -> TopicTraffic: ...

    def call_soon(self, callback: Callable[[], None], /) -> object: ...

    def retry_later(self, attempt: Callable[[], None]) -> None: ...

    def role_changed(self, replica: Replica) -> None: ...


class Replica:
    """One partition replica on this broker: ``log`` is its log, ``role`` its state machine.

    ``waiters``, ``end_waiters`` and ``start_waiters`` are requests that wait for a change of its
    high watermark, log end offset or log start offset."""

    __slots__ = (
        "_held_jobs",
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
        """Callbacks of consumers' fetches that wait for the high watermark to advance."""
        self.end_waiters = Waiters()
        """Callbacks of followers' fetches that wait for a change of the log end offset or log start
        offset.
        """
        self.start_waiters = Waiters()
        """Callbacks of DeleteRecords requests that wait for followers to advance their log start
        offsets.
        """
        self.follower_starts: dict[ReplicaId, int] = {}
        """The log start offset of each follower, as of its last fetch in this leader epoch."""
        self.has_followers = False
        """Whether the partition has other replicas. If so, the append thread reports an append
        before its flush, so that followers can fetch it earlier.
        """
        self.assigned_count = 1
        self.pending_columns: set[int] = set()
        """Request tokens of the appends in progress whose batch is in logbus's column format."""
        self.participant = Participant()
        """The transactional producers whose open transaction is verified (KIP-890) to contain this
        partition, in this leader epoch.
        """
        self._unrepairable = -1
        """Offset of the last damage that no other replica can repair, to log it only once; -1 if
        there was none."""
        self._held_jobs: list[Job] | None = None
        """Disk jobs that wait for a truncation to complete; None while no truncation runs."""
        self.closed = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def high_watermark(self) -> int:
        """The offset below which consumers with read_uncommitted may read."""
        return self.role.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which consumers with read_committed may read."""
        return self.log.reader.last_stable_offset(self.role.high_watermark)

    def readable_end(self, is_committed: bool) -> int:
        """Return the offset below which a consumer may read.

        It is the last stable offset for read_committed (``is_committed``), else the high watermark.
        Raises OffsetNotAvailableError while a new leader does not know its high watermark."""
        latest = self.role.latest_offset()
        return self.last_stable_offset if is_committed else latest

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def state(self) -> LeaderAndIsr | None:
        """The partition's leader and ISR in this broker's metadata; None while the replica is
        offline."""
        role = self.role.role
        return None if isinstance(role, Offline) else role.state

    @property
    def isr(self) -> tuple[ReplicaId, ...]:
        """The in-sync replicas in this broker's metadata; empty while the replica is offline."""
        state = self.state
        return () if state is None else state.isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether this replica leads a partition with fewer in-sync than assigned replicas."""
        return self.role.is_leader and len(self.isr) < self.assigned_count

    @property
    def is_below_min_isr(self) -> bool:
        """Whether this replica leads a partition whose ISR is smaller than
        ``min.insync.replicas``."""
        role = self.role.role
        return isinstance(role, Leader) and len(role.state.isr) < role.limits.min_insync_replicas

    @property
    def lag(self) -> int:
        """Number of records that the slowest in-sync follower has not flushed; 0 unless this
        replica leads."""
        role = self.role.role
        if not isinstance(role, Leader):
            return 0
        end = self.role.log_end_offset
        return max((end - role.follower_ends.get(one, end) for one in role.state.isr), default=0)

    @property
    def unstable_count(self) -> int:
        """Number of committed records that open transactions hide from read_committed consumers.

        It is 0 unless this replica leads."""
        if not self.role.is_leader:
            return 0
        return max(self.role.high_watermark - self.last_stable_offset, 0)

    def lag_ms(self, now_ms: int) -> int:
        """Return for how many ms the slowest in-sync follower has been behind the log's end; 0
        unless this replica leads."""
        role = self.role.role
        return role.lag_ms(now_ms) if isinstance(role, Leader) else 0

    def check_leader(self, leader_epoch: int = -1) -> None:
        """Raise NotLeaderError if this replica does not lead.

        Raise FencedLeaderEpochError or UnknownLeaderEpochError if ``leader_epoch`` is neither -1
        nor the replica's epoch."""
        try:
            self.role.check_leader(leader_epoch)
            return
        except NotLeaderError:
            # Raise the new error outside the except block: within it, Python would chain the caught
            # error, whose traceback would keep the stack frames and their objects in memory.
            pass
        raise NotLeaderError(f"this broker does not lead {self}; refresh the metadata")

    def deliver(self, event: Event) -> None:
        """Pass an event to the state machine, carry out the effects (operations) that it returns,
        and wake waiting requests."""
        owner = self._owner
        if self.pending_columns and isinstance(event, Appended | AppendFailed):
            # Record the column batch (Arrow data) before the high watermark passes it. From then
            # on, consumers that read only rows can reach the batch, and the broker must convert it
            # for them.
            self._note_columns(event)
        if isinstance(event, StorageFailed):
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
            # Wake the fetches that wait for the new leader epoch to start. If the high watermark
            # equals the start offset of the epoch already, it does not advance, and would not wake
            # them.
            self.waiters.wake()

    def follower_fetched(self, event: FollowerFetched) -> AnswerFollower:
        """Pass a follower's fetch to the state machine and carry out its effects (operations).

        Return the effect that says how to answer the fetch."""
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
        """Wait until the log of every in-sync replica starts at ``offset`` or later.

        Raises NotLeaderError if this replica loses its leadership first."""
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
        """Log that fetched records could not be appended; the state machine fetches them again."""
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
        """Carry out the effects (operations) that the state machine returned, in their order.

        The correctness of replication depends on the order. Waiting fetches wake last, so that
        producers are answered before fetch answers are built."""
        has_advanced = False
        for effect in effects:
            if type(effect) is Append:
                batch = effect.payload
                keep = batch.size_bytes < LARGE_BYTES or self._keeps(batch.size_bytes)
                self._put(AppendJob(self, effect.token, batch, effect.leader_epoch, keep))
            elif type(effect) is Sync:
                self._put(SyncJob(self))
            elif type(effect) is HighWatermark:
                has_advanced = True
                self.log.committed_end = self.role.high_watermark
            elif type(effect) is Reply:
                self._owner.replied(effect.token, effect.appended, effect.error)
            elif type(effect) is AppendFetched:
                self._append_fetched(effect)
            elif type(effect) is FetchFrom:
                self._owner.fetchers.fetch(self, effect)
            else:
                self._carry_out_other(effect)
        if has_advanced:
            self.waiters.wake_soon(self._owner.call_soon)

    def _carry_out_other(self, effect: Effect) -> None:
        match effect:
            case StartEpoch(leader_epoch):
                self._start_epoch(leader_epoch)
            case Truncate() | StartAt():
                self._shorten(effect)
            case StopFetching():
                self._owner.fetchers.stop(self)
            case ProposeIsr(state):
                self._owner.isr_writes.propose(self, state)
            case RaiseStart(offset):
                self._raise_start(offset)
            case _:
                raise AssertionError(effect)

    def _put(self, job: Job) -> None:
        """Queue a job on the append thread, behind a truncation in progress."""
        if self._held_jobs is None:
            self._worker.put(job)
        else:
            self._held_jobs.append(job)

    def _append_fetched(self, effect: AppendFetched) -> None:
        self.crc_cache.appending(self._owner.clock.monotonic_ms(), self.role.log_end_offset)
        columns = self.crc_cache.has_columns
        keep = self._keeps(len(effect.payload))
        self._put(FollowJob(self, effect.payload, effect.leader_epoch, columns, keep))

    def _keeps(self, size: int) -> bool:
        """Return whether the pages of an append of ``size`` bytes stay in the page cache."""
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

    def _shorten(self, effect: Truncate | StartAt) -> None:
        """Truncate the log to an offset (Truncate), or restart it empty there (StartAt).

        Later disk jobs wait until the truncation is done, so that it does not remove their
        appends."""
        log, offset, now_ms = self.log, effect.offset, self._owner.clock.now_ms()
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

        assert self._held_jobs is None, self
        self._held_jobs = []
        self._change_log(cut, "cannot truncate the log; retrying", self._worker.put)

    def _release_held(self) -> None:
        """Queue the disk jobs that waited for a truncation, which is complete or has failed for
        good."""
        jobs, self._held_jobs = self._held_jobs, None
        for job in jobs or ():
            self._worker.put(job)

    def _change_log(
        self, change: Callable[[], Event], refused: str, put: Callable[[Job], None]
    ) -> None:
        """Run ``change`` on the append thread and deliver its event to the state machine.

        ``put`` queues the job. While the disk is full, log the message ``refused`` and retry
        ``change``."""

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
                self._owner.retry_later(lambda: self._change_log(change, refused, put))

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
                self._owner.retry_later(again)

        def again() -> None:
            # Retry the deletion only while this replica follows the same leader: the next leader
            # sends its own log start offset to this follower.
            if self.role.role is leader_role:
                self._raise_start(offset)

        self._put(CallJob(lambda: log.delete_records_before(offset), done))

    def _failed(self, error: BaseException | None) -> None:
        logger.error("%s: %s", self, error)
        if not self.closed:
            self.deliver(StorageFailed(as_storage_error(error)))

    def report_corruption(self, offset: int, error: LogbusError) -> None:
        """Report in a log line that a read found a corrupt batch at ``offset``, count it, and give
        up leadership to an intact replica.

        The replica leads on if the producer encoded the batch wrongly (UndecodableBatchError): all
        replicas have the same bytes."""
        self._owner.corrupt_reads.n += 1
        is_damage = not isinstance(error, UndecodableBatchError)
        what = "corrupt batch on disk" if is_damage else "undecodable batch"
        if isinstance(error, UnreadableRecordsError):
            what = "unreadable batch on disk"
        logger.error(
            "topic %s partition %d offset %d: %s in %s: %s",
            self.topic,
            self.partition,
            offset,
            what,
            self.key,
            error.message,
            extra=log_event("corrupt_batch", tp=self),
        )
        if is_damage:
            self.deliver(CorruptionFound(offset))
            role = self.role.role
            # Log the damage once, although followers report it with each fetch.
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
        """Log that records are lost, if an unclean election made this replica the leader.

        ``before`` is the partition's state before the election."""
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
        """Clear what this replica recorded in the previous leader epoch, and wake all waiting
        requests, which check again whether it leads."""
        self.follower_starts.clear()
        self.participant = Participant()
        self.waiters.wake()
        self.end_waiters.wake()
        self.start_waiters.wake()
        self._owner.role_changed(self)


def as_storage_error(error: BaseException | None) -> LogbusError:
    return error if isinstance(error, LogbusError) else StorageError(str(error))
