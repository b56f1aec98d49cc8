"""The leader epochs of the records that a reader has read, which reveal a truncated log.

After an unclean election, a log that lost its end may have grown beyond the reader's offset again.
So the reader compares leader epochs with the leader, as a follower does (KIP-101, KIP-320). If the
leader does not know an epoch, the log was truncated at or before the reader's first record of that
epoch. Each ``FetchPosition`` has a lineage.

A batch's leader epoch is outside its CRC. A leader never truncates its log within its own epoch. A
divergence reported by the leader that served the batch, in the same leader epoch, is therefore a
flipped bit and not lost data.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_lite.model import NO_EPOCH, OffsetAndEpoch
from broker_lite.record.walker import LogBatch


class Lineage:
    """The leader epochs of one partition's records, since its reader began."""

    __slots__ = ("_epochs", "_read_in")

    def __init__(self) -> None:
        self._epochs: list[tuple[int, int]] = []
        """Each leader epoch with the first offset that was read in that epoch, in ascending
        order."""
        self._read_in = NO_EPOCH
        """The leader epoch of the leader that served the last batch."""

    @property
    def last_epoch(self) -> int:
        """Return the leader epoch of the record before the reader's offset; -1 if unknown."""
        return self._epochs[-1][0] if self._epochs else NO_EPOCH

    def begin(self, offset: int, epoch: int) -> None:
        """Start reading at ``offset``. ``epoch`` is the leader epoch of the record before
        ``offset``, or -1 if unknown."""
        epochs = [row for row in self._epochs if row[1] < offset]
        if epoch == NO_EPOCH or not epochs or epochs[-1][0] != epoch:
            # The record before ``offset`` may have an earlier epoch, because other clients commit
            # their leader's epoch. So let ``epoch`` begin at ``offset``.
            epochs = [] if epoch == NO_EPOCH else [(epoch, offset)]
            self._read_in = NO_EPOCH
        self._epochs = epochs

    def forget(self) -> None:
        """Clear the epochs, because those of the last batches may be wrong."""
        self._epochs = []
        self._read_in = NO_EPOCH

    def read(self, batches: Sequence[LogBatch], offset: int, leader_epoch: int) -> None:
        """Record the epochs of ``batches``, which begin at ``offset``. ``leader_epoch`` is the
        epoch in which the leader served them."""
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
        """Return the offset at which to resume after the leader reported a diverging epoch, with
        the epoch of the record before it.

        Return None if the leader's log still holds everything before ``offset``.
        """
        if diverging.offset >= offset and leader_epoch == self._read_in:
            return None
        others = [start for epoch, start in self._epochs if epoch > diverging.leader_epoch]
        at = min([diverging.offset, *others])
        if at >= offset:
            return None
        earlier_epochs = [epoch for epoch, start in self._epochs if start < at]
        return OffsetAndEpoch(at, earlier_epochs[-1] if earlier_epochs else NO_EPOCH)
