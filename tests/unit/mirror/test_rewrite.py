"""Tests of how a mirror rewrites fetched batches for the target cluster."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support import hand_made_log as by_hand
from support.row_codec import Row, encode_rows

from broker_lite.client.received import WalkResult
from broker_lite.errors import CorruptMessageError
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.offset_map import OffsetMap
from broker_lite.mirror.rewrite import piece_contents, rewrite, signed
from broker_lite.model import TopicPartition
from broker_lite.record import arrow
from broker_lite.record import format as fmt
from broker_lite.record.batch import (
    read_header,
    set_log_append_time,
    stamp,
    validate_for_append,
)
from broker_lite.record.walker import LogBatch
from broker_lite.wire.fetch import FetchedPartition

WHERE = TopicPartition("t", 0)
HEADERS = (("a", b"1"), ("none", None))


def rows_at(*offsets: int) -> list[Row]:
    return [Row(at, 1000 + at, None if at % 3 else b"k", b"v%d" % at, HEADERS) for at in offsets]


def batch_of(*offsets: int, codec: int = fmt.CODEC_ZSTD, **fields: int) -> bytearray:
    buffer = encode_rows(rows_at(*offsets), codec=codec, **fields)
    stamp(buffer, read_header(buffer), offsets[0], 3)
    return buffer


def raw(buffer: bytearray) -> LogBatch:
    return LogBatch(read_header(buffer), memoryview(buffer))


@pytest.mark.parametrize("codec", range(5))
def test_whole_kafka_batch_is_copied_with_unchanged_record_bytes(codec: int) -> None:
    transactional = fmt.ATTRIBUTE_TRANSACTIONAL | fmt.ATTRIBUTE_DELETE_HORIZON
    buffer = batch_of(
        7, 8, 9, codec=codec, attributes=transactional, producer_id=5, producer_epoch=1,
        base_sequence=4,
    )  # fmt: skip
    piece = rewrite(raw(buffer), WHERE, 0)
    assert piece is not None and piece.runs == ((7, 3),)
    sent = signed(piece, 11, 0, 40)
    validate_for_append(sent.buffer, sent.header, 1 << 20)
    assert sent.buffer[fmt.HEADER_BYTES :] == buffer[fmt.HEADER_BYTES :]
    header = read_header(sent.buffer)
    assert (header.producer_id, header.base_sequence, header.attributes) == (11, 40, codec)


def test_mirror_copies_a_whole_or_partial_arrow_batch_as_an_arrow_batch() -> None:
    columns = arrow.Columns(2, None, pa.array([b"a", None], pa.binary()))
    buffer = bytearray(arrow.encode(columns, timestamp_ms=5, compression="lz4"))
    stamp(buffer, read_header(buffer), 20, 3)
    piece = rewrite(raw(buffer), WHERE, 20)
    assert piece is not None
    sent = signed(piece, 1, 0, 0)
    assert sent.header.is_columns and sent.buffer[fmt.HEADER_BYTES :] == buffer[fmt.HEADER_BYTES :]
    half = rewrite(raw(buffer), WHERE, 21)
    assert half is not None and half.header.is_columns and half.runs == ((21, 1),)
    assert [at for at, _ in piece_contents(half)] == [21]
    assert [at for at, _ in piece_contents(piece)] == [20, 21]


def test_batch_with_offset_gaps_is_copied_without_gaps() -> None:
    piece = rewrite(raw(batch_of(10, 11, 14, 20, 21)), WHERE, 11)
    assert piece is not None and piece.runs == ((11, 1), (14, 1), (20, 2))
    sent = signed(piece, 1, 0, 0)
    validate_for_append(sent.buffer, sent.header, 1 << 20)
    assert list(piece_contents(piece)) == [
        (row.offset, (row.timestamp_ms, row.key, row.value, row.headers))
        for row in rows_at(11, 14, 20, 21)
    ]


def test_log_append_time_of_the_source_becomes_the_timestamp_of_the_copy() -> None:
    buffer = batch_of(0, 1)
    set_log_append_time(buffer, read_header(buffer), 99_000)
    piece = rewrite(raw(buffer), WHERE, 0)
    assert piece is not None and not piece.header.is_log_append_time
    assert [content[0] for _, content in piece_contents(piece)] == [99_000, 99_000]


def test_corrupt_batch_is_not_copied() -> None:
    for offsets, start in (((0, 1), 0), ((0, 1), 1), ((0, 2), 0)):
        buffer = batch_of(*offsets)
        buffer[-1] ^= 1
        with pytest.raises(CorruptMessageError):
            rewrite(raw(buffer), WHERE, start)


def test_mirror_copies_only_committed_records_of_a_compacted_log() -> None:
    answer = FetchedPartition(
        0, 0, by_hand.END, by_hand.END, 0, memoryview(b"".join(by_hand.with_gaps())),
        by_hand.ABORTED, None, -1, -1,
    )  # fmt: skip
    walked = Copy(WHERE, "s", "t", OffsetMap()).position.evaluate(answer)
    assert isinstance(walked, WalkResult)
    pieces = [rewrite(batch, WHERE, 0) for batch in walked.batches]
    runs = [run for piece in pieces if piece is not None for run in piece.runs]
    assert [first + at for first, count in runs for at in range(count)] == by_hand.COMMITTED
    assert (walked.next_offset, len(walked.batches)) == (by_hand.END, len(by_hand.with_gaps()))
