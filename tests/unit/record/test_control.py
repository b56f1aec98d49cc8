"""Tests of transaction markers, which are control batches: their bytes and their decoding."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatch
from support.row_codec import Row, encode_rows

from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header, set_crc
from broker_lite.record.control import EndOfTransaction, Marker, decode_marker, encode_markers

TIME_MS = 1_700_000_000_000
COMMIT = (
    "000000000000002a00000042"  # base offset 42; 78 bytes less 12
    "000000030240d514e90030"  # leader epoch 3, magic 2, CRC, attributes: transactional, control
    "000000000000018bcfe568000000018bcfe56800"  # last offset delta, both timestamps
    "00000000000003e80005ffffffff00000001"  # producer 1000, epoch 5, no sequence, one record
    "20000000"  # record of 16 bytes, attributes, timestamp delta, offset delta
    "0800000001"  # key: version 0, type 1
    "0c000000000007"  # value: version 0, coordinator epoch 7
    "00"  # no headers
)


def test_commit_marker_has_kafkas_bytes() -> None:
    buffer, (header,) = encode_markers([Marker(1000, 5, 7, True)], 42, 3, TIME_MS)
    assert buffer.hex() == COMMIT
    other = DefaultRecordBatch(bytes(buffer))  # kafka-python's decoder
    assert other.validate_crc() and other.is_control_batch and other.is_transactional
    assert [(row.offset, row.key) for row in other] == [(42, b"\0\0\0\1")]
    assert header == read_header(buffer)


def test_transaction_marker_equals_a_control_record_encoded_as_an_ordinary_batch() -> None:
    buffer, _ = encode_markers([Marker(9, 1, 0x01020304, False)], 0, -1, TIME_MS)
    rows = encode_rows(
        [Row(0, TIME_MS, b"\0\0\0\0", b"\0\0\1\2\3\4")],
        attributes=fmt.ATTRIBUTES_OF_TRANSACTIONS,
        producer_id=9,
        producer_epoch=1,
    )
    assert buffer == rows


@pytest.mark.parametrize("is_commit", [True, False])
def test_marker_is_decoded_as_encoded(is_commit: bool) -> None:
    buffer, (header,) = encode_markers([Marker(1000, 5, 7, is_commit)], 42, 3, TIME_MS)
    assert decode_marker(buffer, header) == EndOfTransaction(is_commit, 7)


def test_transaction_markers_in_one_buffer_have_consecutive_offsets() -> None:
    markers = [Marker(1, 0, 5, True), Marker(2, 0, 5, False), Marker(3, 4, 6, True)]
    buffer, headers = encode_markers(markers, 10, 2, TIME_MS)
    assert [header.base_offset for header in headers] == [10, 11, 12]
    assert [header.producer_id for header in headers] == [1, 2, 3]
    assert len(buffer) == sum(header.size_bytes for header in headers)


@pytest.mark.parametrize("kind", [2, 3, -1])
def test_control_record_of_another_type_decodes_to_no_marker(kind: int) -> None:
    buffer, (header,) = encode_markers([Marker(1, 0, 5, True)], 0, 0, TIME_MS)
    buffer[fmt.HEADER_BYTES + 7 : fmt.HEADER_BYTES + 9] = kind.to_bytes(2, "big", signed=True)
    set_crc(buffer)
    assert decode_marker(buffer, header) is None


def test_control_batch_with_an_unexpected_size_decodes_to_no_marker() -> None:
    data = encode_rows([Row(0, TIME_MS, b"\0\0\0\1", b"")], attributes=0x30, producer_id=1)
    assert decode_marker(data, read_header(data)) is None
