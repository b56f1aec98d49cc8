"""One partition's log: the writer's half. Appends, rolls, flushes, retains; bounds.py shortens it.

One thread at a time writes (a disk thread of the broker); ``flush`` may run beside an append in
another thread, for a lock serialises flushes. ``flushed_end`` moves only contiguously: an offset
counts when all bytes before it, in every segment, and the segments' names are on disk. A failed
write leaves nothing visible: the tail is cut back. A failed fsync stops the whole data directory.
"""

from __future__ import annotations

import contextlib
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
from broker_lite.model import NO_PRODUCER, NO_TIMESTAMP, PartitionKey
from broker_lite.record import format as fmt
from broker_lite.record.batch import BatchHeader, set_log_append_time, set_max_timestamp, stamp
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
"""The active segment's indexes and the producers are saved this often, so that a start after a
crash scans no more than this."""


class Appended(NamedTuple):
    """Where a batch is. ``log_append_time_ms`` is -1 unless the broker stamped it."""

    base_offset: int
    next_offset: int
    log_append_time_ms: int
    duplicate: bool


class Log(LogBounds):
    """A partition on disk. Opened by ``recovery.open_log``.

    ``LogReader`` has what any thread may ask, ``LogBounds`` what makes it shorter.
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
        """Whether the data directory has stopped, for good."""
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
    ) -> Appended:
        """Judge, stamp and write one client's batch, which fills ``buffer``.

        Without ``keep`` it leaves memory once it is on disk (``File.append``), below too.

        Raises FencedLeaderEpochError, InvalidTimestampError, InvalidProducerEpochError,
        OutOfOrderSequenceError, and StorageError (nothing of the batch is visible then; see
        ``failed`` for whether the directory has stopped). A repeated batch is answered with its
        first offsets, a batch behind one that ``note_refused`` was told of with that one's error.
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
            )
            if known is not None:
                return Appended(known.base_offset, known.next_offset, NO_TIMESTAMP, True)
        if self._data.is_full:
            self._data.check_room()
        append_time = NO_TIMESTAMP
        if config.message_timestamp_type == "LogAppendTime":
            header = set_log_append_time(buffer, header, now_ms)
            append_time = now_ms
        else:
            if header.max_timestamp < header.base_timestamp and not header.is_columns:
                header = _with_newest_time(buffer, header)
            _check_timestamps(header, config, now_ms)
        base = self._tail[0]
        latest = self.leader_epochs.latest
        if leader_epoch != latest:
            if leader_epoch < latest:
                raise FencedLeaderEpochError(
                    f"{self.key} is in leader epoch {latest}; {leader_epoch} is over"
                )
            self.start_epoch(leader_epoch)
        header = stamp(buffer, header, base, leader_epoch)
        self._write(buffer, (header,), now_ms, keep)
        return Appended(base, self._tail[0], append_time, False)

    def note_refused(self, header: BatchHeader, error: LogbusError) -> None:
        """Refuse the batches behind this one, which its producer sent already, with ``error``."""
        self._data.refused.note(self.key, header, error)

    def append_as_follower(
        self, buffer: memoryview, leader_epoch: int, now_ms: int, *, keep: bool = True
    ) -> int:
        """Write a leader's batches as they are; returns the next offset. Sequences are not judged.

        They must continue the log and be sound (CorruptMessageError, before anything is written).
        What a newer epoch than ``leader_epoch`` wrote is left out: a deposed leader's answer. So
        is a batch that is cut off at the end, and what finds no room on the disk (StorageError if
        that is everything).
        """
        self._check_usable()
        self._data.check_room()
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
                self._write(buffer[:length], tuple(headers[:count]), now_ms, keep)
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
        for header in headers:
            active.note(header, position, interval)
            self.producers.update(header, header.base_offset, now_ms)
            base = header.base_offset
            self._hints[(base ^ base >> 6 ^ base >> 12) & 63] = (base, active, position)
            position += header.length + fmt.LENGTH_PREFIX_BYTES
        self._tail = Tail(active.next_offset, active, active.size_bytes)
        if position - active.saved_bytes >= SAVE_EVERY_BYTES or position == len(buffer):
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
        self._note_loaded(old)
        with contextlib.suppress(OSError):
            # Both can be made again from the log file.
            old.save_indexes()
            self.save_snapshot()
        return segment

    def _save_progress(self, active: Segment) -> None:
        """Save what shortens the next start, and a new segment's birth; losing it is harmless."""
        active.saved_bytes = active.size_bytes
        with contextlib.suppress(OSError):
            active.save_indexes()
            if active.next_offset > active.base_offset and active.size_bytes >= SAVE_EVERY_BYTES:
                self.save_snapshot()

    def save_snapshot(self, *, sync: bool = False) -> None:
        """Save the producers as of the log's end. OSError."""
        self._snapshots.save(self.producers, sync=sync)

    def start_epoch(self, leader_epoch: int) -> None:
        """Let ``leader_epoch`` begin at the log's end; on disk on return, nothing if it began."""
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
        """Let the disk begin with what ``flush`` will wait for; promises nothing."""
        self._tail[1].start_sync()

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

    # -- retention -----------------------------------------------------------------------------

    def apply_retention(self, now_ms: int, high_watermark: int) -> int:
        """Close an active segment past segment.ms, delete whole old ones; how many were deleted.

        Never the active one, nor one that reaches beyond ``high_watermark``. Forgets idle
        producers too. On the writer's thread.
        """
        with self._flush_lock:
            return self._apply_retention(now_ms, high_watermark)

    def _apply_retention(self, now_ms: int, high_watermark: int) -> int:
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
            high_watermark=high_watermark,
        )
        if count:
            self._raise_start_if_room(segments[count].base_offset)
            self._publish(segments[count:])
            self._forget_hints()
            with self._data.guard(f"deleting old segments of {self.key}"):
                for segment in segments[:count]:
                    self._discard(segment, now_ms)
                    if self._data.log_starts.get(self.key, 0) < self.log_start_offset:
                        # Not on disk elsewhere: let the segments go in order at least.
                        self._files.sync_dir(self.directory)
                self._drop_leftovers()
        return count

    def _roll_if_room(self, base_offset: int) -> None:
        """A full disk must not keep retention from making room: here, of what is closed already."""
        try:
            self._roll(base_offset)
        except StorageError:
            self._data.check()

    def _raise_start_if_room(self, offset: int) -> None:
        """As above; a start finds the same end."""
        try:
            self._raise_start(offset)
        except StorageError:
            self._data.check()
            self._start_now(offset)

    def _drop_leftovers(self) -> None:
        """Snapshots and set-aside bytes from before the log's start."""
        start = self.log_start_offset
        self._snapshots.drop_below(self._chain[0][0])
        for name in self._files.list_dir(self.directory):
            torn = paths.parse_torn_file(name)
            if torn is not None and torn[0] < start:
                self._files.remove(f"{self.directory}/{name}")

    # -- closing -------------------------------------------------------------------------------

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


def _with_newest_time(buffer: WritableBuffer, header: BatchHeader) -> BatchHeader:
    """A batch of rows whose writer left the newest time out, as sarama before 1.46 does."""
    # Loads numpy and pyarrow, which a broker does without until such a batch comes.
    from broker_lite.record.transcode import newest_timestamp

    return set_max_timestamp(buffer, header, newest_timestamp(buffer, header))


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
