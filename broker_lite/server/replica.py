"""One partition on this broker: its log, its replication role, and who waits for it.

Loop thread only. Every event goes through ``deliver`` and every effect through ``carry_out``, in
the order of the list; nothing else touches log and role. Appends, epoch starts and flushes go to
the disk thread that owns the partition, whose outcomes come back as events. Owned by
``replica_manager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from broker_lite.errors import LogbusError, NotLeaderError, StorageError
from broker_lite.replication import partition as replication
from broker_lite.replication.effects import (
    Append,
    Effect,
    HighWatermark,
    ProposeIsr,
    Reply,
    StartEpoch,
    Sync,
    Truncate,
)
from broker_lite.replication.events import (
    Appended,
    AppendFailed,
    EpochStarted,
    Event,
    StorageFailed,
)
from broker_lite.server.clock import Clock
from broker_lite.server.disk import AppendJob, CallJob, Disk, SyncJob
from broker_lite.server.purgatory import Waiters
from broker_lite.server.trust import Trust
from broker_lite.storage.log import Log

logger = logging.getLogger("logbus.replicas")


class Owner(Protocol):
    """What a replica needs of the replica manager."""

    clock: Clock
    disk: Disk

    def replied(self, token: int, appended: Appended | None, error: LogbusError | None) -> None: ...

    def storage_failed(self, error: LogbusError) -> None: ...

    def again_later(self, attempt: Callable[[], None]) -> None: ...


class Replica:
    """One partition that this broker holds: its log, its role, and who waits for it."""

    __slots__ = (
        "_corrupt_offsets",
        "_owner",
        "_queue",
        "closed",
        "columns_under_way",
        "key",
        "log",
        "partition",
        "role",
        "topic",
        "trust",
        "waiters",
    )

    def __init__(self, owner: Owner, topic: str, log: Log, role: replication.Partition) -> None:
        self._owner = owner
        self._queue = owner.disk.queue_of(log.key)
        self.key = log.key
        self.topic = topic
        self.partition = log.key.partition
        self.log = log
        self.role = role
        self.trust = Trust(log.log_end_offset)
        self.waiters = Waiters()
        self.columns_under_way: set[int] = set()
        self._corrupt_offsets: set[int] = set()
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

    def check_leader(self, leader_epoch: int = -1) -> None:
        """Raise what a request to a replica that does not lead, or of another epoch, must get."""
        try:
            self.role.check_leader(leader_epoch)
        except NotLeaderError:
            raise NotLeaderError(
                f"this broker does not lead {self}; refresh the metadata"
            ) from None

    def deliver(self, event: Event) -> None:
        """Something happened to this replica."""
        owner = self._owner
        if self.columns_under_way and isinstance(event, Appended | AppendFailed):
            # Before the high watermark shows it to a reader that knows rows alone.
            self._note_columns(event)
        elif isinstance(event, StorageFailed):
            owner.storage_failed(event.error)
        self.carry_out(self.role.step(owner.clock.monotonic_ms(), event))

    def _note_columns(self, event: Appended | AppendFailed) -> None:
        if event.token in self.columns_under_way:
            self.columns_under_way.discard(event.token)
            if isinstance(event, Appended):
                self.trust.has_columns(event.next_offset)

    def carry_out(self, effects: list[Effect]) -> None:
        """In the order of the list, which is the order that replication relies on."""
        for effect in effects:
            kind = type(effect)
            if kind is Append:
                assert isinstance(effect, Append)
                self._queue.put(AppendJob(self, effect.token, effect.payload, effect.leader_epoch))
            elif kind is Sync:
                self._queue.put(SyncJob(self))
            elif kind is HighWatermark:
                self.waiters.wake()
            elif kind is Reply:
                assert isinstance(effect, Reply)
                self._owner.replied(effect.token, effect.appended, effect.error)
            elif isinstance(effect, StartEpoch):
                self._start_epoch(effect.leader_epoch)
            elif isinstance(effect, Truncate):
                self._truncate(effect.offset)
            else:
                assert not isinstance(effect, ProposeIsr), "an ISR of one never changes"

    def _start_epoch(self, leader_epoch: int) -> None:
        log = self.log

        def start() -> EpochStarted:
            log.start_epoch(leader_epoch)
            return EpochStarted(leader_epoch, log.log_end_offset, log.flushed_end)

        def done(event: EpochStarted | None, error: BaseException | None) -> None:
            if event is not None or self.log.failed:
                self._delivered(event, error)
                return
            # A full disk stops nothing for good: until there is room this leader does not serve.
            logger.error("%s: epoch %d cannot begin yet: %s", self, leader_epoch, error)
            self._owner.again_later(lambda: self._start_epoch_again(leader_epoch))

        self._queue.put(CallJob(start, done))

    def _start_epoch_again(self, leader_epoch: int) -> None:
        if self.role.is_leader and self.role.leader_epoch == leader_epoch:
            self.carry_out([StartEpoch(leader_epoch), Sync()])

    def _truncate(self, offset: int) -> None:
        log = self.log
        self.trust.truncated(offset)
        self._queue.put(CallJob(lambda: log.truncate_to(offset), self._delivered))

    def _delivered(self, event: Any, error: BaseException | None) -> None:
        if error is not None:
            logger.error("%s: %s", self, error)
            self.deliver(StorageFailed(as_storage_error(error)))
        elif event is not None:
            self.deliver(event)

    def report_corruption(self, offset: int, error: LogbusError) -> None:
        """A reader met a bad batch; said once per offset, however often it is met."""
        if offset not in self._corrupt_offsets:
            self._corrupt_offsets.add(offset)
            logger.error(
                "topic %s partition %d offset %d: corrupt batch on disk in %s: %s",
                self.topic,
                self.partition,
                offset,
                self.key,
                error.message,
            )

    def leadership_changed(self) -> None:
        """Waiting fetches find out by themselves what they must answer now."""
        self.waiters.wake()


def as_storage_error(error: BaseException | None) -> LogbusError:
    return error if isinstance(error, LogbusError) else StorageError(str(error))
