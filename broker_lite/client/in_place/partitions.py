"""``InPlace``: the partitions that a reader reads from the files of a broker on this machine.

``FetchEngine`` and ``read_range`` ask it whether the broker may answer a fetch with a range of its
segment file. Each reads the range on its own thread, batch by batch. If a file is unreadable or
corrupt, the partition is fetched from the broker from then on. If a broker sends no file descriptor
for a ticket (its permission to read a file, see ``segment_file``), the reader accepts no tickets
for a while."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from broker_lite.client.in_place.local_files import FILE_BYTES, LocalRange
from broker_lite.client.received import WalkResult
from broker_lite.machine import machine_id
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.record.walker import BatchWalker
from broker_lite.wire.fetch import NO_FILES, FileOffer, StoredRange

AHEAD_BYTES = 4 << 20
"""Bytes of a partition that the engine's thread reads from a file and buffers for the reader.

About two batches: enough that neither thread waits, and so few that they are still in the
processor's cache when their CRCs are verified."""
OPEN_MAX = 64
"""Maximum number of segment files that a consumer has open. A fetch that could exceed this number
gets its records over the network."""
LOCAL_BYTES_MIN = 256 << 10
"""Local reads are off if a fetch asks for fewer than this many bytes of each partition."""
RANGE_BYTES_MIN = 4 << 20
"""Minimum bytes of each partition's segment file that a fetch requests for local reads. The
partitions share ``FILE_BYTES``, but each gets at least this."""
NO_TICKETS_S = 60.0
"""Seconds for which a reader accepts no tickets (permissions to read a file), after a broker sent
no file descriptor for one.

The reader may run in a container that cannot reach the broker's Unix socket."""


class InPlace:
    """The ranges of segment files that one reader has open for local reads, by partition.

    ``is_here(endpoint, lane)`` tells whether a broker is on this machine, by one of the connections
    to it (``lane``). With ``reads_once``, the bytes read do not stay in the
    page cache. ``now_s`` returns monotonic time."""

    def __init__(
        self,
        is_here: Callable[[Endpoint, str], bool],
        *,
        reads_once: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_here = is_here
        self._reads_once = reads_once
        self._now_s = now_s
        self._tickets_from_s = -math.inf
        """Monotonic time (s) before which the reader accepts no tickets; see ``segment_file``."""
        self._open: dict[TopicPartition, LocalRange] = {}
        self._refused: set[TopicPartition] = set()
        self._was_read: set[TopicPartition] = set()

    def __contains__(self, tp: object) -> bool:
        return tp in self._open

    def offer(self, endpoint: Endpoint, lane: str, tps: Sequence[TopicPartition]) -> FileOffer:
        """Return the field of a fetch request that lets the broker answer with ranges of its
        segment files; ``NO_FILES`` if local reads are not possible."""
        count = len(tps)
        if (
            not self._refused.isdisjoint(tps)
            or len(self._open) + count > OPEN_MAX
            or not self._is_here(endpoint, lane)
        ):
            return NO_FILES
        file_bytes = max(RANGE_BYTES_MIN, FILE_BYTES // count)
        return FileOffer(machine_id(), file_bytes, self._now_s() >= self._tickets_from_s)

    def lanes(
        self, endpoint: Endpoint, lane: str, tps: list[TopicPartition]
    ) -> list[tuple[str, list[TopicPartition]]]:
        """Return a fetch's partitions by lane (connection). Partitions without local reads (see
        ``refuse``) get a connection of their own: one such partition would exclude the whole
        fetch from local reads."""
        sent = [tp for tp in tps if tp in self._refused]
        is_mixed = lane == "fetch" and 0 < len(sent) < len(tps)
        if not is_mixed or not self._is_here(endpoint, lane):
            return [(lane, tps)]
        return [(lane, [tp for tp in tps if tp not in sent]), ("sent", sent)]

    def open(self, tp: TopicPartition, stored: StoredRange, walker: BatchWalker) -> None:
        """Open the range of a segment file (``stored``) that the leader's response names.

        ``walker`` splits the range's bytes into batches, from the reader's offset on."""
        self.close(tp)
        try:
            self._open[tp] = LocalRange(stored, walker, tp, reads_once=self._reads_once)
        except OSError:
            if stored.ticket is None:
                self._refused.add(tp)
            else:
                self._tickets_from_s = self._now_s() + NO_TICKETS_S

    def read(self, tp: TopicPartition) -> WalkResult | None:
        """Return the next batches from a partition's open file; None if the file is unreadable,
        corrupt or too short, which ends local reads of the partition."""
        file = self._open[tp]
        try:
            walked = file.read()
        except OSError:
            walked = None
        if walked is None or not walked.batches:
            self._refused.add(tp)
            self.close(tp)
            return None
        self._was_read.add(tp)
        if file.is_read:
            self.close(tp)
        return walked

    def was_read(self, tp: TopicPartition) -> bool:
        """Return whether batches of the partition were read from a file. Thread-safe.

        The broker may have changed the file during the read, so a batch that looks corrupt may be
        intact when it is fetched."""
        return tp in self._was_read

    def refuse(self, tp: TopicPartition) -> None:
        """Disable local reads of this partition from now on."""
        self.close(tp)
        self._refused.add(tp)

    def close(self, tp: TopicPartition) -> None:
        """Close the range of a segment file that is open for the partition, if any."""
        file = self._open.pop(tp, None)
        if file is not None:
            file.close()

    def end(self, tp: TopicPartition) -> None:
        """Forget a partition that the reader no longer reads."""
        self.close(tp)
        self._refused.discard(tp)
        self._was_read.discard(tp)

    def close_all(self) -> None:
        """Close the segment files of all partitions."""
        for tp in list(self._open):
            self.close(tp)
