"""Tests of the checks of an Arrow message in a column batch, before pyarrow reads the message."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from broker_lite.errors import CorruptMessageError
from broker_lite.record import arrow, batch
from broker_lite.record import format as fmt
from broker_lite.record.message import check_message

COUNT = 40
COLUMNS = arrow.Columns(
    COUNT,
    pa.array([None if i % 2 else b"k%d" % i for i in range(COUNT)], pa.binary()),
    pa.array([b"v%d" % i * 9 for i in range(COUNT)], pa.binary()),
    pa.array(range(COUNT), pa.int64()),
    pa.array(
        [[("a", b"b"), ("c", None)] if i % 3 else None for i in range(COUNT)], arrow.HEADERS_TYPE
    ),
    np.arange(COUNT, dtype=np.int32) * 3,
)
ALL = 31


def encoded(columns: arrow.Columns = COLUMNS, compression: arrow.Compression = "none") -> bytearray:
    return bytearray(arrow.encode(columns, timestamp_ms=0, compression=compression))


def check(buffer: bytearray, flags: int = ALL) -> None:
    check_message(buffer, fmt.COLUMNS_FROM, len(buffer), flags)


def body_position(buffer: bytearray) -> int:
    (size,) = struct.unpack_from("<i", buffer, fmt.COLUMNS_FROM + 4)
    return fmt.COLUMNS_FROM + 8 + int(size)


def metadata_words(buffer: bytearray) -> range:
    return range(fmt.COLUMNS_FROM, body_position(buffer) - 7, 4)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_validation_of_an_arrow_message_returns_its_sizes_and_codec(
    compression: arrow.Compression,
) -> None:
    buffer = encoded(compression=compression)
    message = check_message(buffer, fmt.COLUMNS_FROM, len(buffer), ALL)
    assert message.row_count == COUNT
    assert message.body_position == body_position(buffer)
    assert message.codec == {"none": 0, "lz4": fmt.CODEC_LZ4, "zstd": fmt.CODEC_ZSTD}[compression]
    assert message.decompressed_bytes >= 1000


@pytest.mark.parametrize("flags", range(1, 32))
def test_arrow_batch_whose_header_flags_contradict_its_columns_is_refused(
    flags: int,
) -> None:
    if flags != ALL:
        with pytest.raises(CorruptMessageError):
            check(encoded(), flags)


def test_arrow_message_truncated_at_any_byte_is_refused() -> None:
    buffer = encoded()
    for size in range(fmt.COLUMNS_FROM, len(buffer)):
        with pytest.raises(CorruptMessageError):
            check_message(buffer, fmt.COLUMNS_FROM, size, ALL)


def test_arrow_message_with_a_longer_body_than_declared_is_refused() -> None:
    with pytest.raises(CorruptMessageError, match="declares a body of"):
        check(encoded() + bytes(8))


@pytest.mark.parametrize("value", [0, 1, -1, 1 << 31, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_check_of_corrupted_arrow_metadata_can_raise_only_corrupt_message_error(
    value: int,
) -> None:
    for compression in ("none", "lz4"):
        for position in metadata_words(encoded(compression=compression)):
            buffer = encoded(compression=compression)
            struct.pack_into("<q", buffer, position, value)
            try:
                check(buffer)
            except CorruptMessageError:
                continue


def other_messages() -> dict[str, bytes]:
    schema = pa.schema([("value", pa.binary())])
    dictionary = pa.RecordBatch.from_arrays(
        [pa.array([b"a", b"b"]).dictionary_encode()], names=["value"]
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, dictionary.schema) as writer:
        writer.write_batch(dictionary)
    stream = sink.getvalue().to_pybytes()
    schema_bytes = 8 + struct.unpack_from("<i", stream, 4)[0]
    views = pa.RecordBatch.from_arrays([pa.array([b"a" * 30], pa.binary_view())], names=["value"])
    return {
        "schema": schema.serialize().to_pybytes(),
        "dictionary": stream[schema_bytes:],
        "views": views.serialize().to_pybytes(),
        "tensor": b"\xff\xff\xff\xff" + bytes(60),
        "empty": pa.RecordBatch.from_pylist([], schema=schema).serialize().to_pybytes(),
        "two columns": pa.RecordBatch.from_pylist([{"a": b"", "b": b""}]).serialize().to_pybytes(),
        "text": b"not an arrow message at all, but long enough to be one",
    }


@pytest.mark.parametrize("name", other_messages())
def test_arrow_message_of_another_type_than_record_batch_is_refused(name: str) -> None:
    message = other_messages()[name]
    with pytest.raises(CorruptMessageError):
        check_message(message, 0, len(message), fmt.FLAG_VALUE)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_arrow_buffer_with_a_declared_size_above_the_limit_is_refused_before_allocation(
    compression: arrow.Compression,
) -> None:
    buffer = encoded(compression=compression)
    header = batch.read_header(buffer)
    # The first 8 bytes of a compressed buffer declare its decompressed size.
    struct.pack_into("<q", buffer, body_position(buffer), fmt.DECOMPRESSED_BYTES_MAX)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    with pytest.raises(CorruptMessageError, match="would grow"):
        arrow.decode(buffer, header)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()
    assert pa.total_allocated_bytes() == before


def test_arrow_buffer_that_decompresses_beyond_the_limit_is_refused() -> None:
    buffer = encoded(arrow.Columns(2, None, pa.array([bytes(40 << 20)] * 2)), "zstd")
    assert len(buffer) < 20_000
    start = body_position(buffer)
    declared = struct.pack("<q", 80 << 20)
    position = buffer.rindex(declared, start)
    buffer[position : position + 8] = struct.pack("<q", fmt.DECOMPRESSED_BYTES_MAX + 1)
    with pytest.raises(CorruptMessageError, match="would grow"):
        check(buffer, fmt.FLAG_VALUE)


def test_arrow_buffer_with_a_wrong_declared_decompressed_size_is_corrupt() -> None:
    buffer = encoded(compression="lz4")
    header = batch.read_header(buffer)
    position = body_position(buffer)
    (declared,) = struct.unpack_from("<q", buffer, position)
    struct.pack_into("<q", buffer, position, declared + 64)
    with pytest.raises(CorruptMessageError):
        arrow.decode(buffer, header)


def test_cached_validity_of_an_arrow_message_does_not_apply_to_other_columns_or_bodies() -> None:
    one = arrow.Columns(1, None, pa.array([b"v"], pa.binary()))
    for compression in ("none", "lz4"):
        buffer = encoded(one, compression)
        check(buffer, fmt.FLAG_VALUE)
        check(buffer, fmt.FLAG_VALUE)
        with pytest.raises(CorruptMessageError):
            check(buffer, fmt.FLAG_TIMESTAMP)
        for wrong in (buffer + bytes(8), buffer[:-8]):
            with pytest.raises(CorruptMessageError, match="declares a body of"):
                check(wrong, fmt.FLAG_VALUE)
    # Compressed buffers declare their sizes in the body, so cached metadata do not cover them.
    at = body_position(buffer)
    struct.pack_into("<q", buffer, at, -2)
    with pytest.raises(CorruptMessageError, match="declares -2 decompressed bytes"):
        check(buffer, fmt.FLAG_VALUE)


def test_uncompressed_buffers_inside_a_compressed_arrow_message_are_read() -> None:
    # A declared size of -1 marks an uncompressed buffer. Other writers use such buffers where
    # compression saves no space.
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    value = pa.array([b"x" * 64], pa.binary())
    plain = pa.RecordBatch.from_arrays([value], names=["value"])
    sink = pa.BufferOutputStream()
    pa.ipc.RecordBatchStreamWriter(sink, plain.schema, options=options).write_batch(plain)
    stream = sink.getvalue().to_pybytes()
    message = bytearray(stream[8 + struct.unpack_from("<i", stream, 4)[0] :])
    body = 8 + struct.unpack_from("<i", message, 4)[0]
    assert check_message(message, 0, len(message), fmt.FLAG_VALUE).codec == fmt.CODEC_LZ4
    declared = message.index(struct.pack("<q", 8), body)
    struct.pack_into("<q", message, declared, -1)
    assert check_message(message, 0, len(message), fmt.FLAG_VALUE).row_count == 1
    struct.pack_into("<q", message, declared, -2)
    with pytest.raises(CorruptMessageError):
        check_message(message, 0, len(message), fmt.FLAG_VALUE)
