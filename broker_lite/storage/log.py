"""One partition's log: the writer's half. Appends, rolls, flushes, truncates, deletes.

One thread at a time writes (a disk thread of the broker); ``flush`` may run beside an append in
another thread, for a lock serialises flushes. ``flushed_end`` moves only contiguously: an offset
counts when all bytes before it, in every segment, and the segments' names are on disk. A failed
write leaves nothing visible: the tail is cut back. A failed fsync stops the whole data directory.
"""

from __future__ import annotations

import contextlib
import threading
from typing import NamedTuple

from broker_lite.config import DAY, LONG_MAX, MINUTE, TopicConfig
from broker_lite.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidTimestampError,
    LogbusError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NO_PRODUCER, NO_TIMESTAMP, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import (
    BatchHeader,
    set_log_append_time,
)
from broker_lite.storage import paths, producer_state
from broker_lite.storage.checkpoint import read_whole, write_atomic
from broker_lite.storage.directory import DataDirectory
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.producer_state import CorruptSnapshot, ProducerState
from broker_lite.storage.reader import LogReader, Tail
from broker_lite.storage.retention import SegmentFacts, expired_count
from broker_lite.storage.scan import continuing_headers
from broker_lite.storage.segment import RELATIVE_OFFSET_MAX, Segment

WritableBuffer = bytearray | memoryview

SAVE_EVERY_BYTES = 64 << 20
"""The active segment's indexes and the producers are saved this often, so that a start after a
crash scans no more than this."""
SNAPSHOTS_KEPT = 2


class Appended(NamedTuple):
    """Where a batch is. ``log_append_time_ms`` is -1 unless the broker stamped it."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    duplicate: bool


class LogLimits(NamedTuple):
    """What a broker sets for all its logs."""

    producer_expiration_ms: int = DAY
    delete_delay_ms: int = MINUTE


class Log(LogReader):
    """A partition on disk. Opened by ``recovery.open_log``; see ``LogReader`` for reading."""

    def __init__(
        self,
        key: PartitionKey,
        data: DataDirectory,
        segments: tuple[Segment, ...],
        leader_epochs: LeaderEpochs,
        *,
        config: TopicConfig,
        limits: LogLimits,
    ) -> None:
        super().__init__(key, segments)
        self.config = config
        self.leader_epochs = leader_epochs
        self.producers = ProducerState(segments[0].base_offset)
        self.flushed_end = 0
        self.directory = paths.partition_dir(data.path, key)
        self._data = data
        self._files = data.files
        self._limits = limits
        self._flush_lock = threading.Lock()
        self._unflushed_since_ms = NO_TIMESTAMP
        self._next_save = SAVE_EVERY_BYTES
        self._closed = False
        self._retired = False

    @property
    def failed(self) -> bool:
        """Whether the data directory has stopped, for good."""
        return self._data.failed

    def _check_usable(self) -> None:
        self._data.check()
        if self._retired:
            raise UnknownTopicOrPartitionError(f"{self.key} was deleted from this broker")

    # -- appending -----------------------------------------------------------------------------

    def append_as_leader(
        self, buffer: WritableBuffer, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Judge, stamp and write one client's batch, which fills ``buffer``.

        Raises FencedLeaderEpochError, InvalidTimestampError, InvalidProducerEpochError,
        OutOfOrderSequenceError, and StorageError (nothing of the batch is visible then; see
        ``failed`` for whether the directory has stopped). A repeated batch is answered with its
        first offsets.
        """
        if self._data.failure or self._retired:
            self._check_usable()
        config = self.config
        if header.producer_id != NO_PRODUCER:
            known = self.producers.check(header, may_have_forgotten=self.log_start_offset > 0)
            if known is not None:
                return Appended(known.base_offset, known.next_offset, NO_TIMESTAMP, True)
        append_time = NO_TIMESTAMP
        if config.message_timestamp_type == "LogAppendTime":
            header = set_log_append_time(buffer, header, now_ms)
            append_time = now_ms
        else:
            _check_timestamps(header, config, now_ms)
        base = self._tail[0]
        latest = self.leader_epochs.latest
        if leader_epoch != latest:
            if leader_epoch < latest:
                raise FencedLeaderEpochError(
                    f"{self.key} is in leader epoch {latest}; {leader_epoch} is over"
                )
            self.start_epoch(leader_epoch)
        fmt.STAMP.pack_into(buffer, 0, base, header.length, leader_epoch)
        header = header._replace(base_offset=base, leader_epoch=leader_epoch)
        self._write(buffer, (header,), now_ms)
        return Appended(base, self._tail[0], append_time, False)

    def append_as_follower(self, buffer: memoryview, leader_epoch: int, now_ms: int) -> int:
        """Write a leader's batches as they are; returns the next offset. Sequences are not judged.

        They must continue the log and be sound (CorruptMessageError, before anything is written).
        What a newer epoch than ``leader_epoch`` wrote is left out: a deposed leader's answer. So
        is a batch that is cut off at the end, and what finds no room on the disk (StorageError if
        that is everything).
        """
        self._check_usable()
        end = self._tail[0]
        is_empty = end == self.log_start_offset
        headers = continuing_headers(self.key, buffer, end, leader_epoch, may_overlap=is_empty)
        if headers and headers[0].base_offset < end:
            # The leader deleted records up to the middle of this batch.
            self._begin_at(headers[0].base_offset, end, now_ms)
        began = self._tail[0]
        while headers:
            count, length = self._run(headers)
            try:
                self._follow_epoch(headers[0].leader_epoch, headers[0].base_offset)
                self._write(buffer[:length], tuple(headers[:count]), now_ms)
            except StorageError:
                if self._tail[0] == began or self._data.failure or self._retired:
                    raise
                break
            buffer, headers = buffer[length:], headers[count:]
        return self._tail[0]

    def _follow_epoch(self, epoch: int, offset: int) -> None:
        if epoch < self.leader_epochs.latest:
            # An epoch that this replica began and never wrote in.
            self._truncate_epochs(offset)
            if epoch < self.leader_epochs.latest:
                raise CorruptMessageError(
                    f"{self.key}: the leader sent epoch {epoch} at offset {offset}, where epoch "
                    f"{self.leader_epochs.latest} wrote already"
                )
        self._assign_epoch(epoch, offset)

    def _run(self, headers: list[BatchHeader]) -> tuple[int, int]:
        """How many of the batches share a segment and an epoch, and their bytes."""
        room = self.config.segment_bytes - self._tail[1].size_bytes
        count, length = 1, headers[0].size_bytes
        for header in headers[1:]:
            if header.leader_epoch != headers[0].leader_epoch or length + header.size_bytes > room:
                break
            count, length = count + 1, length + header.size_bytes
        return count, length

    def _write(self, buffer: WritableBuffer, headers: tuple[BatchHeader, ...], now_ms: int) -> None:
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
            position = active.append(buffer, now_ms)
        except OSError as error:
            raise self._repair(active, error) from error
        interval = config.index_interval_bytes
        for header in headers:
            active.note(header, position, interval)
            self.producers.update(header, header.base_offset, now_ms)
            base = header.base_offset
            self._hints[(base ^ base >> 6 ^ base >> 12) & 63] = (base, active, position)
            position += header.length + fmt.LENGTH_PREFIX_BYTES
        if self.flushed_end >= first.base_offset:
            self._unflushed_since_ms = now_ms
        self._tail = Tail(active.next_offset, active, active.size_bytes)
        if position >= self._next_save or position == len(buffer):
            self._save_progress(active)

    def _repair(self, active: Segment, error: OSError) -> LogbusError:
        """Cut what a failed write left; the error to raise."""
        try:
            active.repair()
        except OSError as second:
            return self._data.fail(f"cutting a half-written batch of {self.key}: {second}")
        return self._refusal(f"writing to {self.key}", error)

    def _refusal(self, doing: str, error: OSError) -> LogbusError:
        """The error to raise for an append; any but a full disk stops the directory."""
        if self._retired:
            return UnknownTopicOrPartitionError(f"{self.key} was deleted from this broker")
        return self._data.full(doing, error) or self._data.fail(f"{doing}: {error}")

    def _roll(self, base_offset: int) -> Segment:
        """Close the active segment and begin one at ``base_offset``.

        The old one is synced by the next flush, before ``flushed_end`` passes its end.
        """
        old = self._tail[1]
        try:
            segment = Segment.create(self._files, self.directory, base_offset)
        except OSError as error:
            raise self._refusal(f"beginning a segment of {self.key}", error) from error
        self._publish((*self._chain[1], segment))
        self._next_save = SAVE_EVERY_BYTES
        self._note_loaded(old)
        with contextlib.suppress(OSError):
            # Both can be made again from the log file.
            old.save_indexes()
            self.save_snapshot()
        return segment

    def _save_progress(self, active: Segment) -> None:
        """Save what shortens the next start, and a new segment's birth; losing it is harmless."""
        self._next_save = active.size_bytes + SAVE_EVERY_BYTES
        with contextlib.suppress(OSError):
            active.save_indexes()
            if active.next_offset > active.base_offset and active.size_bytes >= SAVE_EVERY_BYTES:
                self.save_snapshot()

    def start_epoch(self, leader_epoch: int) -> None:
        """Let ``leader_epoch`` begin at the log's end; on disk on return, nothing if it began."""
        self._assign_epoch(leader_epoch, self._tail[0])

    def _assign_epoch(self, epoch: int, offset: int) -> None:
        if epoch <= self.leader_epochs.latest:
            return
        self._data.check()
        before = self.leader_epochs.entries
        try:
            self.leader_epochs.assign(epoch, offset)
        except OSError as error:
            self.leader_epochs.restore(before)
            raise self._refusal(f"writing the leader epochs of {self.key}", error) from error

    # -- flushing ------------------------------------------------------------------------------

    def needs_flush(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms is reached."""
        waiting = self._tail[0] - self.flushed_end
        return waiting > 0 and (
            waiting >= self.config.flush_messages
            or now_ms - self._unflushed_since_ms >= self.config.flush_ms
        )

    def flush(self) -> int:
        """Put everything appended before the call on disk; returns ``flushed_end``.

        Raises StorageError, after which the whole directory has stopped.
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

    # -- shortening ----------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Drop every batch that reaches beyond ``offset``; on disk on return. For followers.

        Below the log's start: ``start_at``. Damage does not keep it from cutting there.
        """
        with self._flush_lock:
            self._check_usable()
            if offset >= self._tail[0]:
                self._truncate_epochs(offset)
                return
            cut, position = (offset, 0) if offset < self.log_start_offset else self._cut_at(offset)
            if cut <= self.log_start_offset:
                self._begin_at(offset, offset, now_ms)
            else:
                self._cut_log(cut, position, now_ms)

    def start_at(self, offset: int, now_ms: int = 0) -> None:
        """Drop everything and begin at ``offset``; on disk on return. For followers.

        Cut short by a crash it leaves the log shortened, or empty.
        """
        with self._flush_lock:
            self._check_usable()
            self._begin_at(offset, offset, now_ms)

    def _cut_at(self, offset: int) -> tuple[int, int]:
        """The first offset and the position of the batch, or of the damage, that holds one."""
        try:
            found = self._locate(offset)[1]
        except CorruptMessageError:
            damage = self._damage_over(offset)
            if damage is None:
                raise
            return damage.first_offset, damage.position
        return found.header.base_offset, found.position

    def _cut_log(self, offset: int, position: int, now_ms: int) -> None:
        self.flushed_end = min(self.flushed_end, offset)
        self._data.lower_recovery_point(self.key, offset)
        self._truncate_epochs(offset)
        with self._data.guard(f"truncating {self.key}"):
            self._cut_segments(offset, position, now_ms)
        self.rebuild_producers(now_ms)
        self.flushed_end = offset

    def _begin_at(self, offset: int, log_start: int, now_ms: int) -> None:
        """Empty the log; its first segment begins at ``offset`` then, its records at ``log_start``.

        Cut first, so that no bytes are ever without their epochs. A segment below the log's start
        is taken for deleted by a start, one above it for damage: hence the order of the rest.
        """
        base = self._chain[0][0]
        self._data.raise_log_start(self.key, self.log_start_offset)
        if self._tail[0] > base:
            self._cut_log(base, 0, now_ms)
        self.flushed_end = min(base, offset)
        self._data.lower_recovery_point(self.key, self.flushed_end)
        self._truncate_epochs(base)
        with self._data.guard(f"beginning {self.key} anew"):
            for _, name in self._snapshots():
                self._files.remove(f"{self.directory}/{name}")
        if offset < base:
            self._replace_segment(offset, now_ms)
        self._data.set_log_start(self.key, log_start)
        if offset > base:
            self._replace_segment(offset, now_ms)
        self.log_start_offset = log_start
        self.corruption = ()
        self.producers.forget_all(log_start)
        self.flushed_end = log_start

    def _replace_segment(self, offset: int, now_ms: int) -> None:
        """Let an empty segment at ``offset`` take the place of the empty one that is there."""
        old = self._tail[1]
        with self._data.guard(f"beginning {self.key} anew", spare_full=True):
            segment = Segment.create(self._files, self.directory, offset)
        with self._data.guard(f"beginning {self.key} anew"):
            self._discard(old, now_ms)
            self._files.sync_dir(self.directory)
        segment.name_synced = True
        self._loaded.clear()
        self._hints[:] = [None] * len(self._hints)
        self._next_save = SAVE_EVERY_BYTES
        self._publish((segment,))

    def _cut_segments(self, offset: int, position: int, now_ms: int) -> None:
        kept = [s for s in self._chain[1] if s.base_offset <= offset]
        dropped = self._chain[1][len(kept) :]
        active = kept[-1]
        self._loaded.clear()
        active.open_writable()
        self._hints[:] = [None] * len(self._hints)
        self._publish(tuple(kept))
        active.cut(position, offset)
        self._publish(tuple(kept))
        for segment in dropped:
            self._discard(segment, now_ms)
        for at, name in self._snapshots():
            if at > offset:
                self._files.remove(f"{self.directory}/{name}")
        self.corruption = tuple(d for d in self.corruption if d.first_offset < offset)
        active.damaged = any(d.segment_base == active.base_offset for d in self.corruption)
        active.save_indexes()
        for segment in kept:
            # Older ones may have been appended to and not flushed yet.
            if segment is active or not segment.is_synced:
                segment.datasync()
        self._files.sync_dir(self.directory)
        for segment in kept:
            segment.name_synced = True

    def delete_records_before(self, offset: int) -> int:
        """Raise the log's start to ``offset``, durably; -1 is the log's end. Returns the start.

        Segments that lie wholly before it go with the next ``apply_retention``. Raises
        OffsetOutOfRangeError beyond the end.
        """
        offset = self._tail[0] if offset < 0 else offset
        if offset > self._tail[0]:
            raise OffsetOutOfRangeError(
                f"records of {self.key} end at {self._tail[0]}; cannot delete up to {offset}"
            )
        self._raise_start(offset)
        return self.log_start_offset

    def _raise_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self._data.check()
        self._data.raise_log_start(self.key, offset)
        self._start_now(offset)

    def _start_now(self, offset: int) -> None:
        self.log_start_offset = offset
        # Saved with the next epoch; opening the log truncates again.
        self.leader_epochs.truncate_from_start(offset)
        self.corruption = tuple(d for d in self.corruption if d.next_offset > offset)

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Close an active segment past segment.ms, delete whole old ones; how many were deleted.

        Never the active one, nor one that reaches beyond ``high_watermark``. Forgets idle
        producers too. On the writer's thread.
        """
        with self._flush_lock:
            return self._apply_retention(now_ms, high_watermark)

    def _apply_retention(self, now_ms: int, high_watermark: int) -> int:
        self._check_usable()
        self.producers.expire(now_ms, self._limits.producer_expiration_ms)
        active = self._tail[1]
        if active.size_bytes and now_ms - active.first_append_ms >= self.config.segment_ms:
            self._roll(active.next_offset)
        segments = self._chain[1]
        facts = [SegmentFacts.of(segment) for segment in segments]
        count = expired_count(
            facts,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )
        if count:
            self._raise_start_if_room(segments[count].base_offset)
            self._hints[:] = [None] * len(self._hints)
            self._publish(segments[count:])
            with self._data.guard(f"deleting old segments of {self.key}"):
                for segment in segments[:count]:
                    self._discard(segment, now_ms)
                    if self._data.log_starts.get(self.key, 0) < self.log_start_offset:
                        # Not on disk elsewhere: let the segments go in order at least.
                        self._files.sync_dir(self.directory)
                self._drop_leftovers()
        return count

    def _raise_start_if_room(self, offset: int) -> None:
        """A full disk must not keep retention from making room; a start finds the same end."""
        try:
            self._raise_start(offset)
        except StorageError:
            self._data.check()
            self._start_now(offset)

    def _discard(self, segment: Segment, now_ms: int) -> None:
        for suffix in paths.SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self._data.discard(segment.path(suffix), now_ms + self._limits.delete_delay_ms)

    def _drop_leftovers(self) -> None:
        """Snapshots and set-aside bytes from before the log's start."""
        start = self.log_start_offset
        for at, name in self._snapshots():
            if at < self._chain[0][0]:
                self._files.remove(f"{self.directory}/{name}")
        for name in self._files.list_dir(self.directory):
            torn = paths.parse_torn_file(name)
            if torn is not None and torn[0] < start:
                self._files.remove(f"{self.directory}/{name}")

    # -- producers -----------------------------------------------------------------------------

    def save_snapshot(self, *, sync: bool = False) -> None:
        """Save the producers as of the log's end; older snapshots but one go. OSError."""
        state = self.producers
        name = f"{state.next_offset:020d}{paths.SNAPSHOT}"
        write_atomic(self._files, self.directory, name, state.encode(), sync=sync)
        for _, old in self._snapshots()[:-SNAPSHOTS_KEPT]:
            self._files.remove(f"{self.directory}/{old}")

    def _snapshots(self) -> list[tuple[int, str]]:
        """Offset and name, oldest first."""
        names = [(paths.parse_segment_file(n), n) for n in self._files.list_dir(self.directory)]
        return [(found[0], n) for found, n in names if found and found[1] == paths.SNAPSHOT]

    def rebuild_producers(self, now_ms: int) -> None:
        """Newest sound snapshot at or below the end, and the batches after it."""
        end = self._tail[0]
        state = ProducerState(self._chain[0][0])
        state.forgot = self._chain[0][0] > 0
        for at, name in reversed(self._snapshots()):
            if self._chain[0][0] <= at <= end:
                data = read_whole(self._files, f"{self.directory}/{name}")
                with contextlib.suppress(CorruptSnapshot):
                    loaded = producer_state.decode(data or b"")
                    if loaded.next_offset == at:
                        state = loaded
                        break
        for segment in self._chain[1]:
            start = max(state.next_offset, segment.base_offset)
            headers = (found.header for found in self._headers(segment, start, end))
            producer_state.replay(state, headers, now_ms)
        state.next_offset = end
        self.producers = state

    # -- closing -------------------------------------------------------------------------------

    def _truncate_epochs(self, offset: int) -> None:
        """On disk before the batches go: what is in the log is always of a saved epoch."""
        before = self.leader_epochs.entries
        if self.leader_epochs.truncate_from_end(offset):
            try:
                with self._data.guard(f"writing the leader epochs of {self.key}", spare_full=True):
                    self.leader_epochs.save()
            except StorageError:
                self.leader_epochs.restore(before)
                raise

    def retire(self) -> None:
        """Refuse writes from now on: the partition is being deleted. Waits for a flush."""
        with self._flush_lock:
            self._retired = True

    def close(self) -> None:
        """Flush and save everything, so that the next start scans nothing. StorageError.

        Readers that hold slices keep them.
        """
        if self._closed or self._retired:
            return
        self.flush()
        with self._data.guard(f"closing {self.key}", spare_full=True):
            self._tail[1].save_indexes(sync=True)
            self.save_snapshot(sync=True)
        self._closed = True


def _check_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """What the envelope says of the records' times: the first and the newest."""
    if header.attributes & fmt.ATTRIBUTE_LOG_APPEND_TIME:
        raise InvalidTimestampError(
            "the batch says LogAppendTime, which only the broker may stamp; send CreateTime"
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
