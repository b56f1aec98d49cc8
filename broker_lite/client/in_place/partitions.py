"""Which partitions of a consumer are read in place: out of the files of a broker on this machine.

``FetchEngine`` asks here whether a fetch may be answered by where the records are stored, and reads
what was answered batch by batch, on its shell's thread. Whatever a file does not give as it should
be, the broker is asked for, and that partition's files are left alone from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker_lite.client.in_place.local_files import FILE_BYTES, LocalRange
from broker_lite.client.received import Walked
from broker_lite.machine import machine_id
from broker_lite.model import Endpoint, TopicPartition
from broker_lite.record.walker import BatchWalker
from broker_lite.wire.fetch import StoredRange

AHEAD_BYTES = 4 << 20
"""Read ahead of the reader, of a partition: two batches, so that neither thread waits for the other
to wake; what was read a moment ago is still in the processor's cache when it is checked."""
OPEN_MAX = 64
"""Files that a consumer has open at once; more partitions are fetched as ever."""
RANGE_BYTES_MIN = 4 << 20
"""A fetch of many partitions asks for ranges of no less, though not for FILE_BYTES of each."""


class InPlace:
    """Open ranges by partition. ``is_here(endpoint, lane)`` tells whether that connection's broker
    is on this machine."""

    def __init__(self, is_here: Callable[[Endpoint, str], bool]) -> None:
        self._is_here = is_here
        self._open: dict[TopicPartition, LocalRange] = {}
        self._refused: set[TopicPartition] = set()
        self._was_read: set[TopicPartition] = set()

    def __contains__(self, where: object) -> bool:
        return where in self._open

    def asks(
        self, endpoint: Endpoint, lane: str, wheres: Iterable[TopicPartition]
    ) -> tuple[bytes, int]:
        """What a fetch of these says to be told where they are stored: the machine, and how much
        of each; nothing where it would not do."""
        count = sum(1 for _ in wheres)
        if (
            len(self._open) + count > OPEN_MAX
            or not self._refused.isdisjoint(wheres)
            or not self._is_here(endpoint, lane)
        ):
            return b"", 0
        return machine_id(), max(RANGE_BYTES_MIN, FILE_BYTES // count)

    def lanes(
        self, endpoint: Endpoint, lane: str, wheres: list[TopicPartition]
    ) -> list[tuple[str, list[TopicPartition]]]:
        """How to fetch these: what has to be sent does not keep the others of a fetch from being
        read in place, so it goes by itself where both are wanted at once."""
        sent = [where for where in wheres if where in self._refused]
        is_mixed = lane == "fetch" and 0 < len(sent) < len(wheres)
        if not is_mixed or not self._is_here(endpoint, lane):
            return [(lane, wheres)]
        return [(lane, [where for where in wheres if where not in sent]), ("sent", sent)]

    def open(self, where: TopicPartition, stored: StoredRange, walker: BatchWalker) -> None:
        """Open the range that a leader named; ``walker`` stands where the reader goes on."""
        self.close(where)
        try:
            self._open[where] = LocalRange(stored, walker, where)
        except OSError:
            self._refused.add(where)

    def read(self, where: TopicPartition) -> Walked | None:
        """The next batches; None where the broker has to be asked: the range is over, or not what
        it was said to be."""
        file = self._open[where]
        try:
            found = file.read()
        except OSError:
            found = None
        if found is None or not found.batches:
            self._refused.add(where)
            self.close(where)
            return None
        self._was_read.add(where)
        if file.is_read:
            self.close(where)
        return found

    def was_read(self, where: TopicPartition) -> bool:
        """Whether what is damaged there may be whole all the same, since a file may be cut or
        written anew while it is read; any thread."""
        return where in self._was_read

    def refuse(self, where: TopicPartition) -> None:
        """Leave this partition's files alone from now on."""
        self.close(where)
        self._refused.add(where)

    def close(self, where: TopicPartition) -> None:
        """Read no more of a range, if one is open."""
        found = self._open.pop(where, None)
        if found is not None:
            found.close()

    def end(self, where: TopicPartition) -> None:
        """Forget a partition."""
        self.close(where)
        self._refused.discard(where)
        self._was_read.discard(where)

    def close_all(self) -> None:
        """Read no more at all."""
        for where in list(self._open):
            self.close(where)
