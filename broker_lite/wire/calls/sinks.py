"""The requests of Spark's exactly-once sink: logbus's own JoinBatch, EndBatch and KeepBatch,
version 0.

A sink is the target of one Spark query, which writes each of its batches (micro-batches) exactly
once. A run is one start of the query. Several tasks write a batch, and Spark may execute a task in
several attempts. The coordinator, a broker, gives each attempt a producer id, and commits one
attempt of each task. The answers have logbus's own error codes, and a message."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.errors import NO_ERROR
from broker_lite.model import NO_PRODUCER, PartitionKey
from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer

_JOIN = struct.Struct(">qqqq")
"""Layout of the fields of a JoinBatch request: batch, task, attempt, timeout in ms."""
_END = struct.Struct(">q?q")
"""Layout of the fields of an EndBatch request: batch, whether to commit, number of rows."""
_PAIR = struct.Struct(">qh")
_RESULT = struct.Struct(">qh")


class SinkResponse(NamedTuple):
    """The answer to JoinBatch, EndBatch and KeepBatch. For JoinBatch, it has the producer id and
    epoch with which the attempt writes, or NO_PRODUCER if the batch is committed already."""

    error_code: int = NO_ERROR
    error_message: str = ""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1


def encode_sink_response(response: SinkResponse, writer: Writer) -> None:
    """Write the body of the answer to a request of Spark's exactly-once sink, on the broker's
    side."""
    writer.i16(response.error_code)
    writer.string(response.error_message)
    writer.pack(_RESULT, response.producer_id, response.producer_epoch)
    writer.tag_end()


def _decode(reader: Reader) -> SinkResponse:
    response = SinkResponse(reader.i16(), reader.string(), *reader.unpack(_RESULT))
    return reader.ended(response)


@dataclass(frozen=True, slots=True)
class JoinBatchRequest:
    """Tell the coordinator that an attempt of a task begins to write its part of a batch.

    ``partitions`` are the partitions to which the attempt may write; empty if they are too many to
    list."""

    API_KEY: ClassVar[int] = ApiKey.JOIN_BATCH
    VERSION: ClassVar[int] = 0

    sink: str
    run: str
    batch: int
    task: int
    attempt: int
    timeout_ms: int
    partitions: tuple[PartitionKey, ...] = ()

    def encode(self, writer: Writer) -> None:
        writer.string(self.sink)
        writer.string(self.run)
        writer.pack(_JOIN, self.batch, self.task, self.attempt, self.timeout_ms)

        def put(row: PartitionKey) -> None:
            writer.uuid(row.topic_id)
            writer.i32(row.partition)

        writer.array(self.partitions, put)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> SinkResponse:
        return _decode(reader)

    @staticmethod
    def decode_request(reader: Reader) -> JoinBatchRequest:
        """Decode a JoinBatch request from the start of its body, on the broker's side."""
        sink, run = reader.string(), reader.string()
        batch, task, attempt, timeout_ms = reader.unpack(_JOIN)
        partitions = reader.array(lambda it: PartitionKey(it.uuid(), it.i32()))
        request = JoinBatchRequest(sink, run, batch, task, attempt, timeout_ms, partitions)
        return reader.ended(request)


@dataclass(frozen=True, slots=True)
class EndBatchRequest:
    """Commit or abort a batch of a Spark exactly-once sink.

    ``winners`` are attempts, given as pairs of producer id and epoch. With ``is_commit``, the batch
    is committed with their records. Otherwise these attempts are aborted, or the whole batch if
    ``winners`` is empty."""

    API_KEY: ClassVar[int] = ApiKey.END_BATCH
    VERSION: ClassVar[int] = 0

    sink: str
    run: str
    batch: int
    is_commit: bool
    winners: tuple[tuple[int, int], ...] = ()
    rows: int = 0

    def encode(self, writer: Writer) -> None:
        writer.string(self.sink)
        writer.string(self.run)
        writer.pack(_END, self.batch, self.is_commit, self.rows)
        writer.array(self.winners, lambda pair: writer.pack(_PAIR, *pair))
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> SinkResponse:
        return _decode(reader)

    @staticmethod
    def decode_request(reader: Reader) -> EndBatchRequest:
        """Decode an EndBatch request from the start of its body, on the broker's side."""
        sink, run = reader.string(), reader.string()
        batch, is_commit, rows = reader.unpack(_END)
        winners = reader.array(lambda it: it.unpack(_PAIR))
        return reader.ended(EndBatchRequest(sink, run, batch, is_commit, winners, rows))


@dataclass(frozen=True, slots=True)
class KeepBatchRequest:
    """Tell the coordinator that an attempt is still writing the batch, so that the batch does not
    time out."""

    API_KEY: ClassVar[int] = ApiKey.KEEP_BATCH
    VERSION: ClassVar[int] = 0

    sink: str
    run: str
    batch: int

    def encode(self, writer: Writer) -> None:
        writer.string(self.sink)
        writer.string(self.run)
        writer.i64(self.batch)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> SinkResponse:
        return _decode(reader)

    @staticmethod
    def decode_request(reader: Reader) -> KeepBatchRequest:
        """Decode a KeepBatch request from the start of its body, on the broker's side."""
        return reader.ended(KeepBatchRequest(reader.string(), reader.string(), reader.i64()))
