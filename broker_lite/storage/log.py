"""A partition's log, and its writer: append, roll, flush, retention and truncation.

One thread at a time writes. ``flush`` may run beside an append in another thread; a lock serialises
flushes and truncations. Below ``flushed_end`` everything is on disk: the bytes of every segment,
and the segments' file names. The bytes of a failed write are cut off and never become visible to
readers. A failed fsync stops the whole data directory.

Every operation that removes records (truncation, retention, deletion) orders its writes so that
recovery after a crash at any point neither reports damage nor serves deleted records.
docs/pages/explanation/log-and-flush.md, "What a follower does to its log", covers truncations."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Sequence
from typing import NamedTuple

from broker_lite.config import LONG_MAX, TopicConfig
from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidTimestampError,
    LogbusError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NO_OFFSET, NO_PRODUCER, NO_TIMESTAMP, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, set_log_append_time, stamp
from broker_lite.record.control import (
    Marker,
    OpenTransaction,
    decode_marker,
    encode_markers,
)
from broker_lite.storage import paths
from broker_lite.storage.directory import DataDirectory
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.producer_rebuild import rebuild_producers
from broker_lite.storage.producer_snapshots import ProducerSnapshots
from broker_lite.storage.producer_state import ProducerState
from broker_lite.storage.reader import HINTS, LogReader, Tail
from broker_lite.storage.retention import SegmentFacts, expired
from broker_lite.storage.scan import continuing_headers
from broker_lite.storage.segment import RELATIVE_OFFSET_MAX, Segment

WritableBuffer = bytearray | memoryview

SAVE_EVERY_BYTES = 64 << 20
"""Bytes appended between two saves of the active segment's indexes and the producer state.

A start after a crash scans at most about this many bytes."""


class LogAppendInfo(NamedTuple):
    """The offsets of an appended batch. ``next_offset`` is exclusive.

    ``log_append_time_ms`` is the time with which the broker stamped the batch, or -1. ``duplicate``
    says that the log already had the batch, so nothing was written."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    duplicate: bool


class MarkersInfo(NamedTuple):
    """The result of ``append_markers``: the offsets of the appended markers, and the error of each
    given marker, or None."""

    base_offset: int
    next_offset: int
    errors: tuple[LogbusError | None, ...]


class Log:
    """A partition on disk, opened by ``recovery.open_log``.

    Any thread may read, through ``reader``. All other methods run on the log's writer thread."""

    def __init__(
        self,
        key: PartitionKey,
        data: DataDirectory,
        segments: tuple[Segment, ...],
        leader_epochs: LeaderEpochs,
        *,
        config: TopicConfig,
        producer_expiration_ms: int,
    ) -> None:
        self.key = key
        self.config = config
        self.leader_epochs = leader_epochs
        self.reader = LogReader(key, segments, leader_epochs)
        self.producers = ProducerState(segments[0].base_offset)
        self.flushed_end = 0
        self.committed_end = 0
        """The high watermark, as last reported by the event loop."""
        self.directory = paths.partition_dir(data.path, key)
        self._data = data
        self._files = data.files
        self._snapshots = ProducerSnapshots(data.files, self.directory)
        self._producer_expiration_ms = producer_expiration_ms
        self._flush_lock = threading.Lock()
        self._retired = False
        self._closed = False

    @property
    def log_start_offset(self) -> int:
        return self.reader.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset after the last record of the log."""
        return self.reader.tail[0]

    @property
    def failed(self) -> bool:
        """Whether the data directory has failed, so that the log accepts no more writes."""
        return self._data.failed

    def _check_usable(self) -> None:
        self._data.check()
        if self._retired:
            raise UnknownTopicOrPartitionError(f"{self.key} was deleted from this broker")

    # Methods that append batches.

    def append_as_leader(
        self,
        buffer: WritableBuffer,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        *,
        keep: bool = True,
        begins_at_zero: bool = False,
    ) -> LogAppendInfo:
        """Validate a client's batch, write offsets and leader epoch into its header, and append it.

        ``buffer`` holds exactly this batch. Without ``keep`` the batch's pages leave the page cache
        once they are on disk (``File.append``). For a duplicate, return the offsets of the first
        append. A batch that follows a refused batch (``note_refused``) raises the refused batch's
        error. ``ProducerState.check`` explains ``begins_at_zero``.

        Raises FencedLeaderEpochError, InvalidTimestampError, InvalidProducerEpochError,
        OutOfOrderSequenceError, InvalidTxnStateError, and StorageError. After a StorageError no
        part of the batch is visible, and ``failed`` tells whether the directory has failed."""
        if self._data.failure or self._retired:
            self._check_usable()
        config = self.config
        if header.producer_id != NO_PRODUCER:
            refused = self._data.refused
            known = self.producers.check(
                self.key,
                header,
                may_have_forgotten=self.log_start_offset > 0,
                refused=refused.find(self.key, header) if refused else None,
                begins_at_zero=begins_at_zero,
            )
            if known is not None:
                return LogAppendInfo(known.base_offset, known.next_offset, NO_TIMESTAMP, True)
        if self._data.is_full:
            self._data.check_space()
        append_time = NO_TIMESTAMP
        if config.message_timestamp_type == "LogAppendTime":
            header = set_log_append_time(buffer, header, now_ms)
            append_time = now_ms
        else:
            _check_timestamps(self.key, header, config, now_ms)
        base = self.reader.tail[0]
        if leader_epoch != self.leader_epochs.latest:
            self._lead(leader_epoch)
        header = stamp(buffer, header, base, leader_epoch)
        self._write(buffer, (header,), now_ms, keep)
        return LogAppendInfo(base, self.reader.tail[0], append_time, False)

    def append_markers(
        self, markers: Sequence[Marker], leader_epoch: int, now_ms: int
    ) -> MarkersInfo:
        """Append the commit and abort markers of transactions, as control batches in one write.

        A rejected marker is not written and has an error in the result. A marker that the log
        already has succeeds without a write. Raises FencedLeaderEpochError or StorageError;
        then no marker was appended."""
        self._check_usable()
        self._data.check_space()
        self._lead(leader_epoch)
        accepted: dict[int, Marker] = {}
        errors: list[LogbusError | None] = []
        for marker in markers:
            error: LogbusError | None = None
            try:
                is_new = marker.producer_id not in accepted
                if is_new and self.producers.judge(self.key, marker):
                    accepted[marker.producer_id] = marker
            except LogbusError as refusal:
                error = refusal
            errors.append(error)
        base = self.reader.tail[0]
        if accepted:
            buffer, headers = encode_markers(list(accepted.values()), base, leader_epoch, now_ms)
            self._write(buffer, headers, now_ms)
        return MarkersInfo(base, self.reader.tail[0], tuple(errors))

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that have no marker in the log, the oldest first."""
        return self.producers.open_transactions()

    def _lead(self, leader_epoch: int) -> None:
        """Record ``leader_epoch`` if it is newer than the log's. Raise FencedLeaderEpochError if it
        is older."""
        latest = self.leader_epochs.latest
        if leader_epoch < latest:
            raise FencedLeaderEpochError(
                f"{self.key}: leader epoch {leader_epoch} is fenced, because the log has epoch "
                f"{latest}; refresh the metadata"
            )
        self.start_epoch(leader_epoch)

    def note_refused(self, header: BatchHeader, error: LogbusError) -> None:
        """Record that a producer's batch was refused with ``error``.

        Later batches that this producer has in flight are then refused with the same error."""
        self._data.refused.note(self.key, header, error)

    def append_as_follower(
        self, buffer: memoryview, leader_epoch: int, now_ms: int, *, keep: bool = True
    ) -> int:
        """Append a leader's batches unchanged, and return the next offset.

        The batches must continue the log and have correct checksums; otherwise raises
        CorruptMessageError before any write. Producer sequences are not checked. Does not append:

        - batches of an epoch newer than ``leader_epoch``, because a newer leader then exists;
        - a batch that is cut off at the end of ``buffer``;
        - batches that find no space on the disk. Raises StorageError if no batch found space."""
        self._check_usable()
        self._data.check_space()
        end = self.reader.tail[0]
        is_empty = end == self.log_start_offset
        headers = continuing_headers(self.key, buffer, end, leader_epoch, may_overlap=is_empty)
        if headers and headers[0].base_offset < end:
            # The log of a new replica begins at the leader's log start, which may be inside a
            # batch. Begin this log at the start of that batch.
            self._begin_at(headers[0].base_offset, end, now_ms)
        began = self.reader.tail[0]
        while headers:
            count, length = self._run(headers)
            try:
                self._follow_epoch(headers[0].leader_epoch, headers[0].base_offset)
                self._write(buffer[:length], tuple(headers[:count]), now_ms, keep)
            except StorageError:
                if self.reader.tail[0] == began or self._data.failure or self._retired:
                    raise
                break
            buffer, headers = buffer[length:], headers[count:]
        return self.reader.tail[0]

    def _follow_epoch(self, epoch: int, offset: int) -> None:
        if epoch < self.leader_epochs.latest:
            # As a leader, this replica may have begun epochs in which it wrote no batch. Remove
            # such epochs.
            self._truncate_epochs(offset)
            if epoch < self.leader_epochs.latest:
                raise CorruptMessageError(
                    f"{self.key}: the leader sent epoch {epoch} at offset {offset}, but this log "
                    f"holds batches of epoch {self.leader_epochs.latest} before it"
                )
        self._assign_epoch(epoch, offset)

    def _run(self, headers: list[BatchHeader]) -> tuple[int, int]:
        """Return how many batches, from the first on, have the same leader epoch and fit into the
        active segment, and their size in bytes."""
        space = self.config.segment_bytes - self.reader.tail[1].size_bytes
        count, length = 1, headers[0].size_bytes
        for header in headers[1:]:
            if header.leader_epoch != headers[0].leader_epoch or length + header.size_bytes > space:
                break
            count, length = count + 1, length + header.size_bytes
        return count, length

    def _write(
        self,
        buffer: WritableBuffer,
        headers: tuple[BatchHeader, ...],
        now_ms: int,
        keep: bool = True,
    ) -> None:
        config, first = self.config, headers[0]
        active = self.reader.tail[1]
        size = active.size_bytes
        if size and (
            size + len(buffer) > config.segment_bytes
            or _has_aged(active, config, now_ms)
            or headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or not active.index.has_space(len(headers))
        ):
            active = self._roll(first.base_offset)
        try:
            position = active.append(buffer, now_ms, keep=keep)
        except OSError as error:
            raise self._repair(active, error) from error
        interval = config.index_interval_bytes
        began, has_transactions = position, False
        for header in headers:
            active.note(header, position, interval)
            if header.attributes & fmt.ATTRIBUTES_OF_TRANSACTIONS:
                has_transactions = True
                batch = memoryview(buffer)[position - began :]
                self._note_transactional(active, header, batch, now_ms)
            else:
                self.producers.update(header, header.base_offset, now_ms)
            base = header.base_offset
            self.reader.hints[base % HINTS] = (base, active, position)
            position += header.length + fmt.LENGTH_PREFIX_BYTES
        if has_transactions:
            # Publish the open transactions before ``reader.tail``. A reader that sees these batches
            # must also see the open transactions, which bound the last stable offset.
            self._publish_transactions()
        self.reader.tail = Tail(active.next_offset, active, active.size_bytes)
        if position - active.saved_bytes >= SAVE_EVERY_BYTES or position == len(buffer):
            self._save_progress(active)

    def _note_transactional(
        self, active: Segment, header: BatchHeader, batch: memoryview, now_ms: int
    ) -> None:
        """Record an appended transactional batch or marker in the producer state and the
        transaction index."""
        if self.reader.transactions_from == NO_OFFSET:
            self.reader.transactions_from = header.base_offset
        marker = decode_marker(batch, header) if header.is_control else None
        aborted = self.producers.update(header, header.base_offset, now_ms, marker)
        if aborted is not None:
            active.transactions.add(aborted)

    def _repair(self, active: Segment, error: OSError) -> LogbusError:
        """Cut off the bytes that a failed write left, and return the error to raise."""
        try:
            active.repair()
        except OSError as second:
            return self._data.fail(f"cutting a half-written batch of {self.key}: {second}")
        return self._refusal(f"writing to {self.key}", error)

    def _refusal(self, doing: str, error: OSError) -> LogbusError:
        """Return the error for a failed write; its message names the operation ``doing``. Unless
        the disk is full, fail the whole directory."""
        if self._retired:
            return UnknownTopicOrPartitionError(f"{self.key} was deleted from this broker")
        return self._data.full(doing, error) or self._data.fail(f"{doing}: {error}")

    def _roll(self, base_offset: int) -> Segment:
        """Close the active segment and begin a new one at ``base_offset``.

        The next flush syncs the closed segment before it raises ``flushed_end`` beyond that
        segment."""
        old = self.reader.tail[1]
        try:
            segment = Segment.create(self._files, self.directory, base_offset)
        except OSError as error:
            raise self._refusal(f"beginning a segment of {self.key}", error) from error
        self.reader.publish((*self.reader.chain[1], segment))
        self.reader.loaded.manage(old)
        with contextlib.suppress(OSError):
            # Ignore a failed save: recovery rebuilds indexes and producer state from the log.
            old.save_indexes()
            self.save_snapshot()
        return segment

    def _save_progress(self, active: Segment) -> None:
        """Save the indexes and the producer state, to shorten the next start. Errors are ignored.

        Also called after a segment's first batch, to save its first append time (segment.ms)."""
        active.saved_bytes = active.size_bytes
        with contextlib.suppress(OSError):
            active.save_indexes()
            if active.next_offset > active.base_offset and active.size_bytes >= SAVE_EVERY_BYTES:
                self.save_snapshot()

    def save_snapshot(self, *, sync: bool = False) -> None:
        """Save the producer state at the log's end. Raises OSError."""
        self._snapshots.save(self.producers, sync=sync)

    def start_epoch(self, leader_epoch: int) -> None:
        """Record that ``leader_epoch`` begins at the log's end, and sync the epoch file.

        Does nothing if the log has this or a newer epoch."""
        self._assign_epoch(leader_epoch, self.reader.tail[0])

    def _assign_epoch(self, epoch: int, offset: int) -> None:
        if epoch <= self.leader_epochs.latest:
            return
        self._data.check()
        try:
            self._data.write_in_reserve(lambda: self.leader_epochs.assign(epoch, offset))
        except OSError as error:
            raise self._refusal(f"writing the leader epochs of {self.key}", error) from error

    # Methods that flush.

    def start_flush(self) -> None:
        """Ask the operating system to start writing unsynced bytes, which shortens ``flush``."""
        self.reader.tail[1].start_sync()

    def flush(self) -> int:
        """Sync all bytes that were appended before the call, and return ``flushed_end``.

        Raises StorageError if the sync fails; the whole data directory has then failed."""
        with self._flush_lock:
            self._check_usable()
            end = self.reader.tail[0]
            if self.flushed_end >= end:
                return self.flushed_end
            with self._data.guard(f"flushing {self.key}"):
                self._sync_segments()
            self.flushed_end = max(self.flushed_end, end)
            return self.flushed_end

    def _sync_segments(self) -> None:
        waiting: list[Segment] = []
        for segment in reversed(self.reader.chain[1]):
            if segment.is_synced:
                break
            waiting.append(segment)
        for segment in reversed(waiting):
            segment.datasync()
        if not all(segment.name_synced for segment in waiting):
            self._files.sync_dir(self.directory)
            for segment in waiting:
                segment.name_synced = True

    # Methods that apply retention.

    def apply_retention(self, now_ms: int, last_stable_offset: int) -> list[str]:
        """Delete expired segments, and return the reason of each deletion (``retention.expired``).

        First rolls the active segment if it is older than segment.ms. Never deletes the active
        segment, or one that ends above ``last_stable_offset``. Also drops the state of idle
        producers. Runs on the log's writer thread."""
        with self._flush_lock:
            return self._apply_retention(now_ms, last_stable_offset)

    def _apply_retention(self, now_ms: int, last_stable_offset: int) -> list[str]:
        self._check_usable()
        self.producers.expire(now_ms, self._producer_expiration_ms)
        active = self.reader.tail[1]
        if active.size_bytes and _has_aged(active, self.config, now_ms):
            self._roll_if_space(active.next_offset)
        segments = self.reader.chain[1]
        facts = [SegmentFacts.of(segment) for segment in segments]
        reasons = expired(
            facts,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            last_stable_offset=last_stable_offset,
        )
        if count := len(reasons):
            self._raise_start_if_space(segments[count].base_offset)
            self.reader.publish(segments[count:])
            self.reader.forget_hints()
            with self._data.guard(f"deleting old segments of {self.key}"):
                for segment in segments[:count]:
                    self._discard(segment, now_ms)
                    if self._data.log_starts.get(self.key) < self.log_start_offset:
                        # Sync each deletion before the next one, so that segments disappear in
                        # offset order. If a full disk prevented the save of the new log start
                        # offset, a crash then leaves no gap in the log.
                        self._files.sync_dir(self.directory)
                self._drop_leftovers()
        return reasons

    def _roll_if_space(self, base_offset: int) -> None:
        """Roll the active segment. On a full disk, leave it active, so that retention can still
        delete the closed segments."""
        try:
            self._roll(base_offset)
        except StorageError:
            self._data.check()

    def _raise_start_if_space(self, offset: int) -> None:
        """Raise the log start offset. If the disk is full even after the reserve file is
        deleted, raise it in memory only.

        The next checkpoint that finds space saves the offset."""
        try:
            self._raise_start(offset)
        except StorageError:
            self._data.check()
            self._start_now(offset)

    def _drop_leftovers(self) -> None:
        """Delete producer snapshots and ``.torn`` files (half-written bytes) below the log's
        start."""
        start = self.log_start_offset
        self._snapshots.drop_below(self.reader.chain[0][0])
        for name in self._files.list_dir(self.directory):
            torn = paths.parse_torn_file(name)
            if torn is not None and torn[0] < start:
                self._files.remove(f"{self.directory}/{name}")

    # Methods that truncate the log, and rebuild the producer state.

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Truncate a follower's log: remove every batch with an offset at or above ``offset``, and
        sync.

        The follower then fetches these offsets from its leader again. If ``offset`` is below the
        log's start, the log becomes empty and begins at ``offset``. If ``offset`` is in the first
        batch, the log becomes empty and keeps its start offset. An unreadable range at ``offset``
        is removed too."""
        with self._flush_lock:
            self._check_usable()
            end, log_start = self.reader.tail[0], self.log_start_offset
            # There is nothing to cut, unless the log ends below its log start offset. A full disk
            # that interrupts ``start_at`` leaves the log in this state.
            if offset >= end >= log_start:
                self._truncate_epochs(offset)
                return
            is_anew = min(offset, end) < log_start
            cut, position = (log_start, 0) if is_anew else self._cut_at(offset)
            if cut <= log_start:
                start = min(offset, log_start)
                self._begin_at(start, start, now_ms)
            else:
                self._cut_log(cut, position, now_ms)

    def _cut_at(self, offset: int) -> tuple[int, int]:
        """Return the first offset and the file position of the batch or corrupt range that contains
        ``offset``."""
        try:
            with self._data.guard(f"truncating {self.key}"):
                try:
                    batch = self.reader.locate(offset)[1]
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    # The disk cannot read this batch. Cut the log at the last index entry at or
                    # before it, which is found without a read of the log.
                    return self.reader.entry_before(offset)
        except CorruptMessageError:
            damage = self.reader.damage_over(offset)
            if damage is None:
                raise
            return damage.first_offset, damage.position
        return batch.header.base_offset, batch.position

    def _cut_log(self, offset: int, position: int, now_ms: int) -> None:
        self.flushed_end = min(self.flushed_end, offset)
        self.committed_end = min(self.committed_end, offset)
        self._data.recovery_points.lower(self.key, offset)
        self._truncate_epochs(offset)
        with self._data.guard(f"truncating {self.key}"):
            self._cut_segments(offset, position, now_ms)
            # Drop the removed batches from the producer state, because their retries are not
            # duplicates.
            self.rebuild_producers(now_ms)
        self.flushed_end = offset

    def _cut_segments(self, offset: int, position: int, now_ms: int) -> None:
        segments = self.reader.chain[1]
        *closed, last = (one for one in segments if one.base_offset <= offset)
        dropped = segments[len(closed) + 1 :]
        active = last.writable_copy()
        # Publish the new log end before the file is cut, and the new segment before the next
        # append. A reader that finds bad bytes then sees that they are beyond the end, or in a
        # segment that was replaced.
        self.reader.publish((*closed, last))
        self.reader.tail = Tail(offset, last, position)
        active.cut(position, offset)
        self.reader.publish((*closed, active))
        self.reader.forget_hints()
        for segment in dropped:
            self._discard(segment, now_ms)
        self._snapshots.drop_beyond(offset)
        self.reader.corruption = tuple(d for d in self.reader.corruption if d.first_offset < offset)
        active.damaged = any(d.segment_base == active.base_offset for d in self.reader.corruption)
        try:
            active.save_indexes()
        except OSError as error:
            if self._data.full(f"truncating {self.key}", error) is None:
                raise
            active.drop_index_files()
        for segment in (*closed, active):
            # Flush closed segments, too: a segment may still hold bytes that no flush has synced.
            if segment is active or not segment.is_synced:
                segment.datasync()
        self._files.sync_dir(self.directory)
        for segment in (*closed, active):
            segment.name_synced = True

    def _truncate_epochs(self, offset: int) -> None:
        """Remove epochs that begin at or beyond ``offset``, and sync the epoch file."""
        if self.leader_epochs.has_epoch_from(offset):
            with self._data.guard(f"writing the leader epochs of {self.key}", spare_full=True):
                self.leader_epochs.cut(offset)

    def rebuild_producers(self, now_ms: int) -> None:
        """Rebuild the producer state and the transaction indexes from the log."""
        self.producers = rebuild_producers(
            self.reader, self._snapshots, self._files, self.directory, now_ms
        )
        self._note_transactions()

    def _note_transactions(self) -> None:
        """Set the reader's first offset with a transaction, and its open transactions."""
        self._publish_transactions()
        starts = [s.base_offset for s in self.reader.chain[1] if s.has_transactions]
        if self.reader.unstable is not None:
            starts.append(self.reader.unstable.open_start)
        self.reader.transactions_from = min(starts, default=NO_OFFSET)

    def _publish_transactions(self) -> None:
        transactions = self.producers.transactions
        transactions.committed(self.committed_end)
        self.reader.unstable = transactions.published()

    # Methods that restart the log at another offset.

    def start_at(self, offset: int, now_ms: int = 0) -> None:
        """Empty a follower's log, so that its next record gets ``offset``, and sync.

        A crash during the call leaves a truncated or an empty log."""
        with self._flush_lock:
            self._check_usable()
            self._begin_at(offset, offset, now_ms)

    def _begin_at(self, offset: int, log_start: int, now_ms: int) -> None:
        """Empty the log, with its first segment at ``offset`` and its log start at ``log_start``.

        Recovery deletes segments below the log start, and reports a gap after the log start as
        damage. If ``offset`` is below the old first segment, the new segment is therefore created
        before the log start is saved, else after it."""
        base = self.reader.chain[0][0]
        self._data.log_starts.put(self.key, self.log_start_offset)
        if self.reader.tail[0] > base:
            self._cut_log(base, 0, now_ms)
        self.flushed_end = min(base, offset)
        self.committed_end = min(self.committed_end, offset)
        self._data.recovery_points.lower(self.key, self.flushed_end)
        self._truncate_epochs(base)
        with self._data.guard(f"beginning {self.key} anew"):
            self._snapshots.drop_beyond(-1)
        if offset < base:
            self._replace_segment(offset, now_ms)
        with self._data.checkpoints:
            self._data.log_starts.put(self.key, log_start)
            self.reader.log_start_offset = log_start
        if offset > base:
            self._replace_segment(offset, now_ms)
        self.reader.corruption = ()
        self.producers.forget_all(log_start)
        self._note_transactions()
        self.flushed_end = log_start

    def _replace_segment(self, offset: int, now_ms: int) -> None:
        """Replace the only segment of an empty log by an empty one at ``offset``."""
        old = self.reader.tail[1]
        with self._data.guard(f"beginning {self.key} anew", spare_full=True):
            segment = Segment.create(self._files, self.directory, offset)
        with self._data.guard(f"beginning {self.key} anew"):
            self._discard(old, now_ms)
            self._files.sync_dir(self.directory)
        segment.name_synced = True
        self.reader.publish((segment,))
        self.reader.forget_hints()

    # Methods that raise the log start offset.

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to ``offset`` (-1: the log's end), sync, and return the start.

        The next ``apply_retention`` deletes segments that lie wholly before it. Raises
        OffsetOutOfRangeError if ``offset`` is beyond the end."""
        offset = self.reader.tail[0] if offset < 0 else offset
        if offset > self.reader.tail[0]:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {self.key} before offset {offset}: "
                f"its log ends at {self.reader.tail[0]}"
            )
        self._raise_start(offset)
        return self.log_start_offset

    def _raise_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self._data.check()
        with self._data.checkpoints:
            self._data.log_starts.put(self.key, offset)
            self._start_now(offset)

    def _start_now(self, offset: int) -> None:
        self.reader.log_start_offset = offset
        if self.reader.unstable is not None:
            self.producers.raise_starts(offset)
            self._publish_transactions()
        # Truncate the leader epochs in memory only. The file is saved when the next epoch begins,
        # and opening the log repeats this truncation.
        self.leader_epochs.truncate_from_start(offset)
        self.reader.corruption = tuple(d for d in self.reader.corruption if d.next_offset > offset)

    def _discard(self, segment: Segment, now_ms: int) -> None:
        for suffix in paths.SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self._data.discard(segment.path(suffix), now_ms, self.config.file_delete_delay_ms)

    # Methods that stop writes to the log, or close the log.

    def retire(self) -> None:
        """Refuse later writes, because the log is being deleted or becomes a stray. Waits for a
        running flush."""
        with self._flush_lock:
            self._retired = True

    def close(self) -> None:
        """Flush the log and save its state, so that the next start scans nothing.

        Raises StorageError. Readers can still read the byte ranges (slices) that they hold."""
        if self._closed or self._retired:
            return
        self.flush()
        with self._data.guard(f"closing {self.key}", spare_full=True):
            self.reader.tail[1].save_indexes(sync=True)
            self.save_snapshot(sync=True)
        self._closed = True


def _has_aged(active: Segment, config: TopicConfig, now_ms: int) -> bool:
    """Return whether the segment must be closed because of its age (segment.ms).

    Also return True if its first append lies in the future, because the clock was set back.
    Otherwise the records could outlive retention.ms by years."""
    return not 0 <= now_ms - active.first_append_ms < config.segment_ms


def _check_timestamps(
    key: PartitionKey, header: BatchHeader, config: TopicConfig, now_ms: int
) -> None:
    """Raise InvalidTimestampError if the first or newest timestamp is too far from the clock.

    Also raise it if a producer marked the batch LogAppendTime."""
    if header.attributes & fmt.ATTRIBUTE_LOG_APPEND_TIME:
        raise InvalidTimestampError(
            f"a batch for {key} is marked LogAppendTime, which only a broker may set; send "
            "CreateTime"
        )
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if before == LONG_MAX and after == LONG_MAX:
        return
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp != NO_TIMESTAMP and not now_ms - before <= timestamp <= now_ms + after:
            raise InvalidTimestampError(
                f"a batch for {key} has timestamp {timestamp}, which is too far from the broker's "
                f"clock, {now_ms}: "
                f"message.timestamp.before.max.ms={before}, "
                f"message.timestamp.after.max.ms={after}; correct the producer's clock, or these "
                "settings of the topic"
            )
