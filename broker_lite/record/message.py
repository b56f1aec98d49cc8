"""Check the Arrow message in a batch of columns: whether its metadata agree with its actual bytes.

An Arrow message consists of metadata (in the flatbuffers format) and a body. The body consists of
buffers: for each field, a bitmap of its nulls, offsets of its byte strings, and their bytes. The
metadata give the position and size of each buffer, and a node for each field: its number of entries
and of nulls.

The module reads the metadata with ``struct``, without pyarrow, so a broker checks a batch in about
ten microseconds. Every position is checked before it is read, and memory is never allocated by a
size that the metadata declare. In uncompressed buffers, the module also checks null counts, the
first and last offset, and the order of up to ``ORDERED_MAX`` offsets. Readers check the rest with
pyarrow's ``validate(full=True)``: the order of more offsets, UTF-8 in header keys, compressed
buffers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from broker_lite.errors import CorruptMessageError
from broker_lite.record import format as fmt

Buffer = bytes | bytearray | memoryview

_CONTINUATION: Final = 0xFFFFFFFF
_PREFIX: Final = struct.Struct("<Ii")
_I64: Final = struct.Struct("<q")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_SMALL_BODY_BYTES: Final = 4096
_SMALL_METADATA_BYTES: Final = 768
_METADATA_BYTES_MAX: Final = 16 << 10
"""Maximum bytes of the metadata of an Arrow message. logbus writes fewer than 700, but other
software may write more."""
ORDERED_MAX: Final = 64
"""Maximum number of offsets in an Arrow buffer whose order a broker checks. Brokers run without
numpy, so to check more would take too long. Readers check all offsets (FORMAT.md)."""
_VERSION_5: Final = 4
_RECORD_BATCH: Final = 3
_CODECS: Final = {0: fmt.CODEC_LZ4, 1: fmt.CODEC_ZSTD}

# These are the numbers of the fields in Arrow's Message.fbs.
_MESSAGE_VERSION, _MESSAGE_TYPE, _MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = range(4)
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION, _BATCH_VARIADIC = range(5)
_COMPRESSION_CODEC, _COMPRESSION_METHOD = range(2)

_ROWS, _CHILD = 0, 1
"""How many entries a node (the metadata of one Arrow array) must have. _ROWS: one for each row of
the batch. _CHILD: one for each header of all rows together."""
_VALIDITY, _OFFSETS, _DATA, _FIXED_64, _FIXED_32 = range(5)


class _Shape(NamedTuple):
    """The nodes (one for each array) and buffers, in order, that an Arrow message must have."""

    nodes: tuple[tuple[int, bool], ...]
    """For each node (the metadata of one Arrow array), how many entries it must have (_ROWS or
    _CHILD), and whether entries may be null."""
    buffers: tuple[tuple[int, int], ...]
    """For each buffer, its content (such as _VALIDITY, a bitmap of nulls) and the index of the node
    (Arrow array) to which it belongs."""


class _Declared(NamedTuple):
    """The metadata of the Arrow message in a batch of columns, after the checks that need only the
    metadata. ``size_bytes`` is the total size of the buffers, or -1 if they are compressed."""

    row_count: int
    codec: int
    nodes: tuple[int, ...]
    buffers: tuple[int, ...]
    size_bytes: int


class Message(NamedTuple):
    """The metadata of the Arrow message in a batch of columns, after all checks."""

    row_count: int
    codec: int
    body_position: int
    decompressed_bytes: int
    nodes: tuple[int, ...]
    """The numbers of entries and of nulls of each node (one Arrow array), in one flat tuple:
    entries, nulls, entries, nulls, …"""
    buffers: tuple[int, ...]
    """The position in the body and the stored size of each buffer, both in bytes, in one flat
    tuple: position, size, position, size, …"""


@lru_cache(maxsize=64)
def _shape(flags: int) -> _Shape:
    nodes: list[tuple[int, bool]] = []
    buffers: list[tuple[int, int]] = []

    def field(length: int, nullable: bool, *kinds: int) -> None:
        buffers.extend((kind, len(nodes)) for kind in kinds)
        nodes.append((length, nullable))

    if flags & fmt.FLAG_KEY:
        field(_ROWS, True, _VALIDITY, _OFFSETS, _DATA)
    if flags & fmt.FLAG_VALUE:
        field(_ROWS, True, _VALIDITY, _OFFSETS, _DATA)
    if flags & fmt.FLAG_TIMESTAMP:
        field(_ROWS, False, _VALIDITY, _FIXED_64)
    if flags & fmt.FLAG_HEADERS:
        field(_ROWS, True, _VALIDITY, _OFFSETS)
        field(_CHILD, False, _VALIDITY)
        field(_CHILD, False, _VALIDITY, _OFFSETS, _DATA)
        field(_CHILD, True, _VALIDITY, _OFFSETS, _DATA)
    if flags & fmt.FLAG_OFFSET_DELTAS:
        field(_ROWS, False, _VALIDITY, _FIXED_32)
    return _Shape(tuple(nodes), tuple(buffers))


def check_message(buffer: Buffer, position: int, end: int, flags: int) -> Message:
    """Check that ``buffer[position:end]`` is exactly one Arrow message with the columns that
    ``flags`` (``fmt.FLAG_*``) name. Return its metadata.

    Raises CorruptMessageError for another type or version of message, nodes or buffers that do not
    fit the columns, columns of different lengths, buffers outside the body or too small for their
    entries, an unknown codec, or a decompressed size above ``fmt.COLUMNS_BYTES_MAX``."""
    try:
        return _check(buffer, position, end, flags)
    except (struct.error, IndexError) as error:
        raise CorruptMessageError(
            f"the Arrow message's metadata is cut or malformed: {error}"
        ) from error


def _check(buffer: Buffer, position: int, end: int, flags: int) -> Message:
    continuation, metadata_bytes = _PREFIX.unpack_from(buffer, position)
    body = position + _PREFIX.size + metadata_bytes
    if continuation != _CONTINUATION:
        raise CorruptMessageError("a column batch has no Arrow message after its preamble")
    if not 8 <= metadata_bytes <= _METADATA_BYTES_MAX or metadata_bytes % 8 or body > end:
        raise CorruptMessageError(
            f"the Arrow message declares metadata of {metadata_bytes} bytes; valid is a multiple "
            f"of 8 up to {_METADATA_BYTES_MAX} that fits in the batch"
        )
    # Copy the metadata, about 400 bytes. Reading from the copy costs less, and a wrong position in
    # the metadata cannot lead into the body.
    metadata = bytes(buffer[position + _PREFIX.size : body])
    is_small = end - body <= _SMALL_BODY_BYTES and len(metadata) <= _SMALL_METADATA_BYTES
    declared = (_declared_before if is_small else _declared)(metadata, end - body, flags)
    row_count, codec, nodes, buffers, size_bytes = declared
    content = memoryview(buffer)[body:end]
    if codec:
        lengths = _decompressed_sizes(content, buffers)
        _check_sizes(lengths, nodes, _shape(flags))
        size_bytes = sum(lengths)
    else:
        _check_values(content, nodes, buffers, _shape(flags))
    return Message(row_count, codec, body, size_bytes, nodes, buffers)


def _declared(metadata: bytes, body_bytes: int, flags: int) -> _Declared:
    """Check the metadata of an Arrow message whose body has ``body_bytes`` bytes, and return them
    decoded."""
    shape = _shape(flags)
    message = _table(metadata, 0)
    batch = _message_header(metadata, message, body_bytes)
    row_count = _scalar(metadata, batch, _BATCH_LENGTH, _I64)
    if not 0 < row_count <= fmt.RECORDS_MAX:
        raise CorruptMessageError(
            f"the Arrow message declares {row_count} rows; valid are 1 to {fmt.RECORDS_MAX}"
        )
    nodes = _vector(metadata, batch, _BATCH_NODES, 2 * len(shape.nodes))
    buffers = _vector(metadata, batch, _BATCH_BUFFERS, 2 * len(shape.buffers))
    variadic = _field(metadata, batch, _BATCH_VARIADIC)
    if variadic and _U32.unpack_from(metadata, _follow(metadata, variadic))[0]:
        raise CorruptMessageError("a column has one of Arrow's view types, which are not allowed")
    codec = _codec(metadata, batch)
    _check_nodes(nodes, shape, row_count)
    _check_positions(buffers, body_bytes)
    if codec:
        return _Declared(row_count, codec, nodes, buffers, -1)
    sizes = buffers[1::2]
    _check_sizes(sizes, nodes, shape)
    return _Declared(row_count, codec, nodes, buffers, sum(sizes))


_declared_before = lru_cache(maxsize=1024)(_declared)
"""``_declared`` with a cache of at most 1 MB for its results. Many batches have equal metadata, so
the cache halves the time to check a batch. Metadata that fail the checks are not cached."""


def _message_header(metadata: bytes, message: int, body_bytes: int) -> int:
    """Check that ``message`` is the position of an Arrow message whose body has ``body_bytes``
    bytes. Return the position of its record batch (a table of the flatbuffers format)."""
    version = _field(metadata, message, _MESSAGE_VERSION)
    kind = _field(metadata, message, _MESSAGE_TYPE)
    header = _field(metadata, message, _MESSAGE_HEADER)
    if not version or _U16.unpack_from(metadata, version)[0] != _VERSION_5:
        raise CorruptMessageError("the Arrow message does not have metadata of version 5")
    if not kind or metadata[kind] != _RECORD_BATCH or not header:
        raise CorruptMessageError("the Arrow message is not a record batch")
    declared = _scalar(metadata, message, _MESSAGE_BODY_LENGTH, _I64)
    if declared != body_bytes:
        raise CorruptMessageError(
            f"the Arrow message declares a body of {declared} bytes, but has {body_bytes} bytes"
        )
    return _table_at(metadata, _follow(metadata, header))


def _check_nodes(nodes: tuple[int, ...], shape: _Shape, row_count: int) -> None:
    child_count = -1
    for index, (length_class, nullable) in enumerate(shape.nodes):
        length, nulls = nodes[2 * index], nodes[2 * index + 1]
        if length_class == _ROWS:
            expected = row_count
        elif child_count < 0:
            expected = child_count = length
        else:
            expected = child_count
        if length != expected or not 0 <= nulls <= length or (nulls and not nullable):
            raise CorruptMessageError(
                f"field {index} of the Arrow message declares {length} entries and {nulls} nulls; "
                f"valid are {expected} entries and " + ("some nulls" if nullable else "no nulls")
            )


def _check_positions(buffers: tuple[int, ...], body_bytes: int) -> None:
    for index in range(0, len(buffers), 2):
        offset, size = buffers[index], buffers[index + 1]
        if offset < 0 or size < 0 or offset + size > body_bytes:
            raise CorruptMessageError(
                f"buffer {index // 2} of the Arrow message has {size} bytes at {offset}, outside "
                f"of the body of {body_bytes} bytes"
            )


def _decompressed_sizes(body: memoryview, buffers: tuple[int, ...]) -> list[int]:
    """Return the decompressed size in bytes that each buffer of a compressed Arrow message declares
    in its first 8 bytes."""
    sizes = []
    for index in range(0, len(buffers), 2):
        offset, size = buffers[index], buffers[index + 1]
        if size:
            if size < _I64.size:
                raise CorruptMessageError(
                    f"buffer {index // 2} of the Arrow message has {size} bytes; 8 bytes "
                    "must declare its decompressed size"
                )
            declared = _I64.unpack_from(body, offset)[0]
            size = size - _I64.size if declared == -1 else declared
            if size < 0:
                raise CorruptMessageError(
                    f"buffer {index // 2} of the Arrow message declares {size} decompressed bytes, "
                    "a negative number"
                )
        sizes.append(size)
    return sizes


def _check_sizes(sizes: Sequence[int], nodes: tuple[int, ...], shape: _Shape) -> None:
    if sum(sizes) > fmt.COLUMNS_BYTES_MAX:
        raise CorruptMessageError(
            f"the Arrow message would grow to {sum(sizes)} bytes when decompressed; at most "
            f"{fmt.COLUMNS_BYTES_MAX} are allowed"
        )
    for index, (kind, node) in enumerate(shape.buffers):
        length, nulls = nodes[2 * node], nodes[2 * node + 1]
        if kind == _VALIDITY:
            least = (length + 7) >> 3 if nulls else 0
        elif kind == _OFFSETS:
            least = 4 * (length + 1) if length else 0
        elif kind == _FIXED_64:
            least = 8 * length
        elif kind == _FIXED_32:
            least = 4 * length
        else:
            least = 0
        if sizes[index] < least:
            raise CorruptMessageError(
                f"buffer {index} of the Arrow message has {sizes[index]} bytes, but its {length} "
                f"entries need {least}"
            )


def _check_values(
    body: memoryview, nodes: tuple[int, ...], buffers: tuple[int, ...], shape: _Shape
) -> None:
    """Check in an uncompressed Arrow message that each null bitmap has the declared number of
    nulls, and that offsets lie within the data to which they point, and ascend (see
    ``ORDERED_MAX``)."""
    read_i32 = _I32.unpack_from
    for index, (kind, node) in enumerate(shape.buffers):
        if kind > _OFFSETS or not (length := nodes[2 * node]):
            continue
        at, nulls = buffers[2 * index], nodes[2 * node + 1]
        if kind == _OFFSETS:
            is_list = shape.buffers[index + 1][0] != _DATA
            limit = nodes[2 * node + 2] if is_list else buffers[2 * index + 3]
            first, last = read_i32(body, at)[0], read_i32(body, at + 4 * length)[0]
            if not 0 <= first <= last <= limit:
                raise CorruptMessageError(
                    f"the offsets in field {node} of the Arrow message go from {first} to {last}; "
                    f"they must stay within 0 to {limit}"
                )
            if length < ORDERED_MAX:
                offsets = _offsets(length).unpack_from(body, at)
                if list(offsets) != sorted(offsets):
                    raise CorruptMessageError(
                        f"the offsets in field {node} of the Arrow message do not ascend"
                    )
        elif nulls:
            bits = int.from_bytes(body[at : at + (length + 7 >> 3)], "little")
            null_count = length - (bits & (1 << length) - 1).bit_count()
            if null_count != nulls:
                raise CorruptMessageError(
                    f"field {node} of the Arrow message has {null_count} nulls, but declares "
                    f"{nulls}"
                )


@lru_cache(maxsize=ORDERED_MAX)
def _offsets(length: int) -> struct.Struct:
    return struct.Struct(f"<{length + 1}i")


def _codec(metadata: bytes, batch: int) -> int:
    compression = _field(metadata, batch, _BATCH_COMPRESSION)
    if not compression:
        return fmt.CODEC_NONE
    table = _table_at(metadata, _follow(metadata, compression))
    codec = _field(metadata, table, _COMPRESSION_CODEC)
    method = _field(metadata, table, _COMPRESSION_METHOD)
    number = metadata[codec] if codec else 0
    if number not in _CODECS or (method and metadata[method] != 0):
        raise CorruptMessageError(
            f"the Arrow message is compressed with codec {number}, which logbus does not read"
        )
    return _CODECS[number]


# In the flatbuffers format, a table (a structure) starts with the signed distance back to its
# vtable. The vtable has its own size, the size of the table, and for each field 16 bits: the
# distance of the field from the start of the table, or 0 if the field has its default.


def _table(metadata: bytes, position: int) -> int:
    return _table_at(metadata, _follow(metadata, position))


def _table_at(metadata: bytes, table: int) -> int:
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0 or vtable + 4 > len(metadata):
        raise CorruptMessageError("an offset in the Arrow message's metadata points outside of it")
    return table


def _follow(metadata: bytes, position: int) -> int:
    """Return the position to which the offset at ``position`` points. The offset is unsigned, so it
    points forward, and malicious metadata cannot make the reader run in a circle."""
    target: int = position + _U32.unpack_from(metadata, position)[0]
    return target


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return the position of field ``number`` of a flatbuffers table, or 0 if the field has its
    default."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    slot = 4 + 2 * number
    if slot + 2 > _U16.unpack_from(metadata, vtable)[0]:
        return 0
    distance: int = _U16.unpack_from(metadata, vtable + slot)[0]
    return table + distance if distance else 0


def _scalar(metadata: bytes, table: int, number: int, kind: struct.Struct) -> int:
    position = _field(metadata, table, number)
    value: int = kind.unpack_from(metadata, position)[0] if position else 0
    return value


def _vector(metadata: bytes, table: int, number: int, words: int) -> tuple[int, ...]:
    """Return field ``number`` of a flatbuffers table, a vector of pairs of 64-bit integers, as a
    flat tuple of integers. Raises CorruptMessageError unless it has exactly ``words`` integers."""
    position = _field(metadata, table, number)
    start = _follow(metadata, position) if position else 0
    count = _U32.unpack_from(metadata, start)[0] if position else 0
    if 2 * count != words:
        raise CorruptMessageError(
            f"the Arrow message has {count} "
            f"{'field nodes' if number == _BATCH_NODES else 'buffers'}; the columns that the "
            f"batch's preamble flags name need {words // 2}"
        )
    return struct.unpack_from(f"<{words}q", metadata, start + 4) if words else ()
