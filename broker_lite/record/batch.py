"""The envelope of a batch over a buffer: parse, check, stamp. Bodies stay opaque here.

Buffers may be bytes, bytearray or memoryview; ``stamp`` needs a writable one. Functions neither
copy nor keep what they are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker_lite.errors import CorruptMessageError
from broker_lite.record import format as fmt

Buffer = bytes | bytearray | memoryview


class BatchHeader(NamedTuple):
    """The 61 bytes before every body, in their order; ``length`` excludes its first 12 bytes."""

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
        """The whole batch, header included."""
        return self.length + fmt.LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Never derived from the record count: compaction and control batches leave gaps."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Of the last record; after 2^31-1 comes 0."""
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


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``; raises CorruptMessageError if it is cut or its sizes lie."""
    if len(buffer) - position < fmt.HEADER_BYTES:
        raise CorruptMessageError(
            f"a batch header takes {fmt.HEADER_BYTES} bytes; {len(buffer) - position} are left"
        )
    header = BatchHeader._make(fmt.HEADER.unpack_from(buffer, position))
    if header.magic not in fmt.MAGICS:
        raise CorruptMessageError(f"magic {header.magic} is neither rows (2) nor columns (65)")
    if not fmt.HEADER_BYTES <= header.size_bytes <= fmt.BATCH_BYTES_MAX:
        raise CorruptMessageError(f"batch length {header.length} is out of bounds")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptMessageError("a batch's counts are negative")
    return header


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a batch cut at the end is not yielded."""
    position, end = 0, len(buffer)
    while end - position >= fmt.HEADER_BYTES:
        header = read_header(buffer, position)
        if header.size_bytes > end - position:
            return
        yield position, header
        position += header.size_bytes


def stamp(buffer: bytearray | memoryview, header: BatchHeader, base_offset: int, epoch: int) -> None:
    """Write the leader's base offset and epoch in place; both lie outside the CRC."""
    fmt.STAMP.pack_into(buffer, 0, base_offset, header.length, epoch)
