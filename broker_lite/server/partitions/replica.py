"""One partition on this broker: its log, its replication role, and who waits for it.

Loop thread only. Every event goes through ``deliver`` and every effect through ``carry_out``, in
the order of the list; nothing else touches log and role. What changes the log goes to the disk
thread that owns the partition, whose outcomes come back as events; what is fetched and written
elsewhere goes to the owner's ``fetchers`` and ``isr_writes``. Owned by ``replica_manager``.
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
from broker_lite.server.partitions.cache_policy import LARGE_BYTES, Readership
from broker_lite.server.partitions.crc_cache import Trust
from broker_lite.server.partitions.disk import AppendJob, CallJob, Disk, FollowJob, Job, SyncJob
from broker_lite.server.partitions.isr_writes import IsrWrites
from broker_lite.server.partitions.purgatory import Waiters
from broker_lite.server.partitions.replica_fetcher import Fetchers
from broker_lite.storage.log import Log

logger = logging.getLogger("logbus.replicas")


class Owner(Protocol):
    """What a replica needs of the replica manager."""

    clock: Clock
    disk: Disk
    fetchers: Fetchers
    isr_writes: IsrWrites
    unread_cached_bytes: int

    def replied(self, token: int, appended: Appended | None, error: LogbusError | None) -> None: ...

    def storage_failed(self, error: LogbusError) -> None: ...

    def call_soon(self, callback: Callable[[], None], /) -> object: ...

    def again_later(self, attempt: Callable[[], None]) -> None: ...


class Replica:
    """One partition that this broker holds: its log, its role, and who waits for it."""

    __slots__ = (
        "_held",
        "_owner",
        "_worker",
        "assigned_count",
        "closed",
        "columns_under_way",
        "end_waiters",
        "follower_starts",
        "has_followers",
        "key",
        "log",
        "min_insync",
        "partition",
        "readership",
        "role",
        "start_waiters",
        "topic",
        "trust",
        "waiters",
    )

    def __init__(self, owner: Owner, topic: str, log: Log, role: Partition) -> None:
        self._owner = owner
        self._worker = owner.disk.worker_of(log.key)
        self.key = log.key
        self.topic = topic
        self.partition = log.key.partition
        self.log = log
        self.role = role
        self.trust = Trust(log.log_end_offset)
        self.readership = Readership(owner.unread_cached_bytes)
        self.waiters = Waiters()
        """Who waits for the high watermark: consumers' fetches."""
        self.end_waiters = Waiters()
        """Who waits for the log's end, or its start: followers' fetches."""
        self.start_waiters = Waiters()
        """Who waits until followers have deleted records too."""
        self.follower_starts: dict[ReplicaId, int] = {}
        """Where the logs of followers begin, as they said when they fetched in this epoch."""
        self.has_followers = False
        """Whether somebody is to hear of an append before it is flushed; disk threads read it."""
        self.assigned_count = self.min_insync = 1
        """How many replicas there should be, and how many acks=all needs."""
        self.columns_under_way: set[int] = set()
        self._held: list[Job] | None = None
        """What waits until the log is cut; None: nothing is being cut."""
        self.closed = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def high_watermark(self) -> int:
        """Exclusive end of what may be read."""
        return self.role.high_watermark

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def state(self) -> LeaderAndIsr | None:
        """Who leads and who is in sync, as far as is known here; None: nothing is."""
        role = self.role.role
        return None if isinstance(role, Offline) else role.state

    @property
    def isr(self) -> tuple[ReplicaId, ...]:
        """Who is in sync, as far as is known here."""
        state = self.state
        return () if state is None else state.isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether it leads and some of its replicas are not in sync."""
        return self.role.is_leader and len(self.isr) < self.assigned_count

    @property
    def is_below_min_isr(self) -> bool:
        """Whether it leads and refuses acks=all."""
        return self.role.is_leader and len(self.isr) < self.min_insync

    @property
    def lag(self) -> int:
        """How many records the slowest in-sync follower still has to put on its disk."""
        role = self.role.role
        if not isinstance(role, Leader):
            return 0
        end = self.role.log_end_offset
        return max((end - role.follower_ends.get(one, end) for one in role.state.isr), default=0)

    def check_leader(self, leader_epoch: int = -1) -> None:
        """Raise what a request to a replica that does not lead, or of another epoch, must get."""
        try:
            self.role.check_leader(leader_epoch)
            return
        except NotLeaderError:
            pass  # Not the context of the one below: a kept context keeps these frames.
        raise NotLeaderError(f"this broker does not lead {self}; refresh the metadata")

    def deliver(self, event: Event) -> None:
        """Something happened to this replica."""
        owner = self._owner
        if self.columns_under_way and isinstance(event, Appended | AppendFailed):
            # Before the high watermark shows it to a reader that knows rows alone.
            self._note_columns(event)
        elif isinstance(event, StorageFailed):
            owner.storage_failed(event.error)
        elif isinstance(event, FetchedAppendFailed):
            self._note_refused(event.error)
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

    def follower_fetched(self, event: FollowerFetched) -> AnswerFollower:
        """A follower asks: what it acknowledges is carried out; the verdict on its fetch."""
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
        """Wait until every in-sync replica's log begins at ``offset`` or later. Raises
        NotLeaderError if this replica ceases to lead."""
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

    def _note_refused(self, error: LogbusError) -> None:
        """What was fetched is not in the log; the machine asks for it again."""
        if isinstance(error, StorageError):
            self._owner.storage_failed(error)
            return
        logger.warning("%s: what the leader sent could not be appended: %s", self, error)
        if isinstance(error, CorruptMessageError):
            self._owner.fetchers.doubt(self)

    def _note_columns(self, event: Appended | AppendFailed) -> None:
        if event.token in self.columns_under_way:
            self.columns_under_way.discard(event.token)
            if isinstance(event, Appended):
                self.trust.has_columns(event.next_offset)

    def carry_out(self, effects: list[Effect]) -> None:
        """In the order of the list, which is the order that replication relies on. Readers are
        woken behind it: producers' answers are on their way while theirs are put together."""
        is_news = False
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                assert isinstance(effect, Append)
                batch, epoch = effect.payload, effect.leader_epoch
                keep = len(batch.buffer) < LARGE_BYTES or self._keeps(len(batch.buffer))
                self._put(AppendJob(self, effect.token, batch, epoch, keep))
            elif kind is Sync:
                self._put(SyncJob(self))
            elif kind is HighWatermark:
                is_news = True
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
        if is_news:
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
        """To the disk, in the order of the effects."""
        if self._held is None:
            self._worker.put(job)
        else:
            self._held.append(job)

    def _append_fetched(self, effect: AppendFetched) -> None:
        self.trust.appending(self._owner.clock.monotonic_ms(), self.role.log_end_offset)
        columns = self.trust.has_columns
        keep = self._keeps(len(effect.payload))
        self._put(FollowJob(self, effect.payload, effect.leader_epoch, columns, keep))

    def _keeps(self, size: int) -> bool:
        """Whether so much, to be appended now, is to stay in memory."""
        now_ms = self._owner.clock.monotonic_ms()
        if self.readership.keeps(now_ms, size):
            return True
        self.trust.leaving_memory(now_ms)
        return False

    def _start_epoch(self, leader_epoch: int) -> None:
        log = self.log

        def start() -> EpochStarted:
            log.start_epoch(leader_epoch)
            return EpochStarted(leader_epoch, log.log_end_offset, log.flushed_end)

        self._change_log(start, f"epoch {leader_epoch} cannot begin yet", self._put)

    def _shorten(self, effect: Truncate | StartAt, offset: int) -> None:
        """Cut the log at ``offset``, or begin it anew there.

        What is asked of the disk meanwhile waits, also where a full disk holds up the cut: another
        role may have begun by then, and what that writes must not be cut.
        """
        log, now_ms = self.log, self._owner.clock.now_ms()
        if isinstance(effect, Truncate):
            lost = self.role.high_watermark - offset
            level = logging.WARNING if lost > 0 else logging.INFO
            logger.log(
                level,
                "%s: cut from %d to %d%s",
                self,
                log.log_end_offset,
                offset,
                f", {lost} records below the high watermark among them" if lost > 0 else "",
            )
        else:
            logger.warning("%s: the leader begins at %d; starting anew there", self, offset)
        self.trust.truncated(offset)

        def cut() -> Truncated:
            if isinstance(effect, Truncate):
                log.truncate_to(offset, now_ms)
            else:
                log.start_at(offset, now_ms)
            return Truncated(log.log_end_offset, log.flushed_end, log.leader_epochs.latest)

        assert self._held is None, self
        self._held = []
        self._change_log(cut, "the log cannot be cut yet", self._worker.put)

    def _go_on(self) -> None:
        """The log is cut, or never will be."""
        held, self._held = self._held, None
        for job in held or ():
            self._worker.put(job)

    def _change_log(
        self, change: Callable[[], Event], refused: str, put: Callable[[Job], None]
    ) -> None:
        """Change the log between its appends. A full disk stops nothing for good: until there is
        room the change is tried again, and its answer is owed."""

        def done(event: Event | None, error: BaseException | None) -> None:
            if event is not None:
                if isinstance(event, Truncated):
                    self._go_on()
                self.deliver(event)
            elif self.log.failed or self.closed:
                self._go_on()
                self._failed(error)
            else:
                logger.error("%s: %s: %s", self, refused, error)
                self._owner.storage_failed(as_storage_error(error))
                self._owner.again_later(lambda: self._change_log(change, refused, put))

        put(CallJob(change, done))

    def _raise_start(self, offset: int) -> None:
        log, asked_by = self.log, self.role.role

        def done(_: object, error: BaseException | None) -> None:
            if error is None or self.closed:
                return
            logger.error("%s: records before %d cannot go yet: %s", self, offset, error)
            if self.log.failed:
                self._failed(error)
            else:
                self._owner.again_later(again)

        def again() -> None:
            # The next leader says by itself where its log begins: perhaps it has less.
            if self.role.role is asked_by:
                self._raise_start(offset)

        self._put(CallJob(lambda: log.delete_records_before(offset), done))

    def _failed(self, error: BaseException | None) -> None:
        logger.error("%s: %s", self, error)
        if not self.closed:
            self.deliver(StorageFailed(as_storage_error(error)))

    def report_corruption(self, offset: int, error: LogbusError) -> None:
        """Log a bad batch that a reader met. Unless its producer wrote it so, let a replica lead
        whose copy is whole."""
        is_damage = not isinstance(error, UndecodableBatchError)
        logger.error(
            "topic %s partition %d offset %d: %s in %s: %s",
            self.topic,
            self.partition,
            offset,
            "corrupt batch on disk" if is_damage else "undecodable batch",
            self.key,
            error.message,
        )
        if is_damage:
            self.deliver(CorruptionFound(offset))

    def say_what_is_lost(self, before: LeaderAndIsr | None) -> None:
        """Of an unclean election: one write made the leader of a replica that was not in sync."""
        now, role = self.state, self.role
        if before is None or now is None or not role.is_leader or role.local in before.isr:
            return
        if now.version == before.version + 1:
            logger.warning(
                "%s: leads from offset %d on although it was not in sync; what brokers %s had from "
                "there on is LOST, acknowledged or not",
                self,
                role.log_end_offset,
                sorted(other.broker_id for other in before.isr),
            )

    def leadership_changed(self) -> None:
        """Waiting fetches find out by themselves what they must answer now."""
        self.follower_starts.clear()
        self.waiters.wake()
        self.end_waiters.wake()
        self.start_waiters.wake()


def as_storage_error(error: BaseException | None) -> LogbusError:
    return error if isinstance(error, LogbusError) else StorageError(str(error))
