"""Decode the batches that a consumer's ``FetchEngine`` fetched, and track the consumer's positions.

A position is the offset of the next record to return; it advances when a record is returned, not
when it arrives. A returned record is in flight until the user asks for more records (``settle``):
it may still be processed, so automatic commits exclude it (``settled``).

The collector decodes one batch at a time, the open batch. The consumer takes the batch's rows as
records or as Arrow. No function here blocks. Only one thread at a time may use a
collector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from broker_lite.client.consuming.arrow_rows import ConcatenatedSlices
from broker_lite.client.fetch.fetch_engine import NO_EPOCHS, FetchedBatches, FetchEngine
from broker_lite.client.operations.bounds import check_offsets
from broker_lite.client.received import (
    Record,
    Slice,
    decode,
    each_record,
    records,
)
from broker_lite.errors import (
    CorruptMessageError,
    LogbusError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import (
    NO_EPOCH,
    NULL_TOPIC_ID,
    CommittedOffset,
    OffsetAndEpoch,
    TopicPartition,
)
from broker_lite.record.walker import LogBatch

DELETED_TOPIC_ERRORS = (UnknownTopicOrPartitionError, UnknownTopicIdError)
"""The errors with which a fetch fails after its topic was deleted."""


class FetchCollector:
    """The positions of one consumer, and its open batch: the decoded batch whose rows are being
    returned."""

    def __init__(
        self,
        engine: FetchEngine,
        *,
        skips_corrupt: bool,
    ) -> None:
        self.delays_error: Callable[[FetchedBatches], bool] | None = None
        """A function that receives the error of a deleted or recreated topic, and returns whether
        to delay it.

        If None, the error is raised at once."""
        self.is_held_back: Callable[[], bool] | None = None
        """Returns whether to hold back rows now, because other members may own the partitions. If
        None, rows may always be returned."""
        self.skipped: list[tuple[TopicPartition, int, int]] = []
        """Corrupt offset ranges that ``on_corrupt="skip"`` skipped: (partition, first, next
        offset)."""
        self._engine = engine
        self._skips_corrupt = skips_corrupt
        self._positions: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._generations: dict[TopicPartition, int] = {}
        self._refetched: dict[TopicPartition, int] = {}
        """Base offset of each partition's last corrupt batch that was fetched twice to get an
        intact copy.

        Only after a seek (``begin``) may such a batch be fetched again."""
        self._paused: set[TopicPartition] = set()
        self._batches: list[LogBatch] = []
        self._tp: TopicPartition | None = None
        self._slice: Slice | None = None
        self.at = 0
        """Number of rows of the open (decoded) batch that have been returned."""
        self.is_single = False
        """Whether records are returned one by one. A request for the next record marks the earlier
        ones as processed, so only the last returned record counts as unprocessed."""
        self._in_flight: dict[TopicPartition, CommittedOffset] = {}

    # Methods that begin, pause and end the reading of partitions, and track positions.

    def begin(
        self,
        offsets: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    ) -> None:
        """Read partitions from these offsets on, and discard batches that were fetched before.

        ``epochs`` holds the leader epoch of the record before each offset, if known."""
        check_offsets(offsets)
        rows = {tp: (at, self._begin(tp, at)) for tp, at in offsets.items()}
        for tp in rows:
            # The reader fetches a corrupt batch a second time before it raises the error. After a
            # seek, allow a second fetch again: the batch may be repaired, or a replica with an
            # intact copy may lead now.
            self._refetched.pop(tp, None)
        self._epochs.update(epochs)
        self._engine.post(partial(self._engine.begin, rows, epochs=epochs))

    def resume_at(self, tp: TopicPartition, at: OffsetAndEpoch) -> None:
        """Resume reading a truncated log at ``at``.

        ``at`` is an offset with the leader epoch of the record before it. The leader compares this
        epoch with its log, which may have been truncated further."""
        epochs = NO_EPOCHS if at.leader_epoch == NO_EPOCH else {tp: at.leader_epoch}
        self.begin({tp: at.offset}, epochs)

    def end(self, tp: TopicPartition) -> None:
        """Stop reading the partition. Do not commit its position."""
        if tp not in self._positions:
            return
        if tp == self._tp:
            self._drop()
        self._generations[tp] += 1
        for rows in (self._positions, self._epochs, self._refetched, self._in_flight):
            rows.pop(tp, None)
        self._paused.discard(tp)
        if all(other.topic != tp.topic for other in self._positions):
            self._engine.topic_ids.pop(tp.topic, None)
        self._engine.post(partial(self._engine.end, tp))

    def _begin(self, tp: TopicPartition, offset: int) -> int:
        """Move the partition's position, and return a new generation number.

        Fetch results with an earlier number are discarded."""
        generation = self._generations[tp] = self._generations.get(tp, 0) + 1
        self._positions[tp] = offset
        self._engine.pin(tp.topic)
        self._epochs.pop(tp, None)
        if tp == self._tp:
            self._drop()
        return generation

    def _drop(self) -> None:
        self._note_single()
        self.is_single = False
        self._tp, self._slice, self.at = None, None, 0
        self._batches = []

    def assignment(self) -> list[TopicPartition]:
        """Return all partitions that the consumer reads."""
        return list(self._positions)

    def position(self, tp: TopicPartition) -> int | None:
        """Return the offset of the partition's next record, or None if the consumer does not read
        the partition."""
        if tp == self._tp and self._slice is not None and self.at:
            return self._open_position()
        return self._positions.get(tp)

    def _open_position(self) -> int:
        assert self._slice is not None
        return self._slice_end() if self.at >= self._slice.row_count else self._offset_at(self.at)

    def _offset_at(self, row: int) -> int:
        assert self._slice is not None
        rows = self._slice
        at = rows.first_row + row
        deltas = rows.columns.offset_deltas
        return rows.header.base_offset + (at if deltas is None else int(deltas[at]))

    def _slice_end(self) -> int:
        """Return the offset after the open batch, whose rows are being returned.

        It may exceed the last row's offset by more than 1: compaction may have removed the batch's
        last records."""
        assert self._slice is not None
        return self._slice.header.next_offset

    def commitable(self) -> dict[TopicPartition, CommittedOffset]:
        """Return every position, with topic id and leader epoch, for a commit."""
        return {tp: self._commit_at(tp, self.position(tp) or 0) for tp in self._positions}

    def stamped(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the user's offsets to commit, with missing leader epochs and topic ids added."""
        commits = {}
        for tp, row in offsets.items():
            commit = CommittedOffset(row) if isinstance(row, int) else row
            if commit.leader_epoch < 0 and commit.offset == self.position(tp):
                commit = commit._replace(leader_epoch=self._epochs.get(tp, -1))
            if commit.topic_id == NULL_TOPIC_ID:
                topic_id = self._engine.topic_ids.get(tp.topic, NULL_TOPIC_ID)
                commit = commit._replace(topic_id=topic_id)
            commits[tp] = commit
        return commits

    def _commit_at(self, tp: TopicPartition, offset: int) -> CommittedOffset:
        epoch, topic_id = self._epochs.get(tp, -1), self._engine.pin(tp.topic)
        return CommittedOffset(offset, epoch, topic_id=topic_id)

    def settle(self) -> None:
        """Mark all returned records as processed, because the user asks for more."""
        self._in_flight.clear()
        self.is_single = False

    def settled(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the positions for an automatic commit, which lie before the records still being
        processed.

        The records that the last call returned are still being processed, even after a seek."""
        self._note_single()
        rows = self.commitable()
        for tp, before in self._in_flight.items():
            if before.offset < rows[tp].offset:
                rows[tp] = before
        return rows

    def _note_single(self) -> None:
        if self.is_single and self._slice is not None and self._tp is not None and self.at:
            before = self._commit_at(self._tp, self._offset_at(self.at - 1))
            self._in_flight[self._tp] = before

    def _note_returned(self, tp: TopicPartition) -> None:
        before = self._commit_at(tp, self.position(tp) or 0)
        self._in_flight.setdefault(tp, before)

    def pause(self, tps: Iterable[TopicPartition], is_paused: bool) -> None:
        """Pause or resume these partitions."""
        chosen = [tp for tp in tps if tp in self._positions]
        (self._paused.update if is_paused else self._paused.difference_update)(chosen)
        if is_paused and self._tp in chosen:
            # Discard the fetched batches of this partition. The engine fetches them again when the
            # partition is resumed.
            tp = self._tp
            epochs = {tp: self._epochs[tp]} if tp in self._epochs else NO_EPOCHS
            self.begin({tp: self.position(tp) or 0}, epochs)
        self._engine.post(partial(self._engine.pause, chosen, is_paused))

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions, sorted."""
        return sorted(self._paused)

    # Methods that open and close fetched batches.

    def advance(self, on_out_of_range: Callable[[TopicPartition, LogbusError], None]) -> bool:
        """Decode the next fetched batch if all rows of the open batch are returned. Return whether
        there are rows to return.

        Raises the error of a partition's fetch. If an offset is outside the log, it calls
        ``on_out_of_range``, which seeks or raises the error."""
        if self.is_held_back is not None and self.is_held_back():
            return False
        while True:
            if self._slice is not None:
                if self.at < self._slice.row_count:
                    return True
                self._close_slice()
            if self._batches:
                self._open_next()
                continue
            fetched = self._next_fetched()
            if fetched is None:
                return False
            if fetched.error is not None:
                if (
                    isinstance(fetched.error, DELETED_TOPIC_ERRORS)
                    and self.delays_error
                    and self.delays_error(fetched)
                ):
                    continue
                try:
                    if not isinstance(fetched.error, OffsetOutOfRangeError):
                        raise fetched.error.with_traceback(None)
                    on_out_of_range(fetched.tp, fetched.error)
                    continue
                except LogbusError:
                    # Put the error back into the queue: every further call raises it again, until
                    # the user seeks.
                    self._engine.fetched.appendleft(fetched)
                    raise
            if fetched.skipped is not None:
                first, after = fetched.skipped
                self.skipped.append((fetched.tp, first, after))
                self._positions[fetched.tp] = after
                continue
            self._tp, self._batches = fetched.tp, fetched.batches[::-1]
            self._engine.consumed(fetched)

    @property
    def is_drained(self) -> bool:
        """Return whether nothing is buffered: no row, no undecoded batch and no error."""
        left = self._slice is not None and self.at < self._slice.row_count
        return not (left or self._batches or self._engine.fetched)

    def has_fetched(self) -> bool:
        """Return whether batches, or an error, of an unpaused partition are queued."""
        if self.is_held_back is not None and self.is_held_back():
            return False
        return any(
            fetched.tp not in self._paused
            and self._generations.get(fetched.tp) == fetched.generation
            for fetched in list(self._engine.fetched)
        )

    def _next_fetched(self) -> FetchedBatches | None:
        queue, aside = self._engine.fetched, []
        next_fetched = None
        while queue:
            fetched = queue.popleft()
            if self._generations.get(fetched.tp) != fetched.generation:
                continue
            if fetched.tp in self._paused:
                aside.append(fetched)
                continue
            next_fetched = fetched
            break
        queue.extendleft(reversed(aside))
        return next_fetched

    def _open_next(self) -> None:
        assert self._tp is not None
        batch, tp = self._batches[-1], self._tp
        start = self._positions[tp]
        try:
            rows = decode(batch, tp, start, None)
        except CorruptMessageError:
            if self._fetch_again(tp, start, batch.header.base_offset):
                return
            if not self._skips_corrupt:
                raise
            first = max(start, batch.header.base_offset)
            self.skipped.append((tp, first, batch.header.next_offset))
            rows = None
        self._batches.pop()
        self._epochs[tp] = batch.header.leader_epoch
        if rows is None:
            self._positions[tp] = batch.header.next_offset
            return
        self._slice, self.at = rows, 0

    def _fetch_again(self, tp: TopicPartition, start: int, base_offset: int) -> bool:
        """Fetch a corrupt batch a second time, and return True.

        Return False if it was fetched twice already, or no other copy of the batch exists."""
        if self._refetched.get(tp) == base_offset or not self._engine.may_be_intact(tp):
            return False
        self._refetched[tp] = base_offset
        generation = self._begin(tp, start)
        self._engine.post(partial(self._engine.refetch_corrupt, tp, start, generation))
        return True

    def _close_slice(self) -> None:
        assert self._tp is not None
        self._positions[self._tp] = self._slice_end()
        self._slice, self.at = None, 0

    # Methods that return the decoded records of a fetched batch.

    def peek_records(self, count: int) -> Iterator[Record]:
        """Yield up to ``count`` records of the open batch without advancing past them.

        They begin at row ``at``. The caller adds 1 to ``at`` for each record that it returns."""
        assert self._slice is not None and self._tp is not None
        self.is_single = True
        return each_record(self._tp, self._part(count))

    def take_records(self, count: int) -> list[Record]:
        """Return up to ``count`` records of the batch that is open, and advance past them."""
        assert self._slice is not None and self._tp is not None
        self._note_returned(self._tp)
        result = records(self._tp, self._part(count))
        self.at += len(result)
        return result

    def take_rows(self, parts: ConcatenatedSlices, count: int | None) -> bool:
        """Move up to ``count`` rows of the open batch to ``parts``, and return True.

        Return False, and move no rows, if ``parts`` would exceed its limit, JOINED_BYTES."""
        assert self._slice is not None and self._tp is not None
        part = self._part(count)
        if not parts.add(self._tp, part):
            return False
        self._note_returned(self._tp)
        self.at += part.row_count
        return True

    def rewind(self) -> None:
        """Move the positions back to before the rows taken since the last ``settle``: because of an
        error, the user did not receive them."""
        self.is_single = False
        rows = {tp: before.offset for tp, before in self._in_flight.items()}
        self._in_flight.clear()
        self.begin(rows)

    def _part(self, count: int | None) -> Slice:
        assert self._slice is not None
        left = self._slice.row_count - self.at
        row_count = left if count is None else min(left, count)
        return self._slice._replace(first_row=self._slice.first_row + self.at, row_count=row_count)
