"""Write encoded batches to the target cluster of a mirror, in order and exactly once, and report
their offsets. Read records of the target.

``MirrorTarget`` is an idempotent producer for batches that are already encoded: it assigns each
partition's sequences itself, and has up to ``IN_FLIGHT`` requests in flight to each leader. Without
a response, it sends the batch again with the same sequence; a broker that already has the batch
returns its offset. All calls block, and only one thread makes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from broker_lite.client.administration.admin import Admin
from broker_lite.client.discovery import security_for
from broker_lite.client.fetch.range_reader import read_range
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import backoff_ms, cluster_at
from broker_lite.client.received import Slice
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import Pool, PooledConnection
from broker_lite.client.transport.steps import ProduceExchange
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import (
    LogbusError,
    NetworkError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    error_for,
)
from broker_lite.mirror.rewrite import RewrittenBatch, signed
from broker_lite.model import NO_EPOCH, Endpoint, TopicPartition
from broker_lite.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProduceResponse,
    TopicRecords,
)

IN_FLIGHT = 4
"""Maximum number of produce requests in flight to one leader."""
REQUEST_BYTES = 8 << 20
"""Maximum bytes of a produce request with several batches."""
REQUEST_TIMEOUT_MS = 30_000
PATIENCE_MS = 60_000
"""Milliseconds without any acknowledgement after which ``write`` raises the last error."""
_SEQUENCE_MASK = 0x7FFFFFFF

Queue = deque[RewrittenBatch]
OnWritten = Callable[[TopicPartition, RewrittenBatch, int], None]
"""Receives each written batch: the partition, the batch and the offset of its first record."""


@dataclass(slots=True)
class _UnwrittenBatches:
    """The batches that a call of ``write`` has not written yet, by partition, in order.

    ``refused`` has the error of each partition whose batch the target refused for good. ``failed``
    has the partitions of the batches that failed in the last round of requests."""

    queues: dict[TopicPartition, Queue]
    on_written: OnWritten
    refused: dict[TopicPartition, LogbusError] = field(default_factory=dict)
    failed: set[TopicPartition] = field(default_factory=set)

    @property
    def count(self) -> int:
        return sum(map(len, self.queues.values()))


class MirrorTarget:
    """Writes to the target cluster of a mirror. Call ``close`` at the end."""

    def __init__(
        self, servers: str, client_id: str, security: ClientSecurity | None = None
    ) -> None:
        self._pool = Pool(client_id, security_for(servers, security))
        self.servers = servers
        self.admin = Admin(servers, pool=self._pool)
        self._cluster = cluster_at(servers)
        self._identity: tuple[int, int] | None = None
        self._check: Callable[[], None] = lambda: None
        self._sequences: dict[TopicPartition, int] = {}
        self._lost: LogbusError | None = None

    def close(self) -> None:
        self._pool.close()

    def read(self, tp: TopicPartition, topic_id: str, start: int, end: int) -> Iterator[Slice]:
        """Yield the rows with ``start <= offset < end`` of one partition of the target."""
        return read_range(
            tp, topic_id, NO_EPOCH, start, end, bootstrap=self.servers, pool=self._pool
        )

    def new_producer_id(self) -> int:
        """Return a new producer id from the target."""
        deadline_ms = monotonic_ms() + PATIENCE_MS
        return self._pool.run(requests.init_producer_id(self._cluster, deadline_ms))[0]

    def begin(self, producer_id: int, producer_epoch: int, check: Callable[[], None]) -> None:
        """Use this producer id and epoch from now on. On each partition to which this object
        writes, the epoch fences producers with earlier epochs. Before each round of requests,
        ``write`` calls ``check``, which raises an error if this mirror may not write any more."""
        self.forget()
        self._identity, self._check = (producer_id, producer_epoch), check

    def forget(self) -> None:
        """Forget the producer id and all sequences, because of an error or a new producer id. The
        caller must read the target's logs to learn whether unacknowledged batches were written."""
        self._identity = self._lost = None
        self._sequences.clear()
        self._pool.close()

    def write(
        self, pieces: Mapping[TopicPartition, Sequence[RewrittenBatch]], on_written: OnWritten
    ) -> dict[TopicPartition, LogbusError]:
        """Write all batches in ``pieces``, and call ``on_written`` for each one when it is written,
        in order within its partition.

        Returns the error of each partition whose leader refused a batch; the partition's later
        batches are not written. Raises the last error after ``PATIENCE_MS`` without an
        acknowledgement."""
        queues: dict[TopicPartition, Queue] = {w: deque(rows) for w, rows in pieces.items() if rows}
        left = _UnwrittenBatches(queues, on_written)
        if self._identity is None and queues:
            self._identity = (self.new_producer_id(), 0)
        patience_ms = monotonic_ms() + PATIENCE_MS
        attempt = 0
        self._learn(queues)
        while queues:
            before = left.count
            problem = self._round(left)
            if self._lost is not None:
                raise self._lost
            if left.count < before:
                patience_ms, attempt = monotonic_ms() + PATIENCE_MS, 0
            if problem is None:
                continue
            if monotonic_ms() >= patience_ms:
                raise problem
            time.sleep(backoff_ms(attempt) / 1000.0)
            attempt += 1
            self._cluster.ask_another()
            deadline_ms = monotonic_ms() + PATIENCE_MS
            topics = {tp.topic for tp in queues}
            self._pool.run(requests.refresh(self._cluster, topics, deadline_ms))
        return left.refused

    def _learn(self, queues: Mapping[TopicPartition, Queue]) -> None:
        unknown = {w.topic for w in queues if self._cluster.view.leader(w) is None}
        if unknown:
            deadline_ms = monotonic_ms() + PATIENCE_MS
            self._pool.run(requests.refresh(self._cluster, unknown, deadline_ms))

    def _round(self, left: _UnwrittenBatches) -> LogbusError | None:
        """Send the next batches of each partition to the leaders, and wait for all responses.
        Return the last retriable error, or None."""
        self._check()
        by_leader, errors = self._cluster.by_leader(left.queues)
        problem = next(iter(errors.values()), None)
        sent: list[tuple[PooledConnection, list[dict[TopicPartition, RewrittenBatch]]]] = []
        deadline_ms = monotonic_ms() + REQUEST_TIMEOUT_MS
        for endpoint, tps in by_leader.items():
            try:
                sent.append(self._send(endpoint, self._waves(tps, left.queues), deadline_ms))
            except LogbusError as error:
                self._cluster.failed(endpoint)
                problem = error
        left.failed.clear()
        for connection, waves in sent:
            try:
                for wave in waves:
                    rows = self._rows(wave, connection.receive(deadline_ms))
                    for tp in wave:
                        problem = self._handle_answer(tp, rows.get(tp), left) or problem
            except LogbusError as error:
                problem = error
                connection.close()
            else:
                self._pool.release(connection)
        for tp in [tp for tp, queue in left.queues.items() if not queue]:
            del left.queues[tp]
        return problem

    def _waves(
        self, tps: Sequence[TopicPartition], queues: Mapping[TopicPartition, Queue]
    ) -> list[dict[TopicPartition, RewrittenBatch]]:
        """Group the next batches of these partitions into produce requests (waves), in order. A
        request has at most one batch of each partition."""
        assert self._identity is not None
        waves: list[dict[TopicPartition, RewrittenBatch]] = []
        for depth in range(IN_FLIGHT):
            wave: dict[TopicPartition, RewrittenBatch] = {}
            size = 0
            for tp in tps:
                queue = queues[tp]
                # Send a partition's first batch alone. A broker that does not know the producer yet
                # accepts any sequence, and could refuse the first batch and accept the second.
                if depth >= len(queue) or (depth and tp not in self._sequences):
                    continue
                piece = queue[depth]
                if piece.header.producer_id != self._identity[0]:
                    before = queue[depth - 1].header if depth else None
                    at = self._sequences.get(tp, 0)
                    if before is not None:
                        at = before.base_sequence + before.record_count
                    piece = queue[depth] = signed(piece, *self._identity, at & _SEQUENCE_MASK)
                if wave and size + len(piece.buffer) > REQUEST_BYTES:
                    waves.append(wave)
                    wave, size = {}, 0
                wave[tp] = piece
                size += len(piece.buffer)
            if wave:
                waves.append(wave)
        return waves

    def _send(
        self,
        endpoint: Endpoint,
        waves: list[dict[TopicPartition, RewrittenBatch]],
        deadline_ms: float,
    ) -> tuple[PooledConnection, list[dict[TopicPartition, RewrittenBatch]]]:
        connection = self._pool.borrow(endpoint, REQUEST_TIMEOUT_MS)
        try:
            for wave in waves:
                topics: dict[str, list[PartitionRecords]] = {}
                for tp, piece in wave.items():
                    topics.setdefault(self._cluster.view.topic_id(tp.topic), []).append(
                        PartitionRecords(tp.partition, piece.buffer)
                    )
                exchange = ProduceExchange(
                    [TopicRecords("", topic_id, rows) for topic_id, rows in topics.items()],
                    acks=-1,
                    timeout_ms=REQUEST_TIMEOUT_MS,
                )
                connection.send(exchange, deadline_ms)
        except BaseException:
            connection.close()
            raise
        return connection, waves

    def _rows(
        self, wave: Iterable[TopicPartition], answer: ProduceResponse
    ) -> dict[TopicPartition, ProducedPartition]:
        """Return the results in a produce response by partition. ``wave`` has the partitions of the
        request with their topics' names; the response has only topic ids."""
        rows = {
            (topic.topic_id, row.partition): row
            for topic in answer.topics
            for row in topic.partitions
        }
        keys = {tp: (self._cluster.view.topic_id(tp.topic), tp.partition) for tp in wave}
        return {tp: rows[key] for tp, key in keys.items() if key in rows}

    def _handle_answer(
        self, tp: TopicPartition, row: ProducedPartition | None, left: _UnwrittenBatches
    ) -> LogbusError | None:
        """Record ``row``, the result of a partition's batch (None if the response lacks it).

        Return the error if it is retriable or the outcome is unknown, else None."""
        if tp in left.failed:
            return None  # An earlier batch of the partition failed, so send this one again, too.
        if row is None:
            return self._lose(tp, "the response lacks a batch")
        if not row.error_code and row.base_offset >= 0:
            piece = left.queues[tp].popleft()
            header = piece.header
            self._sequences[tp] = header.base_sequence + header.record_count & _SEQUENCE_MASK
            left.on_written(tp, piece, row.base_offset)
            return None
        left.failed.add(tp)
        error = error_for(row.error_code, row.error_message)
        if isinstance(error, OutOfOrderSequenceError) or not row.error_code:
            # The broker may or may not have written the batch. The caller must read the target's
            # log, and continue with a new producer epoch.
            return self._lose(tp, f"the target no longer knows this mirror's producer: {error}")
        if error.retriable and not isinstance(error, NetworkError):
            return error
        left.refused[tp] = type(error)(f"{tp}: {error.message}")
        left.queues[tp].clear()
        return None

    def _lose(self, tp: TopicPartition, why: str) -> LogbusError:
        """Record that the outcome of a batch is unknown, and return the error that ``write`` must
        raise. The caller of ``write`` then looks for the batch in the target's log, and calls
        ``begin`` again."""
        self._lost = RequestTimedOutError(f"{tp}: {why}")
        return self._lost
