"""The files that hold snapshots of a log's producer state (``producer_state.py``).

A snapshot is named after its end offset, up to which it covers the log. Snapshots shorten a broker
start and are never required: without a valid one, recovery replays more batches.

A snapshot beyond the log's end is dangerous, because other batches may later get those offsets.
Code that truncates the log therefore deletes such snapshots before the next append. The log's
writer thread and recovery call this module."""

from __future__ import annotations

import contextlib

from broker_lite.storage import paths, producer_state
from broker_lite.storage.checkpoint import read_whole, write_atomic
from broker_lite.storage.files import Files
from broker_lite.storage.producer_state import CorruptSnapshot, ProducerState

SNAPSHOTS_KEPT = 2
"""Number of snapshots of each log: one may be damaged, or beyond a truncated log's end."""


class ProducerSnapshots:
    """The snapshot files of one log. Every method may raise OSError."""

    __slots__ = ("_directory", "_files")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def save(self, state: ProducerState, *, sync: bool = False) -> None:
        """Write the snapshot file of ``state``. Keep the newest ``SNAPSHOTS_KEPT`` snapshots."""
        name = f"{state.next_offset:020d}{paths.SNAPSHOT}"
        write_atomic(self._files, self._directory, name, state.encode(), sync=sync)
        for _, old in self._listed()[:-SNAPSHOTS_KEPT]:
            self._remove(old)

    def newest(self, first: int, last: int) -> ProducerState | None:
        """Return the newest valid snapshot with an end offset in [first, last], or None."""
        for at, name in reversed(self._listed()):
            if first <= at <= last:
                data = read_whole(self._files, f"{self._directory}/{name}")
                with contextlib.suppress(CorruptSnapshot):
                    state = producer_state.decode(data or b"")
                    if state.next_offset == at:
                        return state
        return None

    def drop_below(self, offset: int) -> None:
        """Delete the snapshots whose end offset is below ``offset``."""
        for at, name in self._listed():
            if at < offset:
                self._remove(name)

    def drop_beyond(self, offset: int) -> bool:
        """Delete snapshots with an end offset beyond ``offset``, without a sync. Return whether
        there were any."""
        stale = [name for at, name in self._listed() if at > offset]
        for name in stale:
            self._remove(name)
        return bool(stale)

    def _remove(self, name: str) -> None:
        self._files.remove(f"{self._directory}/{name}")

    def _listed(self) -> list[tuple[int, str]]:
        """Return the end offset and the file name of each snapshot, oldest first."""
        names = [(paths.parse_segment_file(n), n) for n in self._files.list_dir(self._directory)]
        return [(parsed[0], n) for parsed, n in names if parsed and parsed[1] == paths.SNAPSHOT]
