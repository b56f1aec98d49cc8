"""The requests of Spark's exactly-once sink: logbus's own JoinBatch, EndBatch and KeepBatch,
version 0.

A sink is the target of one Spark query, which writes each of its batches (micro-batches) exactly
once. A run is one start of the query. Several tasks write a batch, and Spark may execute a task in
several attempts. The coordinator, a broker, gives each attempt a producer id, and commits one
attempt of each task. The answers have logbus's own error codes, and a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from broker_lite.errors import NO_ERROR
from broker_lite.model import NO_PRODUCER, PartitionKey
from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import Codec, DeclaredCall, Int16, Int64
from broker_lite.wire.primitives import Writer


def _put_partition(writer: Writer, row: PartitionKey) -> None:
    writer.uuid(row.topic_id)
    writer.i32(row.partition)


def _put_producer(writer: Writer, row: tuple[int, int]) -> None:
    writer.i64(row[0])
    writer.i16(row[1])


# Kafka's structures end with tagged fields. These two do not, because a request can have many.
_Partition = Annotated[
    PartitionKey, Codec(_put_partition, lambda reader: PartitionKey(reader.uuid(), reader.i32()))
]
_Producer = Annotated[
    tuple[int, int], Codec(_put_producer, lambda reader: (reader.i64(), reader.i16()))
]


class SinkResponse(NamedTuple):
    """The answer to JoinBatch, EndBatch and KeepBatch. For JoinBatch, it has the producer id and
    epoch with which the attempt writes, or NO_PRODUCER if the batch is committed already."""

    error_code: Int16 = NO_ERROR
    error_message: str = ""
    producer_id: Int64 = NO_PRODUCER
    producer_epoch: Int16 = -1


@dataclass(frozen=True, slots=True)
class JoinBatchRequest(DeclaredCall[SinkResponse]):
    """Tell the coordinator that an attempt of a task begins to write its part of a batch.

    ``partitions`` are the partitions to which the attempt may write; empty if they are too many to
    list."""

    API_KEY: ClassVar[int] = ApiKey.JOIN_BATCH
    VERSION: ClassVar[int] = 0

    sink: str
    run: str
    batch: Int64
    task: Int64
    attempt: Int64
    timeout_ms: Int64
    partitions: tuple[_Partition, ...] = ()


@dataclass(frozen=True, slots=True)
class EndBatchRequest(DeclaredCall[SinkResponse]):
    """Commit or abort a batch of a Spark exactly-once sink.

    ``winners`` are attempts, given as pairs of producer id and epoch. With ``is_commit``, the batch
    is committed with their records. Otherwise these attempts are aborted, or the whole batch if
    ``winners`` is empty."""

    API_KEY: ClassVar[int] = ApiKey.END_BATCH
    VERSION: ClassVar[int] = 0

    sink: str
    run: str
    batch: Int64
    is_commit: bool
    rows: Int64 = 0
    winners: tuple[_Producer, ...] = ()


@dataclass(frozen=True, slots=True)
class KeepBatchRequest(DeclaredCall[SinkResponse]):
    """Tell the coordinator that an attempt is still writing the batch, so that the batch does not
    time out."""

    API_KEY: ClassVar[int] = ApiKey.KEEP_BATCH
    VERSION: ClassVar[int] = 0

    sink: str
    run: str
    batch: Int64
