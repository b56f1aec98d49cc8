"""Where a partition's log begins and ends, and how either is moved inwards.

The end goes back for a follower that holds what its leader does not (``truncate_to``), the start
goes up where records are deleted (``delete_records_before``), and a log that shares nothing with
its leader's begins anew (``start_at``). On the writer's thread. Each is in an order that a start
after a crash reads right: what goes first is what could be taken for damage, or for other records,
without the rest. See "What a follower does to its log" in README.md.
"""

from __future__ import annotations

import contextlib
import threading

from broker_lite.config import TopicConfig
from broker_lite.errors import (
    CorruptMessageError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import PartitionKey
from broker_lite.storage import paths, producer_state
from broker_lite.storage.directory import DataDirectory
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.producer_snapshots import ProducerSnapshots
from broker_lite.storage.producer_state import ProducerState
from broker_lite.storage.reader import LogReader
from broker_lite.storage.segment import Segment


class LogBounds(LogReader):
    """A log that can be read and made shorter; ``Log`` adds what makes it longer."""

    def __init__(
        self,
        key: PartitionKey,
        data: DataDirectory,
        segments: tuple[Segment, ...],
        leader_epochs: LeaderEpochs,
        config: TopicConfig,
    ) -> None:
        super().__init__(key, segments)
        self.config = config
        self.leader_epochs = leader_epochs
        self.producers = ProducerState(segments[0].base_offset)
        self.flushed_end = 0
        self.directory = paths.partition_dir(data.path, key)
        self._data = data
        self._files = data.files
        self._snapshots = ProducerSnapshots(data.files, self.directory)
        self._flush_lock = threading.Lock()
        self._retired = False

    def _check_usable(self) -> None:
        self._data.check()
        if self._retired:
            raise UnknownTopicOrPartitionError(f"{self.key} was deleted from this broker")

    # -- the end -------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Drop every batch that reaches beyond ``offset``; on disk on return. For followers.

        Below the log's start: ``start_at``. Where the first batch itself goes, the log is empty
        and begins where it began: what stands before ``offset`` is still to be had from the leader.
        Damage does not keep it from cutting there.
        """
        with self._flush_lock:
            self._check_usable()
            end, log_start = self._tail[0], self.log_start_offset
            # A log that ends before its start is one that a full disk kept from beginning anew.
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
        """The first offset and the position of the batch, or of the damage, that holds one."""
        try:
            with self._data.guard(f"truncating {self.key}"):
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
            # Whose batches were cut must not be taken for a duplicate: another try would not look.
            self.rebuild_producers(now_ms)
        self.flushed_end = offset

    def _cut_segments(self, offset: int, position: int, now_ms: int) -> None:
        kept = [s for s in self._chain[1] if s.base_offset <= offset]
        dropped = self._chain[1][len(kept) :]
        active = kept[-1]
        self._loaded.clear()
        active.open_writable()
        self._publish(tuple(kept))
        active.cut(position, offset)
        self._publish(tuple(kept))
        self._forget_hints()
        for segment in dropped:
            self._discard(segment, now_ms)
        self._snapshots.drop_beyond(offset)
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

    def _truncate_epochs(self, offset: int) -> None:
        """On disk before the batches go: what is in the log is always of a saved epoch."""
        if self.leader_epochs.begin_beyond(offset):
            with self._data.guard(f"writing the leader epochs of {self.key}", spare_full=True):
                self.leader_epochs.cut(offset)

    def rebuild_producers(self, now_ms: int) -> None:
        """Newest sound snapshot at or below the end, and the batches after it."""
        end = self._tail[0]
        first = self._chain[0][0]
        state = self._snapshots.newest(first, end)
        if state is None:
            state = ProducerState(first)
            state.forgot = first > 0
        for segment in self._chain[1]:
            start = max(state.next_offset, segment.base_offset)
            headers = (found.header for found in self._headers(segment, start, end))
            producer_state.replay(state, headers, now_ms)
        state.next_offset = end
        self.producers = state

    # -- another beginning ---------------------------------------------------------------------

    def start_at(self, offset: int, now_ms: int = 0) -> None:
        """Drop everything and begin at ``offset``; on disk on return. For followers.

        Cut short by a crash it leaves the log shortened, or empty.
        """
        with self._flush_lock:
            self._check_usable()
            self._begin_at(offset, offset, now_ms)

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
            self._snapshots.drop_beyond(-1)
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
        self._publish((segment,))
        self._forget_hints()

    # -- the start -----------------------------------------------------------------------------

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

    def _discard(self, segment: Segment, now_ms: int) -> None:
        for suffix in paths.SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self._data.discard(segment.path(suffix), now_ms + self.config.file_delete_delay_ms)
