"""Read and write the protocol's primitive types: big-endian integers, varints, strings, arrays.

``Reader`` reads values from a frame. It checks every length and count against the remaining bytes
before it allocates memory, and raises ProtocolError for a wrong one. ``Writer`` appends values to a
bytearray. A varint is an integer in one to five bytes, small numbers in fewer.

Strings, arrays and bytes have two encodings. The compact encoding, in the flexible versions of
APIs, begins with the length plus one as an unsigned varint; 0 means null. The classic encoding, in
other versions, begins with a signed length of fixed size; -1 means null. Methods for the classic
encoding have ``classic`` in their names. One thread at a time may use a reader or writer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from broker_lite.errors import ProtocolError
from broker_lite.model import NULL_TOPIC_ID, topic_id_bytes, topic_id_text

Buffer = bytes | bytearray | memoryview

I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")
NULL_UUID = bytes(16)
CLASSIC_STRING_MAX = 0x7FFF
TAGS_MAX = 16
"""Maximum tagged fields in one structure of a message. Kafka's structures have at most five.
Without this limit, a long request full of minimal fields could take minutes to decode."""

T = TypeVar("T")


@lru_cache(maxsize=8192)
def uuid_text(raw: bytes) -> str:
    """Return the text of 22 characters for the sixteen bytes of a topic id."""
    return topic_id_text(raw)


@lru_cache(maxsize=8192)
def uuid_bytes(text: str) -> bytes:
    """Return the sixteen bytes of a topic id, which ``text`` gives in 22 characters. Raises
    ProtocolError for any other text."""
    try:
        raw = NULL_UUID if text == NULL_TOPIC_ID else topic_id_bytes(text)
    except ValueError:
        raw = b""
    if len(raw) != 16:
        raise ProtocolError(f"{text!r} is not a topic id of 22 characters")
    return raw


class Reader:
    """Reads values from one frame, one after the other.

    ``position`` is where the next value begins; callers may set it. ``end`` is the length of the
    frame. Each method reads one value in the encoding that it is named after.
    """

    __slots__ = ("buffer", "end", "position")

    def __init__(self, buffer: Buffer, position: int = 0) -> None:
        self.buffer = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
        self.end = len(self.buffer)
        self.position = position

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return self.end - self.position

    def _advance(self, size: int) -> int:
        """Move ``position`` by ``size`` bytes and return the previous position. Raises
        ProtocolError if fewer bytes are left."""
        position = self.position
        if size < 0 or size > self.end - position:
            raise ProtocolError(
                f"a field needs {size} bytes, but {self.end - position} bytes of the message are "
                "left"
            )
        self.position = position + size
        return position

    def i8(self) -> int:
        value = self.buffer[self._advance(1)]
        return value - 256 if value > 127 else value

    def i16(self) -> int:
        return int(I16.unpack_from(self.buffer, self._advance(2))[0])

    def i32(self) -> int:
        return int(I32.unpack_from(self.buffer, self._advance(4))[0])

    def i64(self) -> int:
        return int(I64.unpack_from(self.buffer, self._advance(8))[0])

    def boolean(self) -> bool:
        return self.buffer[self._advance(1)] != 0

    def uvarint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        buffer, position, end = self.buffer, self.position, self.end
        value = shift = 0
        while position < end:
            byte = buffer[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    raise ProtocolError(f"varint {value} exceeds 32 bits")
                self.position = position
                return value
            shift += 7
            if shift > 28:
                raise ProtocolError("a varint is longer than five bytes")
        raise ProtocolError("the message ends within a varint")

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Read several values of fixed size together, with the layout ``fields``."""
        return fields.unpack_from(self.buffer, self._advance(fields.size))

    def uuid(self) -> str:
        """Read a topic or directory id of sixteen bytes. Return it as a text of 22 characters."""
        position = self._advance(16)
        return uuid_text(bytes(self.buffer[position : position + 16]))

    def _text(self, size: int) -> str:
        position = self._advance(size)
        try:
            return str(self.buffer[position : position + size], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string is not valid UTF-8: {error.reason}") from None

    def string(self) -> str:
        size = self.uvarint()
        if size == 0:
            raise ProtocolError("the message has a null string in a field that may not be null")
        return self._text(size - 1)

    def nullable_string(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self._text(size - 1)

    def classic_string(self) -> str:
        return self._text(self.i16())

    def classic_nullable_string(self) -> str | None:
        size = self.i16()
        return None if size == -1 else self._text(size)

    def view(self) -> memoryview | None:
        """Read nullable bytes. Return a slice of the frame, without copying it."""
        size = self.uvarint()
        if size == 0:
            return None
        position = self._advance(size - 1)
        return self.buffer[position : self.position]

    def classic_view(self) -> memoryview | None:
        size = self.i32()
        if size == -1:
            return None
        position = self._advance(size)
        return self.buffer[position : self.position]

    def count(self) -> int:
        """Read the number of items of an array; -1 for a null array. Raises ProtocolError if the
        number exceeds the remaining bytes."""
        return self._checked_count(self.uvarint() - 1)

    def classic_count(self) -> int:
        return self._checked_count(self.i32())

    def _checked_count(self, count: int) -> int:
        if count < -1 or count > self.end - self.position:
            raise ProtocolError(
                f"an array declares {count} items, but {self.end - self.position} bytes of the "
                "message are left"
            )
        return count

    def array(self, item: Callable[[Reader], T]) -> tuple[T, ...]:
        """Read a compact array that may not be null. ``item`` reads one item."""
        count = self.count()
        if count < 0:
            raise ProtocolError(
                "the message has a null array in a field that may not be null; send an empty array"
            )
        return tuple([item(self) for _ in range(count)])

    def nullable_array(self, item: Callable[[Reader], T]) -> tuple[T, ...] | None:
        count = self.count()
        return None if count < 0 else tuple([item(self) for _ in range(count)])

    def skip_tags(self) -> None:
        """Skip the tagged fields at the end of a structure."""
        position = self.position
        if position < self.end and self.buffer[position] == 0:
            self.position = position + 1
            return
        for _ in range(self._tag_count()):
            self.uvarint()
            self._advance(self.uvarint())

    def _tag_count(self) -> int:
        count = self._checked_count(self.uvarint())
        if count > TAGS_MAX:
            raise ProtocolError(
                f"a structure has {count} tagged fields; at most {TAGS_MAX} are allowed"
            )
        return count

    def ended(self, value: T) -> T:
        """Skip the tagged fields at the end of a structure. Return ``value``, the decoded
        structure."""
        self.skip_tags()
        return value

    def tags(self) -> dict[int, memoryview]:
        """Read the tagged fields at the end of a structure. Return the value of each by its number
        (tag)."""
        fields = {}
        for _ in range(self._tag_count()):
            number = self.uvarint()
            size = self.uvarint()
            position = self._advance(size)
            fields[number] = self.buffer[position : position + size]
        return fields


class Writer:
    """Appends values to ``buffer``, each in the encoding that its method is named after."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer = bytearray()

    def i8(self, value: int) -> None:
        self.buffer.append(value & 0xFF)

    def i16(self, value: int) -> None:
        self.buffer += I16.pack(value)

    def i32(self, value: int) -> None:
        self.buffer += I32.pack(value)

    def i64(self, value: int) -> None:
        self.buffer += I64.pack(value)

    def boolean(self, value: bool) -> None:
        self.buffer.append(1 if value else 0)

    def pack(self, fields: struct.Struct, *values: Any) -> None:
        """Write several values of fixed size together, with the layout ``fields``."""
        self.buffer += fields.pack(*values)

    def uvarint(self, value: int) -> None:
        while value > 0x7F:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def uuid(self, text: str) -> None:
        self.buffer += uuid_bytes(text)

    def string(self, value: str) -> None:
        raw = value.encode("utf-8")
        self.uvarint(len(raw) + 1)
        self.buffer += raw

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self.buffer.append(0)
        else:
            self.string(value)

    def classic_string(self, value: str) -> None:
        raw = value.encode("utf-8")
        if len(raw) > CLASSIC_STRING_MAX:
            raise ProtocolError(
                f"a string has {len(raw)} bytes; at most {CLASSIC_STRING_MAX} can be sent"
            )
        self.buffer += I16.pack(len(raw))
        self.buffer += raw

    def classic_nullable_string(self, value: str | None) -> None:
        if value is None:
            self.buffer += b"\xff\xff"
        else:
            self.classic_string(value)

    def octets(self, value: bytes | None) -> None:
        """Write nullable bytes."""
        if value is None:
            self.buffer.append(0)
        else:
            self.uvarint(len(value) + 1)
            self.buffer += value

    def array(self, items: Iterable[T], item: Callable[[T], None]) -> None:
        """Write a compact array. ``item`` writes one item."""
        listed = list(items)
        self.uvarint(len(listed) + 1)
        for each in listed:
            item(each)

    def nullable_array(self, items: Iterable[T] | None, item: Callable[[T], None]) -> None:
        if items is None:
            self.buffer.append(0)
        else:
            self.array(items, item)

    def tag_end(self) -> None:
        """Write that a structure has no tagged fields. In flexible versions, every structure ends
        with its tagged fields."""
        self.buffer.append(0)


def uvarint_bytes(value: int) -> bytes:
    """Return the bytes of ``value`` as an unsigned varint."""
    if value <= 0x7F:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_string(out: bytearray, text: str | None, flexible: bool) -> None:
    """Write a nullable string, in the compact encoding if ``flexible``, otherwise in the classic
    encoding, which truncates it to 32,767 bytes."""
    if text is None:
        out += b"\x00" if flexible else b"\xff\xff"
        return
    raw = text.encode("utf-8")
    if not flexible:
        raw = raw[:CLASSIC_STRING_MAX]
    out += uvarint_bytes(len(raw) + 1) if flexible else I16.pack(len(raw))
    out += raw


def put_tag(writer: Writer, number: int, value: bytes) -> None:
    """Write the tagged fields at the end of a structure that has only one: ``value``, with the tag
    ``number``."""
    put_tags(writer, {number: value})


def put_tags(writer: Writer, fields: Mapping[int, bytes]) -> None:
    """Write the tagged fields at the end of a structure: values by tag, in ascending order of the
    tags."""
    writer.uvarint(len(fields))
    for number, value in fields.items():
        writer.uvarint(number)
        writer.uvarint(len(value))
        writer.buffer += value


def put_count(writer: Writer, count: int, flexible: bool) -> None:
    """Write the length of an array or of bytes, in the compact encoding if ``flexible``, otherwise
    in the classic encoding."""
    if flexible:
        writer.uvarint(count + 1)
    else:
        writer.i32(count)
