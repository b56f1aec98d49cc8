"""Of which leader epochs a reader's records are: where another log parts from what it has read.

As a follower does (KIP-101, KIP-320): a log that lost its end may have grown beyond a reader's
offset since, so an epoch that it does not know is cut off where the reader's own records of it
begin. ``FetchEngine`` keeps one for each partition, on its thread. The epoch of a batch is outside
its CRC: what the log that served it says of it in the same leader epoch is no loss but a flipped
bit, since in one leader epoch no leader's log is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_lite.model import NO_EPOCH, OffsetAndEpoch
from broker_lite.record.walker import LogBatch


class Lineage:
    """Of one partition, since its reader began."""

    __slots__ = ("_epochs", "_read_in")

    def __init__(self) -> None:
        self._epochs: list[tuple[int, int]] = []
        """Each epoch, and the first offset of it that was read."""
        self._read_in = NO_EPOCH
        """The leader epoch in which the last batch was served."""

    @property
    def last_epoch(self) -> int:
        """Of the record before the reader's offset; -1 where it is not known."""
        return self._epochs[-1][0] if self._epochs else NO_EPOCH

    def begin(self, offset: int, epoch: int) -> None:
        """Read on from ``offset``, before which is a record of ``epoch`` (-1: not known)."""
        kept = [row for row in self._epochs if row[1] < offset]
        if epoch == NO_EPOCH or not kept or kept[-1][0] != epoch:
            # Others commit the epoch of their leader: where it began is not known.
            kept = [] if epoch == NO_EPOCH else [(epoch, offset)]
            self._read_in = NO_EPOCH
        self._epochs = kept

    def forget(self) -> None:
        """What was read last proves nothing."""
        self._epochs = []
        self._read_in = NO_EPOCH

    def read(self, batches: Sequence[LogBatch], offset: int, leader_epoch: int) -> None:
        """Batches that were served in ``leader_epoch``, from ``offset`` on."""
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

    def cut(self, told: OffsetAndEpoch, offset: int, leader_epoch: int) -> OffsetAndEpoch | None:
        """Where reading goes on, and the epoch of what stays before it, after a leader said where
        its log leaves the last epoch. None: before ``offset`` it has what was read."""
        if told.offset >= offset and leader_epoch == self._read_in:
            return None
        others = [start for epoch, start in self._epochs if epoch > told.leader_epoch]
        at = min([told.offset, *others])
        if at >= offset:
            return None
        kept = [epoch for epoch, start in self._epochs if start < at]
        return OffsetAndEpoch(at, kept[-1] if kept else NO_EPOCH)
