"""Tests of batch headers: parsing, changed fields, checksums, and the checks before an append."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from support.row_codec import Row, encode_rows

from broker_lite.errors import (
    CorruptMessageError,
    InvalidRecordError,
    LogbusError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from broker_lite.record import arrow, batch
from broker_lite.record import format as fmt

ROWS = [Row(i, 1000 + i, b"k%d" % i, b"value %d" % i) for i in range(10)]
MAX_BYTES = 1 << 20


def rows_batch(**options: int) -> bytearray:
    return encode_rows(ROWS, **options)


def columns_batch(**options: object) -> bytearray:
    columns = arrow.Columns(
        10, pa.array([b"k%d" % i for i in range(10)]), pa.array([b"v%d" % i for i in range(10)])
    )
    return bytearray(arrow.encode(columns, timestamp_ms=1000, **options))  # type: ignore[arg-type]


BATCHES: dict[str, Callable[[], bytearray]] = {"rows": rows_batch, "columns": columns_batch}


def append_error(buffer: bytearray, max_bytes: int = MAX_BYTES) -> type[LogbusError] | None:
    try:
        batch.validate_for_append(buffer, batch.read_header(buffer), max_bytes)
    except LogbusError as error:
        return type(error)
    return None


def with_fields(buffer: bytearray, **fields: int) -> bytearray:
    """Return the batch with these header fields replaced and its CRC corrected."""
    header = batch.read_header(buffer)._replace(**fields)
    fmt.HEADER.pack_into(buffer, 0, *header)
    batch.set_crc(buffer)
    return buffer


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_valid_batches_are_accepted(make: Callable[[], bytearray]) -> None:
    assert append_error(make()) is None


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(
    "fields, error",
    [
        ({"record_count": 0}, InvalidRecordError),
        ({"record_count": 9}, InvalidRecordError),
        ({"record_count": fmt.RECORDS_MAX + 1, "last_offset_delta": fmt.RECORDS_MAX}, None),
        ({"last_offset_delta": 10}, InvalidRecordError),
        ({"base_offset": 5}, InvalidRecordError),
        ({"attributes": fmt.ATTRIBUTE_CONTROL}, InvalidRecordError),
        ({"attributes": fmt.ATTRIBUTE_TRANSACTIONAL}, InvalidRecordError),
        ({"producer_id": 4, "producer_epoch": -1, "base_sequence": 0}, InvalidRecordError),
        ({"producer_id": 4, "producer_epoch": 0, "base_sequence": -1}, InvalidRecordError),
        ({"attributes": 5}, UnsupportedCompressionTypeError),
        ({"attributes": 7}, UnsupportedCompressionTypeError),
    ],
)
def test_batch_with_an_invalid_header_is_refused(
    make: Callable[[], bytearray], fields: dict[str, int], error: type[LogbusError] | None
) -> None:
    assert append_error(with_fields(make(), **fields)) is (error or InvalidRecordError)


def test_batch_without_producer_id_may_have_sequence_zero() -> None:
    # kafkajs sends epoch 0 and sequence 0 with producer id -1.
    assert append_error(with_fields(rows_batch(), producer_epoch=0, base_sequence=0)) is None


def test_idempotent_and_transactional_batches_are_accepted() -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    assert append_error(with_fields(rows_batch(), **fields)) is None
    fields["attributes"] = fmt.ATTRIBUTE_TRANSACTIONAL
    assert append_error(with_fields(columns_batch(), **fields)) is None


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_append_accepts_exactly_one_batch_within_the_size_limit(
    make: Callable[[], bytearray],
) -> None:
    buffer = make()
    assert append_error(buffer, len(buffer)) is None
    assert append_error(buffer, len(buffer) - 1) is MessageTooLargeError
    assert append_error(buffer + make()) is InvalidRecordError
    assert append_error(buffer + b"x") is InvalidRecordError
    assert append_error(buffer[:-1]) is CorruptMessageError


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_every_flipped_bit_after_the_crc_is_detected(make: Callable[[], bytearray]) -> None:
    for position in range(fmt.POSITION_CRC, len(make())):
        buffer = make()
        buffer[position] ^= 0x10
        assert append_error(buffer) is CorruptMessageError, position


def test_arrow_batch_with_a_codec_that_arrow_lacks_is_refused() -> None:
    for codec in (fmt.CODEC_GZIP, fmt.CODEC_SNAPPY):
        buffer = with_fields(columns_batch(), attributes=codec)
        assert append_error(buffer) is UnsupportedCompressionTypeError
    assert append_error(with_fields(columns_batch(), attributes=fmt.CODEC_LZ4)) is (
        InvalidRecordError
    )
    for compression in ("lz4", "zstd"):
        assert append_error(columns_batch(compression=compression)) is None


@pytest.mark.parametrize("bad", [[0, 6, 3, 9], [0, 3, 6, 10], [-5, 3, 6, 9], [9, 9, 9, 0]])
def test_arrow_batch_with_invalid_value_offsets_gets_a_non_retriable_error(
    bad: list[int],
) -> None:
    """With a retriable error, the producer would resend the batch until its delivery timeout."""
    values = pa.array([b"aaa", b"bbb", b"ccc"])
    buffer = bytearray(arrow.encode(arrow.Columns(3, None, values), timestamp_ms=0))
    at = buffer.rindex(np.array([0, 3, 6, 9], np.int32).tobytes())
    buffer[at : at + 16] = np.array(bad, np.int32).tobytes()
    assert append_error(with_fields(buffer)) is InvalidRecordError


def test_arrow_batch_with_a_wrong_null_count_gets_a_non_retriable_error() -> None:
    values = pa.array([b"a", None, b"c", None] * 4)
    buffer = bytearray(arrow.encode(arrow.Columns(16, None, values), timestamp_ms=0))
    assert append_error(with_fields(buffer)) is None
    at = buffer.rindex(bytes([0b0101_0101] * 2))
    buffer[at] ^= 0b0010
    assert append_error(with_fields(buffer)) is InvalidRecordError


def test_arrow_batch_with_out_of_bounds_header_offsets_gets_invalid_record() -> None:
    headers = pa.array([[("h", b"1")], [("h", b"2"), ("h", b"3")]], arrow.HEADERS_TYPE)
    columns = arrow.Columns(2, None, pa.array([b"a", b"b"]), None, headers)
    buffer = bytearray(arrow.encode(columns, timestamp_ms=0))
    assert append_error(with_fields(buffer)) is None
    at = buffer.index(np.array([0, 1, 3], np.int32).tobytes())
    buffer[at : at + 12] = np.array([0, 1, 4], np.int32).tobytes()
    assert append_error(with_fields(buffer)) is InvalidRecordError


def test_batch_with_offset_gaps_from_a_producer_is_refused() -> None:
    deltas = np.arange(3, dtype=np.int32)
    columns = arrow.Columns(3, None, pa.array([b"a", b"b", b"c"]), offset_deltas=deltas)
    assert append_error(bytearray(arrow.encode(columns, timestamp_ms=0))) is InvalidRecordError
    columns = columns._replace(offset_deltas=deltas * 2)
    assert append_error(bytearray(arrow.encode(columns, timestamp_ms=0))) is InvalidRecordError


def test_batch_with_more_records_than_bytes_is_refused() -> None:
    buffer = with_fields(rows_batch(), record_count=1000, last_offset_delta=999)
    assert append_error(buffer) is CorruptMessageError


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_setting_offset_and_leader_epoch_of_a_batch_keeps_its_crc_valid(
    make: Callable[[], bytearray],
) -> None:
    buffer = make()
    before = batch.read_header(buffer)
    batch.stamp(buffer, before, 1 << 40, 17)
    after = batch.read_header(buffer)
    assert after == before._replace(base_offset=1 << 40, leader_epoch=17)
    batch.check_crc(buffer, after)
    assert after.next_offset == (1 << 40) + 10


@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_setting_log_append_time_in_a_batch_updates_its_crc(make: Callable[[], bytearray]) -> None:
    buffer = make()
    returned = batch.set_log_append_time(buffer, batch.read_header(buffer), 99_000)
    header = batch.read_header(buffer)
    assert header == returned
    batch.check_crc(buffer, header)
    assert header.is_log_append_time
    assert header.max_timestamp == header.constant_timestamp == 99_000
    assert header.base_timestamp == 1000


def test_arrow_batch_without_timestamps_has_the_base_timestamp() -> None:
    assert batch.read_header(columns_batch()).constant_timestamp == 1000


def test_crc_of_a_batch_within_a_larger_buffer_is_checked() -> None:
    first = rows_batch()
    buffer = first + columns_batch()
    for position in (0, len(first)):
        batch.check_crc(memoryview(buffer)[position:], batch.read_header(buffer, position))


@pytest.mark.parametrize(
    "position, raw",
    [
        (fmt.POSITION_MAGIC, b"\x01"),
        (fmt.POSITION_MAGIC, b"\x42"),
        (8, b"\x00\x00\x00\x00"),
        (8, b"\xff\xff\xff\xff"),
        (8, b"\x7f\xff\xff\xff"),
        (23, b"\xff\xff\xff\xff"),
        (57, b"\xff\xff\xff\xff"),
    ],
)
def test_batch_header_with_impossible_sizes_is_corrupt(position: int, raw: bytes) -> None:
    buffer = rows_batch()
    buffer[position : position + len(raw)] = raw
    with pytest.raises(CorruptMessageError):
        batch.read_header(buffer)


def test_truncated_batch_header_is_corrupt() -> None:
    for size in range(fmt.HEADER_BYTES):
        with pytest.raises(CorruptMessageError):
            batch.read_header(rows_batch()[:size])


def test_last_sequence_of_a_batch_wraps_to_zero_after_2_to_the_31() -> None:
    header = batch.read_header(with_fields(rows_batch(), base_sequence=2**31 - 3))
    assert header.last_sequence == 6
