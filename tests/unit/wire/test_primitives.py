"""Tests of the protocol's primitive types: known bytes, round trips, and malformed bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_lite.errors import ProtocolError
from broker_lite.model import NULL_TOPIC_ID, topic_id_text
from broker_lite.wire.primitives import (
    TAGS_MAX,
    Reader,
    Writer,
    put_count,
    put_string,
    uuid_bytes,
    uvarint_bytes,
)

Read = Callable[[Reader], object]

WRITTEN: list[tuple[Callable[[Writer], None], Read, str, object]] = [
    (lambda w: w.i8(-1), Reader.i8, "ff", -1),
    (lambda w: w.i8(127), Reader.i8, "7f", 127),
    (lambda w: w.i16(-2), Reader.i16, "fffe", -2),
    (lambda w: w.i32(258), Reader.i32, "00000102", 258),
    (lambda w: w.i64(-(1 << 63)), Reader.i64, "8000000000000000", -(1 << 63)),
    (lambda w: w.boolean(True), Reader.boolean, "01", True),
    (lambda w: w.boolean(False), Reader.boolean, "00", False),
    (lambda w: w.uvarint(0), Reader.uvarint, "00", 0),
    (lambda w: w.uvarint(127), Reader.uvarint, "7f", 127),
    (lambda w: w.uvarint(128), Reader.uvarint, "8001", 128),
    (lambda w: w.uvarint(0xFFFFFFFF), Reader.uvarint, "ffffffff0f", 0xFFFFFFFF),
    (lambda w: w.string("é"), Reader.string, "03c3a9", "é"),
    (lambda w: w.string(""), Reader.string, "01", ""),
    (lambda w: w.nullable_string(None), Reader.nullable_string, "00", None),
    (lambda w: w.classic_string("ab"), Reader.classic_string, "00026162", "ab"),
    (lambda w: w.classic_nullable_string(None), Reader.classic_nullable_string, "ffff", None),
    (lambda w: w.uuid(NULL_TOPIC_ID), Reader.uuid, "00" * 16, NULL_TOPIC_ID),
    (lambda w: w.uuid("AAECAwQFBgcICQoLDA0ODw"), Reader.uuid, "000102030405060708090a0b0c0d0e0f",
     "AAECAwQFBgcICQoLDA0ODw"),
    (lambda w: w.array([1, 2], w.i16), lambda r: r.array(Reader.i16), "0300010002", (1, 2)),
    (lambda w: w.array([], w.i16), lambda r: r.array(Reader.i16), "01", ()),
    (lambda w: w.nullable_array(None, w.i16), lambda r: r.nullable_array(Reader.i16), "00", None),
    (lambda w: w.tag_end(), lambda r: r.tags(), "00", {}),
]  # fmt: skip


@pytest.mark.parametrize(("write", "read", "octets", "value"), WRITTEN)
def test_primitive_types_of_the_protocol_are_encoded_to_known_bytes(
    write: Callable[[Writer], None], read: Read, octets: str, value: object
) -> None:
    writer = Writer()
    write(writer)
    assert writer.buffer.hex() == octets
    reader = Reader(bytes.fromhex(octets))
    assert read(reader) == value
    assert reader.left == 0


@pytest.mark.parametrize(("write", "read", "octets", "value"), WRITTEN)
def test_truncated_values_of_primitive_types_are_refused(
    write: Callable[[Writer], None], read: Read, octets: str, value: object
) -> None:
    whole = bytes.fromhex(octets)
    for size in range(len(whole)):
        with pytest.raises(ProtocolError):
            read(Reader(whole[:size]))


LIES: list[tuple[Read, str]] = [
    (Reader.string, "00"),  # null in a field that is not nullable
    (Reader.string, "02ff"),  # not UTF-8
    (Reader.string, "ffffffff0f61"),  # declared length of 4 GiB
    (Reader.classic_string, "ffff"),  # null in a field that is not nullable
    (Reader.classic_string, "800061"),  # negative length
    (Reader.classic_nullable_string, "fffe"),  # length -2
    (Reader.classic_view, "fffffffe"),  # length -2
    (Reader.classic_view, "7fffffff00"),
    (Reader.view, "ffffffff0f00"),
    (Reader.uvarint, "ffffffffff"),  # varint longer than five bytes
    (Reader.uvarint, "ffffffff7f"),  # varint of more than 32 bits
    (Reader.count, "ffffffff0f00"),  # count above the number of bytes left
    (Reader.classic_count, "7fffffff00"),
    (Reader.classic_count, "fffffffe"),  # count -2
    (lambda r: r.array(Reader.i8), "00"),  # null in a field that is not nullable
    (Reader.skip_tags, "02000101"),  # two tags declared, one present
    (Reader.skip_tags, "0100ff01"),
    (Reader.tags, "0100ff01"),
    (Reader.tags, "ffffffff0f"),
]


@pytest.mark.parametrize(("read", "octets"), LIES)
def test_invalid_lengths_and_counts_are_refused(read: Read, octets: str) -> None:
    with pytest.raises(ProtocolError):
        read(Reader(bytes.fromhex(octets)))


def test_decoded_bytes_are_views_of_the_frame_not_copies() -> None:
    frame = bytearray(bytes.fromhex("04010203"))
    view = Reader(frame).view()
    assert view is not None
    frame[1] = 9
    assert bytes(view) == b"\x09\x02\x03"


def test_unknown_tags_are_skipped_and_known_tags_decoded() -> None:
    octets = bytes.fromhex("02 00 02 aabb 90 4e 01 07 7f".replace(" ", ""))
    reader = Reader(octets)
    assert {number: bytes(value) for number, value in reader.tags().items()} == {
        0: b"\xaa\xbb",
        10000: b"\x07",
    }
    assert reader.left == 1
    reader = Reader(octets)
    reader.skip_tags()
    assert reader.left == 1


@pytest.mark.parametrize("text", ["", "short", "A" * 23, "*" * 22])
def test_text_form_of_a_topic_id_has_22_characters(text: str) -> None:
    with pytest.raises(ProtocolError):
        uuid_bytes(text)


def test_overlong_classic_string_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Writer().classic_string("x" * 32768)
    out = bytearray()
    put_string(out, "x" * 40000, False)
    assert len(Reader(out).classic_string()) == 32767


@pytest.mark.parametrize("flexible", [False, True])
def test_classic_and_compact_counts_are_decoded(flexible: bool) -> None:
    writer = Writer()
    put_count(writer, 3, flexible)
    writer.buffer += bytes(3)
    reader = Reader(writer.buffer)
    assert (reader.count() if flexible else reader.classic_count()) == 3


@given(st.integers(0, 0xFFFFFFFF))
def test_varints_round_trip(value: int) -> None:
    assert Reader(uvarint_bytes(value)).uvarint() == value


@given(st.text(max_size=300), st.binary(min_size=16, max_size=16), st.lists(st.integers(-9, 9)))
def test_mixed_primitive_values_round_trip(text: str, raw: bytes, numbers: list[int]) -> None:
    writer = Writer()
    writer.string(text)
    writer.uuid(topic_id_text(raw))
    writer.array(numbers, writer.i64)
    reader = Reader(writer.buffer)
    assert reader.string() == text
    assert reader.uuid() == topic_id_text(raw)
    assert reader.array(Reader.i64) == tuple(numbers)
    assert reader.left == 0


def test_fixed_size_fields_beyond_the_end_of_a_frame_are_refused() -> None:
    fields = struct.Struct(">iq")
    assert Reader(fields.pack(1, 2)).unpack(fields) == (1, 2)
    with pytest.raises(ProtocolError):
        Reader(bytes(11)).unpack(fields)


def test_request_with_too_many_tagged_fields_is_refused_before_they_are_read() -> None:
    """A Produce request of 64 MiB can hold 30 million tagged fields of two bytes each."""
    few = bytes((TAGS_MAX,)) + b"\x01\x00" * TAGS_MAX
    for read in (Reader.skip_tags, Reader.tags):
        reader = Reader(few)
        read(reader)
        assert reader.left == 0
        with pytest.raises(ProtocolError, match="tagged fields"):
            read(Reader(bytes((TAGS_MAX + 1,)) + b"\x01\x00" * (TAGS_MAX + 1)))
