"""Read a log from any thread while its writer appends: slices, offsets, walks over its batches.

The writer publishes its state with single assignments: after it has written bytes, first
``unstable`` (the transactions that hold back the last stable offset), then ``tail`` (end offset,
active segment and its size); and ``chain`` when segments are added or deleted. A reader that copies
each reference once sees a consistent log without a lock.

A slice holds an open file, so that a deleted segment stays readable through it. A read in a damaged
range raises CorruptMessageError, which names the range."""

from __future__ import annotations

import contextlib
import errno
import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from broker_lite.errors import (
    CorruptMessageError,
    OffsetOutOfRangeError,
    StorageError,
    UnreadableRecordsError,
)
from broker_lite.model import NO_OFFSET, OffsetAndEpoch, PartitionKey
from broker_lite.record.batch import BatchHeader
from broker_lite.record.walker import BadBatch, LogBatch
from broker_lite.storage.files import File
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.offset_index import CorruptIndex, IndexEntry
from broker_lite.storage.open_transactions import UnstableTransactions
from broker_lite.storage.scan import CorruptRange, read_batch, walk_batches, walk_headers
from broker_lite.storage.segment import LoadedSegments, Segment
from broker_lite.storage.transaction_index import AbortedEntry

HINTS = 61
"""Number of cached batch positions of a log, for readers that continue after their last read. It is
a prime, so that the offsets of equally large batches use all slots (``offset % HINTS``)."""


P = ParamSpec("P")
R = TypeVar("R")


def read_failure(what: str, error: OSError, offset: int = NO_OFFSET) -> StorageError:
    """Return the error to raise for a failed read of a log file at or after ``offset``.
    UnreadableRecordsError, for EIO, means that the disk has lost the records; other errors, such as
    EMFILE, may be temporary."""
    text = f"{what} cannot be read: {error}"
    return UnreadableRecordsError(text, offset) if error.errno == errno.EIO else StorageError(text)


def translated(
    function: Callable[Concatenate[LogReader, P], R],
) -> Callable[Concatenate[LogReader, P], R]:
    """Decorate a lookup: convert its OSErrors to OffsetOutOfRangeError if the file was deleted,
    else to the error that ``read_failure`` returns."""

    @functools.wraps(function)
    def run(reader: LogReader, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(reader, *args, **kwargs)
        except FileNotFoundError as error:
            raise OffsetOutOfRangeError(f"{error.filename} was deleted while it was read") from None
        except OSError as error:
            raise read_failure(str(reader.key), error) from error

    return run


@contextlib.contextmanager
def locating(reader: LogReader, offset: int) -> Iterator[None]:
    """Convert the OSError of a failed read to an error that names ``offset``, the read's start."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(f"{reader.key} from offset {offset}", error, offset) from error


class LogSlice(NamedTuple):
    """Whole batches as a byte range of a segment's file; ``length`` is 0 at the log's end."""

    segment: Segment
    file: File
    position: int
    length: int
    base_offset: int
    next_offset: int

    def read(self) -> bytes:
        return self.file.pread(self.position, self.length)


class Tail(NamedTuple):
    """The end of a log. The writer replaces the whole tuple, so readers need no lock."""

    end_offset: int
    segment: Segment
    size_bytes: int


Hints = list[tuple[int, Segment, int] | None]
"""Cached batch boundaries as (offset, segment, position), each at index ``offset % HINTS``."""
Chain = tuple[tuple[int, ...], tuple[Segment, ...]]
"""The base offsets of all segments, and the segments; a log has at least one."""


class LogReader:
    """A log as readers see it. Only the log's writer thread changes a LogReader."""

    def __init__(
        self, key: PartitionKey, segments: tuple[Segment, ...], leader_epochs: LeaderEpochs
    ) -> None:
        self.key = key
        self.leader_epochs = leader_epochs
        self.log_start_offset = segments[0].base_offset
        self.corruption: tuple[CorruptRange, ...] = ()
        self.unstable: UnstableTransactions | None = None
        """The transactions that hold back the last stable offset; None if there are none."""
        self.transactions_from = NO_OFFSET
        """Offset below which the log has no transaction and no marker; -1 if it has none at all."""
        self.hints: Hints = [None] * HINTS
        self.loaded = LoadedSegments()
        for segment in segments[:-1]:
            self.loaded.manage(segment)
        self.publish(segments)

    def publish(self, segments: tuple[Segment, ...]) -> None:
        """Make these segments the log that readers see. The log ends where the last segment
        ends."""
        active = segments[-1]
        self.chain: Chain = (tuple(s.base_offset for s in segments), segments)
        self.tail = Tail(active.next_offset, active, active.size_bytes)

    def forget_hints(self) -> None:
        """Drop all cached batch positions, after a truncation or a deletion.

        A read in progress writes to the old list, which no later read uses."""
        self.hints = [None] * HINTS

    @property
    def log_end_offset(self) -> int:
        """The offset after the last record of the log."""
        return self.tail[0]

    @property
    def size_bytes(self) -> int:
        """Bytes of all log files, not counting an append in progress."""
        return sum(segment.size_bytes for segment in self.chain[1])

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the exclusive end of the offsets that a read_committed reader may read."""
        unstable = self.unstable
        if unstable is None:
            return high_watermark
        # The log may start inside the first batch of an open transaction. The last stable offset is
        # then the log's start, not this batch's base offset.
        start = min(self.log_start_offset, high_watermark)
        return max(unstable.last_stable_offset(high_watermark), start)

    def is_in_active_segment(self, offset: int) -> bool:
        """Return whether ``offset`` is in the active segment, whose indexes are in memory."""
        return offset >= self.chain[0][-1]

    @translated
    def aborted_in(self, start: int, end: int) -> list[AbortedEntry]:
        """Return the aborted transactions with records in [start, end), up to the last stable
        offset.

        For closed segments this may read index files."""
        bases, segments = self.chain
        aborted: list[AbortedEntry] = []
        for segment in segments[max(bisect_right(bases, start) - 1, 0) :]:
            if not segment.has_transactions:
                continue
            try:
                if segment.transactions.collect(start, end, aborted):
                    break
            except CorruptIndex as error:
                raise StorageError(
                    f"the transaction index of {self.key} at offset {segment.base_offset} cannot "
                    f"be used: {error}; restart the broker, which rebuilds it"
                ) from None
        return aborted

    @property
    def segment_count(self) -> int:
        return len(self.chain[1])

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote ``offset``; -1 if it is unknown."""
        return self.leader_epochs.epoch_at(offset)

    def end_offset_for(self, epoch: int) -> OffsetAndEpoch | None:
        """Return the largest epoch not above ``epoch`` and its end offset, or None.

        See ``LeaderEpochs.end_offset_for``."""
        return self.leader_epochs.end_offset_for(epoch, self.tail[0])

    # Methods that read slices of whole batches.

    @translated
    def read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool = True) -> LogSlice:
        """Return a slice of whole batches below ``end_offset``. Its first batch holds
        ``offset``.

        The slice has at most ``max_bytes`` bytes, but at least one batch if ``min_one``. It is
        empty at the log's end. Raises OffsetOutOfRangeError outside [log start, log end] and
        CorruptMessageError in a corrupt range."""
        hints = self.hints
        end, active, size = self.tail
        while hints is not self.hints:
            hints = self.hints
            end, active, size = self.tail
        if not self.log_start_offset <= offset <= end:
            raise OffsetOutOfRangeError(
                f"the log of {self.key} has offsets {self.log_start_offset} to {end}, not {offset}"
            )
        at_tail = end_offset >= end
        if not at_tail:
            end = end_offset
        if offset >= end:
            return LogSlice(active, active.file, size, 0, offset, offset)
        hint = hints[offset % HINTS]
        if hint is not None and hint[0] == offset and hint[2] < hint[1].size_bytes:
            base, segment, position = hint
            self._check_first(segment, position, base)
        else:
            segment, batch = self.locate(offset)
            base, position = batch.header.base_offset, batch.position
            hints[base % HINTS] = (base, segment, position)
        if at_tail and segment is active:
            stop = IndexEntry(end, size)
        else:
            stop = self._stop(segment, end, hints)
        if self.corruption:
            stop = self._clip(offset, stop)
        if stop.position - position > max_bytes:
            stop = self._cut(segment, IndexEntry(base, position), stop, max_bytes, min_one)
        end, stop_position = stop
        if hints is not self.hints:
            # During this lookup a truncation or a deletion changed the log, perhaps in this range.
            # Begin again.
            return self.read(offset, max_bytes, end_offset, min_one)
        if end > self.tail[0] or stop_position < position:
            raise self._removed(end - 1)
        hints[end % HINTS] = (end, segment, stop_position)
        return LogSlice(segment, segment.file, position, stop_position - position, base, end)

    def locate(self, offset: int) -> tuple[Segment, LogBatch]:
        """Return the segment and the batch that hold an offset in [log start, log end)."""
        bases, segments = self.chain
        i = bisect_right(bases, offset) - 1
        if i < 0:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.key} was deleted while it was read"
            )
        segment = segments[i]
        self._raise_in_damage(offset)
        return segment, self._find(segment, offset)

    def entry_before(self, offset: int) -> IndexEntry:
        """Return the last index entry at or before ``offset``, or the start of its segment."""
        bases, segments = self.chain
        return segments[bisect_right(bases, offset) - 1].index.floor(offset)

    def _find(self, segment: Segment, offset: int) -> LogBatch:
        try:
            return segment.find(offset, segment.size_bytes)
        except BadBatch as bad:
            return self._find_past(segment, offset, bad)

    def _find_past(self, segment: Segment, offset: int, bad: BadBatch) -> LogBatch:
        """Return the batch that holds ``offset``, after the corrupt bytes at ``bad``.

        This search is needed if the index has no entry between the damage and ``offset``."""
        while True:
            damage = self._note_damage(segment, bad)
            if offset < damage.next_offset:
                raise CorruptMessageError(str(damage)) from None
            entry = IndexEntry(damage.next_offset, damage.position + damage.length)
            try:
                return segment.find_from(entry, offset, segment.size_bytes)
            except BadBatch as another:
                bad = another

    def _check_first(self, segment: Segment, position: int, base: int) -> None:
        """Raise CorruptMessageError unless a batch with offset ``base`` begins at ``position``.

        A client that received a corrupt batch would request the same bytes for ever."""
        try:
            segment.header_at(IndexEntry(base, position), segment.size_bytes)
        except BadBatch as bad:
            raise CorruptMessageError(str(self._note_damage(segment, bad))) from None

    def _stop(self, segment: Segment, end: int, hints: Hints) -> IndexEntry:
        """Return the batch boundary in ``segment`` at which a read up to offset ``end`` must
        stop."""
        bases, _ = self.chain
        i = bisect_right(bases, segment.base_offset)
        if i < len(bases) and end >= bases[i]:
            return IndexEntry(bases[i], segment.size_bytes)
        hint = hints[end % HINTS]
        if hint is not None and hint[0] == end and hint[1] is segment:
            return IndexEntry(end, hint[2])
        if end >= segment.next_offset:
            return IndexEntry(end, segment.size_bytes)
        try:
            boundary = self._find(segment, end)
        except CorruptMessageError:
            damage = self.damage_over(end)
            if damage is None or damage.segment_base != segment.base_offset:
                raise
            return IndexEntry(damage.first_offset, damage.position)
        return IndexEntry(boundary.header.base_offset, boundary.position)

    def _clip(self, offset: int, stop: IndexEntry) -> IndexEntry:
        """Return the start of the next unreadable range after ``offset``, or ``stop`` if that is
        earlier."""
        self._raise_in_damage(offset)
        for damage in self.corruption:
            if damage.unreadable and offset < damage.first_offset < stop.offset:
                return IndexEntry(damage.first_offset, min(stop.position, damage.position))
        return stop

    def _raise_in_damage(self, offset: int) -> None:
        if self.corruption and (damage := self.damage_over(offset)) is not None:
            raise CorruptMessageError(str(damage))

    def damage_over(self, offset: int) -> CorruptRange | None:
        for damage in self.corruption:
            if damage.unreadable and damage.first_offset <= offset < damage.next_offset:
                return damage
        return None

    def _cut(
        self, segment: Segment, start: IndexEntry, stop: IndexEntry, max_bytes: int, min_one: bool
    ) -> IndexEntry:
        """Return a batch boundary up to ``stop`` within ``max_bytes`` of ``start``: the last index
        entry or, if none is in this range, the last boundary, found by reading batch headers.

        With ``min_one``, return at least the end of the first batch."""
        limit = start.position + max_bytes
        entry = segment.index.floor_position(limit)
        if start.position < entry.position <= stop.position:
            return entry
        following, at = start
        while at < stop.position:
            try:
                header = segment.header_at(IndexEntry(following, at), stop.position)
            except BadBatch as bad:
                if at > start.position:
                    break
                raise CorruptMessageError(str(self._note_damage(segment, bad))) from None
            if at + header.size_bytes > limit and not (min_one and at == start.position):
                break
            at, following = at + header.size_bytes, header.next_offset
            if at >= limit:
                break
        return IndexEntry(min(following, stop.offset), at)

    # Methods that find and record damage.

    def next_readable(self, offset: int) -> int:
        """Return the first offset at or after ``offset`` outside of unreadable ranges."""
        while (damage := self.damage_over(offset)) is not None:
            offset = damage.next_offset
        return offset

    def _note_damage(self, segment: Segment, bad: BadBatch) -> CorruptRange:
        for known in self.corruption:
            # A range recorded only for a wrong checksum may have a corrupt header by now: check the
            # header again.
            is_same = known.first_offset == bad.offset and known.segment_base == segment.base_offset
            if is_same and known.unreadable:
                return known
        bases, _ = self.chain
        i = bisect_right(bases, segment.base_offset)
        limit = bases[i] if i < len(bases) else segment.next_offset
        bad_range = segment.damage_at(bad, segment.size_bytes, limit)
        damage = bad_range.in_log(self.key, segment.base_offset)
        self.add_damage((damage,))
        try:
            # Check after recording the damage that the log still has this range. A truncation first
            # moves the log's end, then drops recorded damage beyond it. So either the truncation
            # drops this damage, or the check fails.
            self.check_present(segment, bad.offset)
        except StorageError:
            self.corruption = tuple(known for known in self.corruption if known != damage)
            raise
        segment.damaged = True
        return damage

    def check_present(self, segment: Segment, offset: int) -> None:
        """Raise StorageError if a truncation or deletion removed ``offset`` during the read."""
        if offset >= self.tail[0] or segment not in self.chain[1]:
            raise self._removed(offset)

    def _removed(self, offset: int) -> StorageError:
        return StorageError(
            f"offset {offset} of {self.key} was removed by a truncation or deletion while it was "
            "read; read again"
        )

    def add_damage(self, damage: tuple[CorruptRange, ...]) -> None:
        """Record corrupt ranges. Later reads in a range with a broken batch header
        (``unreadable``) raise CorruptMessageError."""
        self.corruption = tuple(sorted({*self.corruption, *damage}, key=lambda d: d.first_offset))

    def checked_batches(
        self, start: int, end: int
    ) -> Iterator[tuple[Segment, LogBatch] | CorruptRange]:
        """Yield valid batches and corrupt ranges from ``start`` to ``end``, in offset order. The
        checksum of each batch is checked."""
        while start < end:
            try:
                segment, first = self.locate(start)
            except CorruptMessageError:
                damage = self.damage_over(start)
                if damage is None:
                    raise
                yield damage
                start = damage.next_offset
                continue
            expected, position = first.header.base_offset, first.position
            while start < end:
                try:
                    for batch in walk_batches(segment.file, position, segment.size_bytes, expected):
                        if batch.header.base_offset >= end:
                            return
                        yield segment, batch
                        start = batch.header.next_offset
                    following = self._following_base(segment)
                    start = max(start, following) if following <= end else end
                    break
                except BadBatch as bad:
                    if bad.offset >= end:
                        return
                    self.check_present(segment, bad.offset)
                    limit = min(self._following_base(segment), end)
                    damage_found = segment.damage_at(bad, segment.size_bytes, limit)
                    yield damage_found.in_log(self.key, segment.base_offset)
                    # Continue at the file position after the damage: a lookup of the next offset
                    # would find the batch with the wrong header again.
                    position = damage_found.position + damage_found.length
                    expected = damage_found.next_offset
                    start = max(expected, start)

    def _following_base(self, segment: Segment) -> int:
        bases, _ = self.chain
        i = bisect_right(bases, segment.base_offset)
        return bases[i] if i < len(bases) else self.tail[0]

    # Methods that walk over batches, and find the offset a number of bytes after another.

    def headers(
        self,
        segment: Segment,
        start: int,
        end: int,
        *,
        needs_check: Callable[[BatchHeader], bool] = lambda _: False,
    ) -> Iterator[LogBatch]:
        """Yield the header and position of each batch of one segment with offsets in [start, end),
        skipping damage.

        Ignores headers inside known damage: their offsets may be wrong. If ``needs_check`` returns
        True for a header, also reads the batch, and skips it as damage if its checksum is wrong."""
        size, limit = segment.size_bytes, min(segment.next_offset, end)
        at, position = start, -1
        while at < limit and size:
            if (damage := self.damage_over(at)) is not None:
                # Continue at the file position after the damage: the corrupt header may claim
                # offsets of later batches.
                at, position = damage.next_offset, damage.position + damage.length
                continue
            try:
                if position < 0:
                    first = segment.find(at, size)
                    at, position = first.header.base_offset, first.position
                for batch in walk_headers(segment.file, position, size, at):
                    at, following = batch.header.base_offset, batch.header.next_offset
                    if at >= end:
                        return
                    if self.corruption and self.damage_over(at) is not None:
                        break
                    if following > segment.next_offset:
                        raise BadBatch(
                            batch.position,
                            at,
                            "the batch's last offset is beyond the segment's end",
                        )
                    if following > start:
                        if needs_check(batch.header) and not _is_sound(segment, batch):
                            raise BadBatch(
                                batch.position, at, "the checksum is wrong", batch.header
                            )
                        yield batch
                    at = following
                else:
                    return
            except BadBatch as bad:
                damage = self._note_damage(segment, bad)
                at, position = damage.next_offset, damage.position + damage.length

    @translated
    def offset_for_bytes(self, start: int, max_bytes: int, end: int) -> tuple[int, int]:
        """Return the offset that is about ``max_bytes`` stored bytes after ``start``, and the exact
        size of that range.

        The offset is a batch boundary, at most ``end``, after at least one batch. The sparse index
        gives the boundary, so the size is usually some KB below ``max_bytes``. Skips damage.
        Returns (start, 0) at the end of the log."""
        hints = self.hints
        end = min(end, self.tail[0])
        if start >= end or start < self.log_start_offset:
            if start < self.log_start_offset:
                raise OffsetOutOfRangeError(
                    f"the log of {self.key} begins at offset {self.log_start_offset}, after the "
                    f"requested offset {start}"
                )
            return start, 0
        counted = 0
        offset = start
        while offset < end:
            if (beyond := self.next_readable(offset)) != offset:
                offset = beyond
                continue
            with locating(self, offset):
                try:
                    segment, begin = self._boundary(offset)
                except CorruptMessageError:
                    if counted:
                        break
                    continue
                stop = self._stop(segment, end, hints)
                if self.corruption:
                    stop = self._clip(offset, stop)
                budget = max_bytes - counted
                if stop.position - begin.position > budget:
                    cut = self._cut(segment, begin, stop, budget, not counted)
                    counted += cut.position - begin.position
                    offset = cut.offset
                    break
            counted += stop.position - begin.position
            offset = max(stop.offset, offset + 1)
        if end > self.tail[0]:
            raise self._removed(end - 1)
        return max(min(offset, end), start + 1), counted

    def _boundary(self, offset: int) -> tuple[Segment, IndexEntry]:
        """Return where the batch that holds ``offset`` begins: segment, base offset and position.

        Reads nothing if ``offset`` is a segment's base offset."""
        bases, segments = self.chain
        i = bisect_right(bases, offset) - 1
        if i >= 0 and bases[i] == offset:
            return segments[i], IndexEntry(offset, 0)
        segment, batch = self.locate(offset)
        return segment, IndexEntry(batch.header.base_offset, batch.position)


def _is_sound(segment: Segment, batch: LogBatch) -> bool:
    return read_batch(segment.file, batch.position, segment.size_bytes) is not None
