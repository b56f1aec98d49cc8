"""Read, check and change the header of a batch in a buffer, without decoding its records.

A buffer is bytes, bytearray or memoryview. ``stamp`` and ``set_*`` write into it. The functions
neither copy nor keep buffers."""

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
offset, key length, value length and header count."""
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_POSITION_MAX_TIMESTAMP = 35
_COLUMN_CODECS = (fmt.CODEC_NONE, fmt.CODEC_LZ4, fmt.CODEC_ZSTD)


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in the order of its 61 bytes. ``length`` does not count the
    first 12 bytes of the batch."""

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
        """The offset after the batch. It may be above base offset + record count, because
        compaction can have removed records."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record. Sequences wrap from 2^31-1 to 0."""
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
        """The timestamp of all records, if they share one from the header: the maximum timestamp
        with LogAppendTime, else the base timestamp. -1 if the records have none."""
        return self.max_timestamp if self.is_log_append_time else self.base_timestamp


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header of the batch that begins at ``position``. Raises CorruptMessageError if the
    header is incomplete or its sizes are invalid."""
    if len(buffer) - position < fmt.HEADER_BYTES:
        raise CorruptMessageError(
            f"a batch header takes {fmt.HEADER_BYTES} bytes, but only {len(buffer) - position} "
            "are left"
        )
    header = BatchHeader._make(fmt.HEADER.unpack_from(buffer, position))
    if header.magic not in fmt.MAGICS:
        raise CorruptMessageError(
            f"the batch has magic {header.magic}, which is neither 2 (rows) nor 65 (columns)"
        )
    # Computed inline: the ``size_bytes`` property would make this function a fifth slower.
    if not fmt.HEADER_BYTES <= header.length + fmt.LENGTH_PREFIX_BYTES <= fmt.BATCH_BYTES_MAX:
        raise CorruptMessageError(
            f"the header declares a batch length of {header.length} bytes; valid are "
            f"{fmt.HEADER_BYTES - fmt.LENGTH_PREFIX_BYTES} to "
            f"{fmt.BATCH_BYTES_MAX - fmt.LENGTH_PREFIX_BYTES}"
        )
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptMessageError(
            f"the header declares {header.record_count} records and a last offset delta of "
            f"{header.last_offset_delta}; neither may be negative"
        )
    return header


def stamp(
    buffer: bytearray | memoryview, header: BatchHeader, base_offset: int, epoch: int
) -> BatchHeader:
    """Write base offset and leader epoch, which the CRC does not cover, into the batch at the start
    of ``buffer``. Return the new header."""
    length = header.length
    fmt.STAMP.pack_into(buffer, 0, base_offset, length, epoch)
    return BatchHeader(base_offset, length, epoch, *header[3:])


def set_crc(buffer: bytearray | memoryview) -> int:
    """Compute the CRC of the one batch that fills ``buffer``, write it into the batch, and return
    it."""
    crc = crc32c(memoryview(buffer)[fmt.CRC_FROM :])
    _CRC.pack_into(buffer, fmt.POSITION_CRC, crc)
    return crc


def set_log_append_time(
    buffer: bytearray | memoryview, header: BatchHeader, now_ms: int
) -> BatchHeader:
    """Give the records of the one batch that fills ``buffer`` the timestamp ``now_ms``, the time of
    the append: set the timestamp type LogAppendTime, the maximum timestamp and the CRC. Return the
    new header."""
    attributes = header.attributes | fmt.ATTRIBUTE_LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(buffer, fmt.CRC_FROM, attributes)
    return set_max_timestamp(buffer, header._replace(attributes=attributes), now_ms)


def set_max_timestamp(
    buffer: bytearray | memoryview, header: BatchHeader, newest_ms: int
) -> BatchHeader:
    """Write the maximum timestamp and the new CRC into the one batch that fills ``buffer``. Return
    the new header."""
    _MAX_TIMESTAMP.pack_into(buffer, _POSITION_MAX_TIMESTAMP, newest_ms)
    return header._replace(max_timestamp=newest_ms, crc=set_crc(buffer))


def check_crc(buffer: Buffer, header: BatchHeader) -> None:
    """Raise CorruptMessageError if the CRC of the batch at the start of ``buffer`` is wrong."""
    size = header.size_bytes
    if len(buffer) < size:
        raise CorruptMessageError(
            f"the batch is cut: only {len(buffer)} of its {size} bytes are present"
        )
    crc = crc32c(memoryview(buffer)[fmt.CRC_FROM : size])
    if crc != header.crc:
        raise CorruptMessageError(
            f"the batch at offset {header.base_offset} has CRC {crc:08x}, but its header says "
            f"{header.crc:08x}"
        )


def check_structure(buffer: Buffer, header: BatchHeader) -> int:
    """Check that a batch of columns, at the start of ``buffer``, can be decoded: that its preamble
    (version and flags) is valid, and that Arrow's metadata fit the batch's size and header. Return
    the flags, which name the columns.

    Raises CorruptMessageError. The check takes some microseconds for a batch of any size, and does
    not need pyarrow."""
    return checked_columns(buffer, header)[0]


def decompressed_bytes(buffer: Buffer, header: BatchHeader) -> int:
    """Return the decompressed size in bytes of the batch of columns at the start of ``buffer``,
    after the checks of ``check_structure``."""
    return checked_columns(buffer, header)[1].decompressed_bytes


def checked_columns(buffer: Buffer, header: BatchHeader) -> tuple[int, Message]:
    """Check a batch of columns as ``check_structure`` does. Return its flags and Arrow's
    metadata."""
    end = header.size_bytes
    if end < fmt.COLUMNS_FROM or len(buffer) < end:
        raise CorruptMessageError("a column batch is cut within its preamble")
    flags: int
    version, flags, schema_id, reserved = fmt.PREAMBLE.unpack_from(buffer, fmt.HEADER_BYTES)
    if version != fmt.BODY_VERSION or schema_id != fmt.SCHEMA_KAFKA_ROW or reserved:
        raise CorruptMessageError(
            f"a column batch has version {version}, schema {schema_id} and reserved field "
            f"{reserved}; logbus reads only version {fmt.BODY_VERSION} with schema "
            f"{fmt.SCHEMA_KAFKA_ROW} and reserved field 0"
        )
    if not flags or flags & ~fmt.FLAGS_KNOWN:
        raise CorruptMessageError(
            f"a column batch has flags {flags:#x}; known flags are {fmt.FLAGS_KNOWN:#x}"
        )
    if header.is_control:
        raise CorruptMessageError("a control batch is encoded as columns; it may have only rows")
    message = check_message(buffer, fmt.COLUMNS_FROM, end, flags)
    dense = not flags & fmt.FLAG_OFFSET_DELTAS
    if message.row_count != header.record_count or (
        dense and header.last_offset_delta != message.row_count - 1
    ):
        raise CorruptMessageError(
            f"the Arrow message has {message.row_count} rows, but the batch header declares "
            f"{header.record_count} records and a last offset delta of {header.last_offset_delta}"
        )
    if header.last_offset_delta < message.row_count - 1:
        raise CorruptMessageError(
            f"the Arrow message has {message.row_count} rows, but the batch header has only "
            f"{header.last_offset_delta + 1} offsets for them"
        )
    if message.codec != header.codec:
        raise CorruptMessageError(
            f"the Arrow message is compressed with codec {message.codec}, but the batch header "
            f"says codec {header.codec}"
        )
    return flags, message


def validate_for_append(buffer: Buffer, header: BatchHeader, max_bytes: int) -> None:
    """Check that ``buffer`` is exactly one valid batch, which a client has sent for one partition.

    ``max_bytes`` is the topic's ``max.message.bytes``. Kafka's format is a batch of rows, Arrow's a
    batch of columns. The records of a batch of rows are not decoded. Raises:

    - MessageTooLargeError if the batch has more than ``max_bytes``;
    - CorruptMessageError for a wrong CRC or length;
    - UnsupportedCompressionTypeError for a codec that the format does not allow;
    - InvalidRecordError for several batches, a control batch, a wrong record count or last offset
      delta, malformed columns, or missing producer fields.
    """
    size, codec = header.size_bytes, header.codec
    if size > max_bytes:
        raise MessageTooLargeError(
            f"a batch has {size} bytes, but the topic's max.message.bytes is {max_bytes}; send "
            "smaller batches, or raise max.message.bytes"
        )
    if len(buffer) > size:
        raise InvalidRecordError(
            f"{len(buffer) - size} bytes follow the first batch; a produce request may have only "
            "one batch for each partition"
        )
    check_crc(buffer, header)
    count = header.record_count
    if not 0 < count <= fmt.RECORDS_MAX or header.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"the header declares {count} records and a last offset delta of "
            f"{header.last_offset_delta}; give 1 to {fmt.RECORDS_MAX} records, and a delta of one "
            "less than their number"
        )
    if header.base_offset != 0:
        raise InvalidRecordError(
            f"a client sent a batch with base offset {header.base_offset}; send 0"
        )
    if header.is_control:
        raise InvalidRecordError("a client sent a control batch, which only brokers may write")
    _check_producer(header)
    if header.is_columns:
        if codec not in _COLUMN_CODECS:
            raise UnsupportedCompressionTypeError(
                f"a column batch is compressed with codec {codec}; use none, lz4 or zstd"
            )
        try:
            flags = check_structure(buffer, header)
        except CorruptMessageError as error:
            # The CRC is correct, so the producer itself encoded the batch wrongly, and sending it
            # again would not help. CorruptMessageError would make the producer send it again.
            raise InvalidRecordError(error.message) from None
        if flags & fmt.FLAG_OFFSET_DELTAS:
            raise InvalidRecordError(
                "a client sent a column batch with offset deltas, which are reserved for "
                "compaction; leave the column of deltas out"
            )
    elif codec > fmt.CODEC_ZSTD:
        raise UnsupportedCompressionTypeError(
            f"the batch is compressed with the unknown codec {codec}; use none, gzip, snappy, lz4 "
            "or zstd"
        )
    elif codec == fmt.CODEC_NONE and size - fmt.HEADER_BYTES < count * _ROW_BYTES_MIN:
        raise CorruptMessageError(
            f"the header declares {count} records, which do not fit in a batch of {size} bytes"
        )


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecordError(
                f"a batch of producer {header.producer_id} has producer epoch "
                f"{header.producer_epoch} and base sequence {header.base_sequence}; neither may be "
                "negative"
            )
    elif header.is_transactional:
        raise InvalidRecordError(
            "a transactional batch has no producer id; request one with InitProducerId"
        )
