"""Tests of ``fill_in``, which computes a batch's maximum timestamp if the producer left it out."""

from __future__ import annotations

import random

import pytest
from support.row_codec import Row, decode_rows, encode_rows

from broker_lite.errors import CorruptMessageError, InvalidRecordError
from broker_lite.record import format as fmt
from broker_lite.record import newest_time
from broker_lite.record.batch import check_crc, read_header, set_max_timestamp


def untimed(value: bytes, codec: int = fmt.CODEC_GZIP) -> memoryview:
    rows = [Row(at, time, None, value, ()) for at, time in enumerate((7, 9, 8))]
    sent = encode_rows(rows, codec=codec)
    assert not newest_time.is_left_out(memoryview(sent))
    set_max_timestamp(sent, read_header(sent), -1)
    assert newest_time.is_left_out(memoryview(sent))
    return memoryview(sent)


@pytest.mark.parametrize("codec", range(5))
def test_broker_computes_a_missing_max_timestamp_from_the_records_of_the_batch(codec: int) -> None:
    sent = untimed(b"value", codec)
    newest_time.fill_in(sent)
    header = read_header(sent)
    check_crc(sent, header)
    assert header.max_timestamp == 9
    assert [row.timestamp_ms for row in decode_rows(sent, header)] == [7, 9, 8]


def test_small_batch_without_timestamp_that_decompresses_beyond_the_limit_is_refused() -> None:
    newest_time.fill_in(untimed(bytes(300_000)))
    bomb = untimed(bytes(400_000))
    assert len(bomb) < 10_000
    with pytest.raises(InvalidRecordError, match=r"sarama from 1\.46"):
        newest_time.fill_in(bomb)
    assert newest_time.is_left_out(bomb)


def test_large_batch_may_decompress_to_sixteen_times_its_size() -> None:
    content = bytes(range(256)) * 2000
    sent = untimed(content, fmt.CODEC_NONE)
    newest_time.fill_in(sent)
    assert read_header(sent).max_timestamp == 9


def test_large_batch_that_decompresses_to_more_than_64_mib_is_refused() -> None:
    """The ratio alone would let a batch of 8 MiB, the default of max.message.bytes, decompress to
    128 MiB."""
    packed, body = 8 << 20, 120 << 20
    value = random.Random(1).randbytes(packed // 3) + bytes((body - packed) // 3)
    bomb = untimed(value, fmt.CODEC_LZ4)
    assert packed <= len(bomb) and body < newest_time.BODY_RATIO * len(bomb)
    with pytest.raises(InvalidRecordError, match=f"beyond {64 << 20} bytes"):
        newest_time.fill_in(bomb)
    assert newest_time.is_left_out(bomb)


def test_broker_computes_no_maximum_timestamp_for_a_corrupt_batch() -> None:
    damaged = untimed(b"value")
    damaged[-1] ^= 1
    before = bytes(damaged)
    with pytest.raises(CorruptMessageError):
        newest_time.fill_in(damaged)
    assert damaged == before
