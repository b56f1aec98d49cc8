"""Turn a batch fetched from a mirror's source into the batch that the mirror sends to the target.

If possible, only the batch header changes: it gets the mirror's producer id and sequence, and is
not transactional any more. A batch must be decoded and encoded again, in the same format and
compression, in two cases:

- Not all its records are copied: compaction has removed some, or the copy starts within the batch.
- It has LogAppendTime. This time becomes the timestamp of each record.

Control batches and records of aborted transactions are not copied. The module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from broker_lite.client.received import Record, Slice, decode, offsets_of, records
from broker_lite.model import NULL_TOPIC_ID, TopicPartition
from broker_lite.record import arrow, transcode
from broker_lite.record import format as fmt
from broker_lite.record.arrays import numpy_of
from broker_lite.record.batch import BatchHeader, check_crc, read_header, set_crc
from broker_lite.record.compression import compress
from broker_lite.record.records import batch_of_rows
from broker_lite.record.walker import LogBatch

_CODECS: dict[int, arrow.Compression] = {
    fmt.CODEC_NONE: "none",
    fmt.CODEC_LZ4: "lz4",
    fmt.CODEC_ZSTD: "zstd",
}


class RewrittenBatch(NamedTuple):
    """A batch to send to the target. ``runs`` has the offsets that its records have at the source,
    as pairs (first offset, number of records)."""

    buffer: bytearray
    header: BatchHeader
    runs: tuple[tuple[int, int], ...]

    @property
    def row_count(self) -> int:
        return self.header.record_count


def rewrite(batch: LogBatch, tp: TopicPartition, start: int) -> RewrittenBatch | None:
    """Return the batch to send, with the records of a fetched batch from offset ``start`` on.
    Return None if it has no records there, or if the batch is not copied (empty, control or
    aborted).

    Raises CorruptMessageError for a corrupt batch."""
    header = batch.header
    is_dense = header.last_offset_delta == header.record_count - 1
    may_keep_body = is_dense and not (batch.is_void or header.is_log_append_time)
    if header.base_offset >= start and may_keep_body:
        check_crc(batch.buffer, header)
        buffer = bytearray(batch.buffer)
        sent = _plain(header)
        fmt.HEADER.pack_into(buffer, 0, *sent)
        return RewrittenBatch(buffer, sent, ((header.base_offset, header.record_count),))
    rows = decode(batch, tp, start, None)
    return None if rows is None else _encode_again(rows)


def _plain(header: BatchHeader) -> BatchHeader:
    """Return a batch's header without the source's flags (except the codec), offset, leader epoch
    and producer. Later the target sets its own offset and leader epoch, and the mirror the
    producer."""
    return header._replace(
        base_offset=0,
        leader_epoch=-1,
        attributes=header.attributes & fmt.CODEC_MASK,
        last_offset_delta=header.record_count - 1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


def _encode_again(rows: Slice) -> RewrittenBatch:
    header, first = rows.header, rows.first_row
    part = rows.columns.slice(first, first + rows.row_count)._replace(offset_deltas=None)
    if header.is_log_append_time:
        part = part._replace(timestamp=None)
    time_ms = header.constant_timestamp
    if header.is_columns:
        buffer = bytearray(
            arrow.encode(part, timestamp_ms=time_ms, compression=_CODECS[header.codec])
        )
    else:
        newest = time_ms
        if part.timestamp is not None:
            times = numpy_of(part.timestamp, np.int64)
            time_ms, newest = int(times[0]), int(times.max())
        body = transcode.encode_body(part, time_ms)
        fields = header._replace(
            record_count=rows.row_count, base_timestamp=time_ms, max_timestamp=newest
        )
        packed = body if header.codec == fmt.CODEC_NONE else compress(header.codec, body)
        buffer = batch_of_rows(_plain(fields), packed)
    return RewrittenBatch(buffer, read_header(buffer), _runs_of(rows))


def _runs_of(rows: Slice) -> tuple[tuple[int, int], ...]:
    offsets = offsets_of(rows)
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = [0, *edges.tolist()]
    stops = [*edges.tolist(), len(offsets)]
    return tuple((int(offsets[a]), b - a) for a, b in zip(starts, stops, strict=True))


def signed(
    piece: RewrittenBatch, producer_id: int, producer_epoch: int, sequence: int
) -> RewrittenBatch:
    """Write a producer id, epoch and sequence into the bytes of a batch. Return the batch with the
    new header."""
    header = piece.header._replace(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
    )
    fmt.HEADER.pack_into(piece.buffer, 0, *header)
    return piece._replace(header=header._replace(crc=set_crc(piece.buffer)))


Content = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""The content of a record, by which a mirror recognises a copy: timestamp, key, value, headers."""

_NOWHERE = TopicPartition(NULL_TOPIC_ID, 0)


def contents(rows: Slice) -> Iterator[tuple[int, Content]]:
    """Yield the offset and the content of each record."""
    for row in records(_NOWHERE, rows):
        yield row.offset, _content(row)


def piece_contents(piece: RewrittenBatch) -> Iterator[tuple[int, Content]]:
    """Yield the content of each record of a batch to send, with its offset at the source."""
    sent = signed(piece, -1, -1, -1)
    rows = decode(LogBatch(sent.header, memoryview(sent.buffer)), _NOWHERE, 0, None)
    if rows is None:
        return
    offsets = (first + at for first, count in piece.runs for at in range(count))
    for offset, row in zip(offsets, records(_NOWHERE, rows), strict=True):
        yield offset, _content(row)


def _content(row: Record) -> Content:
    return row.timestamp_ms, row.key, row.value, tuple(row.headers)
