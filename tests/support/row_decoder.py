"""Decode batches of rows record by record. The product decodes them as arrays (``transcode``), or
only keys and values (``decode_entries``)."""

from __future__ import annotations

from broker_lite.errors import CorruptMessageError
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.records import Row, read_varint, rows_body


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
        # The sum wraps at 64 bits, as in Java.
        timestamp = (header.base_timestamp + timestamp_delta + (1 << 63)) % (1 << 64) - (1 << 63)
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
