"""Sparse index of a segment. An entry has the base offset of a batch and its position in the file.

In memory the index is two growing arrays; on disk a header with a checksum, then both arrays. It is
a hint: readers check the batch to which an entry points, and a scan rebuilds a file that does not
match its log. One writer thread appends. Any thread may read without a lock, because ``_offsets``
grows after ``_positions`` and entries never change."""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from broker_lite.record.crc32c import crc32c

_HEADER = struct.Struct(">4sHHqqqII")
_HEADER_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _HEADER_CRC.size
_MAGIC, _VERSION = b"LBOI", 1
_FLAG_DAMAGED, _FLAG_TRANSACTIONS = 1, 2

ENTRIES_MAX = (10 << 20) // 8
"""Maximum entries of an index: as many as fit into Kafka's index of 10 MiB.

A segment rolls when its index has no space for the next batches."""


class CorruptIndex(Exception):
    """An index file contradicts itself or its log file, and must be rebuilt."""


class IndexEntry(NamedTuple):
    """The base offset of a batch, and the position of its first byte in the log file."""

    offset: int
    position: int


class IndexFacts(NamedTuple):
    """The header of an index file: size, offsets and flags of the log file when the index was
    saved."""

    base_offset: int
    log_bytes: int
    next_offset: int
    damaged: bool
    has_transactions: bool
    entry_count: int
    body_crc: int


class OffsetIndex:
    """The entries of one segment's offset index."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def has_space(self, count: int) -> bool:
        """Return whether the index has space for ``count`` more entries."""
        return len(self._offsets) + count <= ENTRIES_MAX

    def add(self, offset: int, position: int) -> None:
        """Add an entry for the batch at ``position``. Both numbers must exceed the last entry's."""
        self._positions.append(position)
        self._offsets.append(offset - self.base_offset)

    def last(self) -> IndexEntry:
        """Return the newest entry, or the segment's start for an empty index."""
        return self._entry(len(self._offsets) - 1)

    def floor(self, offset: int) -> IndexEntry:
        """Return the last entry at or before ``offset``, or the segment's start."""
        return self._entry(bisect_right(self._offsets, offset - self.base_offset) - 1)

    def floor_position(self, position: int) -> IndexEntry:
        """Return the last entry at or before ``position``, or the segment's start."""
        count = len(self._offsets)
        return self._entry(bisect_right(self._positions, position, 0, count) - 1)

    def _entry(self, i: int) -> IndexEntry:
        if i < 0:
            return IndexEntry(self.base_offset, 0)
        return IndexEntry(self.base_offset + self._offsets[i], self._positions[i])

    def cut(self, position: int) -> OffsetIndex:
        """Return a copy without entries from ``position`` on. Readers continue to use the old
        index."""
        index = OffsetIndex(self.base_offset)
        count = bisect_left(self._positions, position)
        index._offsets, index._positions = self._offsets[:count], self._positions[:count]
        return index

    def encode(
        self, log_bytes: int, next_offset: int, damaged: bool, has_transactions: bool = False
    ) -> bytes:
        """Return the bytes of the index file for the log file's first ``log_bytes`` bytes, whose
        records end before ``next_offset``. The flags ``damaged`` and ``has_transactions`` describe
        the log file."""
        body = big_endian(self._offsets) + big_endian(self._positions)
        flags = _FLAG_DAMAGED * damaged | _FLAG_TRANSACTIONS * has_transactions
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            flags,
            self.base_offset,
            log_bytes,
            next_offset,
            len(self._offsets),
            crc32c(body),
        )
        return header + _HEADER_CRC.pack(crc32c(header)) + body


def decode_facts(data: bytes) -> IndexFacts:
    """Decode only the header of an index file. Raises CorruptIndex."""
    header = checked_header(data, _HEADER)
    magic, version, flags, base, log_bytes, next_offset, count, crc = _HEADER.unpack(header)
    if magic != _MAGIC or version != _VERSION or count > ENTRIES_MAX + 1:
        raise CorruptIndex("the file is no offset index of this version")
    damaged, transactional = bool(flags & _FLAG_DAMAGED), bool(flags & _FLAG_TRANSACTIONS)
    return IndexFacts(base, log_bytes, next_offset, damaged, transactional, count, crc)


def decode(data: bytes) -> tuple[IndexFacts, OffsetIndex]:
    """Decode a whole index file. Raises CorruptIndex if any check fails."""
    facts = decode_facts(data)
    body = data[HEADER_BYTES:]
    if len(body) != 8 * facts.entry_count or crc32c(body) != facts.body_crc:
        raise CorruptIndex("the offset index has a wrong checksum")
    index = OffsetIndex(facts.base_offset)
    index._offsets = from_big_endian("i", body[: 4 * facts.entry_count])
    index._positions = from_big_endian("i", body[4 * facts.entry_count :])
    if facts.entry_count and index._positions[-1] >= facts.log_bytes:
        raise CorruptIndex("an index entry points beyond the end of the log file")
    return facts, index


def checked_header(data: bytes, layout: struct.Struct) -> bytes:
    """Return an index file's header if its checksum is correct. Raises CorruptIndex."""
    end = layout.size
    if len(data) < end + 4 or _HEADER_CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise CorruptIndex("the index's header is cut or has a wrong checksum")
    return data[:end]


def header_crc(header: bytes) -> bytes:
    return _HEADER_CRC.pack(crc32c(header))


def big_endian(values: array[int]) -> bytes:
    if sys.byteorder == "little":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_big_endian(code: str, data: bytes) -> array[int]:
    values: array[int] = array(code)
    values.frombytes(data)
    if sys.byteorder == "little":
        values.byteswap()
    return values
