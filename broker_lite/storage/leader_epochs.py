"""The leader epochs of one log: the epoch of the leader that wrote each range of offsets.

Truncation and readers use this list, which the file ``leader-epoch-checkpoint`` holds, as in Kafka.
Entries rise in epoch and in first offset, so a new entry removes all whose epoch or first offset is
not lower.

``assign`` and ``cut`` sync the file before they return. The other truncations change only memory,
because the next broker start repeats them. One thread writes; any thread may read, because the
writer replaces the tuple of entries."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from broker_lite.model import NO_EPOCH, OffsetAndEpoch
from broker_lite.storage import paths
from broker_lite.storage.checkpoint import (
    CorruptCheckpoint,
    decode_lines,
    encode_lines,
    read_whole,
    write_atomic,
)
from broker_lite.storage.files import Files

Entries = tuple[tuple[int, int], ...]
"""The entries of an epoch file: pairs of leader epoch and first offset, rising in both."""


class LeaderEpochs:
    """The leader epochs of one log, with a file in the log's directory."""

    __slots__ = ("_directory", "_entries", "_files")

    def __init__(self, files: Files, directory: str, entries: Entries = ()) -> None:
        self._files = files
        self._directory = directory
        self._entries = entries

    @property
    def entries(self) -> Entries:
        return self._entries

    @property
    def latest(self) -> int:
        """The newest epoch; -1 for a log without epochs."""
        entries = self._entries
        return entries[-1][0] if entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that ``epoch`` begins at ``start_offset``, and sync the epoch file.

        After an OSError the entries are unchanged."""
        before = self._entries
        if self.note(epoch, start_offset):
            self._save_or_go_back(before)

    def has_epoch_from(self, end_offset: int) -> bool:
        """Return whether any epoch begins at or beyond ``end_offset``."""
        entries = self._entries
        return bool(entries) and entries[-1][1] >= end_offset

    def cut(self, end_offset: int) -> None:
        """Remove epochs that begin at or beyond ``end_offset``, and sync the epoch file.

        After an OSError the entries are unchanged."""
        before = self._entries
        if self.truncate_from_end(end_offset):
            self._save_or_go_back(before)

    def _save_or_go_back(self, before: Entries) -> None:
        try:
            self.save()
        except OSError:
            self._entries = before
            raise

    def note(self, epoch: int, start_offset: int) -> bool:
        """Record in memory only that ``epoch`` begins at ``start_offset``. Return whether the
        entry is new.

        Recovery calls it for every batch, and saves the epoch file once at the end."""
        entries = self._entries
        if entries and entries[-1][0] == epoch and entries[-1][1] <= start_offset:
            return False
        remaining = tuple(e for e in entries if e[0] < epoch and e[1] < start_offset)
        self._entries = (*remaining, (epoch, start_offset))
        return True

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote ``offset``, or -1 before the first entry."""
        entries = self._entries
        i = bisect_right(entries, offset, key=_start) - 1
        return entries[i][0] if i >= 0 else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> OffsetAndEpoch | None:
        """Return the largest epoch not above ``epoch`` and its exclusive end offset.

        Return None if ``epoch`` is above the latest, or the log has no epochs. This is Kafka's
        OffsetForLeaderEpoch (KIP-101, KIP-279)."""
        entries = self._entries
        if not entries or epoch > entries[-1][0] or epoch < 0:
            return None
        if epoch == entries[-1][0]:
            return OffsetAndEpoch(log_end_offset, epoch)
        i = bisect_right(entries, epoch, key=_epoch)
        if i == 0:
            return OffsetAndEpoch(entries[0][1], epoch)
        return OffsetAndEpoch(entries[i][1], entries[i - 1][0])

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove epochs that begin at or beyond ``end_offset``, in memory. Return whether there
        were any."""
        remaining = tuple(e for e in self._entries if e[1] < end_offset)
        changed = remaining != self._entries
        self._entries = remaining
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Remove epochs that end at or before ``start_offset``, in memory. Return whether any
        changed.

        The epoch in force at ``start_offset`` then begins there."""
        entries = self._entries
        i = bisect_right(entries, start_offset, key=_start) - 1
        if i < 0 or (i == 0 and entries[0][1] == start_offset):
            return False
        self._entries = ((entries[i][0], start_offset), *entries[i + 1 :])
        return True

    def save(self, *, sync: bool = True) -> None:
        """Write all entries to the epoch file, atomically."""
        lines = [f"{epoch} {offset}" for epoch, offset in self._entries]
        data = encode_lines(lines)
        write_atomic(self._files, self._directory, paths.LEADER_EPOCHS, data, sync=sync)


def load(files: Files, directory: str) -> LeaderEpochs | None:
    """Return the saved epochs; None if the file is missing or damaged: scan the log instead."""
    data = read_whole(files, f"{directory}/{paths.LEADER_EPOCHS}")
    if data is None:
        return None
    try:
        rows = [line.split(" ") for line in decode_lines(data)]
        entries = tuple((int(epoch), int(offset)) for epoch, offset in rows)
    except (CorruptCheckpoint, ValueError):
        return None
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    return LeaderEpochs(files, directory, entries) if rising else None


def _start(entry: tuple[int, int]) -> int:
    return entry[1]


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]
