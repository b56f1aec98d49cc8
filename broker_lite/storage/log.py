"""The writer of one partition's log: append, roll, flush and retention.

One thread at a time writes. ``flush`` may run beside an append in another thread; a lock serialises
flushes. ``flushed_end`` moves only contiguously: it passes an offset once all bytes before it, in
every segment, and the names of those segments are on disk. A failed write is cut off again and
never visible. A failed fsync stops the whole data directory. bounds.py shortens a log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from broker_lite.config import LONG_MAX, TopicConfig
from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidTimestampError,
    LogbusError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NO_OFFSET, NO_PRODUCER, NO_TIMESTAMP, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, set_log_append_time, stamp
from broker_lite.record.control import Marker, decode_marker, encode_markers
from broker_lite.storage import paths
from broker_lite.storage.bounds import LogBounds
from broker_lite.storage.directory import DataDirectory
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.reader import Tail
from broker_lite.storage.retention import SegmentFacts, expired_count
from broker_lite.storage.scan import continuing_headers
from broker_lite.storage.segment import RELATIVE_OFFSET_MAX, Segment

WritableBuffer = bytearray | memoryview

SAVE_EVERY_BYTES = 64 << 20
"""Bytes appended between two saves of the active segment's indexes and the producer state. A start
after a crash scans at most this many."""


class LogAppendInfo(NamedTuple):
    """The offsets of an appended batch.

    ``log_append_time_ms`` is -1 unless the broker stamped it.
    """

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    duplicate: bool


class MarkersInfo(NamedTuple):
    """The result of ``append_markers``: the offsets appended, and the refusal of each marker."""

    base_offset: int
    next_offset: int
    errors: tuple[LogbusError | None, ...]


class Log(LogBounds):
    """A partition on disk, opened by ``recovery.open_log``.

    ``LogReader`` holds the reads that any thread may run, ``LogBounds`` the truncations.
    """

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
        super().__init__(key, data, segments, leader_epochs, config)
        self._producer_expiration_ms = producer_expiration_ms
        self._closed = False

    @property
    def failed(self) -> bool:
        """Whether the data directory has stopped for good."""
        return self._data.failed

    # -- appending -----------------------------------------------------------------------------

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
        """Validate, stamp and write one client's batch, which fills ``buffer``.

        Without ``keep`` the batch leaves the page cache once it is on disk (``File.append``). A
        duplicate returns the offsets of the first append. A batch behind a refused one
        (``note_refused``) raises the error of that one. ``begins_at_zero``: see
        ``ProducerState.check``.

        Raises FencedLeaderEpochError, InvalidTimestampError, InvalidProducerEpochError,
        OutOfOrderSequenceError, InvalidTxnStateError, and StorageError. After a StorageError no
        part of the batch is visible; ``failed`` tells whether the directory has stopped.
        """
        if self._data.failure or self._retired:
            self._check_usable()
        config = self.config
        if header.producer_id != NO_PRODUCER:
            refused = self._data.refused
            known = self.producers.check(
                header,
                may_have_forgotten=self.log_start_offset > 0,
                refused=refused.find(self.key, header) if refused else None,
                begins_at_zero=begins_at_zero,
            )
            if known is not None:
                return LogAppendInfo(known.base_offset, known.next_offset, NO_TIMESTAMP, True)
        if self._data.is_full:
            self._data.check_room()
        append_time = NO_TIMESTAMP
        if config.message_timestamp_type == "LogAppendTime":
            header = set_log_append_time(buffer, header, now_ms)
            append_time = now_ms
        else:
            _check_timestamps(header, config, now_ms)
        base = self._tail[0]
        if leader_epoch != self.leader_epochs.latest:
            self._lead(leader_epoch)
        header = stamp(buffer, header, base, leader_epoch)
        self._write(buffer, (header,), now_ms, keep)
        return LogAppendInfo(base, self._tail[0], append_time, False)

    def append_markers(
        self, markers: Sequence[Marker], leader_epoch: int, now_ms: int
    ) -> MarkersInfo:
        """Judge each marker, and write the accepted ones as one buffer of control batches.

        A marker without an open transaction succeeds and writes nothing. Raises
        FencedLeaderEpochError and StorageError; no marker is then in the log.
        """
        self._check_usable()
        self._data.check_room()
        self._lead(leader_epoch)
        accepted: dict[int, Marker] = {}
        errors: list[LogbusError | None] = []
        for marker in markers:
            error: LogbusError | None = None
            try:
                if marker.producer_id not in accepted and self.producers.judge(marker):
                    accepted[marker.producer_id] = marker
            except LogbusError as refusal:
                error = refusal
            errors.append(error)
        base = self._tail[0]
        if accepted:
            buffer, headers = encode_markers(list(accepted.values()), base, leader_epoch, now_ms)
            self._write(buffer, headers, now_ms)
        return MarkersInfo(base, self._tail[0], tuple(errors))

    def _lead(self, leader_epoch: int) -> None:
        """Begin a leader epoch that is new; raise FencedLeaderEpochError for an earlier one."""
        latest = self.leader_epochs.latest
        if leader_epoch < latest:
            raise FencedLeaderEpochError(
                f"{self.key}: leader epoch {leader_epoch} is fenced; the latest is {latest}"
            )
        self.start_epoch(leader_epoch)

    def note_refused(self, header: BatchHeader, error: LogbusError) -> None:
        """Record a refused batch: the batches that its producer already sent behind it get
        ``error`` too.
        """
        self._data.refused.note(self.key, header, error)

    def append_as_follower(
        self, buffer: memoryview, leader_epoch: int, now_ms: int, *, keep: bool = True
    ) -> int:
        """Append a leader's batches unchanged and return the next offset.

        The batches must continue the log and be sound; otherwise CorruptMessageError, before any
        write. Sequences are not checked. Left out are:
        - batches of an epoch newer than ``leader_epoch``, because a deposed leader sent them;
        - a batch that is cut off at the end of ``buffer``;
        - batches that find no space on the disk. If none found space, raises StorageError.
        """
        self._check_usable()
        self._data.check_room()
        end = self._tail[0]
        is_empty = end == self.log_start_offset
        headers = continuing_headers(self.key, buffer, end, leader_epoch, may_overlap=is_empty)
        if headers and headers[0].base_offset < end:
            # The leader's log start lies inside this batch.
            self._begin_at(headers[0].base_offset, end, now_ms)
        began = self._tail[0]
        while headers:
            count, length = self._run(headers)
            try:
                self._follow_epoch(headers[0].leader_epoch, headers[0].base_offset)
                self._write(buffer[:length], tuple(headers[:count]), now_ms, keep)
            except StorageError:
                if self._tail[0] == began or self._data.failure or self._retired:
                    raise
                break
            buffer, headers = buffer[length:], headers[count:]
        return self._tail[0]

    def _follow_epoch(self, epoch: int, offset: int) -> None:
        if epoch < self.leader_epochs.latest:
            # This replica may have begun epochs in which it wrote no batch. Remove them.
            self._truncate_epochs(offset)
            if epoch < self.leader_epochs.latest:
                raise CorruptMessageError(
                    f"{self.key}: the leader sent epoch {epoch} at offset {offset}, but this log "
                    f"holds batches of epoch {self.leader_epochs.latest} before it"
                )
        self._assign_epoch(epoch, offset)

    def _run(self, headers: list[BatchHeader]) -> tuple[int, int]:
        """Return how many leading batches share a segment and an epoch, and their size in bytes."""
        space = self.config.segment_bytes - self._tail[1].size_bytes
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
        active = self._tail[1]
        size = active.size_bytes
        if size and (
            size + len(buffer) > config.segment_bytes
            or now_ms - active.first_append_ms >= config.segment_ms
            or headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.index.is_full
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
            self._hints[(base ^ base >> 6 ^ base >> 12) & 63] = (base, active, position)
            position += header.length + fmt.LENGTH_PREFIX_BYTES
        if has_transactions:
            # Before ``_tail``: a reader of these batches must find what holds them back.
            self._publish_transactions()
        self._tail = Tail(active.next_offset, active, active.size_bytes)
        if position - active.saved_bytes >= SAVE_EVERY_BYTES or position == len(buffer):
            self._save_progress(active)

    def _note_transactional(
        self, active: Segment, header: BatchHeader, batch: memoryview, now_ms: int
    ) -> None:
        """Record a transactional batch or a marker that was appended."""
        if self.transactions_from == NO_OFFSET:
            self.transactions_from = header.base_offset
        marker = decode_marker(batch, header) if header.is_control else None
        aborted = self.producers.update(header, header.base_offset, now_ms, marker)
        if aborted is not None:
            active.transactions.add(aborted)

    def _repair(self, active: Segment, error: OSError) -> LogbusError:
        """Cut off the remains of a failed write and return the error to raise."""
        try:
            active.repair()
        except OSError as second:
            return self._data.fail(f"cutting a half-written batch of {self.key}: {second}")
        return self._refusal(f"writing to {self.key}", error)

    def _refusal(self, doing: str, error: OSError) -> LogbusError:
        """Return the error of a failed write. Any error but a full disk stops the directory."""
        if self._retired:
            return UnknownTopicOrPartitionError(f"{self.key} was deleted from this broker")
        return self._data.full(doing, error) or self._data.fail(f"{doing}: {error}")

    def _roll(self, base_offset: int) -> Segment:
        """Close the active segment and begin one at ``base_offset``.

        The next flush syncs the closed segment before ``flushed_end`` passes its end.
        """
        old = self._tail[1]
        try:
            segment = Segment.create(self._files, self.directory, base_offset)
        except OSError as error:
            raise self._refusal(f"beginning a segment of {self.key}", error) from error
        self._publish((*self._chain[1], segment))
        self._note_loaded(old)
        with contextlib.suppress(OSError):
            # Recovery can rebuild both from the log file.
            old.save_indexes()
            self.save_snapshot()
        return segment

    def _save_progress(self, active: Segment) -> None:
        """Save indexes and producer state to shorten the next start; a failed save does no harm.

        Also runs after the first batch of a segment, to save the segment's first append time.
        """
        active.saved_bytes = active.size_bytes
        with contextlib.suppress(OSError):
            active.save_indexes()
            if active.next_offset > active.base_offset and active.size_bytes >= SAVE_EVERY_BYTES:
                self.save_snapshot()

    def save_snapshot(self, *, sync: bool = False) -> None:
        """Save the producer state as of the log's end. Raises OSError."""
        self._snapshots.save(self.producers, sync=sync)

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin ``leader_epoch`` at the log's end, and sync.

        Do nothing if the epoch has already begun.
        """
        self._assign_epoch(leader_epoch, self._tail[0])

    def _assign_epoch(self, epoch: int, offset: int) -> None:
        if epoch <= self.leader_epochs.latest:
            return
        self._data.check()
        try:
            self._data.write_in_reserve(lambda: self.leader_epochs.assign(epoch, offset))
        except OSError as error:
            raise self._refusal(f"writing the leader epochs of {self.key}", error) from error

    # -- flushing ------------------------------------------------------------------------------

    def start_flush(self) -> None:
        """Start writing unsynced bytes to disk, for a ``flush`` that follows.

        Guarantees nothing.
        """
        self._tail[1].start_sync()

    def flush(self) -> int:
        """Sync everything appended before the call, and return ``flushed_end``.

        Raises StorageError; the whole directory has then stopped.
        """
        with self._flush_lock:
            self._check_usable()
            end = self._tail[0]
            if self.flushed_end >= end:
                return self.flushed_end
            with self._data.guard(f"flushing {self.key}"):
                self._sync_segments()
            self.flushed_end = max(self.flushed_end, end)
            return self.flushed_end

    def _sync_segments(self) -> None:
        waiting: list[Segment] = []
        for segment in reversed(self._chain[1]):
            if segment.is_synced:
                break
            waiting.append(segment)
        for segment in reversed(waiting):
            segment.datasync()
        if not all(segment.name_synced for segment in waiting):
            self._files.sync_dir(self.directory)
            for segment in waiting:
                segment.name_synced = True

    # -- retention -----------------------------------------------------------------------------

    def apply_retention(self, now_ms: int, last_stable_offset: int) -> int:
        """Roll an active segment older than segment.ms, delete expired segments, return their
        number.

        Never deletes the active segment, or one that reaches beyond ``last_stable_offset``.
        Expires idle producers too. Runs on the writer's thread.
        """
        with self._flush_lock:
            return self._apply_retention(now_ms, last_stable_offset)

    def _apply_retention(self, now_ms: int, last_stable_offset: int) -> int:
        self._check_usable()
        self.producers.expire(now_ms, self._producer_expiration_ms)
        active = self._tail[1]
        if active.size_bytes and now_ms - active.first_append_ms >= self.config.segment_ms:
            self._roll_if_room(active.next_offset)
        segments = self._chain[1]
        facts = [SegmentFacts.of(segment) for segment in segments]
        count = expired_count(
            facts,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            last_stable_offset=last_stable_offset,
        )
        if count:
            self._raise_start_if_room(segments[count].base_offset)
            self._publish(segments[count:])
            self._forget_hints()
            with self._data.guard(f"deleting old segments of {self.key}"):
                for segment in segments[:count]:
                    self._discard(segment, now_ms)
                    if self._data.log_starts.get(self.key, 0) < self.log_start_offset:
                        # A full disk kept the log start off the disk. Deleting in order avoids a
                        # gap after a crash.
                        self._files.sync_dir(self.directory)
                self._drop_leftovers()
        return count

    def _roll_if_room(self, base_offset: int) -> None:
        """Roll, ignoring a full disk: retention must still delete the segments already closed."""
        try:
            self._roll(base_offset)
        except StorageError:
            self._data.check()

    def _raise_start_if_room(self, offset: int) -> None:
        """Raise the log's start; on a full disk in memory only.

        A start derives it from the segments.
        """
        try:
            self._raise_start(offset)
        except StorageError:
            self._data.check()
            self._start_now(offset)

    def _drop_leftovers(self) -> None:
        """Delete snapshots and torn files from before the log's start."""
        start = self.log_start_offset
        self._snapshots.drop_below(self._chain[0][0])
        for name in self._files.list_dir(self.directory):
            torn = paths.parse_torn_file(name)
            if torn is not None and torn[0] < start:
                self._files.remove(f"{self.directory}/{name}")

    # -- closing -------------------------------------------------------------------------------

    def retire(self) -> None:
        """Refuse later writes, because the partition is being deleted.

        Waits for a running flush.
        """
        with self._flush_lock:
            self._retired = True

    def close(self) -> None:
        """Flush and save everything, so that the next start scans nothing. Raises StorageError.

        Readers that hold slices can still read them.
        """
        if self._closed or self._retired:
            return
        self.flush()
        with self._data.guard(f"closing {self.key}", spare_full=True):
            self._tail[1].save_indexes(sync=True)
            self.save_snapshot(sync=True)
        self._closed = True


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Raise InvalidTimestampError if the header's first or newest timestamp is not acceptable."""
    if header.attributes & fmt.ATTRIBUTE_LOG_APPEND_TIME:
        raise InvalidTimestampError(
            "the batch is marked LogAppendTime, which only a broker may set; send CreateTime"
        )
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    if before == LONG_MAX and after == LONG_MAX:
        return
    for timestamp in (header.base_timestamp, header.max_timestamp):
        if timestamp != NO_TIMESTAMP and not now_ms - before <= timestamp <= now_ms + after:
            raise InvalidTimestampError(
                f"timestamp {timestamp} is outside message.timestamp.before.max.ms={before} and "
                f"message.timestamp.after.max.ms={after} of the broker's clock, {now_ms}"
            )
