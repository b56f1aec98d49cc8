"""Open a partition's log after a clean stop or a crash.

- After a clean stop, saved indexes that fit their files are used without a scan.
- After a crash, every segment that reaches beyond the recovery point is scanned with checksums.
- Above the recovery point the first bad batch begins a torn tail: bytes that a crash left half
  written. Recovery copies the torn tail into ``.torn`` files and cuts it off. If the disk
  is full, recovery cuts off a partial batch without a copy.
- Below the recovery point recovery cuts nothing. It reports a bad range as damage, and the log
  continues after the range. New records never get offsets below the recovery point.

When ``open_log`` returns, all files of the log are synced."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from broker_lite.config import TopicConfig
from broker_lite.model import PartitionKey
from broker_lite.record.batch import BatchHeader
from broker_lite.record.walker import BadBatch
from broker_lite.storage import leader_epochs, paths
from broker_lite.storage.directory import SPACE_ERRORS, DataDirectory
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.log import Log
from broker_lite.storage.producer_snapshots import ProducerSnapshots
from broker_lite.storage.scan import CorruptRange, is_whole
from broker_lite.storage.segment import UNBOUNDED, BadRange, Segment

TORN_FILES_MAX = 16
"""Maximum number of a partition's ``.torn`` files: half-written bytes that recovery removed.

The oldest are deleted first."""
COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings of ``open_log``: the bytes it scanned, and the torn tail (half-written bytes)
    it removed."""

    scanned_bytes: int = 0
    torn_bytes: int = 0
    saved_bytes: int = 0
    """How many of the removed ``torn_bytes`` are in ``.torn`` files."""
    torn_offset: int = -1
    torn_whole: bool = False
    """Whether the batch at ``torn_offset`` has its full length and is not all zeros.

    Such a batch was written fully and damaged later, so the broker may have acknowledged it."""


def create_log(
    key: PartitionKey,
    data: DataDirectory,
    *,
    config: TopicConfig,
    producer_expiration_ms: int,
) -> Log:
    """Create an empty log, and sync its directory and first segment. Raises StorageError."""
    directory = paths.partition_dir(data.path, key)
    with data.guard(f"creating {key}", spare_full=True):
        data.files.make_dir(directory)
        _remove_empty(data, directory)
        segment = Segment.create(data.files, directory, 0)
        data.files.sync_dir(directory)
        data.files.sync_dir(data.path)
        segment.name_synced = True
    epochs = LeaderEpochs(data.files, directory)
    log = Log(
        key,
        data,
        (segment,),
        epochs,
        config=config,
        producer_expiration_ms=producer_expiration_ms,
    )
    log.flushed_end = 0
    return log


def _remove_empty(data: DataDirectory, directory: str) -> None:
    """Delete the empty files that ``create_log`` left when a full disk interrupted it."""
    for name in data.files.list_dir(directory):
        if data.files.size(f"{directory}/{name}") == 0:
            data.files.remove(f"{directory}/{name}")


def open_log(
    key: PartitionKey,
    data: DataDirectory,
    now_ms: int,
    *,
    clean: bool,
    config: TopicConfig,
    producer_expiration_ms: int,
) -> tuple[Log, RecoveryReport]:
    """Open the log in ``data``. Raises StorageError if the disk fails; reports damage in the
    result."""
    opening = _Opening(key, data, clean, data.recovery_points.get(key))
    with data.guard(f"opening {key}"):
        segments = opening.run(data.log_starts.get(key))
    log = Log(
        key,
        data,
        segments,
        opening.epochs,
        config=config,
        producer_expiration_ms=producer_expiration_ms,
    )
    log.reader.log_start_offset = max(segments[0].base_offset, data.log_starts.get(key))
    log.reader.add_damage(tuple(opening.damage))
    log.flushed_end = log.log_end_offset
    with data.guard(f"opening {key}"):
        opening.settle_epochs(log)
        log.rebuild_producers(now_ms)
    # Ignore damage in records that were deleted after the damage was found.
    start = data.log_starts.get(key)
    log.reader.corruption = tuple(
        corrupt for corrupt in log.reader.corruption if corrupt.next_offset > start
    )
    return log, opening.report()


class _Opening:
    """The intermediate state of ``open_log`` while it opens one log."""

    def __init__(self, key: PartitionKey, data: DataDirectory, clean: bool, point: int) -> None:
        self.key = key
        self.data = data
        self.files = data.files
        self.directory = paths.partition_dir(data.path, key)
        self.clean = clean
        self.recovery_point = point
        self.damage: list[CorruptRange] = []
        self.epochs = LeaderEpochs(data.files, self.directory)
        self._epochs_known = True
        self._changed = False
        self._scanned = self._torn_bytes = self._saved_bytes = 0
        self._torn_offset = -1
        self._torn_whole = False

    def report(self) -> RecoveryReport:
        return RecoveryReport(
            self._scanned, self._torn_bytes, self._saved_bytes, self._torn_offset, self._torn_whole
        )

    def run(self, log_start: int) -> tuple[Segment, ...]:
        """Recover the log. Return its segments, all synced, the last one writable."""
        bases = self._clear_leftovers()
        if bases and self.data.log_starts.is_damaged:
            # The log start checkpoint is damaged: use the start of the first segment.
            log_start = bases[0]
        loaded = leader_epochs.load(self.files, self.directory)
        # A truncation that emptied the log leaves an epoch file without entries. If the log has
        # segments, do not use such a file: take the epochs from the batches.
        self._epochs_known = not bases or (loaded is not None and bool(loaded.entries))
        self.epochs = loaded or self.epochs
        bases = self._drop_deleted(bases, log_start)
        if bases and bases[0] > log_start:
            self._add_gap(bases[0], log_start, bases[0], 0, "the first segments are missing")
        segments: list[Segment] = []
        for i, base in enumerate(bases):
            following = bases[i + 1] if i + 1 < len(bases) else UNBOUNDED
            segment = Segment.existing(self.files, self.directory, base)
            if segments and segments[-1].next_offset > base:
                self._set_aside([base])
                continue
            if segments and not self._continues(segments[-1], base):
                self._set_aside(bases[i:])
                break
            segments.append(segment)
            if self._needs_no_scan(segment, following):
                continue
            torn = self._scan(segment, following)
            if torn is not None:
                self._set_aside_tail(segment, torn)
                self._set_aside(bases[i + 1 :])
                break
        self._end_at(segments, log_start)
        if self._changed:
            self.files.sync_dir(self.directory)
        if ProducerSnapshots(self.files, self.directory).drop_beyond(segments[-1].next_offset):
            # Sync the deletion before any append. If a crash undid the deletion, the deleted
            # producer snapshots would be taken for snapshots of later batches with the same
            # offsets.
            self.files.sync_dir(self.directory)
        return tuple(segments)

    # Methods that delete leftover files.

    def _clear_leftovers(self) -> list[int]:
        """Delete temporary and orphaned files. Return the segments' base offsets in ascending
        order."""
        bases, others = [], []
        for name in self.files.list_dir(self.directory):
            parsed = paths.parse_segment_file(name)
            if name.endswith((paths.DELETED, paths.TEMPORARY)):
                self.files.remove(f"{self.directory}/{name}")
            elif parsed and parsed[1] == paths.LOG:
                bases.append(parsed[0])
            elif parsed and parsed[1] != paths.SNAPSHOT:
                others.append((parsed[0], name))
        for base, name in others:
            if base not in bases:
                self.files.remove(f"{self.directory}/{name}")
                # Sync the deletion of a transaction index. A later segment with the same base
                # offset must not use the old file.
                self._changed = self._changed or name.endswith(paths.TXN_INDEX)
        return bases

    def _drop_deleted(self, bases: list[int], log_start: int) -> list[int]:
        """Delete the segments that end before the log's start. Return the base offsets of the
        others."""
        remaining = [b for b, after in zip(bases, [*bases[1:], UNBOUNDED]) if after > log_start]
        for base in bases[: len(bases) - len(remaining)]:
            self._remove(base)
        return remaining

    def _remove(self, base: int, *suffixes: str) -> None:
        for suffix in suffixes or paths.SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self.files.remove(paths.segment_file(self.directory, base, suffix))
        self._changed = True

    # Methods that scan segments and record damage.

    def _needs_no_scan(self, segment: Segment, following: int) -> bool:
        """Return whether a segment needs no scan: all its bytes are on disk, and its saved indexes
        match them."""
        synced = self.clean or following <= self.recovery_point
        if not (synced and self._epochs_known and segment.load_facts()):
            return False
        if segment.damaged or following not in (UNBOUNDED, segment.next_offset):
            return False
        if following == UNBOUNDED:
            segment.make_active()
            return segment.ends_at_saved_offset()
        return True

    def _scan(self, segment: Segment, following: int) -> BadBatch | None:
        """Rebuild a segment's indexes and check its checksums.

        Return the first bad batch of its torn (half-written) tail, or None."""
        point = UNBOUNDED if following <= self.recovery_point else self.recovery_point
        segment.open_writable()
        start = segment.load_prefix(self.recovery_point if self._epochs_known else 0)
        if point != UNBOUNDED:
            # Read from the disk: the page cache may hold bytes that a failed fsync of an earlier
            # process never wrote.
            segment.file.forget_cached(start.position)
        limit = following if following != UNBOUNDED else max(point, segment.base_offset)
        rescan = segment.rescan(
            start, limit, check_crc=True, recovery_point=point, epoch_of=self._epoch_of
        )
        self._scanned += rescan.scanned_bytes
        self._add_damage(segment, rescan.damage)
        segment.synced_bytes = 0
        if rescan.torn is None:
            segment.datasync()
            self._changed = True
            if following != UNBOUNDED:
                with contextlib.suppress(OSError):
                    segment.save_indexes()
                segment.release()
        return rescan.torn

    def _epoch_of(self, header: BatchHeader) -> int:
        """Return the leader epoch that the epoch file has for a batch.

        Without a file, record the batch's own epoch and return -1, which disables the check of the
        batch's epoch."""
        if self._epochs_known:
            return self.epochs.epoch_at(header.base_offset)
        self.epochs.note(header.leader_epoch, header.base_offset)
        return -1

    def _continues(self, segment: Segment, base: int) -> bool:
        """Return whether the segment at ``base`` may follow ``segment``: without a gap, or after a
        gap below the recovery point.

        Such a gap is recorded as damage."""
        if segment.next_offset == base:
            return True
        if base > self.recovery_point:
            return False
        reason = "the end of the segment is missing"
        self._add_gap(segment.base_offset, segment.next_offset, base, segment.size_bytes, reason)
        segment.damaged = True
        return True

    def _add_gap(self, base: int, first: int, following: int, position: int, reason: str) -> None:
        gap = CorruptRange(self.key, first, following, base, position, 0, reason, True)
        self.damage.append(gap)

    def _add_damage(self, segment: Segment, damage: tuple[BadRange, ...]) -> None:
        self.damage.extend(bad.in_log(self.key, segment.base_offset) for bad in damage)

    # Methods that set torn tails aside.

    def _set_aside_tail(self, segment: Segment, torn: BadBatch) -> None:
        """Copy the bytes from ``torn`` on into a ``.torn`` file, then cut them off."""
        end = segment.file.size
        self._torn_bytes += end - torn.position
        self._torn_offset = torn.offset
        self._torn_whole = is_whole(segment.file, torn, end)
        if self._has_content(segment, torn.position, end):
            self._save_tail(segment, torn, end)
        segment.size_bytes = end
        segment.cut(torn.position, torn.offset)
        segment.datasync()
        for suffix in (paths.INDEX, paths.TIME_INDEX):
            self._remove(segment.base_offset, suffix)

    def _save_tail(self, segment: Segment, torn: BadBatch, end: int) -> None:
        """Copy the bytes from ``torn`` to ``end`` into a ``.torn`` file.

        If the disk has no space for a copy of a partial batch, make no copy: such a batch was never
        acknowledged, and a broker must start on a full disk. Raises OSError."""
        path = self._torn_path(torn.offset)
        copy = self.files.create(path)
        try:
            for position in range(torn.position, end, COPY_BYTES):
                copy.append([segment.file.pread(position, min(COPY_BYTES, end - position))])
            copy.datasync()
        except OSError as error:
            if error.errno not in SPACE_ERRORS:
                raise
            self.files.remove(path)
            if self._torn_whole:
                raise OSError(
                    error.errno,
                    f"{end - torn.position} bytes from offset {torn.offset} on are damaged and may "
                    "have been acknowledged; the disk is too full for their copy, so free this "
                    "much space",
                ) from error
        else:
            self._saved_bytes += end - torn.position
        self.files.sync_dir(self.directory)

    @staticmethod
    def _has_content(segment: Segment, position: int, end: int) -> bool:
        """Return whether a range of the log file has a nonzero byte.

        If the file has grown but a crash prevented the write of its data, the range has only zeros,
        which recovery need not keep."""
        return any(
            segment.file.pread(at, min(COPY_BYTES, end - at)).strip(b"\x00")
            for at in range(position, end, COPY_BYTES)
        )

    def _set_aside(self, bases: list[int]) -> None:
        """Rename to ``.torn`` the segments that do not continue the log: they overlap, or follow a
        torn tail or a gap. Delete their indexes."""
        for base in reversed(bases):
            source = paths.segment_file(self.directory, base, paths.LOG)
            size = self.files.size(source)
            self._torn_bytes += size
            self._saved_bytes += size
            self._torn_offset = base if self._torn_offset < 0 else self._torn_offset
            self.files.rename(source, self._torn_path(base))
            self._remove(base)

    def _torn_path(self, offset: int) -> str:
        """Return an unused path for a ``.torn`` file (half-written bytes of a log).

        The log keeps at most TORN_FILES_MAX of these files: the oldest are deleted."""
        torn = [
            (parsed, name)
            for name in self.files.list_dir(self.directory)
            if (parsed := paths.parse_torn_file(name))
        ]
        for _, name in torn[: max(0, len(torn) - TORN_FILES_MAX + 1)]:
            self.files.remove(f"{self.directory}/{name}")
        number = max((parsed[1] for parsed, _ in torn if parsed[0] == offset), default=0) + 1
        return paths.torn_file(self.directory, offset, number)

    # Methods that complete the opening of the log.

    def _end_at(self, segments: list[Segment], log_start: int) -> None:
        """Make the last segment writable, or begin a new one.

        A new one is needed if the log ends before its log start offset or before the recovery
        point, or if the last segment is damaged."""
        last = segments[-1] if segments else None
        minimum = max(log_start, self.recovery_point)
        if last is not None and last.next_offset >= minimum and not last.damaged:
            if not last.is_loaded:
                last.make_active()
            return
        # Records below the log start were deleted, so they are not missing, even if the recovery
        # point covers them.
        end = max(last.next_offset if last else 0, log_start)
        if end < self.recovery_point:
            base, position = (last.base_offset, last.size_bytes) if last else (minimum, 0)
            self._add_gap(base, end, self.recovery_point, position, "the end of the log is missing")
        if last is not None:
            last.damaged = last.damaged or end < self.recovery_point
            last.save_indexes()
            last.release()
        fresh = Segment.create(self.files, self.directory, max(end, minimum))
        fresh.name_synced = True
        self._changed = True
        segments.append(fresh)

    def settle_epochs(self, log: Log) -> None:
        """Remove leader epochs that begin after the log's end or end before its start, and save the
        epochs if recovery changed any."""
        before = self.epochs.entries
        self.epochs.truncate_from_end(log.log_end_offset)
        self.epochs.truncate_from_start(log.log_start_offset)
        if self._changed or not self._epochs_known or before != self.epochs.entries:
            self.epochs.save()
