"""Compress and decompress the records of a batch of rows with Kafka's codecs: gzip, snappy, lz4 and
zstd.

Decompression has a limit in bytes, and the memory that it allocates never depends on a size that
the data only declare. Java's clients can read the compressed data: snappy in the format of the
library xerial, and lz4 in frames of independent blocks. Arrow itself compresses batches of
columns."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from broker_lite.errors import CorruptMessageError, UnsupportedCompressionTypeError
from broker_lite.record import format as fmt

Buffer = bytes | bytearray | memoryview

_GZIP_WINDOW: Final = 31
"""The argument ``wbits`` of zlib that selects the largest window and the gzip format."""
_GZIP_LEVEL: Final = 6
_GZIP_MEMBERS_MAX: Final = 64
"""Maximum gzip members (independently compressed pieces) in one batch. After each member the
remaining data are copied, so a batch of empty members would take hours."""

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC: Final = _XERIAL_HEADER[:8]
_XERIAL_BLOCK_BYTES: Final = 32 << 10
_XERIAL_LENGTH: Final = struct.Struct(">I")

_LZ4_HEADER: Final = bytes.fromhex("04224d18604082")
"""The header of an lz4 frame: version 1, independent blocks of 64 KiB, no checksums. Its last byte
is its own checksum."""
_LZ4_BLOCK_BYTES: Final = 64 << 10
_LZ4_STORED: Final = 1 << 31
_LZ4_LENGTH: Final = struct.Struct("<I")

_FIRST_READ_BYTES: Final = 64 << 10
"""Minimum bytes that the first read from a decompression stream requests. Each further read
requests twice as many as the one before."""


def compress(codec: int, data: Buffer) -> bytes:
    """Compress ``data`` with a codec, one of ``fmt.CODEC_*``. Raises
    UnsupportedCompressionTypeError for an unknown codec."""
    return _pair(codec)[0](data)


def decompress(codec: int, data: Buffer, limit: int = fmt.DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Decompress ``data``, which a codec (one of ``fmt.CODEC_*``) has compressed. For
    ``fmt.CODEC_NONE``, return ``data`` itself.

    Raises CorruptMessageError if the data are malformed or decompress to more than ``limit`` bytes,
    and UnsupportedCompressionTypeError for an unknown codec."""
    unpack = _pair(codec)[1]
    if codec != fmt.CODEC_NONE and not len(data):
        raise CorruptMessageError("a compressed batch has an empty body")
    try:
        out = unpack(data, limit)
    except (pa.ArrowException, OSError, zlib.error, struct.error) as error:
        name = _NAMES[codec]
        raise CorruptMessageError(f"the batch's {name} data is malformed: {error}") from error
    if len(out) > limit:
        raise _too_large(limit)
    return out


def _too_large(limit: int) -> CorruptMessageError:
    return CorruptMessageError(f"a batch would grow beyond {limit} bytes when decompressed")


def _no_compression(data: Buffer) -> bytes:
    return bytes(data)


def _no_decompression(data: Buffer, limit: int) -> Buffer:
    return data


def _gzip(data: Buffer) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def _gunzip(data: Buffer, limit: int) -> bytes:
    """Decompress all members of gzip data, as Java's GZIPInputStream does."""
    pieces: list[bytes] = []
    room = limit
    rest: Buffer = data
    while rest:
        if len(pieces) == _GZIP_MEMBERS_MAX:
            raise zlib.error(
                "more gzip members (separately compressed pieces) than any writer creates"
            )
        member = zlib.decompressobj(_GZIP_WINDOW)
        piece = member.decompress(rest, room + 1)
        room -= len(piece)
        if room < 0:
            raise _too_large(limit)
        if not member.eof:
            raise zlib.error("a gzip member (a separately compressed piece) is cut")
        pieces.append(piece)
        rest = member.unused_data
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = _codec("snappy").compress(
            pa.py_buffer(view[start : start + _XERIAL_BLOCK_BYTES]), asbytes=True
        )
        out += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(out)


def _unsnappy(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _unsnappy_block(view, limit, limit)
    if len(view) < len(_XERIAL_HEADER):
        raise CorruptMessageError("the header of a snappy stream is incomplete")
    pieces: list[Buffer] = []
    position, room = len(_XERIAL_HEADER), limit
    while position < len(view):
        (length,) = _XERIAL_LENGTH.unpack_from(view, position)
        position += _XERIAL_LENGTH.size
        if length > len(view) - position:
            raise CorruptMessageError("a snappy block extends beyond its stream")
        piece = _unsnappy_block(view[position : position + length], room, limit)
        pieces.append(piece)
        room -= len(piece)
        position += length
    return b"".join(pieces)


def _unsnappy_block(block: memoryview, room: int, limit: int) -> Buffer:
    """Decompress one snappy block, which begins with its decompressed length as a varint of 32
    bits, to at most ``room`` bytes, the rest of ``limit``. An error message names ``limit``, the
    maximum for the whole data."""
    length = 0
    for index in range(min(5, len(block))):
        length |= (block[index] & 0x7F) << (7 * index)
        if block[index] < 0x80:
            break
    else:
        raise CorruptMessageError("a snappy block's length is malformed")
    if length > room:
        raise _too_large(limit)
    if length == 0:
        return b""
    out = _codec("snappy").decompress(pa.py_buffer(block), length)
    return memoryview(out).cast("B")


def _lz4(data: Buffer) -> bytes:
    view = memoryview(data)
    out = [_LZ4_HEADER]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        packed = _codec("lz4_raw").compress(pa.py_buffer(block), asbytes=True)
        if len(packed) < len(block):
            out += (_LZ4_LENGTH.pack(len(packed)), packed)
        else:
            out += (_LZ4_LENGTH.pack(len(block) | _LZ4_STORED), bytes(block))
    out.append(_LZ4_LENGTH.pack(0))
    return b"".join(out)


def _unlz4(data: Buffer, limit: int) -> bytes:
    return _read_stream("lz4", data, limit)


def _zstd(data: Buffer) -> bytes:
    packed: bytes = _codec("zstd").compress(pa.py_buffer(data), asbytes=True)
    return packed


def _unzstd(data: Buffer, limit: int) -> bytes:
    return _read_stream("zstd", data, limit)


def _read_stream(name: str, data: Buffer, limit: int) -> bytes:
    """Decompress data piece by piece. The memory grows with the actual data, not with the size that
    the data declare."""
    pieces: list[bytes] = []
    total, size = 0, max(_FIRST_READ_BYTES, 4 * len(data))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name) as stream:
        while total <= limit:
            piece = stream.read(min(size, limit + 1 - total))
            if not piece:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.append(piece)
            total += len(piece)
            size *= 2
    raise _too_large(limit)


def _codec(name: str) -> pa.Codec:
    return pa.Codec(name)


_Compress = Callable[[Buffer], bytes]
_Decompress = Callable[[Buffer, int], Buffer]

_PAIRS: Final[dict[int, tuple[_Compress, _Decompress]]] = {
    fmt.CODEC_NONE: (_no_compression, _no_decompression),
    fmt.CODEC_GZIP: (_gzip, _gunzip),
    fmt.CODEC_SNAPPY: (_snappy, _unsnappy),
    fmt.CODEC_LZ4: (_lz4, _unlz4),
    fmt.CODEC_ZSTD: (_zstd, _unzstd),
}
_NAMES: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


def _pair(codec: int) -> tuple[_Compress, _Decompress]:
    pair = _PAIRS.get(codec)
    if pair is None:
        raise UnsupportedCompressionTypeError(
            f"compression codec {codec} is unknown; use none, gzip, snappy, lz4 or zstd"
        )
    return pair
