"""One segment: a log file of whole batches with its two sparse indexes.

The log's writer thread appends to the active segment. Closed segments never change; they open their
file and load their indexes at the first read, and ``LoadedSegments`` limits how many stay loaded.
Readers on any thread need no lock, because each read is bounded by a position that is published
after its bytes and index entries. Index files are hints: a wrong one is rebuilt from the log
file."""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from broker_lite.model import NO_EPOCH, NO_TIMESTAMP, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.walker import BadBatch, LogBatch, WalkPolicy
from broker_lite.storage import offset_index, paths, time_index, transaction_index
from broker_lite.storage.checkpoint import read_whole, write_atomic
from broker_lite.storage.files import File, Files
from broker_lite.storage.offset_index import CorruptIndex, IndexEntry, OffsetIndex
from broker_lite.storage.scan import CorruptRange, read_batch, resync, walk_batches, walk_headers
from broker_lite.storage.time_index import TimeIndex
from broker_lite.storage.transaction_index import TransactionIndex

LOADED_SEGMENTS_MAX = 4
"""Maximum closed segments of one log that stay loaded, with an open file and indexes in memory."""
UNBOUNDED = 1 << 62
RELATIVE_OFFSET_MAX = (1 << 31) - 1
FIND_CHUNK_BYTES = 4 << 10
"""Bytes that a search reads at once. Index entries are by default 4 KiB apart in the log, so that
one read is mostly enough."""
_ANY_EPOCHS = WalkPolicy(orders_epochs=False)
"""The checks of batch headers in a search for an offset. They ignore leader epochs: after a batch
with a wrong, too high epoch, the next batch would seem bad because its epoch is lower."""


class BadRange(NamedTuple):
    """Damage inside a segment: the offsets that are lost or fail a check, and their bytes'
    position."""

    first_offset: int
    next_offset: int
    position: int
    length: int
    reason: str
    unreadable: bool

    def in_log(self, key: PartitionKey, segment_base: int) -> CorruptRange:
        """Return this range as a ``CorruptRange``, which also names its partition and segment."""
        first, following, position, length, reason, unreadable = self
        return CorruptRange(
            key, first, following, segment_base, position, length, reason, unreadable
        )


class Rescan(NamedTuple):
    """The result of a scan: the skipped damage, and the first batch of the torn tail, or None.

    A torn tail is half-written bytes, at which a scan ends."""

    damage: tuple[BadRange, ...]
    torn: BadBatch | None
    scanned_bytes: int


class LoadedSegments:
    """The closed segments of one log that are loaded, in the order in which they loaded.

    A segment adds itself when it loads its file or an index, on any thread. The references are
    weak, so that the file of a deleted segment closes with its last reader."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._segments: deque[weakref.ref[Segment]] = deque()

    def manage(self, segment: Segment) -> None:
        """Add a closed segment. Release the oldest ones if more than LOADED_SEGMENTS_MAX are
        loaded."""
        segment.cache = self
        self._add(segment)

    def store(self, segment: Segment, store: Callable[[], None]) -> None:
        """Call ``store``, which puts a loaded file or index into ``segment``, and count the segment
        as loaded."""
        with self._lock:
            store()
            self._add(segment)

    def _add(self, segment: Segment) -> None:
        reference = weakref.ref(segment)
        with self._lock:
            if not segment.is_loaded or reference in self._segments:
                return
            self._segments.append(reference)
            if len(self._segments) > LOADED_SEGMENTS_MAX:
                oldest = self._segments.popleft()()
                if oldest is not None:
                    oldest.release()


class Segment:
    """The batches from ``base_offset`` to before ``next_offset``, in a log file."""

    __slots__ = (
        "__weakref__",
        "_bytes_since_entry",
        "_file",
        "_files",
        "_index",
        "_times",
        "_transactions",
        "base_offset",
        "cache",
        "damaged",
        "directory",
        "first_append_ms",
        "has_transactions",
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
        self._transactions: TransactionIndex | None = None
        self._bytes_since_entry = 0
        self.cache: LoadedSegments | None = None
        """The cache that closes the segment's file if too many are loaded; None if the segment is
        active."""
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.synced_bytes = 0
        self.saved_bytes = 0
        """Size of the log file in bytes when indexes and producer state were last saved."""
        self.name_synced = False
        self.has_transactions = False
        """Whether any batch is transactional or a control batch, so that there is a transaction
        index."""
        self.damaged = False
        self.first_append_ms = NO_TIMESTAMP
        self.last_append_ms = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP

    # Methods that create a segment, or open an existing one.

    @classmethod
    def create(cls, files: Files, directory: str, base_offset: int) -> Segment:
        """Create an empty segment. Its name is durable only after a sync of the directory."""
        segment = cls(files, directory, base_offset)
        segment._file = files.create(segment.path(paths.LOG))
        segment._index = OffsetIndex(base_offset)
        segment._times = TimeIndex(base_offset)
        segment._transactions = TransactionIndex()
        return segment

    @classmethod
    def existing(cls, files: Files, directory: str, base_offset: int) -> Segment:
        """Return an existing segment, with size and times from the file system; read no batch."""
        segment = cls(files, directory, base_offset)
        path = segment.path(paths.LOG)
        segment.size_bytes = segment.synced_bytes = files.size(path)
        segment.name_synced = True
        segment.first_append_ms = segment.last_append_ms = files.modified_ms(path)
        return segment

    def path(self, suffix: str) -> str:
        return paths.segment_file(self.directory, self.base_offset, suffix)

    def load_facts(self) -> bool:
        """Load the headers of both index files. Return whether both were saved for this log file at
        its present size."""
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
        self.has_transactions = offsets.has_transactions
        return True

    def load_prefix(self, recovery_point: int) -> IndexEntry:
        """Load the index files if they belong to this log file, even if the log file was shorter
        when they were saved. Return the entry from which the caller must scan the log.

        Index files that contradict the log file are not used; the scan then begins at the segment's
        start."""
        try:
            facts, index = offset_index.decode(self._whole(paths.INDEX))
            times_facts, times = time_index.decode(self._whole(paths.TIME_INDEX))
        except (CorruptIndex, OSError):
            return self._begin_indexes()
        if facts.base_offset != self.base_offset or facts.log_bytes != times_facts.log_bytes:
            return self._begin_indexes()
        self.first_append_ms = times_facts.first_append_ms
        self.has_transactions = facts.has_transactions
        entry = index.floor(min(facts.next_offset, recovery_point) - 1)
        if facts.log_bytes > self.size_bytes or facts.damaged or not self._has_batch_at(entry):
            with contextlib.suppress(OSError):
                # Neither index file matches the log file. Delete one: no start uses the other
                # alone. A later start could use both, once appends have given the log file the
                # size for which they were saved.
                self._files.remove(self.path(paths.TIME_INDEX))
            return self._begin_indexes()
        # Cut both indexes at the same batch: each time index entry belongs to an offset index
        # entry.
        self._index = index.cut(entry.position + 1)
        self._times = times.cut(entry.offset + 1)
        self.max_timestamp = self._times.last_timestamp()
        self._bytes_since_entry = 0
        self.next_offset = entry.offset
        return entry

    def _begin_indexes(self) -> IndexEntry:
        self._index, self._times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.max_timestamp = NO_TIMESTAMP
        self.next_offset = self.base_offset
        self._bytes_since_entry = 0
        return IndexEntry(self.base_offset, 0)

    def _has_batch_at(self, entry: IndexEntry) -> bool:
        if entry.position == 0:
            return entry.offset == self.base_offset
        whole = read_batch(self.file, entry.position, self.size_bytes)
        return whole is not None and whole[0].base_offset == entry.offset

    def _head(self, suffix: str, length: int) -> bytes:
        return self._files.open(self.path(suffix)).pread(0, length)

    def _whole(self, suffix: str) -> bytes:
        data = read_whole(self._files, self.path(suffix))
        if data is None:
            raise CorruptIndex("the file is missing")
        return data

    # Properties and methods that load the file and the indexes on first use.

    @property
    def file(self) -> File:
        """The log file, opened on first use."""
        file = self._file
        if file is None:
            file = self._files.open(self.path(paths.LOG))
            self._store(file=file)
        return file

    def _store(
        self,
        *,
        file: File | None = None,
        indexes: tuple[OffsetIndex, TimeIndex] | None = None,
        transactions: TransactionIndex | None = None,
    ) -> None:
        """Store a loaded file or index in the segment, unless another thread stored one first."""

        def store() -> None:
            self._file = self._file or file
            if indexes is not None and self._index is None:
                self._index, self._times = indexes
            if self._transactions is None:
                self._transactions = transactions

        cache = self.cache
        if cache is None:
            store()
        else:
            cache.store(self, store)

    def open_writable(self) -> None:
        """Open the log file for appends and truncation; ``file`` opens it only for reading."""
        self._file = self._files.open(self.path(paths.LOG), writable=True)

    def make_active(self) -> None:
        """Open the log file for appending, and load the indexes to extend them."""
        self.open_writable()
        self._load_indexes()
        self._bytes_since_entry = self.size_bytes - self.index.last().position

    def ends_at_saved_offset(self) -> bool:
        """Return whether the last batch ends at the index file's ``next_offset``. Reads only the
        headers after the last index entry."""
        offset, position = self.index.last()
        try:
            for batch in walk_headers(self.file, position, self.size_bytes, offset):
                offset = batch.header.next_offset
        except BadBatch:
            return False
        return offset == self.next_offset

    @property
    def index(self) -> OffsetIndex:
        """The offset index, rebuilt if its file is missing or wrong."""
        index = self._index
        return self._load_indexes()[0] if index is None else index

    @property
    def times(self) -> TimeIndex:
        times = self._times
        return self._load_indexes()[1] if times is None else times

    @property
    def is_loaded(self) -> bool:
        """Whether the file is open, or an index is in memory."""
        return bool(self._file or self._index is not None or self._transactions)

    def _load_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        index, times = self._index, self._times
        if index is not None and times is not None:
            return index, times
        try:
            facts, index = offset_index.decode(self._whole(paths.INDEX))
            _, times = time_index.decode(self._whole(paths.TIME_INDEX))
            if facts.base_offset != self.base_offset or facts.log_bytes != self.size_bytes:
                raise CorruptIndex("the index describes another log file")
        except (CorruptIndex, OSError):
            index, times = self.rebuilt()
        self._store(indexes=(index, times))
        return index, times

    def rebuilt(self) -> tuple[OffsetIndex, TimeIndex]:
        """Build both indexes from the log file, without changing those in use."""
        scanned = Segment(self._files, self.directory, self.base_offset)
        scanned._file, scanned.size_bytes = self.file, self.size_bytes
        scanned.rescan(scanned._begin_indexes(), self.next_offset, check_crc=False)
        return scanned.index, scanned.times

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes, because an entry points to a position at which its batch does not
        begin."""
        index, times = self.rebuilt()
        self._times, self._index = times, index
        # Count the segment as loaded: ``cache`` may have released it during the rebuild.
        self._store()

    def release(self) -> None:
        """Drop the references to the file and the indexes. Reads in progress keep the objects that
        they use."""
        self._index = self._times = self._file = None
        # An empty index of aborted transactions stays in memory, because lookups read this index of
        # many segments.
        if self._transactions and self._transactions.is_saved:
            self._transactions = None

    # Properties and methods of the transaction index.

    @property
    def transactions(self) -> TransactionIndex:
        """The transaction index, loaded from its file if needed. Raises OSError, CorruptIndex."""
        loaded = self._transactions
        if loaded is None:
            loaded = self.load_transactions()[0]
            self._store(transactions=loaded)
        return loaded

    @transactions.setter
    def transactions(self, index: TransactionIndex) -> None:
        self._transactions = index

    @property
    def has_transaction_index(self) -> bool:
        """Whether the transaction index is in memory."""
        return self._transactions is not None

    def load_transactions(self) -> tuple[TransactionIndex, int]:
        """Return the saved transaction index, and the end offset up to which it covers the log.
        Raises CorruptIndex."""
        return transaction_index.decode(self._whole(paths.TXN_INDEX))

    # Methods that append, truncate and save.

    def append(self, buffer: Buffer, now_ms: int, *, keep: bool = True) -> int:
        """Write whole batches, with their offsets already in the headers. Return the position of
        the first.

        With ``keep`` the written pages stay in the page cache. Afterwards call ``note`` for each
        batch. After an OSError call ``repair``, because a part of the buffer may be written."""
        file = self._file
        assert file is not None and file.size == self.size_bytes
        position = file.append((buffer,), keep=keep)
        if not self.size_bytes or self.first_append_ms < 0:
            self.first_append_ms = now_ms
        self.last_append_ms = now_ms
        return position

    def repair(self) -> None:
        """Cut off the remains of a failed append. Raises OSError if that fails too."""
        file = self._file
        assert file is not None
        file.truncate(self.size_bytes)

    def note(self, header: BatchHeader, position: int, interval_bytes: int) -> None:
        """Extend the indexes and the segment's end by the batch at ``position``, which was appended
        or scanned."""
        base = header.base_offset
        size = header.length + fmt.LENGTH_PREFIX_BYTES
        if header.attributes & fmt.ATTRIBUTES_OF_TRANSACTIONS:
            self.has_transactions = True
        if header.max_timestamp > self.max_timestamp and not header.is_control:
            self.max_timestamp = header.max_timestamp
        if self._bytes_since_entry > interval_bytes and position:
            assert self._index is not None and self._times is not None
            self._times.add(self.max_timestamp, base)
            self._index.add(base, position)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.next_offset = base + header.last_offset_delta + 1
        self.size_bytes = position + size

    def writable_copy(self) -> Segment:
        """Return a copy of this segment as an active one, which the writer may truncate.

        Raises OSError. Readers keep the original: a truncation does not change its fields and
        indexes."""
        writable = copy.copy(self)
        writable.cache = None
        writable.make_active()
        if writable.has_transactions:
            # Load the transaction index from its file before the truncation, because the file has
            # entries of the batches that the truncation removes. If the load fails, the rebuild of
            # the producer state also rebuilds the index.
            with contextlib.suppress(OSError, CorruptIndex):
                _ = writable.transactions
        return writable

    def cut(self, position: int, next_offset: int) -> None:
        """Truncate the file at a batch boundary. Readers that still hold a byte range of the file
        then get no bytes beyond it."""
        file = self._file
        assert file is not None
        file.truncate(position)
        self._index = self.index.cut(position)
        self._times = self.times.cut(next_offset)
        if self._transactions is not None:
            self._transactions = self._transactions.cut(next_offset)
        self.size_bytes = position
        self.synced_bytes = min(self.synced_bytes, position)
        self.next_offset = next_offset
        self._find_newest()

    def _find_newest(self) -> None:
        self.max_timestamp = self.times.last_timestamp()
        start = self.index.last()
        with contextlib.suppress(BadBatch):
            for batch in walk_headers(self.file, start.position, self.size_bytes, start.offset):
                if not batch.header.is_control:
                    self.max_timestamp = max(self.max_timestamp, batch.header.max_timestamp)

    def start_sync(self) -> None:
        """Start writing unsynced bytes to disk."""
        if self.synced_bytes < self.size_bytes:
            self.file.start_sync(self.synced_bytes)

    def datasync(self) -> None:
        """Sync all bytes that were appended before the call. Raises OSError."""
        size = self.size_bytes
        self.file.datasync()
        self.synced_bytes = max(self.synced_bytes, size)

    @property
    def is_synced(self) -> bool:
        return self.name_synced and self.synced_bytes >= self.size_bytes

    def save_indexes(self, *, sync: bool = False) -> None:
        """Write both index files, by default unsynced, because each load checks them."""
        append_ms = (self.first_append_ms, self.last_append_ms)
        times = self.times.encode(self.size_bytes, append_ms, self.max_timestamp)
        offsets = self.index.encode(
            self.size_bytes, self.next_offset, self.damaged, self.has_transactions
        )
        base = f"{self.base_offset:020d}"
        if self.has_transactions and self._transactions is not None:
            self.save_transactions(sync=sync)
        write_atomic(self._files, self.directory, base + paths.TIME_INDEX, times, sync=sync)
        write_atomic(self._files, self.directory, base + paths.INDEX, offsets, sync=sync)

    def drop_index_files(self) -> None:
        """Delete the index files, because they describe batches that were removed. The next start
        rebuilds them from the log file."""
        for suffix in (paths.INDEX, paths.TIME_INDEX, paths.TXN_INDEX):
            with contextlib.suppress(FileNotFoundError):
                self._files.remove(self.path(suffix))

    def save_transactions(self, *, sync: bool = False) -> None:
        """Write the transaction index to its file, with the segment's end as the offset up to which
        it is complete."""
        index = self.transactions
        name = f"{self.base_offset:020d}{paths.TXN_INDEX}"
        write_atomic(self._files, self.directory, name, index.encode(self.next_offset), sync=sync)
        index.is_saved = True

    # Methods that find a batch.

    def find(self, offset: int, end: int) -> LogBatch:
        """Return the batch that holds ``offset``; search only before position ``end``.

        If the batch at the index entry is invalid, rebuild the indexes and search once more before
        raising BadBatch."""
        try:
            return self.find_from(self.index.floor(offset), offset, end)
        except BadBatch as bad:
            if bad.position != self.index.floor(offset).position or bad.position == 0:
                raise
            self.rebuild_indexes()
            return self.find_from(self.index.floor(offset), offset, end)

    def find_from(self, entry: IndexEntry, offset: int, end: int) -> LogBatch:
        """Return the batch that holds ``offset``. Search from the batch boundary ``entry`` on.
        Raises BadBatch."""
        expected, position = entry
        for batch in walk_headers(
            self.file, position, end, expected, policy=_ANY_EPOCHS, chunk_bytes=FIND_CHUNK_BYTES
        ):
            expected = batch.header.next_offset
            if expected > offset:
                return batch
        raise BadBatch(end, expected, "the file ends before this offset")

    def header_at(self, entry: IndexEntry, end: int, epoch: int = NO_EPOCH) -> BatchHeader:
        """Return the header of the batch that begins at ``entry``. Raises BadBatch, also if the
        batch exceeds position ``end``."""
        expected, position = entry
        one = walk_headers(self.file, position, end, expected, epoch, chunk_bytes=fmt.HEADER_BYTES)
        return next(one).header

    # Methods that scan the file.

    def rescan(
        self,
        start: IndexEntry,
        limit: int = UNBOUNDED,
        *,
        check_crc: bool,
        recovery_point: int = UNBOUNDED,
        interval_bytes: int = 4096,
        epoch_of: Callable[[BatchHeader], int] | None = None,
    ) -> Rescan:
        """Scan the batches from ``start`` on and add them to the indexes.

        The first bad batch at or above ``recovery_point`` is a torn tail and ends the scan. Bad
        batches below ``recovery_point`` are skipped, as damage. ``limit`` is the next segment's
        base offset, if any. ``epoch_of`` returns a batch's expected leader epoch, -1 for any."""
        end, position, expected = self.size_bytes, start.position, start.offset
        walk = walk_batches if check_crc else walk_headers
        damage: list[BadRange] = []
        epoch = -1
        self.size_bytes = position
        while position < end:
            try:
                for batch in walk(self.file, position, end, expected, epoch):
                    if epoch_of is not None:
                        _check_epoch(batch, epoch_of(batch.header))
                    self.note(batch.header, batch.position, interval_bytes)
                    position, expected = self.size_bytes, self.next_offset
                    epoch = batch.header.leader_epoch
            except BadBatch as bad:
                if bad.offset >= recovery_point:
                    return Rescan(tuple(damage), bad, position - start.position)
                damaged = self.damage_at(bad, end, min(limit, recovery_point))
                damage.append(damaged)
                self.damaged = True
                if not damaged.unreadable and bad.header is not None:
                    self.note(bad.header, bad.position, interval_bytes)
                else:
                    # Force an index entry at the next batch, so that searches skip the damage.
                    self._bytes_since_entry = UNBOUNDED
                    self.size_bytes = damaged.position + damaged.length
                    self.next_offset = damaged.next_offset
                position, expected, epoch = self.size_bytes, self.next_offset, -1
        return Rescan(tuple(damage), None, end - start.position)

    def damage_at(self, bad: BadBatch, end: int, limit: int) -> BadRange:
        """Return the corrupt range from ``bad`` to the next batch or, if none follows, to the
        offset ``limit``."""
        header = bad.header
        if header is not None and self._steps_over(bad.position, header, end, limit):
            return BadRange(
                bad.offset, header.next_offset, bad.position, header.size_bytes, bad.reason, False
            )
        again = resync(self.file, bad.position + 1, end, bad.offset + 1)
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
            self.header_at(IndexEntry(expected, after), end, header.leader_epoch)
        except BadBatch:
            return False
        return True


def _check_epoch(batch: LogBatch, epoch: int) -> None:
    header, position = batch.header, batch.position
    if epoch not in (-1, header.leader_epoch):
        reason = (
            f"the batch has leader epoch {header.leader_epoch}, but the epoch file says {epoch}"
        )
        raise BadBatch(position, header.base_offset, reason, header)
