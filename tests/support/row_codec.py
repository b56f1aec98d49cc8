"""Encode and decode batches of rows record by record, with every field. logbus itself
converts all rows at once (``transcode``), or writes only keys and values (``encode_entries``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker_lite.errors import CorruptMessageError
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.compression import compress
from broker_lite.record.records import batch_of_rows, read_varint, rows_body

Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record with its offset. A ``timestamp_ms`` of -1 means no timestamp."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_rows(
    rows: Sequence[Row],
    *,
    codec: int = fmt.CODEC_NONE,
    attributes: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Encode ``rows`` as one batch, whose base offset and base timestamp are those of the first
    row.

    ``attributes`` has the attribute bits other than the codec."""
    base_offset, base_timestamp = rows[0].offset, rows[0].timestamp_ms
    body = bytearray()
    for row in rows:
        _write_row(body, row, base_offset, base_timestamp)
    packed: Buffer = body if codec == fmt.CODEC_NONE else compress(codec, body)
    return batch_of_rows(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=leader_epoch,
            magic=fmt.MAGIC_ROWS,
            crc=0,
            attributes=attributes & ~fmt.CODEC_MASK | codec,
            last_offset_delta=rows[-1].offset - base_offset,
            base_timestamp=base_timestamp,
            max_timestamp=max(row.timestamp_ms for row in rows),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(rows),
        ),
        packed,
    )


def _write_row(out: bytearray, row: Row, base_offset: int, base_timestamp: int) -> None:
    record = bytearray(1)
    write_varint(record, _signed(row.timestamp_ms - base_timestamp))
    write_varint(record, row.offset - base_offset)
    _write_bytes(record, row.key)
    _write_bytes(record, row.value)
    write_varint(record, len(row.headers))
    for name, content in row.headers:
        _write_bytes(record, name.encode())
        _write_bytes(record, content)
    write_varint(out, len(record))
    out += record


def write_varint(out: bytearray, value: int) -> None:
    """Append a number as a zigzag varint."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _write_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        write_varint(out, len(data))
        out += data


def _signed(value: int) -> int:
    """Return the low 64 bits of ``value`` as a signed integer, as in Java's arithmetic of
    timestamps and their deltas."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def decode_rows(buffer: Buffer, header: BatchHeader) -> list[Row]:
    """Decode the records of the batch of rows at the start of ``buffer``, which may be a control
    batch.

    The caller checks the CRC. Raises CorruptMessageError, and UnsupportedCompressionTypeError for
    an unknown codec. If a header key is not valid UTF-8, its wrong bytes become replacement
    characters, as in Java."""
    body = bytes(rows_body(buffer, header))
    rows: list[Row] = []
    position = 0
    try:
        for _ in range(header.record_count):
            row, position = _read_row(body, position, header)
            if rows and row.offset <= rows[-1].offset:
                raise CorruptMessageError(
                    f"offset {row.offset} follows offset {rows[-1].offset} in a batch, but offsets "
                    "must ascend"
                )
            rows.append(row)
    except IndexError as error:
        raise CorruptMessageError("a record extends beyond its batch") from error
    if position != len(body):
        raise CorruptMessageError(f"{len(body) - position} bytes follow the last record of a batch")
    return rows


def _read_row(body: bytes, position: int, header: BatchHeader) -> tuple[Row, int]:
    length, position = read_varint(body, position)
    end = position + length
    if length < 0 or end > len(body):
        raise CorruptMessageError(f"a record of {length} bytes extends beyond its batch")
    position += 1  # Skip the attributes of the record, of which none are defined.
    timestamp_delta, position = read_varint(body, position)
    offset_delta, position = read_varint(body, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise CorruptMessageError(
            f"a record has offset delta {offset_delta}, but its batch ends at "
            f"{header.last_offset_delta}"
        )
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    count, position = read_varint(body, position)
    if not 0 <= count <= end - position:
        raise CorruptMessageError(
            f"a record declares {count} headers, but has {end - position} bytes for them"
        )
    headers = []
    for _ in range(count):
        name, position = _read_bytes(body, position, end)
        content, position = _read_bytes(body, position, end)
        if name is None:
            raise CorruptMessageError("the key of a header is null")
        headers.append((name.decode("utf-8", "replace"), content))
    if position != end:
        raise CorruptMessageError(
            f"a record ends at byte {end} of its batch's body, but its fields end at {position}"
        )
    timestamp = header.max_timestamp
    if not header.is_log_append_time:
        timestamp = _signed(header.base_timestamp + timestamp_delta)
    return Row(header.base_offset + offset_delta, timestamp, key, value, tuple(headers)), end


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < 0:
        if length != -1:
            raise CorruptMessageError(f"a field declares a length of {length} bytes")
        return None, position
    if length > end - position:
        raise CorruptMessageError(f"a field of {length} bytes extends beyond its record")
    return body[position : position + length], position + length
