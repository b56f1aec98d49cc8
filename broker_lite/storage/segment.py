"""One segment: a log file of whole batches with its two sparse indexes.

The active segment of a log is appended to by the log's writer thread; the others never change and
load their file and indexes when first read (``release`` drops them again). Readers anywhere need
no lock: they bound themselves by a position that was published after the bytes and entries below
it. Index files are hints: a wrong one is rebuilt from the log file, never obeyed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from broker_lite.model import NO_EPOCH, NO_TIMESTAMP, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.walker import BadBatch, LogBatch, WalkPolicy
from broker_lite.storage import offset_index, paths, time_index
from broker_lite.storage.checkpoint import read_whole, write_atomic
from broker_lite.storage.files import File, Files
from broker_lite.storage.offset_index import CorruptIndex, Entry, OffsetIndex
from broker_lite.storage.scan import (
    CorruptRange,
    read_batch,
    resync,
    walk_batches,
    walk_headers,
)
from broker_lite.storage.time_index import TimeIndex

UNBOUNDED = 1 << 62
RELATIVE_OFFSET_MAX = (1 << 31) - 1
FIND_CHUNK_BYTES = 4 << 10
"""What one read of headers takes in: an index interval, so that most searches need one."""
_ANY_EPOCHS = WalkPolicy(orders_epochs=False)
"""A search does not judge leader epochs: a wrong one would be blamed on the batch behind it."""


class BadRange(NamedTuple):
    """Damage inside a segment: offsets without readable bytes, and where those should be."""

    first_offset: int
    next_offset: int
    position: int
    length: int
    reason: str
    unreadable: bool

    def in_log(self, key: PartitionKey, segment_base: int) -> CorruptRange:
        """The same, as those who know the partition see it."""
        first, following, position, length, reason, unreadable = self
        return CorruptRange(
            key, first, following, segment_base, position, length, reason, unreadable
        )


class Rescan(NamedTuple):
    """What a scan met: damage that it went past, and what ended it early (a torn tail)."""

    damage: tuple[BadRange, ...]
    torn: BadBatch | None
    scanned_bytes: int


class Segment:
    """A run of batches from ``base_offset`` on; ``next_offset`` and ``size_bytes`` are its end."""

    __slots__ = (
        "_bytes_since_entry",
        "_file",
        "_files",
        "_index",
        "_times",
        "base_offset",
        "damaged",
        "directory",
        "first_append_ms",
        "last_append_ms",
        "max_timestamp",
        "name_synced",
        "next_offset",
        "saved_bytes",
        "size_bytes",
        "synced_bytes",
    )

    def __init__(self, files: Files, directory: str, base_offset: int) -> None:
        self._files = files
        self._file: File | None = None
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._bytes_since_entry = 0
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.synced_bytes = 0
        self.saved_bytes = 0
        """Its size when the log's writer last saved what shortens the next start."""
        self.name_synced = False
        self.damaged = False
        self.first_append_ms = NO_TIMESTAMP
        self.last_append_ms = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP

    # -- opening -----------------------------------------------------------------------------

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int) -> Segment:
        """A new, empty segment; its name is not on disk before the directory is synced."""
        segment = cls(files, directory, base_offset)
        segment._file = files.create(segment.path(paths.LOG))
        segment._index = OffsetIndex(base_offset)
        segment._times = TimeIndex(base_offset)
        return segment

    @classmethod
    def found(cls, files: Files, directory: str, base_offset: int) -> Segment:
        """An existing segment of unknown soundness: sizes and times from the file system."""
        segment = cls(files, directory, base_offset)
        path = segment.path(paths.LOG)
        segment.size_bytes = segment.synced_bytes = files.size(path)
        segment.name_synced = True
        segment.first_append_ms = segment.last_append_ms = files.modified_ms(path)
        return segment

    def path(self, suffix: str) -> str:
        return paths.segment_file(self.directory, self.base_offset, suffix)

    def load_facts(self) -> bool:
        """Take what the index files say, if both describe exactly this log file."""
        try:
            offsets = offset_index.decode_facts(self._head(paths.INDEX, offset_index.HEADER_BYTES))
            times = time_index.decode_facts(self._head(paths.TIME_INDEX, time_index.HEADER_BYTES))
        except (CorruptIndex, OSError):
            return False
        self.first_append_ms = times.first_append_ms
        bases = (offsets.base_offset, times.base_offset)
        if bases != (self.base_offset, self.base_offset) or (
            (offsets.log_bytes, times.log_bytes) != (self.size_bytes, self.size_bytes)
        ):
            return False
        self.last_append_ms = times.last_append_ms
        self.max_timestamp = times.max_timestamp
        self.next_offset = offsets.next_offset
        self.damaged = offsets.damaged
        return True

    def load_prefix(self, recovery_point: int) -> Entry:
        """Take index files that describe the first part of this file; where to scan on from.

        An entry is believed if the batch that it names is really there.
        """
        try:
            facts, index = offset_index.decode(self._whole(paths.INDEX))
            times_facts, times = time_index.decode(self._whole(paths.TIME_INDEX))
        except (CorruptIndex, OSError):
            return self._begin_indexes()
        if facts.base_offset != self.base_offset or facts.log_bytes != times_facts.log_bytes:
            return self._begin_indexes()
        self.first_append_ms = times_facts.first_append_ms
        entry = index.floor(min(facts.next_offset, recovery_point) - 1)
        if facts.log_bytes > self.size_bytes or facts.damaged or not self._is_there(entry):
            with contextlib.suppress(OSError):
                # Where other batches of the same sizes come, the next start would believe it.
                self._files.remove(self.path(paths.TIME_INDEX))
            return self._begin_indexes()
        # An entry of the time index covers the batch of the offset index's entry beside it.
        self._index = index.cut(entry.position + 1)
        self._times = times.cut(entry.offset + 1)
        self.max_timestamp = self._times.last_timestamp()
        self._bytes_since_entry = 0
        self.next_offset = entry.offset
        return entry

    def _begin_indexes(self) -> Entry:
        self._index, self._times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.max_timestamp = NO_TIMESTAMP
        self.next_offset = self.base_offset
        self._bytes_since_entry = 0
        return Entry(self.base_offset, 0)

    def _is_there(self, entry: Entry) -> bool:
        if entry.position == 0:
            return entry.offset == self.base_offset
        found = read_batch(self.file, entry.position, self.size_bytes)
        return found is not None and found[0].base_offset == entry.offset

    def _head(self, suffix: str, length: int) -> bytes:
        return self._files.open(self.path(suffix)).pread(0, length)

    def _whole(self, suffix: str) -> bytes:
        data = read_whole(self._files, self.path(suffix))
        if data is None:
            raise CorruptIndex("missing")
        return data

    # -- lazily loaded parts -------------------------------------------------------------------

    @property
    def file(self) -> File:
        """The log file, opened when first needed."""
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path(paths.LOG))
        return file

    def open_writable(self) -> None:
        """Let this segment's file be appended to, or cut."""
        self._file = self._files.open(self.path(paths.LOG), writable=True)

    def make_active(self) -> None:
        """Open for appending, with indexes that go on where they end."""
        self.open_writable()
        self._load_indexes()
        self._bytes_since_entry = self.size_bytes - self.index.last().position

    def ends_as_said(self) -> bool:
        """Whether the batches behind the last index entry lead to the end that was saved."""
        offset, position = self.index.last()
        try:
            for found in walk_headers(self.file, position, self.size_bytes, offset):
                offset = found.header.next_offset
        except BadBatch:
            return False
        return offset == self.next_offset

    @property
    def index(self) -> OffsetIndex:
        """The offset index; rebuilt if its file is missing or wrong."""
        index = self._index
        return self._load_indexes()[0] if index is None else index

    @property
    def times(self) -> TimeIndex:
        times = self._times
        return self._load_indexes()[1] if times is None else times

    @property
    def is_loaded(self) -> bool:
        return self._index is not None

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        index, times = self._index, self._times
        if index is not None and times is not None:
            return index, times
        try:
            facts, index = offset_index.decode(self._whole(paths.INDEX))
            _, times = time_index.decode(self._whole(paths.TIME_INDEX))
            if facts.base_offset != self.base_offset or facts.log_bytes != self.size_bytes:
                raise CorruptIndex("of another log file")
        except (CorruptIndex, OSError):
            index, times = self.rebuilt()
        self._times, self._index = times, index
        return index, times

    def rebuilt(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes from the log file itself; the segment's own are not touched."""
        copy = Segment(self._files, self.directory, self.base_offset)
        copy._file, copy.size_bytes = self.file, self.size_bytes
        copy.rescan(copy._begin_indexes(), self.next_offset, check_crc=False)
        return copy.index, copy.times

    def distrust_index(self) -> None:
        """An entry led to the wrong place: build both indexes anew."""
        index, times = self.rebuilt()
        self._times, self._index = times, index

    def release(self) -> None:
        """Drop what can be loaded again; readers in the middle of something keep theirs."""
        self._index = self._times = self._file = None

    # -- appending -----------------------------------------------------------------------------

    def append(self, buffer: Buffer, now_ms: int, *, keep: bool = True) -> int:
        """Write whole batches whose headers are final; returns the position of the first.
        ``keep``: whether they are to stay in memory.

        The caller then calls ``note`` for each. An OSError may leave a partial tail: ``repair``.
        """
        file = self._file
        assert file is not None and file.size == self.size_bytes
        position = file.append((buffer,), keep=keep)
        if self.first_append_ms < 0:
            self.first_append_ms = now_ms
        self.last_append_ms = now_ms
        return position

    def repair(self) -> None:
        """Cut what a failed append left; OSError if even that fails."""
        file = self._file
        assert file is not None
        file.truncate(self.size_bytes)

    def note(self, header: BatchHeader, position: int, interval_bytes: int) -> None:
        """Take an appended or scanned batch into the indexes and the segment's end."""
        base = header.base_offset
        size = header.length + fmt.LENGTH_PREFIX_BYTES
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        if self._bytes_since_entry > interval_bytes and position:
            assert self._index is not None and self._times is not None
            self._times.add(self.max_timestamp, base)
            self._index.add(base, position)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.next_offset = base + header.last_offset_delta + 1
        self.size_bytes = position + size

    def cut(self, position: int, next_offset: int) -> None:
        """Shorten to a batch boundary; readers that already hold a slice see it end early."""
        file = self._file
        assert file is not None
        file.truncate(position)
        self._index = self.index.cut(position)
        self._times = self.times.cut(next_offset)
        self.size_bytes = position
        self.synced_bytes = min(self.synced_bytes, position)
        self.next_offset = next_offset
        self._find_newest()

    def _find_newest(self) -> None:
        self.max_timestamp = self.times.last_timestamp()
        start = self.index.last()
        with contextlib.suppress(BadBatch):
            for found in walk_headers(self.file, start.position, self.size_bytes, start.offset):
                self.max_timestamp = max(self.max_timestamp, found.header.max_timestamp)

    def start_sync(self) -> None:
        """Let the disk begin with what is not on it."""
        if self.synced_bytes < self.size_bytes:
            self.file.start_sync(self.synced_bytes)

    def datasync(self) -> None:
        """Put what was appended before the call on disk. OSError is for the caller to judge."""
        size = self.size_bytes
        self.file.datasync()
        self.synced_bytes = max(self.synced_bytes, size)

    @property
    def is_synced(self) -> bool:
        return self.name_synced and self.synced_bytes >= self.size_bytes

    def save_indexes(self, *, sync: bool = False) -> None:
        """Write both index files as of now; not synced by default, for they are checked."""
        append_ms = (self.first_append_ms, self.last_append_ms)
        times = self.times.encode(self.size_bytes, append_ms, self.max_timestamp)
        offsets = self.index.encode(self.size_bytes, self.next_offset, self.damaged)
        base = f"{self.base_offset:020d}"
        write_atomic(self._files, self.directory, base + paths.TIME_INDEX, times, sync=sync)
        write_atomic(self._files, self.directory, base + paths.INDEX, offsets, sync=sync)

    # -- reading -------------------------------------------------------------------------------

    def find(self, offset: int, end: int) -> LogBatch:
        """The batch that holds ``offset``, which lies before position ``end``.

        Raises BadBatch. The entry is distrusted, once, if it does not lead to its batch.
        """
        try:
            return self.find_from(self.index.floor(offset), offset, end)
        except BadBatch as bad:
            if bad.position != self.index.floor(offset).position or bad.position == 0:
                raise
            self.distrust_index()
            return self.find_from(self.index.floor(offset), offset, end)

    def find_from(self, entry: Entry, offset: int, end: int) -> LogBatch:
        """As ``find``, walking headers from a known batch boundary on; raises BadBatch."""
        expected, position = entry
        for found in walk_headers(
            self.file, position, end, expected, policy=_ANY_EPOCHS, chunk_bytes=FIND_CHUNK_BYTES
        ):
            expected = found.header.next_offset
            if expected > offset:
                return found
        raise BadBatch(end, expected, "the file ends before it")

    def header_at(self, entry: Entry, end: int, epoch: int = NO_EPOCH) -> BatchHeader:
        """The header of the batch at a boundary before ``end``; raises BadBatch."""
        expected, position = entry
        one = walk_headers(self.file, position, end, expected, epoch, chunk_bytes=fmt.HEADER_BYTES)
        return next(one).header

    # -- scanning ------------------------------------------------------------------------------

    def rescan(
        self,
        start: Entry,
        limit: int = UNBOUNDED,
        *,
        check_crc: bool,
        recovery_point: int = UNBOUNDED,
        interval_bytes: int = 4096,
        epoch_of: Callable[[BatchHeader], int] | None = None,
    ) -> Rescan:
        """Index the file from ``start`` on, stopping at the first bad batch at or above
        ``recovery_point`` (that is a torn tail) and going past bad ones below it (damage).

        ``limit`` is where the next segment begins, if there is one. ``epoch_of`` says which
        leader epoch should have written a batch, -1 where that is not known.
        """
        end, position, expected = self.size_bytes, start.position, start.offset
        walk = walk_batches if check_crc else walk_headers
        damage: list[BadRange] = []
        epoch = -1
        self.size_bytes = position
        while position < end:
            try:
                for found in walk(self.file, position, end, expected, epoch):
                    if epoch_of is not None:
                        _check_epoch(found, epoch_of(found.header))
                    self.note(found.header, found.position, interval_bytes)
                    position, expected = self.size_bytes, self.next_offset
                    epoch = found.header.leader_epoch
            except BadBatch as bad:
                if bad.offset >= recovery_point:
                    return Rescan(tuple(damage), bad, position - start.position)
                damaged = self.damage_at(bad, end, min(limit, recovery_point))
                damage.append(damaged)
                self.damaged = True
                if not damaged.unreadable and bad.header is not None:
                    self.note(bad.header, bad.position, interval_bytes)
                else:
                    # The next batch gets an index entry: damage is skipped from there on.
                    self._bytes_since_entry = UNBOUNDED
                    self.size_bytes = damaged.position + damaged.length
                    self.next_offset = damaged.next_offset
                position, expected, epoch = self.size_bytes, self.next_offset, -1
        return Rescan(tuple(damage), None, end - start.position)

    def damage_at(self, bad: BadBatch, end: int, limit: int) -> BadRange:
        """How far the damage that begins with ``bad`` reaches; ``limit`` where nothing follows."""
        header = bad.header
        if header is not None and self._steps_over(bad.position, header, end, limit):
            return BadRange(
                bad.offset, header.next_offset, bad.position, header.size_bytes, bad.reason, False
            )
        again = resync(self.file, bad.position + 1, end, bad.offset + 1, UNBOUNDED)
        beyond = again.position if again else end
        following = again.header.base_offset if again else max(limit, bad.offset + 1)
        return BadRange(
            bad.offset, following, bad.position, beyond - bad.position, bad.reason, True
        )

    def _steps_over(self, position: int, header: BatchHeader, end: int, limit: int) -> bool:
        after, expected = position + header.size_bytes, header.next_offset
        if after == end:
            return expected <= limit
        try:
            self.header_at(Entry(expected, after), end, header.leader_epoch)
        except BadBatch:
            return False
        return True


def _check_epoch(found: LogBatch, epoch: int) -> None:
    header, position = found.header, found.position
    if epoch not in (-1, header.leader_epoch):
        reason = f"leader epoch {header.leader_epoch} where {epoch} wrote"
        raise BadBatch(position, header.base_offset, reason, header)
