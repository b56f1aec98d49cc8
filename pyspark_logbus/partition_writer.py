"""Write the Arrow batches of a task to topics, and wait until brokers acknowledge all rows.

A worker process keeps the producers of the most recently used sets of options, so consecutive tasks
of a query share a producer. No Python code runs for each row. Before this module sends a batch, it
checks the topics, partitions and headers of all the batch's rows. Later errors come only from the
producer, for example for a row that is too large. The module runs in executors, on the worker's
main thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.client.producing.producer import Producer
from broker_lite.client.transactions.attempt import AttemptProducer
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    InvalidPartitionsError,
    InvalidRecordError,
    LogbusError,
    NullTopicError,
    SinkAheadOfCheckpointError,
)
from broker_lite.model import NO_EPOCH, PartitionKey
from broker_lite.record.arrays import bitmap, fixed, nulls_of, numpy_of
from broker_lite.record.arrow import HEADERS_TYPE, TIMESTAMP_TYPE, Columns
from broker_lite.wire.calls.sinks import JoinBatchRequest
from pyspark_logbus.exactly_once import NO_PRODUCER, Attempt, TaskIdentity, abort_attempt
from pyspark_logbus.query_options import WriteOptions
from pyspark_logbus.schema import SinkColumns
from pyspark_logbus.worker_memory import keep_for_next_rows

JOINED_PARTITIONS_MAX = 32
"""Maximum partitions that a task attempt names when it joins its batch. Each gets a marker, even if
the attempt writes nothing to it. In a larger topic, leaders add the written partitions instead."""
SINKS_MAX = 4
"""Maximum number of sinks that a process keeps. A Spark worker outlives its queries, and each sink
has connections and a thread."""
PARTITIONS_KNOWN_S = 60.0
"""Seconds for which a sink caches a topic's partition count. A row for a higher partition number
causes a lookup at once."""


class Sink:
    """A producer with cached partition counts of topics. Each process has one sink for each set of
    sink options, and for each transactional id of an exactly-once batch."""

    def __init__(self, options: WriteOptions, transactional_id: str = "") -> None:
        keep_for_next_rows()
        self.options = options
        self.process = os.getpid()
        config = producer_config(options, transactional_id)
        kind = AttemptProducer if transactional_id else Producer
        self.producer = kind(options.bootstrap_servers, config)
        self._partitions: dict[str, tuple[int, float]] = {}

    def partitions(self, topic: str, at_least: int = 0) -> int:
        """Return the partition count of a topic. If the cached count is below ``at_least``, look it
        up again. Raises UnknownTopicOrPartitionError."""
        known = self._partitions.get(topic)
        now = time.monotonic()
        if known is None or known[0] < at_least or now - known[1] > PARTITIONS_KNOWN_S:
            known = self._partitions[topic] = (self.producer.partition_count(topic), now)
        return known[0]


_sinks: dict[tuple[WriteOptions, str], Sink] = {}


def producer_config(options: WriteOptions, transactional_id: str = "") -> ProducerConfig:
    """Return a producer's configuration for the options of a sink."""
    return ProducerConfig(
        transactional_id=transactional_id,
        acks=options.acks,
        linger_ms=options.linger_ms,
        batch_bytes=options.batch_bytes,
        max_request_bytes=options.request_bytes_max,
        buffer_bytes=options.buffer_bytes,
        max_block_ms=options.max_block_ms,
        delivery_timeout_ms=options.delivery_timeout_ms,
        request_timeout_ms=options.request_timeout_ms,
        retry_backoff_ms=options.retry_backoff_ms,
        compression=options.compression,
        idempotence=options.idempotence,
        client_id=options.client_id,
        security=options.given_security(),
        has_answered=True,  # The driver reached a broker, so do not fail after FIRST_CONTACT_MS.
    )


def sink_for(options: WriteOptions, transactional_id: str = "") -> Sink:
    """Return this process's sink (producer) for ``options``; create it if there is none.

    A forked child process creates its own sinks. If there are more than SINKS_MAX, the least
    recently used sink is closed.
    """
    key = options, transactional_id
    sink = _sinks.pop(key, None)
    if sink is None or sink.process != os.getpid():
        sink = Sink(options, transactional_id)
    _sinks[key] = sink
    while len(_sinks) > SINKS_MAX:
        oldest = _sinks.pop(next(iter(_sinks)))
        if oldest.process == os.getpid():
            with contextlib.suppress(LogbusError):
                oldest.producer.close(0)
    return sink


def write_batches(
    batches: Iterable[pa.RecordBatch], options: WriteOptions, columns: SinkColumns
) -> dict[str, int]:
    """Write a task's rows and wait for their acknowledgements. Return the number of rows by topic.

    Raises NullTopicError, UnknownTopicOrPartitionError, InvalidPartitionsError,
    MessageTooLargeError, DeliveryTimedOutError and errors that brokers return.
    """
    written: dict[str, int] = {}
    with _sink_of_task(options) as sink:
        for batch in batches:
            for topic, count in _send(sink, batch, columns):
                written[topic] = written.get(topic, 0) + count
        sink.producer.flush()
    return written


def write_attempt(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    columns: SinkColumns,
    identity: TaskIdentity,
) -> Attempt:
    """Write a task's rows as one attempt of an exactly-once batch.

    The attempt joins the batch at its first row. If the coordinator has committed the batch before,
    this function only counts the rows. It still reads all of them, because Spark's stateful
    operators commit their state only once all their rows are consumed. Raises the errors of
    ``write_batches`` and those of the coordinator.
    """
    joined: ProducerIdentity | None = None
    rows = 0
    try:
        with _sink_of_task(options, identity.sink) as sink:
            producer = sink.producer
            assert isinstance(producer, AttemptProducer)
            producer.keep(identity.run, identity.batch, options.transaction_timeout_ms)
            for batch in batches:
                if not batch.num_rows:
                    continue
                if not rows:
                    joined = _join(producer, sink, identity)
                rows += batch.num_rows
                if joined is not None:
                    for _ in _send(sink, batch, columns):
                        pass
            if joined is not None:
                producer.finish()
            else:
                producer.leave()
    except BaseException:
        # Abort the attempt: its open records would keep ``read_committed`` readers from later
        # records. BaseException includes the interruption of a killed task.
        if joined is not None:
            abort_attempt(options, identity, joined)
        raise
    return Attempt(identity, joined or (NO_PRODUCER, NO_EPOCH), rows)


def _partitions(sink: Sink) -> tuple[PartitionKey, ...]:
    """Return the partitions of the option ``topic``, so that no leader must ask the coordinator to
    add them.

    Return none if each row names its topic, or if there are more than JOINED_PARTITIONS_MAX."""
    topic = sink.options.topic
    count = sink.partitions(topic) if topic else 0
    if count > JOINED_PARTITIONS_MAX:
        return ()
    topic_id = sink.producer.topic_id(topic)
    return tuple(PartitionKey(topic_id, partition) for partition in range(count))


def _join(producer: AttemptProducer, sink: Sink, identity: TaskIdentity) -> ProducerIdentity | None:
    """Join the exactly-once batch: get a producer id and epoch for this attempt. Return None if the
    coordinator has committed the batch before."""
    timeout_ms = sink.options.transaction_timeout_ms
    request = JoinBatchRequest(*identity, timeout_ms, _partitions(sink))
    try:
        return producer.join(request)
    except SinkAheadOfCheckpointError:
        if sink.options.skips_replay_mismatch:
            return None
        raise


@contextlib.contextmanager
def _sink_of_task(options: WriteOptions, transactional_id: str = "") -> Iterator[Sink]:
    """Yield the process's sink for use by one task. If the task fails, discard the sink, because
    its producer may still hold records of that task."""
    sink = sink_for(options, transactional_id)
    try:
        yield sink
    except BaseException:
        _sinks.pop((options, transactional_id), None)
        with contextlib.suppress(LogbusError):
            sink.producer.close(0)
        raise


def _send(sink: Sink, batch: pa.RecordBatch, columns: SinkColumns) -> Iterator[tuple[str, int]]:
    """Check the topics, partitions and headers of a batch, then send its rows. Yield each topic
    with its number of rows."""
    parts = list(by_topic(batch, sink.options.topic, columns))
    checked = [(topic, *_check(sink, topic, part, columns)) for topic, part in parts]
    for topic, rows, chosen in checked:
        sink.producer.send_columns(topic, rows, chosen)
        yield topic, rows.row_count


def by_topic(
    batch: pa.RecordBatch, topic: str, columns: SinkColumns
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each topic of a batch with its rows in their order. ``topic`` is the value of the
    option ``topic``, or empty.

    Raises NullTopicError before the first topic if a row has no topic.
    """
    if not batch.num_rows:
        return
    if topic:
        yield topic, batch
        return
    column = batch.column(columns.topic)
    if column.null_count:
        raise NullTopicError(
            "null topic present in the data. Give every row a topic, or set the option 'topic'"
        )
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    indices = numpy_of(encoded.indices, np.int32)
    for index, name in enumerate(names):
        is_wanted = bitmap(indices == index)
        yield name, batch.filter(pa.Array.from_buffers(pa.bool_(), len(batch), [None, is_wanted]))


def _check(
    sink: Sink, topic: str, batch: pa.RecordBatch, columns: SinkColumns
) -> tuple[Columns, npt.NDArray[np.int32] | None]:
    """Check the rows of one topic. Return the rows as the producer's columns, and the partition
    number of each row. In place of the partition numbers, return None if the rows have no partition
    column: the producer then chooses.

    Raises InvalidPartitionsError, InvalidRecordError and UnknownTopicOrPartitionError.
    """
    count = sink.partitions(topic)
    rows = to_columns(batch, columns)
    if columns.partition < 0:
        return rows, None
    requested = batch.column(columns.partition)
    chosen = known = numpy_of(requested, np.int32)
    if requested.null_count:
        nulls = nulls_of(requested)
        known = chosen[~nulls]
        # -1 means that the key or the producer chooses the partition.
        chosen = np.where(nulls, np.int32(-1), chosen)
    highest = int(known.max(initial=-1))
    if highest >= count:
        count = sink.partitions(topic, highest + 1)
    check_partitions(topic, known, count)
    return rows, chosen


def check_partitions(topic: str, requested: npt.NDArray[np.int32], count: int) -> None:
    """Raise InvalidPartitionsError if ``requested`` has a partition number outside ``0`` to ``count
    - 1``."""
    low, high = int(requested.min(initial=0)), int(requested.max(initial=0))
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise InvalidPartitionsError(
            f"partition {wrong} of topic {topic!r} is out of range: it has {count} partitions "
            f"(0 to {count - 1}); use one of them, or null to let the key decide"
        )


def to_columns(batch: pa.RecordBatch, columns: SinkColumns) -> Columns:
    """Return a batch's columns in the types that the producer takes. Strings become binary values
    without a copy."""
    return Columns(
        batch.num_rows,
        None if columns.key < 0 else _binary(batch.column(columns.key)),
        _binary(batch.column(columns.value)),
        None if columns.timestamp < 0 else _millis(batch.column(columns.timestamp)),
        None if columns.headers < 0 else _headers(batch.column(columns.headers)),
    )


def _binary(column: pa.Array) -> pa.Array | None:
    if column.null_count == len(column):
        return None
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _headers(column: pa.Array) -> pa.Array | None:
    if column.null_count == len(column):
        return None
    keys = column.flatten().field("key")
    if keys.null_count:
        raise InvalidRecordError("a header's key is null; give every header a key")
    return column if column.type == HEADERS_TYPE else column.cast(HEADERS_TYPE)


def _millis(column: pa.Array) -> pa.Array:
    """Convert Spark's microseconds to milliseconds, rounded down. A null becomes the current
    time."""
    millis = numpy_of(column, np.int64) // 1000
    if column.null_count:
        millis[nulls_of(column)] = int(time.time() * 1000)
    return fixed(millis, TIMESTAMP_TYPE)
