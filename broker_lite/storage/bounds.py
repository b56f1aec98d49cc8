"""The start and the end of a partition's log, and the operations that move them inwards.

- ``truncate_to`` lowers the end of a follower's log that diverges from its leader's.
- ``delete_records_before`` raises the start when a client deletes records.
- ``start_at`` empties a log that shares no offset with its leader's and begins it elsewhere.

All run on the log's writer thread. Each orders its writes so that recovery after a crash at any
point neither reports damage nor serves deleted records. docs/pages/explanation/log-and-flush.md,
"What a follower does to its log", gives the orders.
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
from broker_lite.model import NO_OFFSET, PartitionKey
from broker_lite.record.control import EndOfTransaction, decode_marker
from broker_lite.record.walker import LogBatch
from broker_lite.storage import paths
from broker_lite.storage.directory import DataDirectory
from broker_lite.storage.leader_epochs import LeaderEpochs
from broker_lite.storage.offset_index import CorruptIndex
from broker_lite.storage.producer_snapshots import ProducerSnapshots
from broker_lite.storage.producer_state import ProducerState
from broker_lite.storage.reader import LogReader
from broker_lite.storage.scan import read_batch
from broker_lite.storage.segment import Segment
from broker_lite.storage.transaction_index import AbortedEntry, TransactionIndex


class LogBounds(LogReader):
    """A log that can be read and shortened; ``Log`` adds appending."""

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
        self.committed_end = 0
        """The high watermark, as the loop last reported it."""
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
        """Remove every batch that reaches beyond ``offset``, and sync. For followers.

        If ``offset`` lies below the log's start, begin the log anew there (``start_at``). If the
        first batch itself is removed, the log is empty and keeps its start. The follower then
        fetches the removed offsets from its leader again. An unreadable range at ``offset`` is
        removed too.
        """
        with self._flush_lock:
            self._check_usable()
            end, log_start = self._tail[0], self.log_start_offset
            # The end lies below the start when a full disk interrupted an earlier ``start_at``.
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
        """Return the first offset and the position of the batch, or damaged range, that holds
        ``offset``.
        """
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
        self.committed_end = min(self.committed_end, offset)
        self._data.lower_recovery_point(self.key, offset)
        self._truncate_epochs(offset)
        with self._data.guard(f"truncating {self.key}"):
            self._cut_segments(offset, position, now_ms)
            # The producer state must forget the removed batches: their retries are no duplicates.
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
            # A closed segment may still hold bytes that no flush has synced.
            if segment is active or not segment.is_synced:
                segment.datasync()
        self._files.sync_dir(self.directory)
        for segment in kept:
            segment.name_synced = True

    def _truncate_epochs(self, offset: int) -> None:
        """Remove epochs that begin at or beyond ``offset``, and sync.

        Runs before the batches are cut, so that every batch in the log has a saved epoch.
        """
        if self.leader_epochs.has_epoch_from(offset):
            with self._data.guard(f"writing the leader epochs of {self.key}", spare_full=True):
                self.leader_epochs.cut(offset)

    def rebuild_producers(self, now_ms: int) -> None:
        """Load the newest sound snapshot at or below the log's end; replay the batches after it.

        A replay reads headers alone, which the recovery point exempts from the scan of a start. A
        batch that does not continue its producer is checked whole: a flipped bit in a header could
        fence a producer. The replay also begins before the first transaction that the transaction
        indexes miss, and completes those.
        """
        end = self._tail[0]
        first = self._chain[0][0]
        indexes, indexed_end = self._transaction_indexes(end)
        state = self._snapshots.newest(first, indexed_end)
        if state is None:
            state = ProducerState(first)
            state.forgot = first > 0
        continues, began = state.continues, state.next_offset
        for segment in self._chain[1]:
            start = max(state.next_offset, segment.base_offset)
            aborted: list[AbortedEntry] = []
            for batch in self._headers(segment, start, end, needs_check=lambda h: not continues(h)):
                header = batch.header
                marker = _read_marker(segment, batch) if header.is_control else None
                entry = state.update(header, header.base_offset, now_ms, marker)
                if entry is not None:
                    aborted.append(entry)
            if segment.has_transactions and segment.next_offset > began:
                kept = indexes[segment].cut(began).entries
                indexes[segment] = TransactionIndex([*kept, *aborted])
        state.next_offset = end
        state.raise_starts(self.log_start_offset)
        self.producers = state
        self._take_indexes(indexes)
        self._note_transactions()

    def _transaction_indexes(self, end: int) -> tuple[dict[Segment, TransactionIndex], int]:
        """Return the transaction indexes, and the offset up to which they hold every transaction.

        Delete a file that reaches beyond the log's end, and sync: later batches may take those
        offsets.
        """
        indexes: dict[Segment, TransactionIndex] = {}
        complete_end = end
        for segment in self._chain[1]:
            index, covered_end = TransactionIndex(), segment.base_offset
            if not segment.has_transactions:
                covered_end = segment.next_offset
            elif segment.has_transaction_index:
                index, covered_end = segment.transactions, segment.next_offset
            else:
                with contextlib.suppress(CorruptIndex):
                    index, covered_end = segment.load_transactions()
            if covered_end > segment.next_offset:
                self._files.remove(segment.path(paths.TXN_INDEX))
                self._files.sync_dir(self.directory)
                # The replay may begin at the log's end, and so leave all entries as they are.
                index = index.cut(segment.next_offset)
            elif covered_end < segment.next_offset:
                complete_end = min(complete_end, covered_end)
            indexes[segment] = index
        return indexes, complete_end

    def _take_indexes(self, indexes: dict[Segment, TransactionIndex]) -> None:
        """Give each segment its transaction index, and save those that its file does not hold."""
        active = self._tail[1]
        for segment, index in indexes.items():
            segment.transactions = index
            if segment.has_transactions and segment is not active:
                with contextlib.suppress(OSError):
                    if not index.is_saved:
                        segment.save_transactions()
                    segment.release()

    def _note_transactions(self) -> None:
        """Find the log's first transaction, and publish the open ones."""
        self._publish_transactions()
        starts = [s.base_offset for s in self._chain[1] if s.has_transactions]
        if self.unstable is not None:
            starts.append(self.unstable.open_start)
        self.transactions_from = min(starts, default=NO_OFFSET)

    def _publish_transactions(self) -> None:
        transactions = self.producers.transactions
        transactions.committed(self.committed_end)
        self.unstable = transactions.published()

    # -- another beginning ---------------------------------------------------------------------

    def start_at(self, offset: int, now_ms: int = 0) -> None:
        """Remove every batch and begin the log at ``offset``, and sync. For followers.

        A crash on the way leaves a shortened or an empty log.
        """
        with self._flush_lock:
            self._check_usable()
            self._begin_at(offset, offset, now_ms)

    def _begin_at(self, offset: int, log_start: int, now_ms: int) -> None:
        """Empty the log; its first segment then begins at ``offset``, its records at ``log_start``.

        The batches are cut first, so that no batch is ever without its epoch. Recovery deletes a
        segment below the log's start and reports a segment above it as damage. Therefore a lower
        segment is created before the log start is saved, and a higher one after.
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
        self._note_transactions()
        self.flushed_end = log_start

    def _replace_segment(self, offset: int, now_ms: int) -> None:
        """Replace the log's one empty segment by an empty segment at ``offset``."""
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
        """Raise the log's start to ``offset``, sync, and return the start; -1 means the log's end.

        The next ``apply_retention`` deletes the segments that lie wholly before the start. Raises
        OffsetOutOfRangeError if ``offset`` is beyond the end.
        """
        offset = self._tail[0] if offset < 0 else offset
        if offset > self._tail[0]:
            raise OffsetOutOfRangeError(
                f"cannot delete records of {self.key} before offset {offset}: "
                f"its log ends at {self._tail[0]}"
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
        if self.unstable is not None:
            self.producers.raise_starts(offset)
            self._publish_transactions()
        # In memory only: the next epoch saves the file, and opening the log repeats the truncation.
        self.leader_epochs.truncate_from_start(offset)
        self.corruption = tuple(d for d in self.corruption if d.next_offset > offset)

    def _discard(self, segment: Segment, now_ms: int) -> None:
        for suffix in paths.SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                self._data.discard(segment.path(suffix), now_ms + self.config.file_delete_delay_ms)


def _read_marker(segment: Segment, batch: LogBatch) -> EndOfTransaction | None:
    whole = read_batch(segment.file, batch.position, segment.size_bytes)
    return None if whole is None else decode_marker(whole[1], batch.header)
