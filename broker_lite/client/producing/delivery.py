"""Decide which batches a producer sends to which leader: order, sequences, retries and deadlines.

Each partition has a queue and at most ``max_in_flight`` batches in flight. After a retriable
failure, nothing more is sent to the partition until the results of all its batches in flight are
known. Then the oldest unacknowledged batch goes first, which preserves the order.

A batch of an idempotent producer keeps its producer id and sequence as long as it may be in the
log. A retry sends the same bytes, so the broker recognises a duplicate. Only batches that are
certainly not in the log receive new sequences. In a transaction none receives one: the first batch
that fails sets ``failure``, and the transaction must abort. ``sender`` calls this module on its
thread."""

from __future__ import annotations

from collections.abc import Iterable

from broker_lite.client.operations.cluster import ClusterView, backoff_ms, no_leader
from broker_lite.client.operations.throttles import Throttles
from broker_lite.client.producing.batches import (
    SEQUENCE_MASK,
    Outgoing,
    ProducerBatch,
    ProducerIdentity,
)
from broker_lite.client.producing.partition_queue import PartitionQueue
from broker_lite.errors import (
    CorruptMessageError,
    DeliveryTimedOutError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    LogbusError,
    MessageTooLargeError,
    NetworkError,
    NoBrokersError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    RequestTimedOutError,
    StorageError,
    UnknownProducerIdError,
    error_for,
)
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.record import arrow
from broker_lite.record.arrow import Compression
from broker_lite.record.batch import read_header
from broker_lite.record.format import ATTRIBUTE_TRANSACTIONAL
from broker_lite.record.transcode import columns_to_rows
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.security.denials import named
from broker_lite.wire.buffer_pool import BufferPool
from broker_lite.wire.produce import ProducedPartition, ProduceResponse

REQUEST_BYTES_MAX = 16 << 20
"""Maximum bytes of a produce request with several batches; a larger batch is sent alone."""
INVALID_MAGIC = "Invalid magic found in record"
"""The error text with which Apache Kafka refuses a batch in logbus's column format."""
REPORTED_FAILURE = 6
"""Number of failures in a row after which a partition's error is logged; with the default backoff,
this takes 3 s."""


class Delivery:
    """The queues of all partitions of a producer, and the decisions about their batches.

    After each call, the caller completes the batches in ``done``, refreshes the metadata of the
    topics in ``stale``, and requests a producer id if ``wants_identity``. Error messages contain
    ``user``, the client's user name."""

    def __init__(
        self,
        *,
        idempotent: bool,
        max_in_flight: int,
        retry_backoff_ms: float,
        compression: Compression,
        delivery_timeout_ms: int,
        memory_bytes: int = 0,
        transactional: bool = False,
        user: str = "",
    ) -> None:
        self._user = user
        self.idempotent = idempotent
        self.transactional = transactional
        self.failure: LogbusError | None = None
        """The error of the first failed batch in this transaction, or None."""
        self.has_sent = False
        """Whether a batch was sent under the present producer id and epoch."""
        self.added: set[TopicPartition] | None = None
        """The partitions that this client has added to the open transaction (AddPartitionsToTxn).

        None means that brokers add a partition at its first batch (KIP-890)."""
        self.unadded: set[TopicPartition] = set()
        """Partitions to add to the transaction before their queued batches can be sent."""
        self.memory = BufferPool(memory_bytes)
        """The pool of buffers for encoded batches, which keeps ``memory_bytes`` at most for
        reuse."""
        self.identity: ProducerIdentity | None = None
        self.problem: LogbusError | None = None
        """The error of the last metadata or InitProducerId request, or None after a success."""
        self.done: list[ProducerBatch] = []
        self.failing: dict[TopicPartition, LogbusError] = {}
        """Partitions with ``REPORTED_FAILURE`` or more failures in a row, each with its last error.

        The caller logs and clears them."""
        self.stale: set[str] = set()
        """Topics whose metadata the caller must refresh."""
        self.writes_rows = False
        """Whether batches are encoded in Kafka's row format, because a broker refused logbus's
        column format."""
        self.limits_bytes: dict[str, int] = {}
        """Maximum bytes of new batches, by topic, for topics with a batch that a broker refused as
        too large."""
        self._max_in_flight = max_in_flight
        self._retry_backoff_ms = retry_backoff_ms
        self._compression: Compression = compression
        self._delivery_timeout_ms = delivery_timeout_ms
        self._throttles = Throttles()
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[TopicPartition, None] = {}
        self._count = 0

    # Properties and methods that report the state.

    @property
    def wants_identity(self) -> bool:
        """Whether batches wait for a producer id, so that InitProducerId must be sent."""
        return (
            self.idempotent
            and not self.transactional
            and self.identity is None
            and bool(self._busy)
        )

    @property
    def is_idle(self) -> bool:
        """Whether no batch is queued or in flight."""
        return not self._busy

    def is_backlogged(self, topic: str) -> bool:
        """Return whether batches of the topic wait to be sent.

        New records may then linger longer, because a new batch would only wait behind the
        others."""
        return any(tp.topic == topic and self._partitions[tp].queue for tp in self._busy)

    def topics(self) -> set[str]:
        """Return the topics with queued batches."""
        return {tp.topic for tp in self._busy if self._partitions[tp].queue}

    # Methods that add batches, set the producer id, and fail batches.

    def add(self, batches: Iterable[ProducerBatch]) -> None:
        """Queue new batches, in the order of the iterable."""
        for batch in batches:
            self._count += 1
            batch.order = (self._count, 0)
            tp = batch.tp
            part = self._partitions.get(tp)
            if part is None:
                part = self._partitions[tp] = PartitionQueue()
            part.queue.append(batch)
            self._busy[tp] = None

    def set_identity(self, identity: ProducerIdentity) -> None:
        """Set the producer id and epoch of new batches, after InitProducerId or at the start of a
        transaction."""
        self.identity = identity
        self.failure = None
        self.has_sent = False

    def note_failure(self, error: LogbusError) -> None:
        """Store the error of a failed record, because of which the open transaction must abort.

        Does nothing outside a transaction."""
        if self.transactional and self.failure is None:
            self.failure = error

    def fail_topic(self, topic: str, error: LogbusError, first: int = 0) -> None:
        """Fail the topic's queued batches for the partitions numbered ``first`` and higher."""
        for tp in [tp for tp in self._busy if tp.topic == topic and tp.partition >= first]:
            part = self._partitions[tp]
            while part.queue:
                self._fail(part, part.queue.popleft(), error)
            self._settle(tp, part)

    def fail_all(self, error: LogbusError) -> None:
        """Fail all batches, queued or in flight: the producer closes or its transaction aborts."""
        for tp in list(self._busy):
            part = self._partitions[tp]
            for batch in (*part.in_flight, *part.queue):
                self._finish(batch, error)
            part.in_flight.clear()
            part.queue.clear()
            part.settle()
        self._busy.clear()

    # Methods that build produce requests.

    def requests(self, now_ms: float, view: ClusterView) -> list[Outgoing]:
        """Return the produce requests to send now, with at most one batch of each partition.

        Call it again until the list is empty, because a partition may have further batches to
        send."""
        if self.failure is not None or (self.idempotent and self.identity is None):
            return []
        chosen: dict[Endpoint, list[ProducerBatch]] = {}
        sizes: dict[Endpoint, int] = {}
        refused: list[tuple[PartitionQueue, ProducerBatch, LogbusError]] = []
        for tp in self._busy:
            part = self._partitions[tp]
            leader_epoch = view.leader_epoch(tp)
            if not self._may_send(part, now_ms, leader_epoch):
                continue
            leader = view.leader(tp)
            if leader is None:
                self.stale.add(tp.topic)
                known = view.partition(tp)
                part.error = part.error if known is None else no_leader(view, tp, known)
                continue
            if self._throttles.until_ms(leader) > now_ms:
                continue
            if self.added is not None and tp not in self.added:
                self.unadded.add(tp)
                continue
            batch = part.queue[0]
            if sizes.get(leader, 0) and sizes[leader] + batch.size_bytes > REQUEST_BYTES_MAX:
                continue
            try:
                if not self._number(part, batch):
                    continue
            except LogbusError as problem:
                refused.append((part, batch, problem))
                continue
            part.sent(batch, leader_epoch)
            self.has_sent = True
            chosen.setdefault(leader, []).append(batch)
            sizes[leader] = sizes.get(leader, 0) + batch.size_bytes
        for part, batch, error in refused:
            part.queue.remove(batch)
            self.note_failure(error)
            self._finish(batch, error)
            self._settle(batch.tp, part)
        return [
            Outgoing(
                leader,
                tuple(batches),
                {batch.topic: view.topic_id(batch.topic) for batch in batches},
            )
            for leader, batches in chosen.items()
        ]

    def _may_send(self, part: PartitionQueue, now_ms: float, leader_epoch: int) -> bool:
        return (
            bool(part.queue)
            and not part.held
            and part.is_remembered(self._max_in_flight, idempotent=self.idempotent)
            and (part.retry_at_ms <= now_ms or part.leader_epoch < leader_epoch)
        )

    def without_leader(self, now_ms: float, view: ClusterView) -> set[str]:
        """Return the topics that have a batch which waits for a newer leader than the one in
        ``view``."""
        return {
            tp.topic
            for tp in self._busy
            for part in (self._partitions[tp],)
            if part.retry_at_ms > now_ms and part.leader_epoch >= view.leader_epoch(tp)
        }

    def unreported(self) -> dict[TopicPartition, LogbusError]:
        """Return the last error of each partition with fewer than ``REPORTED_FAILURE`` failures in
        a row, which the caller has therefore not logged."""
        parts = [(tp, self._partitions[tp]) for tp in self._busy]
        return {
            tp: part.error
            for tp, part in parts
            if part.error is not None and part.failures < REPORTED_FAILURE
        }

    def _number(self, part: PartitionQueue, batch: ProducerBatch) -> bool:
        """Assign a sequence to the batch and encode it, unless an earlier attempt did.

        Return False if the producer id has changed: the batch then waits until all batches in
        flight, which have the old id, are answered."""
        identity, sequence = batch.identity, batch.sequence
        is_new = self.idempotent and sequence < 0
        if is_new:
            if part.identity != self.identity:
                if part.in_flight:
                    return False
                part.identity, part.next_sequence, part.acked_sequence = self.identity, 0, -1
            identity, sequence = part.identity, part.next_sequence
        if batch.encoded is None:
            assert batch.columns is not None
            producer_id, producer_epoch = identity or (-1, -1)
            batch.encoded = arrow.encode(
                batch.columns,
                timestamp_ms=batch.timestamp_ms,
                compression=self._compression,
                attributes=ATTRIBUTE_TRANSACTIONAL if self.transactional else 0,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                allocate=self.memory.take,
            )
            if self.writes_rows:
                header = read_header(batch.encoded)
                batch.encoded = memoryview(columns_to_rows(batch.encoded, header, header.codec))
        if is_new:
            batch.identity, batch.sequence = identity, sequence
            part.next_sequence = (sequence + batch.row_count) & SEQUENCE_MASK
        return True

    # Methods that handle responses and failed requests.

    def answered(self, sent: Outgoing, response: ProduceResponse | None, now_ms: float) -> None:
        """Complete, retry or fail the batches of ``sent``. With acks=0, ``response`` is None.

        If the response says for how long the broker throttles the client, no request goes to the
        broker in that time (KIP-219)."""
        rows: dict[tuple[str, int], ProducedPartition] = {}
        if response is not None:
            self._throttles.note(sent.endpoint, response.throttle_time_ms, now_ms)
            names = {topic_id: name for name, topic_id in sent.topic_ids.items()}
            for topic in response.topics:
                for row in topic.partitions:
                    rows[topic.name or names.get(topic.topic_id, ""), row.partition] = row
        for batch in sent.batches:
            part = self._partitions[batch.tp]
            if not part.returned(batch):
                continue
            produced = rows.get((batch.topic, batch.partition))
            if response is None:
                self._finish(batch, None)
            elif produced is None:
                self._refused(
                    part, batch, error_for(-1, "the broker's response lacks the batch"), now_ms
                )
            elif produced.error_code:
                error = error_for(produced.error_code, produced.error_message)
                error = named(error, self._user, Operation.WRITE, ResourceKind.TOPIC, batch.topic)
                self._refused(part, batch, error, now_ms)
            else:
                batch.base_offset = produced.base_offset
                batch.log_append_time_ms = produced.log_append_time_ms
                self._accepted(part, batch)
            self._settle(batch.tp, part)

    def failed(self, sent: Outgoing, error: LogbusError, now_ms: float) -> None:
        """Retry or fail the batches of a request that got no response, and mark them as possibly
        appended."""
        for batch in sent.batches:
            part = self._partitions[batch.tp]
            if part.returned(batch):
                batch.maybe_appended = True
                self._refused(part, batch, error, now_ms)
                self._settle(batch.tp, part)

    def _accepted(self, part: PartitionQueue, batch: ProducerBatch) -> None:
        part.accepted(batch)
        self._finish(batch, None)

    def _refused(
        self, part: PartitionQueue, batch: ProducerBatch, error: LogbusError, now_ms: float
    ) -> None:
        batch.attempts += 1
        if isinstance(error, DuplicateSequenceError):
            self._accepted(part, batch)
        elif isinstance(error, (MessageTooLargeError, RecordListTooLargeError)):
            self._too_large(part, batch, error)
        elif isinstance(
            error, (OutOfOrderSequenceError, UnknownProducerIdError, InvalidProducerEpochError)
        ):
            self._out_of_order(part, batch, error, now_ms)
        elif isinstance(error, CorruptMessageError) and INVALID_MAGIC in error.message:
            # The broker cannot read logbus's column format. The batch is not in the log, so send it
            # in Kafka's row format with the same sequence.
            self.writes_rows, batch.encoded = True, None
            part.requeue(batch)
        else:
            batch.maybe_appended = batch.maybe_appended or not error.definite
            if error.retriable:
                self._later(part, batch, error, now_ms)
            else:
                self._fail(part, batch, error)

    def _later(
        self, part: PartitionQueue, batch: ProducerBatch, error: LogbusError, now_ms: float
    ) -> None:
        """Queue the batch for a retry after the backoff, or earlier if a newer leader is known."""
        self.stale.add(batch.topic)
        if not part.held:
            # Batches that were in flight together share one backoff.
            part.retry_at_ms = now_ms + backoff_ms(part.refusals, self._retry_backoff_ms)
            part.refusals += 1
            part.failures += 1
            if part.failures == REPORTED_FAILURE:
                self.failing[batch.tp] = error
        part.requeue(batch)
        part.error = error

    def _out_of_order(
        self, part: PartitionQueue, batch: ProducerBatch, error: LogbusError, now_ms: float
    ) -> None:
        if part.has_earlier(batch) or (part.spoiled and not batch.maybe_appended):
            # Send the batch again. If this batch overtook an earlier unacknowledged one, the
            # earlier one is sent again, too. If an earlier batch will never be in the log
            # (``spoiled``), this batch gets a new sequence.
            part.requeue(batch)
        elif isinstance(error, InvalidProducerEpochError) and (
            batch.maybe_appended or self.transactional
        ):
            self._fail(part, batch, error)
        elif batch.maybe_appended:
            # Keep the batch's sequence. The broker that refused the batch may be a deposed leader
            # with a shorter log, while the current leader has the batch: a new sequence would
            # duplicate it.
            self._later(part, batch, error, now_ms)
        elif self.transactional:
            self._fail(part, batch, error)
        else:
            self.identity = None if self.identity == batch.identity else self.identity
            part.requeue(batch)
            part.spoiled = True
            part.identity = None

    def _too_large(self, part: PartitionQueue, batch: ProducerBatch, error: LogbusError) -> None:
        assert batch.columns is not None
        if batch.row_count == 1:
            self._fail(part, batch, MessageTooLargeError(f"{batch.tp}: {error.message}"))
            return
        if batch.maybe_appended and batch.sequence >= 0:
            # The batch was sent before, and no answer arrived, so it may be in the log. Since then
            # the topic's max.message.bytes was lowered. Fail the batch instead of sending it again
            # in halves, because the broker would not recognise the halves as duplicates.
            message = f"{batch.tp}: {error.message}; sent before, it may be in the log"
            self._fail(part, batch, MessageTooLargeError(message))
            return
        # Remember the limit of the topic. Otherwise every later batch would be sent twice: whole,
        # then in halves.
        known = self.limits_bytes.get(batch.topic, batch.size_bytes)
        self.limits_bytes[batch.topic] = min(known, max(1, batch.size_bytes // 2))
        batch.halve()
        for half in reversed(batch.halves):
            part.requeue(half)

    # Methods that complete, fail and expire batches.

    def _fail(self, part: PartitionQueue, batch: ProducerBatch, error: LogbusError) -> None:
        """Complete a batch with an error.

        The broker still expects the sequence of this batch, so later batches of the partition need
        new sequences. In a transaction the later batches stay queued until the abort."""
        self.note_failure(error)
        if self.transactional:
            part.held = True
        elif batch.sequence >= 0 and batch.identity == part.identity:
            part.spoiled = True
            part.held = True
            if batch.maybe_appended:
                # The log may hold the batch's sequences: take a new producer id, so that no batch
                # reuses them.
                self.identity = None if self.identity == part.identity else self.identity
                part.identity = None
        self._finish(batch, error)

    def _finish(self, batch: ProducerBatch, error: LogbusError | None) -> None:
        batch.error = error
        batch.columns = batch.encoded = None
        self.done.append(batch)

    def _settle(self, tp: TopicPartition, part: PartitionQueue) -> None:
        if part.settle():
            self._busy.pop(tp, None)

    def expire(self, now_ms: float) -> None:
        """Fail queued batches whose delivery deadline has passed, and remove throttles that have
        ended."""
        self._throttles.forget(now_ms)
        for tp in list(self._busy):
            part = self._partitions[tp]
            late = [batch for batch in part.queue if batch.deadline_ms <= now_ms]
            for batch in late:
                part.queue.remove(batch)
                self._fail(part, batch, self._late(part, batch))
            if late:
                self._settle(tp, part)

    def _late(self, part: PartitionQueue, batch: ProducerBatch) -> DeliveryTimedOutError:
        tries = f" (failures: {batch.attempts})" if batch.attempts else ""
        maybe = "; it may be in the log" if batch.maybe_appended else ""
        error = part.error or self.problem
        cure = "see the broker's log"
        if error is None and self._throttles:
            why = "; a broker throttled this producer, because it is over its quota"
            cure = "send less, raise the quota (logbus quota)"
        elif error is None:
            why = "; it waited behind other batches, because the broker is slower than the producer"
        else:
            why = f"; the last error: {error}"
        if isinstance(error, StorageError):
            cure = "repair that broker's disk, or free space on it (a shorter retention.ms)"
        elif isinstance(error, (NetworkError, NoBrokersError, RequestTimedOutError)):
            cure = "see whether the broker is up and reachable (logbus status)"
        elif isinstance(error, LeaderNotAvailableError):
            cure = "start the broker"
        return DeliveryTimedOutError(
            f"{batch.tp}: not acknowledged within delivery.timeout.ms="
            f"{self._delivery_timeout_ms}{tries}{maybe}{why}. {cure[0].upper()}{cure[1:]}, "
            "or raise delivery.timeout.ms to wait longer"
        )

    def next_due_ms(self, now_ms: float) -> float:
        """Return the earliest time (ms) of a retry, a delivery deadline or the end of a throttle.

        At this time, or earlier if a response arrives, the caller must call ``requests`` and
        ``expire``."""
        due = float("inf")
        if self._busy:
            due = self._throttles.next_end_ms(now_ms)
        for tp in self._busy:
            part = self._partitions[tp]
            if part.queue:
                due = min(due, part.queue[0].deadline_ms)
                if part.retry_at_ms > now_ms:
                    due = min(due, part.retry_at_ms)
        return due
