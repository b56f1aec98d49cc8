"""Tests of Arrow batches: encoding and decoding of types, slices, nulls, limits and memory."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_lite.errors import (
    CorruptMessageError,
    InvalidSchemaError,
    InvalidTimestampError,
    MessageTooLargeError,
)
from broker_lite.record import arrow, batch, message
from broker_lite.record import format as fmt
from broker_lite.record.arrow import Columns

COMPRESSIONS: tuple[arrow.Compression, ...] = ("none", "lz4", "zstd")
NOW = 1_700_000_000_000


def both_ways(columns: Columns, **options: object) -> tuple[batch.BatchHeader, Columns]:
    buffer = arrow.encode(columns, timestamp_ms=NOW, **options)  # type: ignore[arg-type]
    header = batch.read_header(buffer)
    assert header.size_bytes == len(buffer)
    batch.check_crc(buffer, header)
    batch.check_structure(buffer, header)
    return header, arrow.decode(buffer, header)


def lists(columns: Columns) -> tuple[list[object], ...]:
    """Return key, value, timestamp and headers as lists; an omitted column is a list of None."""
    nulls: list[object] = [None] * columns.row_count
    timestamp = None if columns.timestamp is None else columns.timestamp.cast(pa.int64())
    return tuple(
        nulls if column is None else column.to_pylist()
        for column in (columns.key, columns.value, timestamp, columns.headers)
    )


def sample(count: int = 1000) -> Columns:
    return Columns(
        count,
        pa.array([None if i % 2 else b"key %d" % i for i in range(count)], pa.binary()),
        pa.array([b"value %d" % i * (i % 5) for i in range(count)], pa.binary()),
        pa.array(range(count), pa.int64()).cast(arrow.TIMESTAMP_TYPE),
        pa.array(
            [[("a", b"b"), ("c", None)] if i % 3 else None for i in range(count)],
            arrow.HEADERS_TYPE,
        ),
    )


BINARIES = st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1, max_size=40)
HEADERS = st.one_of(
    st.none(), st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=9))))
)


@given(
    keys=BINARIES,
    seed=st.data(),
    compression=st.sampled_from(COMPRESSIONS),
    bits=st.sampled_from([0, fmt.ATTRIBUTE_TRANSACTIONAL]),
)
@settings(max_examples=150, deadline=None)
def test_arrow_columns_are_unchanged_after_encoding_and_decoding(
    keys: list[bytes | None], seed: st.DataObject, compression: arrow.Compression, bits: int
) -> None:
    count = len(keys)
    some = {"min_size": count, "max_size": count}
    values = seed.draw(st.lists(st.one_of(st.none(), st.binary(max_size=40)), **some))
    times = seed.draw(st.lists(st.integers(-1, 2**60), **some))
    headers = seed.draw(st.lists(HEADERS, **some))
    columns = Columns(
        count,
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(times, pa.int64()).cast(arrow.TIMESTAMP_TYPE),
        pa.array(headers, arrow.HEADERS_TYPE),
    )
    start = seed.draw(st.integers(0, count - 1))
    stop = seed.draw(st.integers(start + 1, count))
    header, out = both_ways(columns.slice(start, stop), compression=compression, attributes=bits)
    assert out.row_count == header.record_count == stop - start
    assert header.last_offset_delta == stop - start - 1
    assert header.is_transactional == bool(bits)
    assert header.max_timestamp == max(times[start:stop])
    assert lists(out)[:2] == (keys[start:stop], values[start:stop])
    assert [row or None for row in lists(out)[3]] == [
        None if not row else [{"key": key, "value": value} for key, value in row]
        for row in headers[start:stop]
    ]
    if out.timestamp is None:
        assert set(times[start:stop]) == {header.constant_timestamp}
    else:
        assert out.timestamp.cast(pa.int64()).to_pylist() == times[start:stop]
        assert header.base_timestamp == times[start]


@given(keys=BINARIES, seed=st.data(), shift=st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_small_arrow_batches_decode_to_their_keys_and_values(
    keys: list[bytes | None], seed: st.DataObject, shift: int
) -> None:
    count = len(keys)
    values = seed.draw(
        st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=count, max_size=count)
    )
    columns = Columns(count, pa.array(keys, pa.binary()), pa.array(values, pa.binary()))
    encoded = arrow.encode(columns, timestamp_ms=1)
    moved = memoryview(bytes(shift) + bytes(encoded) + b"next batch")[shift:]
    header = batch.read_header(moved)
    out = arrow.decode(moved, header)
    for array in (out.key, out.value):
        assert array is None or array.validate(full=True) is None
    assert lists(out)[:2] == (keys, values)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_slice_of_an_arrow_array_is_encoded_without_the_rest_of_the_array(
    compression: arrow.Compression,
) -> None:
    whole = sample()
    for start, stop in ((0, 1), (3, 4), (8, 16), (501, 777), (999, 1000)):
        part = whole.slice(start, stop)
        header, out = both_ways(part, compression=compression)
        assert header.size_bytes < 1000 + 120 * (stop - start)
        assert lists(out)[:2] == lists(part)[:2]
        assert lists(out)[3] == lists(part)[3]


def test_chunked_columns_are_concatenated() -> None:
    columns = sample(100)
    assert columns.key is not None and columns.value is not None
    chunked = columns._replace(
        key=pa.chunked_array([columns.key[:33], columns.key[33:]]),
        value=pa.chunked_array([columns.value]),
        timestamp=pa.chunked_array([columns.timestamp[:1], columns.timestamp[1:]]),
        headers=pa.chunked_array([columns.headers[:7], columns.headers[7:]]),
    )
    assert lists(both_ways(chunked)[1]) == lists(columns)
    assert [part.row_count for part in arrow.split(chunked, 1 << 20)] == [100]
    assert sum(part.row_count for part in arrow.split(chunked, 3000)) == 100


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string_view(),
        pa.binary(5),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_columns_of_every_arrow_string_and_binary_type_are_accepted(kind: pa.DataType) -> None:
    plain = pa.array([b"aaaaa", None, b"bbbbb", b"ccccc"], pa.binary())
    if pa.types.is_dictionary(kind):
        array = plain.cast(pa.string()).dictionary_encode()
    elif kind == pa.binary(5):
        array = plain.cast(kind)
    else:
        array = plain.cast(pa.string()).cast(kind)
    _, out = both_ways(Columns(4, array, array.slice(0)))
    assert out.key.equals(plain) and out.value.equals(plain)


@pytest.mark.parametrize("kind", [pa.int32(), pa.list_(pa.binary()), pa.bool_()], ids=str)
def test_columns_of_wrong_types_are_refused(kind: pa.DataType) -> None:
    array = pa.nulls(2, kind).fill_null(1) if kind == pa.int32() else pa.array([[b"a"]] * 2)
    with pytest.raises(InvalidSchemaError, match="column 'value' is"):
        both_ways(Columns(2, None, array))
    with pytest.raises(InvalidSchemaError, match="column 'timestamp' is"):
        both_ways(Columns(2, None, None, pa.array([1.5, 2.5])))
    with pytest.raises(InvalidSchemaError, match="column 'headers' has type"):
        both_ways(Columns(2, None, None, None, pa.array([1, 2])))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="has 1 rows, not 2"):
        both_ways(Columns(2, None, pa.array([b"x"])))
    with pytest.raises(InvalidSchemaError, match="at least one row"):
        both_ways(Columns(0, None, pa.array([], pa.binary())))


def test_headers_without_a_key_are_refused() -> None:
    for rows in ([[(None, b"x")]], [[None]]):
        with pytest.raises(InvalidSchemaError, match="null"):
            both_ways(Columns(1, None, None, None, pa.array(rows, arrow.HEADERS_TYPE)))


def test_headers_with_sparks_type_are_accepted() -> None:
    # Spark's field names and nullability differ from those of logbus.
    kind = pa.list_(
        pa.field(
            "element", pa.struct([pa.field("key", pa.string(), False), ("value", pa.binary())])
        )
    )
    _, out = both_ways(Columns(1, None, None, None, pa.array([[("k", b"v")]], kind)))
    assert out.headers.type == arrow.HEADERS_TYPE
    assert out.headers.to_pylist() == [[{"key": "k", "value": b"v"}]]


def test_null_columns_and_constant_timestamps_are_omitted_from_the_batch() -> None:
    nulls = pa.nulls(3, pa.binary())
    empty = pa.array([[], None, []], arrow.HEADERS_TYPE)
    same = pa.array([7, 7, 7], pa.int64())
    header, out = both_ways(Columns(3, nulls, nulls, same, empty))
    assert out == Columns(3, None, None)
    assert header.constant_timestamp == header.max_timestamp == 7
    header, out = both_ways(Columns(3, None, pa.array([b""] * 3)))
    assert out.value.to_pylist() == [b""] * 3
    assert header.constant_timestamp == header.max_timestamp == NOW


def test_timestamps_of_every_unit_and_zone_are_converted() -> None:
    moment = datetime.datetime(2026, 11, 21, 12, 0, 0, 123_000)
    utc = moment.replace(tzinfo=datetime.UTC)
    millis = int(utc.timestamp() * 1000)
    later = millis + 1
    for unit, zone in (
        ("us", None),
        ("us", "UTC"),
        ("ns", None),
        ("ms", None),
        ("us", "Asia/Tokyo"),
    ):
        array = pa.array([millis, later], pa.int64()).cast(pa.timestamp("ms"))
        array = array.cast(pa.timestamp(unit)).cast(pa.int64()).cast(pa.timestamp(unit, zone))
        header, out = both_ways(Columns(2, None, None, array))
        assert out.timestamp.cast(pa.int64()).to_pylist() == [millis, later]
        assert (header.base_timestamp, header.max_timestamp) == (millis, later)
    _, out = both_ways(Columns(2, None, None, pa.array([1_999, 5_000], pa.timestamp("us"))))
    assert out.timestamp.cast(pa.int64()).to_pylist() == [1, 5]


def test_rows_with_a_null_timestamp_get_the_callers_timestamp() -> None:
    header, out = both_ways(Columns(3, None, None, pa.array([5, None, 6], arrow.TIMESTAMP_TYPE)))
    assert out.timestamp.cast(pa.int64()).to_pylist() == [5, NOW, 6]
    assert header.max_timestamp == NOW
    header, out = both_ways(Columns(2, None, None, pa.nulls(2, arrow.TIMESTAMP_TYPE)))
    assert out.timestamp is None and header.constant_timestamp == NOW


def test_timestamp_out_of_range_is_refused() -> None:
    array = pa.array([2**62, 1], pa.int64()).cast(pa.timestamp("s"))
    with pytest.raises(InvalidTimestampError, match="out of range"):
        both_ways(Columns(2, None, None, array))


def test_log_append_time_overrides_the_timestamp_column() -> None:
    buffer = arrow.encode(sample(), timestamp_ms=NOW)
    header = batch.set_log_append_time(buffer, batch.read_header(buffer), 123)
    out = arrow.decode(buffer, header)
    assert out.timestamp is None and header.constant_timestamp == 123


def test_offset_deltas_of_an_arrow_batch_are_decoded() -> None:
    deltas = np.array([0, 5, 6], np.int32)
    columns = Columns(3, None, pa.array([b"a", b"b", b"c"]), offset_deltas=deltas)
    header, out = both_ways(columns)
    assert (header.record_count, header.last_offset_delta) == (3, 6)
    assert out.offset_deltas is not None and out.offset_deltas.tolist() == [0, 5, 6]
    assert columns.slice(1, 2).offset_deltas is not None


@pytest.mark.parametrize("deltas", [[0, 0, 1], [2, 1, 3], [-1, 0, 1], [0, 2**31 - 1, -(2**31)]])
def test_arrow_batch_whose_offset_deltas_do_not_ascend_is_corrupt(deltas: list[int]) -> None:
    columns = Columns(
        3, None, pa.array([b"a", b"b", b"c"]), offset_deltas=np.array([0, 5, 6], np.int32)
    )
    buffer = arrow.encode(columns, timestamp_ms=0)
    position = bytes(buffer).rindex(np.array([0, 5, 6], np.int32).tobytes())
    buffer[position : position + 12] = np.array(deltas, np.int32).tobytes()
    with pytest.raises(CorruptMessageError):
        arrow.decode(buffer, batch.read_header(buffer))


def test_producer_id_epoch_and_sequence_are_written_to_the_batch_header() -> None:
    header, _ = both_ways(sample(3), producer_id=9, producer_epoch=2, base_sequence=77)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)
    assert (header.base_offset, header.leader_epoch) == (0, -1)
    assert header.last_sequence == 79


def test_decoding_an_uncompressed_arrow_batch_copies_no_values() -> None:
    value = pa.array([b"x" * 100_000] * 10)
    buffer = arrow.encode(Columns(10, None, value), timestamp_ms=0)
    before = pa.total_allocated_bytes()
    out = arrow.decode(buffer, batch.read_header(buffer))
    assert pa.total_allocated_bytes() - before < 1000
    start = np.frombuffer(buffer, np.uint8).ctypes.data
    assert start < out.value.buffers()[2].address < start + len(buffer)
    del buffer
    assert out.value[9].as_py() == b"x" * 100_000


def test_decoded_columns_stay_valid_whatever_the_alignment_of_their_buffer() -> None:
    batch_bytes = bytes(arrow.encode(sample(), timestamp_ms=0))
    for shift in range(9):
        frame = memoryview(bytearray(shift) + batch_bytes)[shift:]
        assert lists(arrow.decode(frame, batch.read_header(frame))) == lists(sample())


def test_arrow_batch_above_the_size_limits_is_refused() -> None:
    with pytest.raises(MessageTooLargeError):
        both_ways(Columns(fmt.RECORDS_MAX + 1, None, pa.nulls(fmt.RECORDS_MAX + 1, pa.binary())))
    half = pa.array([bytes(fmt.BATCH_BYTES_MAX // 2)])
    with pytest.raises(MessageTooLargeError):
        both_ways(Columns(2, None, pa.chunked_array([half, half])))


@pytest.mark.parametrize("max_bytes", [1, 2000, 5000, 20_000, 1 << 20])
def test_columns_split_at_the_byte_limit_keep_the_row_order(max_bytes: int) -> None:
    columns = sample()
    parts = list(arrow.split(columns, max_bytes))
    for part in parts:
        size = len(arrow.encode(part, timestamp_ms=NOW))
        assert size <= max_bytes or part.row_count == 1
    for index, whole in enumerate(lists(columns)):
        assert [row for part in parts for row in lists(part)[index]] == whole


def test_columns_are_split_into_slices_of_about_equal_size() -> None:
    columns = Columns(10_000, None, pa.array([b"x" * 200] * 10_000))
    parts = list(arrow.split(columns, 1 << 20))
    assert len(parts) == 3
    rows = [part.row_count for part in parts]
    assert max(rows) - min(rows) <= 2, rows  # A small remainder would cost as much as a full slice.


def test_arrow_batch_with_unknown_values_before_its_arrow_message_is_refused() -> None:
    buffer = arrow.encode(sample(), timestamp_ms=0)
    header = batch.read_header(buffer)
    with pytest.raises(CorruptMessageError):
        arrow.decode(buffer[: fmt.COLUMNS_FROM - 1], header)
    for position, value in ((fmt.HEADER_BYTES, 2), (fmt.HEADER_BYTES + 1, 0x80), (66, 1), (71, 1)):
        changed = bytearray(buffer)
        changed[position] = value
        with pytest.raises(CorruptMessageError):
            arrow.decode(changed, header)


def test_descending_value_offsets_in_an_arrow_batch_are_detected() -> None:
    # The structure is valid, but the offsets of the value column descend. Without a check, Arrow
    # would crash the process when it reads the value.
    count = message.ORDERED_MAX + 1
    buffer = arrow.encode(Columns(count, None, pa.array([b"abc"] * count)), timestamp_ms=0)
    header = batch.read_header(buffer)
    position = bytes(buffer).rindex(np.arange(0, 3 * count + 3, 3, np.int32).tobytes())
    for bad in (0, 10, 2**31 - 1, -5):
        buffer[position + 8 : position + 12] = np.array([bad], np.int32).tobytes()
        batch.check_structure(buffer, header)
        with pytest.raises(CorruptMessageError):
            arrow.decode(buffer, header)


@pytest.mark.parametrize("count", [1, 2, 9, 60])
def test_fast_arrow_encoding_equals_the_encoding_of_pyarrow(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (sample(count), sample(2 * count).slice(count, 2 * count)):
        copied = arrow.encode(columns, timestamp_ms=NOW)
        with monkeypatch.context() as patch:
            patch.setattr(arrow, "_COPIED_BYTES_MAX", 0)
            assert bytes(arrow.encode(columns, timestamp_ms=NOW)) == bytes(copied)
