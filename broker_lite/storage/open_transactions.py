"""The transactions of one log that bound its last stable offset.

A transaction holds the last stable offset at its first batch until its marker is below the high
watermark. The log's writer records where transactions begin and end, on leaders and followers.
``published`` gives the event loop an immutable snapshot, which computes the last stable offset from
the high watermark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

_NONE_OPEN = 1 << 62


class EndedTransaction(NamedTuple):
    """A transaction whose commit or abort marker is in the log."""

    first_offset: int
    marker_offset: int


class UnstableTransactions(NamedTuple):
    """A snapshot of a log's open transactions, and of ended ones whose marker the high watermark
    has not passed. Both hold back the last stable offset."""

    open_start: int
    """First offset of the oldest open transaction."""
    ended: tuple[EndedTransaction, ...]
    """The ended transactions whose markers may be at or above the high watermark, in marker
    order."""

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: below it, every transaction has ended, with a marker below
        ``high_watermark``."""
        stable = min(self.open_start, high_watermark)
        for first, marker in self.ended:
            if marker >= high_watermark and first < stable:
                stable = first
        return stable


class OpenTransactions:
    """The open transactions of a log by producer id, and the ended ones whose marker the high
    watermark has not passed. Both hold back the last stable offset."""

    __slots__ = ("_ended", "_starts")

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        """First offset of each open transaction, by producer id, in rising order."""
        self._ended: list[EndedTransaction] = []

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[int]:
        """Yield the producer id of each open transaction, the oldest transaction first."""
        return iter(self._starts)

    @property
    def ended(self) -> tuple[EndedTransaction, ...]:
        return tuple(self._ended)

    def begin(self, producer_id: int, offset: int) -> None:
        self._starts[producer_id] = offset

    def end(self, producer_id: int, marker_offset: int) -> int:
        """Record the marker of an open transaction.

        Return the first offset of the oldest open transaction, or else the offset after the
        marker."""
        first = self._starts.pop(producer_id)
        self.add_ended(first, marker_offset)
        return self.first_open(marker_offset + 1)

    def add_ended(self, first_offset: int, marker_offset: int) -> None:
        self._ended.append(EndedTransaction(first_offset, marker_offset))

    def first_open(self, default: int) -> int:
        """Return the first offset of the oldest open transaction, or ``default``."""
        return next(iter(self._starts.values()), default)

    def committed(self, high_watermark: int) -> None:
        """Forget ended transactions whose markers are below the new ``high_watermark``.

        Committed or aborted, they no longer hold back the last stable offset."""
        if self._ended and self._ended[0].marker_offset < high_watermark:
            self._ended = [one for one in self._ended if one.marker_offset >= high_watermark]

    def raise_to(self, log_start: int) -> None:
        """Move the first offsets of open transactions up to ``log_start``: earlier records are
        deleted."""
        for producer_id, first in self._starts.items():
            if first >= log_start:
                break
            self._starts[producer_id] = log_start
        self._ended = [
            EndedTransaction(max(first, log_start), marker)
            for first, marker in self._ended
            if marker >= log_start
        ]

    def published(self) -> UnstableTransactions | None:
        """Return a snapshot of the transactions, or None if there are none."""
        if not self._starts and not self._ended:
            return None
        return UnstableTransactions(self.first_open(_NONE_OPEN), tuple(self._ended))
