"""``InPlace``: the partitions that a reader reads from the files of a broker on this machine.

``FetchEngine`` and ``read_range`` ask it whether the broker may answer a fetch with a range of its
segment file, and read the range batch by batch, on their own thread. If a file is unreadable or
corrupt, the partition is fetched from the broker from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_lite.client.in_place.local_files import FILE_BYTES, LocalRange
from broker_lite.client.received import WalkResult
from broker_lite.machine import machine_id
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.record.walker import BatchWalker
from broker_lite.wire.fetch import StoredRange

AHEAD_BYTES = 4 << 20
"""Bytes of a partition that the engine's thread reads from a file ahead of the reader's thread.

About two batches: neither thread waits, and they are still in the processor's cache when
verified."""
OPEN_MAX = 64
"""Maximum number of open files of a consumer; it fetches other partitions over the network."""
LOCAL_BYTES_MIN = 256 << 10
"""With a smaller fetch limit of a partition (bytes), the reader uses no local reads."""
RANGE_BYTES_MIN = 4 << 20
"""Minimum bytes of the file range that a fetch requests for each of its partitions."""


class InPlace:
    """The file ranges that one reader has open, by partition.

    ``is_here(endpoint, lane)`` tells whether this connection leads to a broker on this machine.
    With ``reads_once``, the bytes read do not stay in the page cache."""

    def __init__(
        self, is_here: Callable[[Endpoint, str], bool], *, reads_once: bool = False
    ) -> None:
        self._is_here = is_here
        self._reads_once = reads_once
        self._open: dict[TopicPartition, LocalRange] = {}
        self._refused: set[TopicPartition] = set()
        self._was_read: set[TopicPartition] = set()

    def __contains__(self, tp: object) -> bool:
        return tp in self._open

    def range_request(
        self, endpoint: Endpoint, lane: str, tps: Sequence[TopicPartition]
    ) -> tuple[bytes, int]:
        """Return the fields of a fetch request that allow ranges of segment files in the answer.

        They are this machine's id and the maximum bytes of each partition's range, or (b"", 0) if
        local reads are not possible."""
        count = len(tps)
        if (
            not self._refused.isdisjoint(tps)
            or len(self._open) + count > OPEN_MAX
            or not self._is_here(endpoint, lane)
        ):
            return b"", 0
        return machine_id(), max(RANGE_BYTES_MIN, FILE_BYTES // count)

    def lanes(
        self, endpoint: Endpoint, lane: str, tps: list[TopicPartition]
    ) -> list[tuple[str, list[TopicPartition]]]:
        """Split the partitions of a fetch by connection (lane), if not all can be read from files.

        The others so can still be read from files."""
        sent = [tp for tp in tps if tp in self._refused]
        is_mixed = lane == "fetch" and 0 < len(sent) < len(tps)
        if not is_mixed or not self._is_here(endpoint, lane):
            return [(lane, tps)]
        return [(lane, [tp for tp in tps if tp not in sent]), ("sent", sent)]

    def open(self, tp: TopicPartition, stored: StoredRange, walker: BatchWalker) -> None:
        """Open the file range ``stored`` of the leader's answer.

        ``walker`` splits its bytes into batches, from the reader's offset on."""
        self.close(tp)
        try:
            self._open[tp] = LocalRange(stored, walker, tp, reads_once=self._reads_once)
        except OSError:
            self._refused.add(tp)

    def read(self, tp: TopicPartition) -> WalkResult | None:
        """Return the next batches of a partition's open range; None at its end or if it is
        unreadable."""
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
        """Return whether batches of the partition were read from a file. On any thread.

        The broker may have changed the file during the read, so a batch that looks corrupt may be
        intact when it is fetched."""
        return tp in self._was_read

    def refuse(self, tp: TopicPartition) -> None:
        """Disable local reads of this partition from now on."""
        self.close(tp)
        self._refused.add(tp)

    def close(self, tp: TopicPartition) -> None:
        """Close the partition's open file range, if any."""
        file = self._open.pop(tp, None)
        if file is not None:
            file.close()

    def end(self, tp: TopicPartition) -> None:
        """Forget a partition that the reader no longer reads."""
        self.close(tp)
        self._refused.discard(tp)
        self._was_read.discard(tp)

    def close_all(self) -> None:
        """Close all open file ranges."""
        for tp in list(self._open):
            self.close(tp)
