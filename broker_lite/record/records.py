"""Encode and decode the keys and values of batches of rows, in the format of Kafka's record batch
v2.

This module is plain Python, for small numbers of records: the state of brokers and mirrors. For
users' records, brokers and clients use ``transcode`` and ``arrow``, which are faster. Every length
is checked against the remaining bytes."""

from __future__ import annotations

from collections.abc import Sequence

from broker_lite.errors import CorruptMessageError
from broker_lite.model import NO_EPOCH, NO_PRODUCER
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, Buffer, set_crc

_VARINT_BYTES_MAX = 10
_UINT64 = (1 << 64) - 1


def decode_entries(buffer: Buffer, header: BatchHeader) -> list[tuple[bytes | None, bytes | None]]:
    """Return the keys and values of the batch of rows at the start of ``buffer``. The caller checks
    the CRC. Raises CorruptMessageError, and UnsupportedCompressionTypeError for an unknown
    codec."""
    body = bytes(rows_body(buffer, header))
    entries: list[tuple[bytes | None, bytes | None]] = []
    at, size = 0, len(body)
    try:
        for _ in range(header.record_count):
            length, at = read_varint(body, at)
            end = at + length
            if length < 0 or end > size:
                raise CorruptMessageError(f"a record of {length} bytes extends beyond its batch")
            at += 1  # Skip the attributes.
            while body[at] > 0x7F:  # Skip the timestamp delta.
                at += 1
            at += 1
            while body[at] > 0x7F:  # Skip the offset delta.
                at += 1
            key, at = _read_bytes(body, at + 1, end)
            value, at = _read_bytes(body, at, end)
            entries.append((key, value))
            at = end
    except IndexError as error:
        raise CorruptMessageError("a record extends beyond its batch") from error
    if at != size:
        raise CorruptMessageError(f"{size - at} bytes follow the last record of a batch")
    return entries


def rows_body(
    buffer: Buffer, header: BatchHeader, limit: int = fmt.DECOMPRESSED_BYTES_MAX
) -> memoryview:
    """Return the body (the bytes after the header) of the batch of rows at the start of ``buffer``,
    decompressed. Raises CorruptMessageError if it has more than ``limit`` bytes."""
    if header.magic != fmt.MAGIC_ROWS or len(buffer) < header.size_bytes:
        raise CorruptMessageError(
            f"{len(buffer)} bytes with magic {header.magic} are not a whole batch of rows (magic 2)"
        )
    body = memoryview(buffer)[fmt.HEADER_BYTES : header.size_bytes]
    codec = header.attributes & fmt.CODEC_MASK
    if codec == fmt.CODEC_NONE and len(body) <= limit:
        return body
    from broker_lite.record.compression import decompress

    return memoryview(decompress(codec, body, limit))


def encode_entries(
    entries: Sequence[tuple[bytes | None, bytes | None]], timestamp_ms: int
) -> bytearray:
    """Encode keys and values as one batch of rows, uncompressed, at the offsets from 0 on."""
    body = bytearray()
    for offset, (key, value) in enumerate(entries):
        record = bytearray(2)  # No attributes; a timestamp delta of 0.
        _write_varint(record, offset)
        _write_bytes(record, key)
        _write_bytes(record, value)
        record.append(0)  # No headers.
        _write_varint(body, len(record))
        body += record
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=NO_EPOCH,
        magic=fmt.MAGIC_ROWS,
        crc=0,
        attributes=0,
        last_offset_delta=len(entries) - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=NO_PRODUCER,
        producer_epoch=NO_EPOCH,
        base_sequence=-1,
        record_count=len(entries),
    )
    return batch_of_rows(header, body)


def batch_of_rows(header: BatchHeader, body: Buffer) -> bytearray:
    """Return a whole batch of rows: the fields of ``header`` with the length and CRC for this body,
    then the body."""
    size = fmt.HEADER_BYTES + len(body)
    out = bytearray(size)
    fields = header._replace(length=size - fmt.LENGTH_PREFIX_BYTES, magic=fmt.MAGIC_ROWS, crc=0)
    fmt.HEADER.pack_into(out, 0, *fields)
    out[fmt.HEADER_BYTES :] = body
    set_crc(out)
    return out


def read_varint(body: Buffer, position: int) -> tuple[int, int]:
    """Decode the zigzag varint at ``position``. Return its value and the position after it. Raises
    IndexError if the body ends within it."""
    raw = body[position]
    position += 1
    if raw >= 0x80:
        byte = body[position]
        position += 1
        raw = raw & 0x7F | (byte & 0x7F) << 7
        if byte >= 0x80:
            raw, position = _read_long_varint(body, position, raw)
    return (raw >> 1) ^ -(raw & 1), position


def _read_long_varint(body: Buffer, position: int, raw: int) -> tuple[int, int]:
    """Decode the rest of a varint of more than two bytes, whose first 14 bits are ``raw``."""
    for shift in range(14, 7 * _VARINT_BYTES_MAX, 7):
        byte = body[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or raw > _UINT64:
        raise CorruptMessageError("a varint is longer than 64 bits")
    return raw, position


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < 0:
        if length != -1:
            raise CorruptMessageError(
                f"a field declares a length of {length} bytes; valid are -1 (null) and above"
            )
        return None, position
    if length > end - position:
        raise CorruptMessageError(f"a field of {length} bytes extends beyond its record")
    return body[position : position + length], position + length


def _write_varint(out: bytearray, value: int) -> None:
    """Append a number, at least 0, as a zigzag varint."""
    raw = value << 1
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        _write_varint(out, len(data))
        out += data
