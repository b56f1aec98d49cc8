"""``Lineage``: the leader epochs of the records that a reader has read, to detect a truncated log.

After an unclean election, the new leader's log may lack records that the reader has read. The log
may have grown beyond the reader's offset again, so the offset does not reveal the loss. The reader
therefore compares leader epochs with the leader, as a follower does (KIP-101, KIP-320). If the
leader does not know an epoch, it lacks the reader's records from this epoch's first record on.

A reported difference may be false: a batch's CRC does not cover its leader epoch, so a bit flip
there goes unnoticed. A bit flip is the cause if the leader that served the batch reports the
difference in the same leader epoch. A leader never truncates its log within its own epoch."""

from __future__ import annotations

from collections.abc import Sequence

from broker_lite.model import NO_EPOCH, OffsetAndEpoch
from broker_lite.record.walker import LogBatch


class Lineage:
    """The leader epochs of the records that a reader has read from one partition."""

    __slots__ = ("_epochs", "_read_in")

    def __init__(self) -> None:
        self._epochs: list[tuple[int, int]] = []
        """The leader epochs in ascending order, each with its first offset that was read."""
        self._read_in = NO_EPOCH
        """The leader's own epoch when it served the last batch."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the record before the reader's offset; -1 if unknown."""
        return self._epochs[-1][0] if self._epochs else NO_EPOCH

    def begin(self, offset: int, epoch: int) -> None:
        """Start reading at ``offset``. ``epoch`` is that of the record before it; -1 if unknown."""
        epochs = [row for row in self._epochs if row[1] < offset]
        if epoch == NO_EPOCH or not epochs or epochs[-1][0] != epoch:
            # Assume that ``epoch`` begins at ``offset``. The record before ``offset`` may have an
            # earlier epoch, if another client committed ``offset`` with the leader's present epoch.
            epochs = [] if epoch == NO_EPOCH else [(epoch, offset)]
            self._read_in = NO_EPOCH
        self._epochs = epochs

    def forget(self) -> None:
        """Clear all epochs, because the last batches' epochs may be wrong, for example because of a
        flipped bit."""
        self._epochs = []
        self._read_in = NO_EPOCH

    def read(self, batches: Sequence[LogBatch], offset: int, leader_epoch: int) -> None:
        """Record the leader epochs of ``batches`` that were read from ``offset`` on.

        ``leader_epoch`` is the leader's own epoch at the time of this fetch."""
        self._read_in = leader_epoch
        rows = self._epochs
        if (
            rows
            and rows[-1][0] == batches[0].header.leader_epoch == batches[-1].header.leader_epoch
        ):
            return
        for batch in batches:
            epoch = batch.header.leader_epoch
            while rows and rows[-1][0] > epoch:
                rows.pop()
            if not rows or rows[-1][0] != epoch:
                rows.append((epoch, max(batch.header.base_offset, offset)))

    def cut(
        self, diverging: OffsetAndEpoch, offset: int, leader_epoch: int
    ) -> OffsetAndEpoch | None:
        """Return the offset at which to resume after the leader reported that its log differs from
        the records read.

        ``diverging`` has the last epoch that the leader's log shares with the records read, and its
        end offset. ``offset`` is the reader's position. The result is the first offset
        whose record differs, with the epoch of the record before it; None if no record before the
        position differs."""
        if diverging.offset >= offset and leader_epoch == self._read_in:
            return None
        others = [start for epoch, start in self._epochs if epoch > diverging.leader_epoch]
        at = min([diverging.offset, *others])
        if at >= offset:
            return None
        earlier_epochs = [epoch for epoch, start in self._epochs if start < at]
        return OffsetAndEpoch(at, earlier_epochs[-1] if earlier_epochs else NO_EPOCH)
