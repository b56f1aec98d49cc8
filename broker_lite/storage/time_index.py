"""Sparse index of a segment: the newest timestamp so far and the offset of its batch.

An entry (t, o) says that no record up to and including the batch at offset ``o`` is newer than
``t``; a search for a later timestamp starts at that batch. Timestamps and offsets rise from entry
to entry.

The log does not contain append times, so the file's header holds those of the segment's first and
last append, by the broker's clock. One writer thread appends; any thread may read. A scan rebuilds
a file that does not match its log."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import NamedTuple

from broker_lite.model import NO_TIMESTAMP
from broker_lite.record.crc32c import crc32c
from broker_lite.storage.offset_index import (
    CorruptIndex,
    big_endian,
    checked_header,
    from_big_endian,
    header_crc,
)

_HEADER = struct.Struct(">4sHHqqqqqII")
HEADER_BYTES = _HEADER.size + 4
_MAGIC, _VERSION = b"LBTI", 1


class TimeFacts(NamedTuple):
    """The header of a time index file: the segment's size, append times and newest timestamp
    when the index was saved."""

    base_offset: int
    log_bytes: int
    first_append_ms: int
    last_append_ms: int
    max_timestamp: int
    entry_count: int
    body_crc: int


class TimeIndex:
    """The entries of one segment's time index, in memory."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    def add(self, timestamp: int, offset: int) -> None:
        """Add an entry: no batch up to ``offset`` is newer than ``timestamp``. If the last entry is
        not older than ``timestamp``, do nothing."""
        if not self._timestamps or timestamp > self._timestamps[-1]:
            self._offsets.append(offset - self.base_offset)
            self._timestamps.append(timestamp)

    def start_for(self, timestamp: int) -> int:
        """Return an offset before which every record is older than ``timestamp``."""
        i = bisect_left(self._timestamps, timestamp) - 1
        return self.base_offset + (self._offsets[i] if i >= 0 else 0)

    def cut(self, next_offset: int) -> TimeIndex:
        """Return a copy without the entries at or beyond ``next_offset``."""
        index = TimeIndex(self.base_offset)
        count = bisect_left(self._offsets, next_offset - self.base_offset)
        index._offsets, index._timestamps = self._offsets[:count], self._timestamps[:count]
        return index

    def last_timestamp(self) -> int:
        """Return the timestamp of the newest entry; -1 for an empty index."""
        return self._timestamps[-1] if self._timestamps else NO_TIMESTAMP

    def encode(self, log_bytes: int, append_ms: tuple[int, int], max_timestamp: int) -> bytes:
        """Return the bytes of the index file. ``append_ms``: append times of the first and last
        batch."""
        body = big_endian(self._timestamps) + big_endian(self._offsets)
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            0,
            self.base_offset,
            log_bytes,
            *append_ms,
            max_timestamp,
            len(self._timestamps),
            crc32c(body),
        )
        return header + header_crc(header) + body


def decode_facts(data: bytes) -> TimeFacts:
    """Decode only the header of a time index file. Raises CorruptIndex."""
    magic, version, _, *facts = _HEADER.unpack(checked_header(data, _HEADER))
    if magic != _MAGIC or version != _VERSION:
        raise CorruptIndex("the file is no time index of this version")
    return TimeFacts._make(facts)


def decode(data: bytes) -> tuple[TimeFacts, TimeIndex]:
    """Decode a whole time index file. Raises CorruptIndex."""
    facts = decode_facts(data)
    body = data[HEADER_BYTES:]
    count = facts.entry_count
    if len(body) != 12 * count or crc32c(body) != facts.body_crc:
        raise CorruptIndex("the time index has a wrong checksum")
    index = TimeIndex(facts.base_offset)
    index._timestamps = from_big_endian("q", body[: 8 * count])
    index._offsets = from_big_endian("i", body[8 * count :])
    return facts, index
