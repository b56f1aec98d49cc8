"""The transaction index of a segment: the aborted transactions whose markers the segment holds.

A read_committed fetch lists them, so that readers skip their records. The file has Kafka's entries
of 34 bytes each, then the offset up to which it covers the segment, then a CRC-32C.

Unlike the other indexes, it must be complete: without an entry, readers would see aborted records.
``producer_rebuild.py`` therefore replays the log from the first segment whose index is damaged or
missing. The log's writer changes the index; any thread may read it."""

from __future__ import annotations

import struct
from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

from broker_lite.record.crc32c import crc32c
from broker_lite.storage.offset_index import CorruptIndex

_ENTRY = struct.Struct(">hqqqq")
"""Layout of an entry: version, producer id, first offset, last offset, last stable offset."""
_VERSION = 0
_END = struct.Struct(">qI")
"""Layout of the file's end: the offset up to which the file covers the segment, and the CRC-32C of
all bytes before it."""
_LAST_OFFSET = attrgetter("last_offset")


class AbortedEntry(NamedTuple):
    """An aborted transaction; its last offset is that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """The last stable offset once the marker is committed.

    That is the first offset of the oldest open transaction, or else the offset after the marker. No
    later entry's transaction begins before this offset."""


class TransactionIndex:
    """The aborted transactions of one segment, in their markers' order."""

    __slots__ = ("_entries", "is_saved")

    def __init__(self, entries: list[AbortedEntry] | None = None) -> None:
        self._entries = [] if entries is None else entries
        self.is_saved = False
        """Whether the file on disk holds every entry."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[AbortedEntry, ...]:
        return tuple(self._entries)

    def add(self, entry: AbortedEntry) -> None:
        self._entries.append(entry)
        self.is_saved = False

    def cut(self, offset: int) -> TransactionIndex:
        """Return a copy without the markers at or beyond ``offset``."""
        return TransactionIndex([one for one in self._entries if one.last_offset < offset])

    def collect(self, start: int, end: int, aborted: list[AbortedEntry]) -> bool:
        """Append the aborted transactions with records in [start, end) to ``aborted``.

        Return True if no later segment can hold another aborted transaction with records below
        ``end``."""
        entries = self._entries
        for i in range(bisect_left(entries, start, key=_LAST_OFFSET), len(entries)):
            if entries[i].first_offset < end:
                aborted.append(entries[i])
            if entries[i].last_stable_offset >= end:
                return True
        return False

    def encode(self, end_offset: int) -> bytes:
        """Return the bytes of the index file, which covers batches up to ``end_offset``."""
        body = b"".join(_ENTRY.pack(_VERSION, *one) for one in self._entries)
        body += end_offset.to_bytes(8, "big")
        return body + crc32c(body).to_bytes(4, "big")


def decode(data: bytes) -> tuple[TransactionIndex, int]:
    """Return the index in a file's bytes, and the end offset that it covers. Raises
    CorruptIndex."""
    size = len(data) - _END.size
    if size < 0 or size % _ENTRY.size:
        raise CorruptIndex("the file has not the length of a transaction index")
    end_offset, crc = _END.unpack_from(data, size)
    if crc != crc32c(data[: size + 8]):
        raise CorruptIndex("the transaction index has a wrong checksum")
    index = TransactionIndex(
        [AbortedEntry(*row) for version, *row in _ENTRY.iter_unpack(data[:size])]
    )
    index.is_saved = True
    return index, end_offset
