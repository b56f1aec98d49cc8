"""Parse, check and stamp the header of a batch in a buffer, without decoding its body.

A buffer is bytes, bytearray or memoryview; ``stamp`` and ``set_*`` need a writable buffer. The
functions neither copy nor keep buffers. Brokers call them for every batch that they append or
recover, and clients for every batch that they read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from broker_lite.errors import (
    CorruptMessageError,
    InvalidRecordError,
    MessageTooLargeError,
    UnsupportedCompressionTypeError,
)
from broker_lite.record import format as fmt
from broker_lite.record.crc32c import crc32c
from broker_lite.record.message import Message, check_message

Buffer = bytes | bytearray | memoryview

_ROW_BYTES_MIN = 7
"""Minimum bytes of a record in a body of rows: one byte each for length, attributes, timestamp,
offset, key length, value length and header count.
"""
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_POSITION_MAX_TIMESTAMP = 35
_COLUMN_CODECS = (fmt.CODEC_NONE, fmt.CODEC_LZ4, fmt.CODEC_ZSTD)


class BatchHeader(NamedTuple):
    """The 61 header bytes of a batch, in order. ``length`` excludes the first 12 bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return self.length + fmt.LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch. It is not base offset + record count, because compaction and
        control batches leave gaps.
        """
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences wrap from 2^31-1 to 0."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & fmt.CODEC_MASK

    @property
    def is_columns(self) -> bool:
        return self.magic == fmt.MAGIC_COLUMNS

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & fmt.ATTRIBUTE_CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & fmt.ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & fmt.ATTRIBUTE_LOG_APPEND_TIME)

    @property
    def constant_timestamp(self) -> int:
        """The timestamp of every row of a body without timestamps; -1 means no timestamp."""
        return self.max_timestamp if self.is_log_append_time else self.base_timestamp


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Parse the header at ``position``; raise CorruptMessageError if it is cut or its sizes are
    invalid."""
    if len(buffer) - position < fmt.HEADER_BYTES:
        raise CorruptMessageError(
            f"a batch header takes {fmt.HEADER_BYTES} bytes; {len(buffer) - position} are left"
        )
    header = BatchHeader._make(fmt.HEADER.unpack_from(buffer, position))
    if header.magic not in fmt.MAGICS:
        raise CorruptMessageError(f"magic {header.magic} is neither rows (2) nor columns (65)")
    # Computed inline, because the ``size_bytes`` property would add a fifth to the cost.
    if not fmt.HEADER_BYTES <= header.length + fmt.LENGTH_PREFIX_BYTES <= fmt.BATCH_BYTES_MAX:
        raise CorruptMessageError(f"batch length {header.length} is out of bounds")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptMessageError("a batch's counts are negative")
    return header


def stamp(
    buffer: bytearray | memoryview, header: BatchHeader, base_offset: int, epoch: int
) -> BatchHeader:
    """Write base offset and leader epoch in place, both outside the CRC; return the new header."""
    length = header.length
    fmt.STAMP.pack_into(buffer, 0, base_offset, length, epoch)
    return BatchHeader(base_offset, length, epoch, *header[3:])


def set_crc(buffer: bytearray | memoryview) -> int:
    """Compute the CRC of the one batch that fills ``buffer``, write it in place and return it."""
    crc = crc32c(memoryview(buffer)[fmt.CRC_FROM :])
    _CRC.pack_into(buffer, fmt.POSITION_CRC, crc)
    return crc


def set_log_append_time(
    buffer: bytearray | memoryview, header: BatchHeader, now_ms: int
) -> BatchHeader:
    """Mark the one batch that fills ``buffer`` as stamped by the broker at ``now_ms``.

    Updates the timestamp type, the maximum timestamp and the CRC.
    """
    attributes = header.attributes | fmt.ATTRIBUTE_LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(buffer, fmt.CRC_FROM, attributes)
    return set_max_timestamp(buffer, header._replace(attributes=attributes), now_ms)


def set_max_timestamp(
    buffer: bytearray | memoryview, header: BatchHeader, newest_ms: int
) -> BatchHeader:
    """Write the maximum timestamp and the new CRC into the one batch that fills ``buffer``."""
    _MAX_TIMESTAMP.pack_into(buffer, _POSITION_MAX_TIMESTAMP, newest_ms)
    return header._replace(max_timestamp=newest_ms, crc=set_crc(buffer))


def check_crc(buffer: Buffer, header: BatchHeader) -> None:
    """Raise CorruptMessageError if the CRC of the batch at the start of ``buffer`` is wrong."""
    size = header.size_bytes
    if len(buffer) < size:
        raise CorruptMessageError(f"a batch of {size} bytes is cut: {len(buffer)} are there")
    crc = crc32c(memoryview(buffer)[fmt.CRC_FROM : size])
    if crc != header.crc:
        raise CorruptMessageError(
            f"the batch at offset {header.base_offset} has CRC {crc:08x}, not {header.crc:08x}"
        )


def check_structure(buffer: Buffer, header: BatchHeader) -> int:
    """Check the declared sizes of a columnar body without reading its values; return its flags.

    ``buffer`` starts with the batch. Raises CorruptMessageError. Costs a few microseconds for any
    batch size and needs no pyarrow.
    """
    return checked_columns(buffer, header)[0]


def decompressed_bytes(buffer: Buffer, header: BatchHeader) -> int:
    """Return the decompressed size in bytes of a batch of columns, after the checks of
    ``check_structure``.
    """
    return checked_columns(buffer, header)[1].decompressed_bytes


def checked_columns(buffer: Buffer, header: BatchHeader) -> tuple[int, Message]:
    """Return the flags and the message of a batch of columns, after the checks of
    ``check_structure``."""
    end = header.size_bytes
    if end < fmt.COLUMNS_FROM or len(buffer) < end:
        raise CorruptMessageError("a batch of columns ends within its preamble")
    flags: int
    version, flags, schema_id, reserved = fmt.PREAMBLE.unpack_from(buffer, fmt.HEADER_BYTES)
    if version != fmt.BODY_VERSION or schema_id != fmt.SCHEMA_KAFKA_ROW or reserved:
        raise CorruptMessageError(
            f"columns of version {version} and schema {schema_id} are unknown"
        )
    if not flags or flags & ~fmt.FLAGS_KNOWN:
        raise CorruptMessageError(f"columns with flags {flags:#x} are unknown")
    if header.is_control:
        raise CorruptMessageError("control batches have rows, never columns")
    message = check_message(buffer, fmt.COLUMNS_FROM, end, flags)
    dense = not flags & fmt.FLAG_OFFSET_DELTAS
    if message.row_count != header.record_count or (
        dense and header.last_offset_delta != message.row_count - 1
    ):
        raise CorruptMessageError(
            f"{message.row_count} rows, where the header counts {header.record_count}"
            f" and a last offset delta of {header.last_offset_delta}"
        )
    if header.last_offset_delta < message.row_count - 1:
        raise CorruptMessageError("a batch has more rows than offsets")
    if message.codec != header.codec:
        raise CorruptMessageError(
            f"columns compressed with codec {message.codec}, where the header says {header.codec}"
        )
    return flags, message


def validate_for_append(buffer: Buffer, header: BatchHeader, max_bytes: int) -> None:
    """Check that ``buffer`` is exactly one valid batch of a client for one partition.

    ``max_bytes`` is the topic's ``max.message.bytes``. Bodies of rows are not decoded. Raises:

    - MessageTooLargeError;
    - CorruptMessageError for a wrong CRC or length;
    - UnsupportedCompressionTypeError;
    - InvalidRecordError for several batches, a control batch, wrong counts, malformed columns, or
      missing producer fields.
    """
    size, codec = header.size_bytes, header.codec
    if size > max_bytes:
        raise MessageTooLargeError(
            f"a batch of {size} bytes is over the topic's max.message.bytes,"
            f" {max_bytes}; send smaller batches or raise it"
        )
    if len(buffer) > size:
        raise InvalidRecordError("a produce request may carry one batch per partition")
    check_crc(buffer, header)
    count = header.record_count
    if not 0 < count <= fmt.RECORDS_MAX or header.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"a batch declares {count} records and a last offset delta of "
            f"{header.last_offset_delta}"
        )
    if header.base_offset != 0:
        raise InvalidRecordError(f"a client's base offset must be 0, not {header.base_offset}")
    if header.is_control:
        raise InvalidRecordError("clients may not write control batches")
    _check_producer(header)
    if header.is_columns:
        if codec not in _COLUMN_CODECS:
            raise UnsupportedCompressionTypeError(f"columns take lz4 or zstd, not {codec}")
        try:
            flags = check_structure(buffer, header)
        except CorruptMessageError as error:
            # The CRC is correct, so the producer encoded it this way: a retry would not help.
            raise InvalidRecordError(error.message) from None
        if flags & fmt.FLAG_OFFSET_DELTAS:
            raise InvalidRecordError(
                "clients may not write columns with offset deltas, which are reserved for "
                "compaction"
            )
    elif codec > fmt.CODEC_ZSTD:
        raise UnsupportedCompressionTypeError(f"codec {codec} is unknown")
    elif codec == fmt.CODEC_NONE and size - fmt.HEADER_BYTES < count * _ROW_BYTES_MIN:
        raise CorruptMessageError(f"{count} records do not fit in {size} bytes")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecordError("an idempotent producer's epoch or sequence is missing")
    elif header.is_transactional:
        raise InvalidRecordError("a transactional batch has no producer id")
