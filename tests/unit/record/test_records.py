"""Tests of row batches, byte for byte, against the codecs of two other Kafka clients."""

from __future__ import annotations

from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.row_codec import Row, decode_rows, encode_rows

from broker_lite.errors import CorruptMessageError
from broker_lite.record import batch
from broker_lite.record import format as fmt
from broker_lite.record.records import decode_entries, encode_entries

CODECS = (fmt.CODEC_NONE, fmt.CODEC_GZIP, fmt.CODEC_SNAPPY, fmt.CODEC_LZ4, fmt.CODEC_ZSTD)
BUILDERS = {
    "kafka-python": (kafka_records.DefaultRecordBatchBuilder, kafka_records.DefaultRecordBatch),
    "aiokafka, Python": (
        aiokafka_records._DefaultRecordBatchBuilderPy,
        aiokafka_records._DefaultRecordBatchPy,
    ),
    "aiokafka, Cython": (
        aiokafka_records.DefaultRecordBatchBuilder,
        aiokafka_records.DefaultRecordBatch,
    ),
}
BYTES = st.one_of(st.none(), st.binary(max_size=200))
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=9))))
ROWS = st.lists(
    st.tuples(st.integers(0, 2**48), BYTES, BYTES, HEADERS), min_size=1, max_size=20
).map(
    lambda rows: [
        Row(offset, timestamp, key, value, tuple(headers))
        for offset, (timestamp, key, value, headers) in enumerate(rows)
    ]
)


def others_encode(name: str, rows: list[Row], codec: int = 0, **fields: int) -> bytearray:
    builder = BUILDERS[name][0](
        2,
        codec,
        fields.get("transactional", 0),
        fields.get("producer_id", -1),
        fields.get("producer_epoch", -1),
        fields.get("base_sequence", -1),
        1 << 24,
    )
    for row in rows:
        added = builder.append(
            row.offset,
            timestamp=row.timestamp_ms,
            key=row.key,
            value=row.value,
            headers=list(row.headers),
        )
        assert added
    out = bytearray(builder.build())
    # Clients encode the missing leader epoch differently, and the partition leader overwrites it.
    out[12:16] = b"\xff\xff\xff\xff"
    return out


def others_decode(name: str, buffer: bytearray) -> list[Row]:
    other: Any = BUILDERS[name][1](bytes(buffer))
    assert other.validate_crc()
    return [
        Row(row.offset, row.timestamp, row.key, row.value, tuple(map(tuple, row.headers)))
        for row in other
    ]


@pytest.mark.parametrize("name", BUILDERS)
@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_encoder_writes_the_same_bytes_as_other_clients(name: str, rows: list[Row]) -> None:
    ours = encode_rows(rows)
    assert ours == others_encode(name, rows)
    assert decode_rows(ours, batch.read_header(ours)) == rows
    entries = [(row.key, row.value) for row in rows]
    assert decode_entries(ours, batch.read_header(ours)) == entries
    assert others_decode(name, ours) == rows


@pytest.mark.parametrize("name", BUILDERS)
@given(rows=ROWS, timestamp_ms=st.integers(-1, 2**48))
@settings(max_examples=60, deadline=None)
def test_keys_and_values_with_one_timestamp_are_encoded_as_by_other_clients(
    name: str, rows: list[Row], timestamp_ms: int
) -> None:
    plain = [Row(row.offset, timestamp_ms, row.key, row.value) for row in rows]
    ours = encode_entries([(row.key, row.value) for row in rows], timestamp_ms)
    assert ours == others_encode(name, plain)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["aiokafka, Python", "aiokafka, Cython"])
def test_logbus_and_other_clients_read_each_others_compressed_batches(
    name: str, codec: int
) -> None:
    rows = [Row(i, 1000 + i, b"key", b"some value %d" % i, (("h", b"x"),)) for i in range(500)]
    theirs = others_encode(name, rows, codec)
    header = batch.read_header(theirs)
    assert header.codec == codec
    batch.check_crc(theirs, header)
    assert decode_rows(theirs, header) == rows
    assert others_decode(name, encode_rows(rows, codec=codec)) == rows


def test_transactional_batch_has_the_same_bytes_as_that_of_kafka_python() -> None:
    rows = [Row(0, 5, b"k", b"v")]
    ours = encode_rows(
        rows,
        producer_id=77,
        producer_epoch=3,
        base_sequence=41,
        attributes=fmt.ATTRIBUTE_TRANSACTIONAL,
    )
    assert ours == others_encode(
        "kafka-python",
        rows,
        transactional=1,
        producer_id=77,
        producer_epoch=3,
        base_sequence=41,
    )


def test_kafka_batch_encodes_base_offset_base_timestamp_and_offset_gaps() -> None:
    rows = [Row(100, 50, None, b"a"), Row(103, 49, b"", b""), Row(107, 60, b"k", None)]
    buffer = encode_rows(rows, leader_epoch=4)
    header = batch.read_header(buffer)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (100, 7, 3)
    assert (header.base_timestamp, header.max_timestamp, header.leader_epoch) == (50, 60, 4)
    assert decode_rows(buffer, header) == rows


def test_timestamp_deltas_wrap_at_64_bits() -> None:
    rows = [Row(0, -(2**63), None, None), Row(1, 2**63 - 1, None, None), Row(2, -1, None, None)]
    buffer = encode_rows(rows)
    assert decode_rows(buffer, batch.read_header(buffer)) == rows


def test_control_batch_is_decoded() -> None:
    marker = Row(5, 1, b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x07")
    buffer = encode_rows([marker], attributes=fmt.ATTRIBUTE_CONTROL)
    header = batch.read_header(buffer)
    assert header.is_control and decode_rows(buffer, header) == [marker]


def test_kafka_batch_with_a_truncated_body_or_trailing_bytes_is_corrupt() -> None:
    buffer = encode_rows([Row(i, i, b"k", b"v" * i, (("h", None),)) for i in range(5)])
    body = bytes(buffer[fmt.HEADER_BYTES :])
    header = batch.read_header(buffer)
    for cut in range(len(body)):
        short = batch.read_header(_rebuilt(header, body[:cut]))
        with pytest.raises(CorruptMessageError):
            decode_entries(_rebuilt(header, body[:cut]), short)
    longer = _rebuilt(header, body + b"\x00")
    with pytest.raises(CorruptMessageError, match="1 bytes follow"):
        decode_entries(longer, batch.read_header(longer))


def _rebuilt(header: batch.BatchHeader, body: bytes) -> bytearray:
    out = bytearray(fmt.HEADER_BYTES + len(body))
    fmt.HEADER.pack_into(out, 0, *header._replace(length=len(out) - fmt.LENGTH_PREFIX_BYTES))
    out[fmt.HEADER_BYTES :] = body
    return out
