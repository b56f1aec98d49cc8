"""Handle Fetch 4-18: return records up to the high watermark or the last stable offset.

The last stable offset limits read_committed. A fetch that finds no records waits until the high
watermark or the leader epoch of one of its replicas changes, or until ``max_wait_ms``. It runs on
the event loop's thread, without a task for each request.

Records of the last minute are read on the event loop. A read thread prepares older records
(``partitions/ranges.py``): it loads them into the page cache, checks CRCs for clients that do not,
and converts column batches (logbus's own format) for clients that read only rows. Records that need
no conversion are sent with ``sendfile``. The broker creates no fetch sessions.

A follower serves a consumer only if the request has the replica id -2, up to its own high
watermark. ``partitions/follower_fetch.py`` answers the fetches of followers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from broker_lite.errors import (
    CorruptMessageError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnreadableRecordsError,
    wire_code,
)
from broker_lite.machine import machine_id
from broker_lite.model import NO_EPOCH, NO_OFFSET, OffsetAndEpoch
from broker_lite.record.format import BODY_VERSION
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.cluster_rows import node_endpoints
from broker_lite.server.network.connection import ResponseSlot
from broker_lite.server.network.context import RequestContext
from broker_lite.server.partitions import ranges
from broker_lite.server.partitions.disk import DiskWork
from broker_lite.server.partitions.replica import Replica
from broker_lite.storage.log import Log
from broker_lite.wire import fetch as wire
from broker_lite.wire.api import BY_TOPIC_ID

logger = logging.getLogger("logbus.fetch")


def handle(
    parts: BrokerContext, request: RequestContext, frame: memoryview, reply: ResponseSlot
) -> None:
    """Answer the fetch at once, or let it wait for records.

    Raises ProtocolError for a malformed request."""
    message = wire.decode_request(frame, request.api_version, request.body_at)
    if message.replica_id >= 0:
        request.access.check_follower(message.replica_id)
        _follow(parts, request, message, reply)
        return
    _ConsumerFetch(parts, request, message, reply).assess()


def _follow(
    parts: BrokerContext, request: RequestContext, message: wire.FetchRequest, reply: ResponseSlot
) -> None:
    """Let ``FollowerFetches`` answer a follower's fetch.

    Close the connection if the request's version is older than those that logbus's brokers send."""
    if request.api_version < wire.CLIENT_VERSION:
        reply.refuse(
            f"a follower fetched with version {request.api_version}, not {wire.CLIENT_VERSION}"
        )
        return

    def answer(topics: list[wire.TopicAnswer]) -> None:
        reply.answer(wire.encode_response(topics, request.api_version, request.correlation_id))

    parts.replicas.follower_fetches.begin(message, answer, lambda: reply.is_open)


class _FetchRow(NamedTuple):
    """One partition of a fetch: the local replica, or the error to answer with."""

    topic: wire.FetchTopic
    request: wire.FetchPartition
    replica: Replica | None = None
    error: LogbusError | None = None
    diverging: OffsetAndEpoch | None = None
    """The offset and leader epoch from which on the log differs from what the client has read, or
    None."""
    end_offset: int = NO_OFFSET
    """The offset below which the client may read."""

    @property
    def has_records(self) -> bool:
        return (
            self.replica is not None
            and self.diverging is None
            and self.end_offset > self.request.fetch_offset
        )


class _ConsumerFetch:
    """One fetch request of a consumer, from its arrival to the answer."""

    __slots__ = (
        "_checks_crc",
        "_denied",
        "_done",
        "_ends_only",
        "_file_bytes",
        "_is_committed",
        "_is_over_quota",
        "_is_repair",
        "_knows_columns",
        "_max_bytes",
        "_message",
        "_parts",
        "_reply",
        "_request",
        "_timer",
        "_waits_at",
        "_waits_since_ms",
    )

    def __init__(
        self,
        parts: BrokerContext,
        request: RequestContext,
        message: wire.FetchRequest,
        reply: ResponseSlot,
    ) -> None:
        self._parts = parts
        self._request = request
        self._message = message
        self._reply = reply
        self._knows_columns = message.columns_body_version >= BODY_VERSION
        self._is_committed = message.isolation_level == wire.READ_COMMITTED
        self._ends_only = bool(message.flags & wire.FLAG_ENDS_ONLY)
        self._checks_crc = bool(message.flags & wire.FLAG_CHECKS_CRC)
        self._is_repair = bool(message.flags & wire.FLAG_REPAIR)
        self._file_bytes = _file_bytes(parts, message) if self._knows_columns else 0
        limit = max(message.max_bytes, self._file_bytes)
        self._max_bytes = max(min(limit, parts.config.fetch_bytes_max), 1)
        self._is_over_quota = False
        quota = request.quota
        if quota is not None and quota.limits_fetches:
            # Send the records even to a client on this machine: if it read the log files itself, it
            # would bypass its quota.
            self._file_bytes, allowance = 0, quota.fetch_allowance()
            self._is_over_quota = allowance < 0
            self._max_bytes = max(min(message.max_bytes, self._max_bytes, allowance), 1)
        self._denied: Mapping[int, LogbusError] = {}
        self._done = False
        self._timer: asyncio.TimerHandle | None = None
        self._waits_at: list[Replica] = []
        self._waits_since_ms = 0

    def assess(self) -> None:
        """Answer the fetch if there are records or errors, else let it wait.

        During the wait, each change of a replica's high watermark or leader epoch calls this
        method again."""
        if self._done:
            return
        if not self._reply.is_open:
            self._leave()
            return
        if not self._authorize():
            return
        if self._parts.replicas.is_creating_logs and self._waits_for_a_log():
            return
        rows = self._rows()
        is_refused = any(row.error is not None or row.diverging is not None for row in rows)
        has_records = any(row.has_records for row in rows)
        if self._ends_only and (is_refused or has_records):
            self._answer(rows, {})
        elif is_refused:
            self._collect(rows)
        elif self._is_over_quota:
            self._answer(rows, {})
        elif not has_records:
            self._wait(rows)
        else:
            may_wait = self._message.max_wait_ms > 0
            min_bytes = min(self._message.min_bytes, self._max_bytes)
            self._collect(rows, min_bytes if may_wait else 0)

    def _woken(self) -> None:
        """Assess the fetch again after a wait, and charge the time to the client's quota.

        The dispatcher charges the time of the first assessment."""
        if self._request.quota is None:
            self.assess()
            return
        began = time.perf_counter()
        self.assess()
        self._request.spent(time.perf_counter() - began)

    def _authorize(self) -> bool:
        """Authorize the request, again after each wait, so that a revoked permission takes effect.

        If the client's login has expired during the wait, close the connection and return False."""
        if self._request.session.is_over(self._parts.clock.monotonic_ms()):
            self._leave()
            self._reply.refuse("the client's login expired while its fetch waited")
            return False
        self._denied = self._request.access.denied_topics(
            self._message.topics, self._parts.registry.snapshot.topics_by_id
        )
        return True

    def _waits_for_a_log(self) -> bool:
        """Return whether the log of a requested partition is being created.

        If so, ``assess`` is called again when the log exists."""
        by_id, defer = self._request.api_version >= BY_TOPIC_ID, self._parts.replicas.defer
        return any(
            defer(topic.topic_id if by_id else topic.name, row.partition, by_id, self._woken)
            for topic in self._message.topics
            for row in topic.partitions
        )

    def _rows(self) -> list[_FetchRow]:
        replicas = self._parts.replicas
        rows = []
        by_id = self._request.api_version >= BY_TOPIC_ID
        for index, topic in enumerate(self._message.topics):
            for row_request in topic.partitions:
                try:
                    if index in self._denied:
                        raise self._denied[index]
                    if by_id:
                        replica = replicas.find_by_id(topic.topic_id, row_request.partition)
                    else:
                        replica = replicas.find(topic.name, row_request.partition)
                    self._check_role(replica, row_request)
                    replica.cache_policy.note_read(self._request.arrived_ms)
                    diverging = _diverging(replica.log, row_request)
                    if diverging is None:
                        _check_range(replica, row_request.fetch_offset)
                    if self._ends_only:
                        # Raise an error while a new leader does not know the latest high watermark.
                        # A lower one would look to the client like lost records.
                        end = replica.readable_end(self._is_committed)
                    elif self._is_committed:
                        end = replica.last_stable_offset
                    else:
                        end = replica.high_watermark
                    rows.append(_FetchRow(topic, row_request, replica, None, diverging, end))
                except LogbusError as error:
                    rows.append(_FetchRow(topic, row_request, None, error))
        return rows

    def _check_role(self, replica: Replica, request: wire.FetchPartition) -> None:
        """Raise an error if this broker does not lead the partition, or the client's leader epoch
        is not the current one (``Replica.check_leader``).

        If the request has the replica id ``ANY_REPLICA`` (-2), a follower serves the client too."""
        try:
            replica.check_leader(request.current_leader_epoch)
        except NotLeaderError:
            if self._message.replica_id != wire.ANY_REPLICA or replica.state is None:
                raise

    # Methods that wait for records.

    def _wait(self, rows: list[_FetchRow]) -> None:
        if self._timer is not None:
            return
        wait_ms = min(self._message.max_wait_ms, self._parts.config.fetch_wait_ms_max)
        if wait_ms <= 0:
            self._answer(rows, {})
            return
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._time_is_up)
        self._waits_since_ms = self._parts.clock.monotonic_ms()
        for row in rows:
            assert row.replica is not None
            row.replica.waiters.add(self._woken)
            self._waits_at.append(row.replica)

    def _time_is_up(self) -> None:
        if self._done:
            return
        if not self._authorize():
            return
        rows = self._rows()
        if self._ends_only or not any(row.has_records for row in rows):
            self._answer(rows, {})
        else:
            self._collect(rows)

    def _leave(self) -> None:
        """End the wait for records: cancel the timer, and remove this fetch's callbacks from the
        replicas."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
            waited_ms = self._parts.clock.monotonic_ms() - self._waits_since_ms
            self._reply.waited_ms = waited_ms
            self._parts.fetch_waits.observe(waited_ms / 1000)
            for replica in self._waits_at:
                replica.waiters.discard(self._woken)
            self._waits_at.clear()

    # Methods that read the records.

    def _collect(self, rows: list[_FetchRow], min_bytes: int = 0) -> None:
        """Read the records and answer: on the event loop if it need not wait for the disk, check
        CRCs or convert batches, else on a read thread.

        If the event loop finds less than ``min_bytes`` in all, the fetch waits instead of
        answering."""
        now_ms = self._parts.clock.monotonic_ms()
        indexed: list[tuple[int, ranges.WantedRange]] = []
        is_quick = True
        for index, row in enumerate(rows):
            if row.replica is None or not row.has_records:
                continue
            one = self._range_of(row.replica, row, now_ms)
            is_quick = (
                is_quick
                and not one.check
                and not one.rows_only
                and row.replica.crc_cache.is_recent(now_ms, one.offset)
                and (not one.lists_aborted or one.reader.is_in_active_segment(one.offset))
            )
            indexed.append((index, one))
        to_read, limit = [one for _, one in indexed], self._max_bytes
        is_transcoded = any(one.rows_only for one in to_read)
        if is_transcoded:
            limit = min(limit, ranges.TRANSCODED_BYTES_MAX)
        prepared = ranges.read_resident(to_read, limit) if is_quick else None
        if prepared is not None:
            if sum(one.length for one in prepared) < min_bytes:
                self._wait(rows)
                return
            self._answer(rows, {at: one for (at, _), one in zip(indexed, prepared)})
            return
        self._leave()
        if is_transcoded:
            size = min(limit, sum(one.max_bytes for one in to_read))
            self._reply.build(size, partial(self._read, rows, indexed, limit))
        else:
            self._read(rows, indexed, limit)

    def _read(
        self,
        rows: list[_FetchRow],
        indexed: list[tuple[int, ranges.WantedRange]],
        limit: int,
        transcoded_max: int = ranges.TRANSCODED_BYTES_MAX,
    ) -> None:
        """Read at most ``limit`` bytes for all partitions on a read thread, and answer."""
        to_read, work = [one for _, one in indexed], DiskWork()
        read = work.timed(partial(ranges.prepare, to_read, limit, transcoded_max))

        def done(prepared: list[ranges.Prepared] | None, error: BaseException | None) -> None:
            self._request.spent(work.seconds)
            began = time.perf_counter()
            self._prepared(rows, indexed, limit, prepared, error)
            self._request.spent(time.perf_counter() - began)

        self._parts.disk.read(read, done)

    def _prepared(
        self,
        rows: list[_FetchRow],
        indexed: list[tuple[int, ranges.WantedRange]],
        limit: int,
        prepared: list[ranges.Prepared] | None,
        error: BaseException | None,
    ) -> None:
        if isinstance(error, ranges.OversizedBatch):
            again = partial(self._read, rows, indexed, limit, error.decompressed)
            self._reply.build(error.decompressed, again)
            return
        if prepared is None:
            logger.error("%s: cannot read the log for a fetch", self._request, exc_info=error)
            self._reply.refuse("unexpected error in the broker; see its log")
            return
        # First replace the read errors of replicas that no longer lead by errors that say so
        # (``_judged``). Such a replica may have truncated its log during the read, so its read
        # error is no sign of damage.
        judged = [self._judged(rows[at], one) for (at, _), one in zip(indexed, prepared)]
        self._remember(rows, indexed, judged)
        self._answer(rows, {at: one for (at, _), one in zip(indexed, judged)})

    def _range_of(self, replica: Replica, row: _FetchRow, now_ms: int) -> ranges.WantedRange:
        request = row.request
        start, end = request.fetch_offset, row.end_offset
        crc_cache = replica.crc_cache
        mode = self._parts.config.fetch_verify
        check = (
            self._is_repair
            or mode == "always"
            or (
                mode == "unverified"
                and not self._checks_crc
                and not crc_cache.is_checked(now_ms, start, end)
            )
        )
        rows_only = not self._knows_columns and start < crc_cache.rows_from
        limit = max(request.max_bytes, self._file_bytes)
        reader = replica.log.reader
        lists_aborted = self._is_committed and reader.transactions_from != NO_OFFSET
        return ranges.WantedRange(
            reader, start, end, limit, check, rows_only, lists_aborted, self._file_bytes > 0
        )

    def _remember(
        self,
        rows: list[_FetchRow],
        indexed: list[tuple[int, ranges.WantedRange]],
        results: list[ranges.Prepared],
    ) -> None:
        now_ms = self._parts.clock.monotonic_ms()
        for (index, one), prepared in zip(indexed, results):
            replica = rows[index].replica
            assert replica is not None
            if prepared.checked_end >= 0:
                replica.crc_cache.checked(now_ms, one.offset, prepared.checked_end)
            if prepared.transcoded:
                self._parts.metrics.count(
                    "transcoded_batches", "columns", "rows", amount=prepared.transcoded
                )
            if isinstance(prepared.error, CorruptMessageError | UnreadableRecordsError):
                replica.report_corruption(prepared.error_offset, prepared.error)

    def _judged(self, row: _FetchRow, prepared: ranges.Prepared) -> ranges.Prepared:
        """Return ``prepared``, the result of a read. If the read failed and this replica may no
        longer serve the client, return the error of ``_check_role`` instead: the log may have been
        truncated during the read."""
        assert row.replica is not None
        if prepared.error is not None:
            try:
                self._check_role(row.replica, row.request)
            except LogbusError as error:
                return ranges.Prepared(error=error)
        return prepared

    # Methods that build the response.

    def _answer(self, rows: list[_FetchRow], prepared: dict[int, ranges.Prepared]) -> None:
        self._leave()
        answers = [self._row_answer(row, prepared.get(i)) for i, row in enumerate(rows)]
        topics = []
        at = 0
        for topic in self._message.topics:
            count = len(topic.partitions)
            topics.append(wire.TopicAnswer(topic.name, topic.topic_id, answers[at : at + count]))
            at += count
        request = self._request
        for at, one in prepared.items():
            replica = rows[at].replica
            if replica is not None:
                replica.traffic.sent_bytes.n += one.length
        leaders = [row.leader_id for row in answers if row.error_code]
        snapshot = self._parts.registry.snapshot
        nodes = node_endpoints(snapshot, request.session.listener, leaders) if leaders else ()
        throttle_ms = 0
        if request.quota is not None:
            throttle_ms = request.quota.fetched(sum(one.length for one in prepared.values()))
            self._reply.throttle(throttle_ms)
        self._reply.answer(
            wire.encode_response(
                topics,
                request.api_version,
                request.correlation_id,
                throttle_time_ms=throttle_ms,
                nodes=nodes,
            )
        )

    def _row_answer(self, row: _FetchRow, prepared: ranges.Prepared | None) -> wire.PartitionAnswer:
        error = row.error
        if error is None and prepared is not None:
            error = prepared.error
        replica, partition = row.replica, row.request.partition
        if replica is None:
            assert error is not None
            return self._refusal(row, error)
        high_watermark = replica.high_watermark
        return wire.PartitionAnswer(
            partition,
            wire_code(error),
            high_watermark,
            replica.log.reader.last_stable_offset(high_watermark),
            replica.log.log_start_offset,
            prepared.parts if prepared is not None else (),
            (prepared.aborted if prepared is not None else ()) if self._is_committed else None,
            row.diverging,
            stored=self._place(replica, prepared) if prepared is not None else None,
            transactions_from=replica.log.reader.transactions_from
            if self._ends_only
            else NO_OFFSET,
        )

    def _place(self, replica: Replica, prepared: ranges.Prepared) -> wire.StoredRange | None:
        """Return where the client finds a range that it reads itself: the path of the segment file
        or, with an authorizer, a ticket (a secret that it exchanges for the open file)."""
        stored, file = prepared.stored, prepared.file
        if stored is None or file is None:
            return None
        descriptors = self._parts.descriptors
        if descriptors is None:
            self._parts.metrics.count("local_reads", "path")
            return stored
        ticket = descriptors.issue(self._reply.connection, replica.topic, file)
        return stored._replace(path="", ticket=ticket)

    def _refusal(self, fetched: _FetchRow, error: LogbusError) -> wire.PartitionAnswer:
        self._parts.metrics.count("request_errors", "fetch", error.name)
        partition = fetched.request.partition
        row = wire.PartitionAnswer(partition, wire_code(error))
        if isinstance(error, _OutOfRange):
            replica = error.replica
            return row._replace(
                high_watermark=replica.high_watermark,
                last_stable_offset=replica.last_stable_offset,
                log_start_offset=replica.log.log_start_offset,
            )
        if isinstance(error, NotLeaderError):
            # Name the leader that this broker's metadata have, so that the client need not ask for
            # metadata (KIP-951).
            topic, snapshot = fetched.topic, self._parts.registry.snapshot
            leader_id, leader_epoch = snapshot.leader(topic.name, topic.topic_id, partition)
            return row._replace(leader_id=leader_id, leader_epoch=leader_epoch)
        return row


def _file_bytes(parts: BrokerContext, message: wire.FetchRequest) -> int:
    """Return how many bytes the client may read itself from the log files.

    That is 0 if the client runs on another machine, if the broker allows no local reads, or if the
    broker passes open files (``descriptors``), not paths, and the client cannot receive them."""
    files = message.files
    if not files.machine or files.machine != machine_id():
        return 0
    is_allowed = parts.config.tells_paths or (parts.descriptors is not None and files.takes_tickets)
    return files.file_bytes if is_allowed else 0


class _OutOfRange(OffsetOutOfRangeError):
    """An offset outside the log of a replica. The answer reports the start and end offset of that
    log."""

    def __init__(self, replica: Replica, offset: int) -> None:
        super().__init__(f"{replica} has no offset {offset}")
        self.replica = replica


def _diverging(log: Log, request: wire.FetchPartition) -> OffsetAndEpoch | None:
    """Return where the log diverges from the records that the client has read, judged by the leader
    epoch in its request: the end of the last common leader epoch. Return None if the log does not
    diverge.

    After an unclean election, the log can lack records that the client has read."""
    epoch, offset = request.last_fetched_epoch, request.fetch_offset
    if epoch == NO_EPOCH or offset < log.log_start_offset:
        return None
    end = log.reader.end_offset_for(epoch)
    if end is None:
        return OffsetAndEpoch(log.log_end_offset, log.leader_epochs.latest)
    return None if end.leader_epoch == epoch and offset <= end.offset else end


def _check_range(replica: Replica, offset: int) -> None:
    log = replica.log
    if not log.log_start_offset <= offset <= log.log_end_offset:
        raise _OutOfRange(replica, offset)
