"""Rebuild the producer state of a log and its transaction indexes from a snapshot and a replay.

A broker rebuilds them when it opens or has truncated a log. The state must not contain truncated
batches: a producer may send them again, and they must not count as duplicates."""

from __future__ import annotations

import contextlib

from broker_lite.record.control import EndOfTransaction, decode_marker
from broker_lite.record.walker import LogBatch
from broker_lite.storage import paths
from broker_lite.storage.files import Files
from broker_lite.storage.offset_index import CorruptIndex
from broker_lite.storage.producer_snapshots import ProducerSnapshots
from broker_lite.storage.producer_state import ProducerState
from broker_lite.storage.reader import LogReader
from broker_lite.storage.scan import read_batch
from broker_lite.storage.segment import Segment
from broker_lite.storage.transaction_index import AbortedEntry, TransactionIndex

Indexes = dict[Segment, TransactionIndex]


def rebuild_producers(
    reader: LogReader, snapshots: ProducerSnapshots, files: Files, directory: str, now_ms: int
) -> ProducerState:
    """Load the newest valid snapshot up to the log's end, and replay the batches after it.

    Raises OSError. The replay reads only headers. Nothing has verified the headers below the
    recovery point, and a flipped bit in one could fence a producer. The replay therefore verifies
    the checksum of each batch that does not continue its producer's sequence. If a segment's
    transaction index misses transactions, the replay starts early enough to add them."""
    end = reader.log_end_offset
    bases, segments = reader.chain
    indexes, indexed_end = _transaction_indexes(segments, end, files, directory)
    state = snapshots.newest(bases[0], indexed_end)
    if state is None:
        state = ProducerState(bases[0])
        state.forgot = bases[0] > 0
    continues, began = state.continues, state.next_offset
    for segment in segments:
        start = max(state.next_offset, segment.base_offset)
        aborted: list[AbortedEntry] = []
        for batch in reader.headers(segment, start, end, needs_check=lambda h: not continues(h)):
            header = batch.header
            marker = _read_marker(segment, batch) if header.is_control else None
            entry = state.update(header, header.base_offset, now_ms, marker)
            if entry is not None:
                aborted.append(entry)
        if segment.has_transactions and segment.next_offset > began:
            entries = indexes[segment].cut(began).entries
            indexes[segment] = TransactionIndex([*entries, *aborted])
    state.next_offset = end
    state.raise_starts(reader.log_start_offset)
    _take_indexes(indexes, segments[-1])
    return state


def _transaction_indexes(
    segments: tuple[Segment, ...], end: int, files: Files, directory: str
) -> tuple[Indexes, int]:
    """Return each segment's transaction index, and the offset up to which they are complete.

    Deletes an index file that reaches beyond the log's end: later batches may get those offsets."""
    indexes: Indexes = {}
    complete_end = end
    for segment in segments:
        index, covered_end = TransactionIndex(), segment.base_offset
        if not segment.has_transactions:
            covered_end = segment.next_offset
        elif segment.has_transaction_index:
            index, covered_end = segment.transactions, segment.next_offset
        else:
            with contextlib.suppress(CorruptIndex):
                index, covered_end = segment.load_transactions()
        if covered_end > segment.next_offset:
            files.remove(segment.path(paths.TXN_INDEX))
            files.sync_dir(directory)
            # Cut the transaction index here: the replay of batches cuts only the indexes of
            # segments that it reads, so none if it begins at the log's end.
            index = index.cut(segment.next_offset)
        elif covered_end < segment.next_offset:
            complete_end = min(complete_end, covered_end)
        indexes[segment] = index
    return indexes, complete_end


def _take_indexes(indexes: Indexes, active: Segment) -> None:
    """Give each segment its rebuilt transaction index, and save those of closed segments."""
    for segment, index in indexes.items():
        segment.transactions = index
        if segment.has_transactions and segment is not active:
            with contextlib.suppress(OSError):
                if not index.is_saved:
                    segment.save_transactions()
                segment.release()


def _read_marker(segment: Segment, batch: LogBatch) -> EndOfTransaction | None:
    whole = read_batch(segment.file, batch.position, segment.size_bytes)
    return None if whole is None else decode_marker(whole[1], batch.header)
