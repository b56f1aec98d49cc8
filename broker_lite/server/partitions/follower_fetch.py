"""Answer the fetches of followers with stored batches up to the log end offset, flushed or not.

The fetch offset of a request tells the leader up to where the follower has flushed its log. A fetch
that finds no new records waits for an append, a change of leader, or the end of its
``max_wait_ms``. A follower has two connections (*lanes*): one for idle partitions, one for the
others. A second fetch on a lane ends the wait of the first.

If replication throttling applies to a partition and this broker's rate is used up, the broker
answers as if the partition had no new records. A follower in the ISR is not throttled.

Recent records are read from memory on the event loop's thread, older records on a read thread.
Followers check CRCs themselves; the leader checks them only after a follower reported a corrupt
batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    CorruptMessageError,
    LogbusError,
    NotLeaderError,
    StaleBrokerEpochError,
    UnreadableRecordsError,
    wire_code,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NO_BROKER, NO_EPOCH, BrokerView, OffsetAndEpoch, ReplicaId
from broker_lite.replication.events import FollowerFetched
from broker_lite.replication.throttle import LEADER_RATE, UNLIMITED, Throttle, lists
from broker_lite.server.clock import Clock
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions import ranges
from broker_lite.server.partitions.disk import Disk
from broker_lite.server.partitions.replica import Replica
from broker_lite.wire import fetch as wire

logger = logging.getLogger("logbus.followers")

Answer = Callable[[list[wire.TopicAnswer]], None]
"""A function that receives the topics of a fetch response, to encode and send them."""

LATE_START_WAIT_MS = 20
"""Maximum milliseconds for which a fetch waits if the follower's log starts below the leader's.

A DeleteRecords request may wait for the follower's new start offset. The follower reports it in its
next fetch."""


class FollowerCluster(Protocol):
    """The metadata that a leader needs about its followers."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...


class Finder(Protocol):
    """Finds the local replica of a topic id and partition."""

    def find_by_id(self, topic_id: str, partition: int) -> Replica: ...


class FollowerFetches:
    """The fetches of followers that this broker is answering."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        *,
        clock: Clock,
        replicas: Finder,
        cluster: FollowerCluster,
        disk: Disk,
        metrics: Metrics,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.replicas = replicas
        self.cluster = cluster
        self.disk = disk
        self.metrics = metrics
        self.broker_id = config.broker_id
        self.wait_ms_max = config.fetch_wait_ms_max
        self.bytes_max = config.fetch_bytes_max
        self.waiting: dict[tuple[int, int], _FollowerFetch] = {}
        """The fetches that wait for records, by the follower's broker id and connection (lane)."""
        self.throttle = Throttle(LEADER_RATE)
        self.sent_bytes = metrics.counter("replication_sent_bytes")
        metrics.gauge("follower_fetches_waiting", lambda: len(self.waiting))

    def begin(
        self, message: wire.FetchRequest, answer: Answer, is_open: Callable[[], bool]
    ) -> None:
        """Call ``answer`` with the response to a follower's fetch, at once or later.

        ``answer`` is not called once ``is_open`` returns False: the follower's connection has
        closed."""
        before = self.waiting.pop(_lane(message), None)
        if before is not None:
            before.end_wait()
        _FollowerFetch(self, message, answer, is_open).begin()

    def allowance(self, replica: Replica, follower_id: int) -> int:
        """Return how many bytes of the replica the follower may receive now; UNLIMITED if not
        throttled."""
        listed = replica.log.config.leader_throttled_replicas
        if not lists(listed, replica.partition, self.broker_id) or any(
            member.broker_id == follower_id for member in replica.isr
        ):
            return UNLIMITED
        settings = self.cluster.snapshot.broker_config(self.broker_id)
        return self.throttle.allowance(settings, self.loop.time())

    def follower(self, broker_id: int, broker_epoch: int) -> BrokerView:
        """Return the registration of the broker that fetches.

        Raises StaleBrokerEpochError if the broker epoch in its request is not the registered
        one."""
        known = self.cluster.snapshot.brokers.get(broker_id)
        if known is None or known.broker_epoch != broker_epoch:
            # A lower broker epoch belongs to an earlier process of the follower's broker, which
            # must not fetch any more. A higher one is not in this broker's metadata yet; the
            # follower retries until it is.
            present = "none" if known is None else str(known.broker_epoch)
            raise StaleBrokerEpochError(
                f"broker {broker_id} fetches from broker {self.broker_id} in broker epoch "
                f"{broker_epoch}, but the registered epoch is {present}"
            )
        return known


class _FollowerRow:
    """One partition of a follower's fetch: the request, and the fields of its answer."""

    __slots__ = ("allowance", "diverging", "error", "prepared", "replica", "request", "start")

    def __init__(self, request: wire.FetchPartition) -> None:
        self.request = request
        self.replica: Replica | None = None
        self.start = 0
        """The leader's log start offset at the arrival of the fetch."""
        self.allowance = UNLIMITED
        """Bytes that replication throttling allows. At 0, the fetch waits as if there were no
        records."""
        self.error: LogbusError | None = None
        self.diverging: OffsetAndEpoch | None = None
        self.prepared = ranges.Prepared()

    @property
    def has_records(self) -> bool:
        replica = self.replica
        return (
            replica is not None
            and self.error is None
            and self.diverging is None
            and self.allowance > 0
            and replica.role.log_end_offset > self.request.fetch_offset
        )

    @property
    def is_answerable(self) -> bool:
        replica = self.replica
        return (
            self.error is not None
            or self.diverging is not None
            or self.has_records
            or (replica is not None and replica.log.log_start_offset > self.start)
        )


class _FollowerFetch:
    """One fetch request of a follower, from its arrival to the answer."""

    __slots__ = (
        "_answer",
        "_is_due",
        "_is_open",
        "_message",
        "_owner",
        "_rows",
        "_timer",
        "_topics",
    )

    def __init__(
        self,
        owner: FollowerFetches,
        message: wire.FetchRequest,
        answer: Answer,
        is_open: Callable[[], bool],
    ) -> None:
        self._owner = owner
        self._message = message
        self._answer: Answer | None = answer
        self._is_open = is_open
        self._topics = [
            (topic, [_FollowerRow(request) for request in topic.partitions])
            for topic in message.topics
        ]
        self._rows = [row for _, rows in self._topics for row in rows]
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    def begin(self) -> None:
        message, owner = self._message, self._owner
        try:
            follower = owner.follower(message.replica_id, message.replica_epoch)
        except LogbusError as error:
            for row in self._rows:
                row.error = error.with_traceback(None)
        else:
            for topic, rows in self._topics:
                for row in rows:
                    self._apply_fetch(topic.topic_id, row, follower)
        wait_ms = min(message.max_wait_ms, owner.wait_ms_max)
        if any(row.request.log_start_offset < row.start for row in self._rows):
            wait_ms = min(wait_ms, LATE_START_WAIT_MS)
        if wait_ms <= 0 or any(row.is_answerable for row in self._rows):
            self._collect()
            return
        owner.waiting[_lane(message)] = self
        self._timer = owner.loop.call_later(wait_ms / 1000, self.end_wait)
        for row in self._rows:
            assert row.replica is not None
            row.replica.end_waiters.add(self._changed)

    def _apply_fetch(self, topic_id: str, row: _FollowerRow, follower: BrokerView) -> None:
        """Pass the follower's fetch of one partition to the local replica's state machine.

        The fetch offset says which records are on the follower's disk."""
        request = row.request
        try:
            replica = row.replica = self._owner.replicas.find_by_id(topic_id, request.partition)
            row.start = replica.log.log_start_offset
            verdict = replica.follower_fetched(
                FollowerFetched(
                    ReplicaId(follower.broker_id, follower.directory_id),
                    request.current_leader_epoch,
                    request.fetch_offset,
                    request.last_fetched_epoch,
                    replica.log.reader.end_offset_for(request.last_fetched_epoch),
                    replica.log.log_start_offset,
                    request.log_start_offset,
                    follower.takes_records,
                )
            )
        except LogbusError as error:
            row.error = error.with_traceback(None)
        else:
            row.error, row.diverging = verdict.error, verdict.diverging
            row.allowance = self._owner.allowance(replica, follower.broker_id)

    # Methods that wait for records.

    def _changed(self) -> None:
        """Schedule one check of the waiting fetch for all replicas that change in this iteration of
        the event loop."""
        if not self._is_due:
            self._is_due = True
            self._owner.loop.call_soon(self._recheck)

    def _recheck(self) -> None:
        self._is_due = False
        if self._answer is None:
            return
        if not self._is_open():
            self._stop_waiting()
            self._answer = None
            return
        for row in self._rows:
            self._check(row)
        if any(row.is_answerable for row in self._rows):
            self._stop_waiting()
            self._collect()

    def _check(self, row: _FollowerRow) -> None:
        replica = row.replica
        if replica is None or row.error is not None:
            return
        try:
            replica.check_leader(row.request.current_leader_epoch)
            row.allowance = self._owner.allowance(replica, self._message.replica_id)
        except LogbusError as error:
            # Drop the traceback. It refers to this fetch, and the fetch to the error: the cycle
            # would keep both in memory.
            row.error = error.with_traceback(None)

    def end_wait(self) -> None:
        """Answer the waiting fetch now, with the records that are available."""
        self._stop_waiting()
        for row in self._rows:
            self._check(row)
        self._collect()

    def _stop_waiting(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        waiting, lane = self._owner.waiting, _lane(self._message)
        if waiting.get(lane) is self:
            del waiting[lane]
        for row in self._rows:
            if row.replica is not None:
                row.replica.end_waiters.discard(self._changed)

    # Methods that read the records and build the response.

    def _collect(self) -> None:
        owner = self._owner
        now_ms = owner.clock.monotonic_ms()
        rows = [row for row in self._rows if row.has_records]
        to_read: list[ranges.WantedRange] = []
        check = bool(self._message.flags & wire.FLAG_REPAIR)
        is_quick = not check
        for row in rows:
            replica = row.replica
            assert replica is not None
            replica.cache_policy.note_read(now_ms)
            start = row.request.fetch_offset
            is_quick = is_quick and replica.crc_cache.is_recent(now_ms, start)
            end = replica.role.log_end_offset
            most = min(row.request.max_bytes, row.allowance)
            to_read.append(ranges.WantedRange(replica.log.reader, start, end, most, check, False))
        limit = max(min(self._message.max_bytes, owner.bytes_max), 1)
        resident = ranges.read_resident(to_read, limit) if is_quick else None
        if resident is not None:
            self._reply(rows, resident)
            return

        def prepared(
            prepared_rows: list[ranges.Prepared] | None, error: BaseException | None
        ) -> None:
            if prepared_rows is None:
                logger.error("cannot read the log for a follower's fetch", exc_info=error)
                prepared_rows = [ranges.Prepared(error=NotLeaderError()) for _ in rows]
            self._reply(rows, prepared_rows)

        owner.disk.read(lambda: ranges.prepare(to_read, limit), prepared)

    def _reply(self, rows: list[_FollowerRow], prepared: list[ranges.Prepared]) -> None:
        answer, self._answer = self._answer, None
        size = 0
        for row, one in zip(rows, prepared):
            row.prepared = one
            size += one.length
            if row.allowance < UNLIMITED:
                self._owner.throttle.spend(one.length)
        for row in self._rows:
            # Check the fetch again: leader epoch and high watermark may have changed during the
            # disk read.
            self._check(row)
        for row, one in zip(rows, prepared):
            # Ignore a read error of a replica that no longer leads: it may have truncated its log
            # during the read, so the error shows no damage.
            if one.error is not None and row.error is None:
                row.error = one.error
                is_damage = isinstance(one.error, CorruptMessageError | UnreadableRecordsError)
                if is_damage and row.replica is not None:
                    row.replica.report_corruption(one.error_offset, one.error)
        self._owner.sent_bytes.n += size
        if answer is None or not self._is_open():
            return
        answer(
            [
                wire.TopicAnswer("", topic.topic_id, [self._row_answer(row) for row in rows])
                for topic, rows in self._topics
            ]
        )

    def _row_answer(self, row: _FollowerRow) -> wire.PartitionAnswer:
        replica, error, number = row.replica, row.error, row.request.partition
        if error is not None:
            self._owner.metrics.count("request_errors", "fetch_follower", error.name)
        if replica is None:
            assert error is not None
            return wire.PartitionAnswer(number, wire_code(error))
        high_watermark = replica.high_watermark
        return wire.PartitionAnswer(
            number,
            wire_code(error),
            high_watermark,
            high_watermark,
            replica.log.log_start_offset,
            row.prepared.parts if error is None else (),
            None,
            row.diverging,
            NO_BROKER,
            NO_EPOCH,
        )


def _lane(message: wire.FetchRequest) -> tuple[int, int]:
    return message.replica_id, message.flags & wire.FLAG_IDLE
