"""Batches on their way to leaders: order, sequences, retries, deadlines. No I/O, no clock.

Per partition a queue and at most ``max_in_flight`` batches under way. After a failure that may be
tried again nothing more is sent to a partition until all that is under way has come back; then it
goes on from the oldest, so order holds. An idempotent batch keeps producer id and sequence for as
long as it may be in the log: it is sent again as it was, never anew, hence never twice. Only
batches that are certainly not in the log are renumbered. Called by ``sender`` on its thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker_lite.client.cluster import ClusterView, backoff_ms, no_leader
from broker_lite.client.futures import Outcome
from broker_lite.errors import (
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
from broker_lite.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, Endpoint, TopicPartition
from broker_lite.record import arrow
from broker_lite.record.arrow import Columns, Compression
from broker_lite.wire.produce import ProducedPartition, ProduceResponse
from broker_lite.wire.reused_memory import ReusedMemory

REQUEST_BYTES_MAX = 16 << 20
"""A request is closed when it holds this much: well below a broker's frame limit (64 MiB)."""
SEQUENCE_MASK = 0x7FFFFFFF


class Identity(NamedTuple):
    """What a broker knows an idempotent producer by."""

    producer_id: int
    producer_epoch: int


class Batch:
    """Rows for one partition, from the accumulator to the acknowledgement."""

    __slots__ = (
        "attempts",
        "base_offset",
        "columns",
        "deadline_ms",
        "encoded",
        "error",
        "halves",
        "identity",
        "log_append_time_ms",
        "maybe_appended",
        "number",
        "order",
        "outcome",
        "partition",
        "row_count",
        "sequence",
        "size_bytes",
        "timestamp_ms",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Columns,
        *,
        timestamp_ms: int,
        size_bytes: int,
        deadline_ms: float,
        outcome: Outcome,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.columns: Columns | None = columns
        self.row_count = columns.row_count
        self.timestamp_ms = timestamp_ms
        self.size_bytes = size_bytes
        self.deadline_ms = deadline_ms
        self.outcome = outcome
        self.identity: Identity | None = None
        self.sequence = -1
        self.number = -1
        """How many batches of its partition were sent before it."""
        self.order = (0, 0)
        self.attempts = 0
        self.maybe_appended = False
        self.encoded: memoryview | None = None
        self.base_offset = NO_OFFSET
        self.log_append_time_ms = NO_TIMESTAMP
        self.error: LogbusError | None = None
        self.halves: Sequence[Batch] = ()

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def renumber(self) -> None:
        """Forget the sequence; only for a batch that is certainly not in the log."""
        assert not self.maybe_appended
        self.identity, self.sequence, self.encoded = None, -1, None


class Outgoing(NamedTuple):
    """One produce request: at most one batch a partition, all led by one broker."""

    endpoint: Endpoint
    batches: tuple[Batch, ...]
    topic_ids: dict[str, str]


class _Partition:
    """One partition's queue. ``held``: nothing is sent until all under way has come back."""

    __slots__ = (
        "acked_sequence",
        "error",
        "failures",
        "held",
        "identity",
        "in_flight",
        "leader_epoch",
        "next_sequence",
        "queue",
        "retry_at_ms",
        "sent_count",
        "spoiled",
    )

    def __init__(self) -> None:
        self.queue: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.acked_sequence = -1
        self.held = False
        self.spoiled = False
        self.sent_count = 0
        self.failures = 0
        self.error: LogbusError | None = None
        self.retry_at_ms = 0.0
        self.leader_epoch = NO_EPOCH


class Delivery:
    """The producer's decisions. After a call look at ``done``, ``stale``, ``wants_identity``."""

    def __init__(
        self,
        *,
        idempotent: bool,
        max_in_flight: int,
        retry_backoff_ms: float,
        compression: Compression,
        delivery_timeout_ms: int,
        memory_bytes: int = 0,
    ) -> None:
        self.idempotent = idempotent
        self.memory = ReusedMemory(memory_bytes)
        """Of encoded batches; at most ``memory_bytes`` are kept for the next ones."""
        self.identity: Identity | None = None
        self.problem: LogbusError | None = None
        """Why metadata or a producer id did not come, or None."""
        self.done: list[Batch] = []
        self.stale: set[str] = set()
        self.limits_bytes: dict[str, int] = {}
        """By topic: a batch of twice as much was refused as too large."""
        self._max_in_flight = max_in_flight
        self._retry_backoff_ms = retry_backoff_ms
        self._compression: Compression = compression
        self._delivery_timeout_ms = delivery_timeout_ms
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._busy: dict[TopicPartition, None] = {}
        self._count = 0

    # -- what is there

    @property
    def wants_identity(self) -> bool:
        """Whether InitProducerId must be asked for before anything goes on."""
        return self.idempotent and self.identity is None and bool(self._busy)

    def is_backlogged(self, topic: str) -> bool:
        """Whether batches of the topic wait for their turn: then a new one may as well linger."""
        return any(where.topic == topic and self._partitions[where].queue for where in self._busy)

    def topics(self) -> set[str]:
        """Topics that have batches waiting."""
        return {where.topic for where in self._busy if self._partitions[where].queue}

    # -- in

    def add(self, batches: Iterable[Batch]) -> None:
        """New batches, in order."""
        for batch in batches:
            self._count += 1
            batch.order = (self._count, 0)
            where = batch.where
            part = self._partitions.get(where)
            if part is None:
                part = self._partitions[where] = _Partition()
            part.queue.append(batch)
            self._busy[where] = None

    def set_identity(self, identity: Identity) -> None:
        """The answer to ``wants_identity``."""
        self.identity = identity

    def fail_topic(self, topic: str, error: LogbusError) -> None:
        """The topic does not exist (any more): what waits for it fails."""
        for where in [where for where in self._busy if where.topic == topic]:
            part = self._partitions[where]
            while part.queue:
                self._fail(part, part.queue.popleft(), error)
            self._settle(where, part)

    def fail_all(self, error: LogbusError) -> None:
        """Everything that waits or is under way fails: the producer ends."""
        for where in list(self._busy):
            part = self._partitions[where]
            for batch in (*part.in_flight, *part.queue):
                self._finish(batch, error)
            part.in_flight.clear()
            part.queue.clear()
        self._busy.clear()

    # -- out

    def requests(self, now_ms: float, view: ClusterView) -> list[Outgoing]:
        """What to send now. Call again until it gives nothing."""
        if self.idempotent and self.identity is None:
            return []
        chosen: dict[Endpoint, list[Batch]] = {}
        sizes: dict[Endpoint, int] = {}
        refused: list[tuple[_Partition, Batch, LogbusError]] = []
        for where in self._busy:
            part = self._partitions[where]
            leader_epoch = view.leader_epoch(where)
            if not self._may_send(part, now_ms, leader_epoch):
                continue
            leader = view.leader(where)
            if leader is None:
                self.stale.add(where.topic)
                known = view.partition(where)
                part.error = part.error if known is None else no_leader(view, where, known)
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
            part.queue.popleft()
            if batch.number < 0:
                batch.number, part.sent_count = part.sent_count, part.sent_count + 1
            part.in_flight.append(batch)
            part.leader_epoch = leader_epoch
            chosen.setdefault(leader, []).append(batch)
            sizes[leader] = sizes.get(leader, 0) + batch.size_bytes
        for part, batch, error in refused:
            part.queue.remove(batch)
            self._finish(batch, error)
            self._settle(batch.where, part)
        return [
            Outgoing(
                leader,
                tuple(batches),
                {batch.topic: view.topic_id(batch.topic) for batch in batches},
            )
            for leader, batches in chosen.items()
        ]

    def _may_send(self, part: _Partition, now_ms: float, leader_epoch: int) -> bool:
        return (
            bool(part.queue)
            and not part.held
            and self._is_remembered(part)
            and (part.retry_at_ms <= now_ms or part.leader_epoch < leader_epoch)
        )

    def _is_remembered(self, part: _Partition) -> bool:
        """Whether a broker that has the oldest batch under way still knows it, once it has the next
        one too, and surely knows the producer by then: it remembers a producer's last five.
        Counting what is under way is not enough: a batch may hang at a leader that was deposed
        while the new one takes those behind it."""
        if not part.in_flight:
            return True
        if self.idempotent and part.acked_sequence < 0:
            # Of a log whose beginning was deleted, a broker that knows nothing of a producer takes
            # any number of it for the next: the second batch, if it refuses the first.
            return False
        following = part.queue[0].number
        if following < 0:
            following = part.sent_count
        return following - min(batch.number for batch in part.in_flight) < self._max_in_flight

    def without_leader(self, now_ms: float, view: ClusterView) -> set[str]:
        """Topics whose leader did not take what it was sent, without a newer one in ``view``."""
        return {
            where.topic
            for where in self._busy
            for part in (self._partitions[where],)
            if part.retry_at_ms > now_ms and part.leader_epoch >= view.leader_epoch(where)
        }

    def _number(self, part: _Partition, batch: Batch) -> bool:
        """Give the batch its sequence and bytes; False while it must wait for its turn."""
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
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                allocate=self.memory.take,
            )
        if is_new:
            batch.identity, batch.sequence = identity, sequence
            part.next_sequence = (sequence + batch.row_count) & SEQUENCE_MASK
        return True

    # -- back

    def answered(self, sent: Outgoing, response: ProduceResponse | None, now_ms: float) -> None:
        """The answer to a request; None where none was asked for (acks=0)."""
        rows: dict[tuple[str, int], ProducedPartition] = {}
        if response is not None:
            names = {topic_id: name for name, topic_id in sent.topic_ids.items()}
            for topic in response.topics:
                for row in topic.partitions:
                    rows[names.get(topic.topic_id, ""), row.partition] = row
        for batch in sent.batches:
            part = self._returned(batch)
            if part is None:
                continue
            found = rows.get((batch.topic, batch.partition))
            if response is None:
                self._finish(batch, None)
            elif found is None:
                self._refused(part, batch, error_for(-1, "the broker left a batch out"), now_ms)
            elif found.error_code:
                error = error_for(found.error_code, found.error_message or "")
                self._refused(part, batch, error, now_ms)
            else:
                batch.base_offset = found.base_offset
                batch.log_append_time_ms = found.log_append_time_ms
                self._accepted(part, batch)
            self._settle(batch.where, part)

    def failed(self, sent: Outgoing, error: LogbusError, now_ms: float) -> None:
        """No answer came: the connection ended or the time was up."""
        for batch in sent.batches:
            part = self._returned(batch)
            if part is not None:
                batch.maybe_appended = True
                self._refused(part, batch, error, now_ms)
                self._settle(batch.where, part)

    def _returned(self, batch: Batch) -> _Partition | None:
        part = self._partitions[batch.where]
        if batch not in part.in_flight:
            return None
        part.in_flight.remove(batch)
        return part

    def _accepted(self, part: _Partition, batch: Batch) -> None:
        part.failures = 0
        part.error = None
        if batch.sequence >= 0 and batch.identity == part.identity:
            last = (batch.sequence + batch.row_count - 1) & SEQUENCE_MASK
            # One that hung is accepted after those behind it.
            if (last - part.acked_sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
                part.acked_sequence = last
        self._finish(batch, None)

    def _refused(self, part: _Partition, batch: Batch, error: LogbusError, now_ms: float) -> None:
        batch.attempts += 1
        if isinstance(error, DuplicateSequenceError):
            self._accepted(part, batch)
        elif isinstance(error, (MessageTooLargeError, RecordListTooLargeError)):
            self._too_large(part, batch, error)
        elif isinstance(
            error, (OutOfOrderSequenceError, UnknownProducerIdError, InvalidProducerEpochError)
        ):
            self._out_of_order(part, batch, error, now_ms)
        else:
            batch.maybe_appended = batch.maybe_appended or not error.definite
            if error.retriable:
                self._later(part, batch, error, now_ms)
            else:
                self._fail(part, batch, error)

    def _later(self, part: _Partition, batch: Batch, error: LogbusError, now_ms: float) -> None:
        """Again after a pause, or at once by a newer leader."""
        self.stale.add(batch.topic)
        if not part.held:
            # Once for all that was under way together.
            part.retry_at_ms = now_ms + backoff_ms(part.failures, self._retry_backoff_ms)
            part.failures += 1
        self._again(part, batch)
        part.error = error

    def _again(self, part: _Partition, batch: Batch) -> None:
        """Back into the queue, before everything that was sent after it."""
        part.held = True
        part.queue.insert(sum(other.order < batch.order for other in part.queue), batch)

    def _out_of_order(
        self, part: _Partition, batch: Batch, error: LogbusError, now_ms: float
    ) -> None:
        earlier = [
            other
            for other in (*part.queue, *part.in_flight)
            if other.identity == batch.identity and other.order < batch.order
        ]
        if earlier or (part.spoiled and not batch.maybe_appended):
            # It came to the broker before one that failed, or after one that never will come.
            self._again(part, batch)
        elif batch.maybe_appended and isinstance(error, InvalidProducerEpochError):
            self._fail(part, batch, error)
        elif batch.maybe_appended:
            # Under another number it could be there twice. Whoever refuses it may have been deposed
            # without knowing: its log ends early, and the leader's does not.
            self._later(part, batch, error, now_ms)
        else:
            self.identity = None if self.identity == batch.identity else self.identity
            self._again(part, batch)
            part.spoiled = True
            part.identity = None

    def _too_large(self, part: _Partition, batch: Batch, error: LogbusError) -> None:
        assert batch.columns is not None
        if batch.row_count == 1:
            self._fail(part, batch, MessageTooLargeError(f"{batch.where}: {error.message}"))
            return
        if batch.maybe_appended and batch.sequence >= 0:
            # The limit was lowered meanwhile; halves would not pass for what was written whole.
            message = f"{batch.where}: {error.message}; sent before, it may be in the log"
            self._fail(part, batch, MessageTooLargeError(message))
            return
        # Halving each batch anew would send everything twice.
        known = self.limits_bytes.get(batch.topic, batch.size_bytes)
        self.limits_bytes[batch.topic] = min(known, max(1, batch.size_bytes // 2))
        middle = batch.row_count // 2
        size = batch.size_bytes // 2
        halves = []
        for start, stop in ((0, middle), (middle, batch.row_count)):
            half = Batch(
                batch.topic,
                batch.partition,
                batch.columns.slice(start, stop),
                timestamp_ms=batch.timestamp_ms,
                size_bytes=batch.size_bytes - size if start else size,
                deadline_ms=batch.deadline_ms,
                outcome=batch.outcome,
            )
            half.order = (batch.order[0], batch.order[1] + start)
            if batch.sequence >= 0:
                half.identity = batch.identity
                half.sequence = (batch.sequence + start) & SEQUENCE_MASK
            halves.append(half)
        batch.halves = halves
        batch.columns = batch.encoded = None
        batch.outcome.split_again()
        for half in reversed(halves):
            self._again(part, half)

    # -- the end of a batch

    def _fail(self, part: _Partition, batch: Batch, error: LogbusError) -> None:
        """A batch ends without having been written; what follows it needs other sequences."""
        if batch.sequence >= 0 and batch.identity == part.identity:
            part.spoiled = True
            part.held = True
            if batch.maybe_appended:
                # Its numbers may be taken in the log: they must not be used again.
                self.identity = None if self.identity == part.identity else self.identity
                part.identity = None
        self._finish(batch, error)

    def _finish(self, batch: Batch, error: LogbusError | None) -> None:
        batch.error = error
        batch.columns = batch.encoded = None
        self.done.append(batch)

    def _settle(self, where: TopicPartition, part: _Partition) -> None:
        """After a batch came back: go on once nothing is under way."""
        if not part.in_flight:
            part.held = False
            if part.spoiled:
                part.spoiled = False
                part.next_sequence = (part.acked_sequence + 1) & SEQUENCE_MASK
                for batch in part.queue:
                    if batch.sequence >= 0 and not batch.maybe_appended:
                        batch.renumber()
                    elif batch.sequence >= 0 and batch.identity == part.identity:
                        # It keeps its numbers, so what follows must not have them.
                        part.next_sequence = (batch.sequence + batch.row_count) & SEQUENCE_MASK
            if not part.queue:
                self._busy.pop(where, None)

    def expire(self, now_ms: float) -> None:
        """Fail what has waited beyond its deadline."""
        for where in list(self._busy):
            part = self._partitions[where]
            late = [batch for batch in part.queue if batch.deadline_ms <= now_ms]
            for batch in late:
                part.queue.remove(batch)
                self._fail(part, batch, self._late(part, batch))
            if late:
                self._settle(where, part)

    def _late(self, part: _Partition, batch: Batch) -> DeliveryTimedOutError:
        tries = f" (failures: {batch.attempts})" if batch.attempts else ""
        maybe = "; it may be in the log" if batch.maybe_appended else ""
        error = part.error or self.problem
        if error is None:
            why = "; it waited behind others: the broker is slower than what is sent"
        else:
            why = f"; the last error: {error}"
        cure = "see the broker's log"
        if isinstance(error, StorageError):
            cure = "mend that broker's disk, or make room on it (a shorter retention.ms)"
        elif isinstance(error, (NetworkError, NoBrokersError, RequestTimedOutError)):
            cure = "see whether the broker is up and reachable (logbus status)"
        elif isinstance(error, LeaderNotAvailableError):
            cure = "start the broker"
        return DeliveryTimedOutError(
            f"{batch.where}: not acknowledged within delivery.timeout.ms="
            f"{self._delivery_timeout_ms}{tries}{maybe}{why}. {cure[0].upper()}{cure[1:]}, "
            "or raise delivery.timeout.ms to wait longer"
        )

    def next_due_ms(self, now_ms: float) -> float:
        """When to call ``requests`` or ``expire`` again, if nothing else happens."""
        due = float("inf")
        for where in self._busy:
            part = self._partitions[where]
            if part.queue:
                due = min(due, part.queue[0].deadline_ms)
                if part.retry_at_ms > now_ms:
                    due = min(due, part.retry_at_ms)
        return due
