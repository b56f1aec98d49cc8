"""Encode and decode messages by the declared fields of their classes.

A named tuple or a dataclass of ``wire.calls`` declares the fields of a structure in the order of
the protocol, and the type of each field names its encoding:

- ``Int8`` to ``Int64`` and ``bool``: an integer of fixed size; ``TopicId``: sixteen bytes
- ``str``, ``bytes``, ``str | None``, ``bytes | None``: compact strings and bytes
- ``tuple[X, ...]``, ``tuple[X, ...] | None``: a compact array of items of type X
- a named tuple, a dataclass, or a tuple of fixed length: a structure, which ends with tagged fields
- ``Annotated[X, Codec(...)]``: a type with functions of its own
- ``InTag[X]``: a value in a tagged field of the structure, which the structure's own methods write
  (``put_tags``) and read (``with_tags``). Such fields are the last ones of a named tuple

All encodings are those of flexible versions. ``codec_of`` makes the functions for a class when it
is used first."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from broker_lite.wire.primitives import Reader, Writer

T = TypeVar("T")
ResponseT = TypeVar("ResponseT")


class Codec(NamedTuple):
    """The functions that write a value of one type and read it.

    ``number`` is the format of a number of fixed size in the module ``struct``, else empty."""

    put: Callable[[Writer, Any], None]
    take: Callable[[Reader], Any]
    number: str = ""


_F64 = struct.Struct(">d")
Int8 = Annotated[int, Codec(Writer.i8, Reader.i8, "b")]
Int16 = Annotated[int, Codec(Writer.i16, Reader.i16, "h")]
Int32 = Annotated[int, Codec(Writer.i32, Reader.i32, "i")]
Int64 = Annotated[int, Codec(Writer.i64, Reader.i64, "q")]
Float64 = Annotated[
    float,
    Codec(
        lambda writer, value: writer.pack(_F64, value), lambda reader: reader.unpack(_F64)[0], "d"
    ),
]


def _put_code(writer: Writer, code: int) -> None:
    writer.i32(0)
    writer.i16(code)


def _take_code(reader: Reader) -> int:
    reader.i32()
    return reader.i16()


CodeAfterThrottle = Annotated[int, Codec(_put_code, _take_code)]
"""An error code at the start of a response, after Kafka's field ``throttle_time_ms``, which is
written as 0 and ignored when read."""
TopicId = Annotated[str, Codec(Writer.uuid, Reader.uuid)]
"""A topic id or a directory id, as a text of 22 characters."""
IN_TAG = object()
InTag = Annotated[T, IN_TAG]
MaybeName = Annotated[str, Codec(Writer.string, lambda reader: reader.nullable_string() or "")]
"""A name that a broker may leave out of its answer; it is then empty."""


def _take_nullable_bytes(reader: Reader) -> bytes | None:
    view = reader.view()
    return None if view is None else bytes(view)


_CODECS: dict[Any, Codec] = {
    bool: Codec(Writer.boolean, Reader.boolean),
    str: Codec(Writer.string, Reader.string),
    str | None: Codec(Writer.nullable_string, Reader.nullable_string),
    bytes: Codec(Writer.octets, lambda reader: bytes(reader.view() or b"")),
    bytes | None: Codec(Writer.octets, _take_nullable_bytes),
}


class DeclaredCall(Generic[ResponseT]):
    """A ``Call`` that encodes its declared fields, and decodes those of its response, which is of
    the class ``ResponseT``."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    VERSION: ClassVar[int]

    def encode(self, writer: Writer) -> None:
        """Write the body of the request."""
        codec_of(type(self)).put(writer, self)

    @classmethod
    def decode_request(cls, reader: Reader) -> Self:
        """Decode a request from the start of its body, on the broker's side."""
        request: Self = codec_of(cls).take(reader)
        return request

    @classmethod
    def decode(cls, reader: Reader) -> ResponseT:
        """Decode the response's body. Raises ProtocolError."""
        # The first base of the class, or of its base class, is DeclaredCall[ResponseT].
        (kind,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        response: ResponseT = codec_of(kind).take(reader)
        return response


def _new_codec(kind: Any) -> Codec:
    if kind in _CODECS:
        return _CODECS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        codec: Codec = arguments[1]
        return codec
    if type(None) in arguments:
        return _nullable_array(codec_of(get_args(arguments[0])[0]))
    if origin is Sequence or arguments[1:] == (...,):
        return _array(codec_of(arguments[0]))
    if origin is tuple:
        codecs = [codec_of(each) for each in arguments]
        return _structure(lambda *values: values, codecs, tuple)
    hints = {
        name: hint
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if get_origin(hint) is not ClassVar and IN_TAG not in get_args(hint)
    }
    codecs = [codec_of(hint) for hint in hints.values()]
    return _structure(
        kind,
        codecs,
        tuple if issubclass(kind, tuple) else lambda row: [getattr(row, name) for name in hints],
        getattr(kind, "put_tags", None),
        getattr(kind, "with_tags", None),
    )


codec_of: Callable[[Any], Codec] = cache(_new_codec)
"""Return the codec of a type, which is one of those that the module's docstring lists."""


def _array(item: Codec) -> Codec:
    return Codec(
        lambda writer, rows: writer.array(rows, partial(item.put, writer)),
        lambda reader: reader.array(item.take),
    )


def _nullable_array(item: Codec) -> Codec:
    return Codec(
        lambda writer, rows: writer.nullable_array(rows, partial(item.put, writer)),
        lambda reader: reader.nullable_array(item.take),
    )


def _runs(codecs: Sequence[Codec]) -> Iterator[tuple[slice, Codec, struct.Struct | None]]:
    """Yield runs of fields: several numbers of fixed size with their common layout, which one call
    packs or unpacks, or one other field. The codec is that of the run's first field."""
    at = 0
    for is_number, fields in groupby(codecs, key=lambda codec: bool(codec.number)):
        run = list(fields)
        parts = [run] if is_number and len(run) > 1 else [[codec] for codec in run]
        for part in parts:
            numbers = "".join(codec.number for codec in part)
            yield (
                slice(at, at + len(part)),
                part[0],
                struct.Struct(f">{numbers}") if len(part) > 1 else None,
            )
            at += len(part)


def _structure(
    kind: Callable[..., Any],
    codecs: Sequence[Codec],
    values_of: Callable[[Any], Sequence[Any]],
    put_tags: Callable[[Any, Writer], None] | None = None,
    with_tags: Callable[[Any, Reader], Any] | None = None,
) -> Codec:
    runs = list(_runs(codecs))
    puts = [(run, run.start, codec.put, layout) for run, codec, layout in runs]
    takes = [(codec.take, layout) for _, codec, layout in runs]

    def put(writer: Writer, row: Any) -> None:
        values = values_of(row)
        for run, first, put_value, layout in puts:
            if layout is None:
                put_value(writer, values[first])
            else:
                writer.pack(layout, *values[run])
        if put_tags is None:
            writer.tag_end()
        else:
            put_tags(row, writer)

    def take(reader: Reader) -> Any:
        values: list[Any] = []
        for take_value, layout in takes:
            if layout is None:
                values.append(take_value(reader))
            else:
                values += reader.unpack(layout)
        row = kind(*values)
        if with_tags is not None:
            return with_tags(row, reader)
        reader.skip_tags()
        return row

    return Codec(put, take)
