"""Live tail: new records as server-sent events, from a consumer without a group.

The console sends at most ten events a second. An event has at most the 50 newest records, and says
how many older records were skipped. The event's id contains the next offset of each partition. A
browser that reconnects sends the last id, and the tail continues there, without gaps or
duplicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from broker_lite.bus.blocking import Bus
from broker_lite.client.consuming.consumer import Consumer
from broker_lite.client.record_files import Row, rows_of
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.query import is_offset
from broker_lite.console.messages.ranges_reader import READ_OPTIONS
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition

ROWS_MAX = 50
"""Maximum number of records in one server-sent event."""
PAUSE_S = 0.1
"""Minimum seconds between two events."""
WAIT_S = 0.5
"""Maximum seconds that a poll waits for records.

The console notices within this time that the browser has closed the connection."""


class Update:
    """One event of a live tail: its records, the number of records skipped since the previous
    event, and its id."""

    __slots__ = ("event_id", "rows", "skipped")

    def __init__(self, rows: list[Row], skipped: int, event_id: str) -> None:
        self.rows = rows
        self.skipped = skipped
        self.event_id = event_id


class LiveTail:
    """Reads the new records of a topic: from the ends of the partitions on, or from the offsets in
    ``event_id``, the id of the last event before a reconnect. ``clock`` returns monotonic
    seconds."""

    def __init__(
        self,
        bus: Bus,
        tps: list[TopicPartition],
        filters: RecordFilters,
        event_id: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._filters = filters
        self._clock = clock
        begins = positions_of(event_id, tps)
        missing = [tp for tp in tps if tp not in begins]
        if missing:
            ends = bus.admin.list_offsets(dict.fromkeys(missing, LATEST_TIMESTAMP))
            begins |= {tp: row.offset for tp, row in ends.items()}
        self._consumer: Consumer = bus.consumer(partitions=tps, **READ_OPTIONS)
        for tp, at in begins.items():
            self._consumer.seek(tp, at)

    def updates(self) -> Iterator[Update | None]:
        """Yield events for ever. Yield None when no records have arrived for ``WAIT_S`` seconds.
        Raises UnknownTopicOrPartitionError once the topic is deleted."""
        while True:
            until_s = self._clock() + PAUSE_S
            rows: list[Row] = []
            skipped = 0
            wait_s = WAIT_S
            while True:
                batch = self._filters.select(self._consumer.poll_arrow(wait_s, headers=True))
                skipped += max(0, batch.num_rows - ROWS_MAX)
                rows += rows_of(batch.slice(max(0, batch.num_rows - ROWS_MAX)))
                wait_s = until_s - self._clock()
                if wait_s <= 0:
                    break
            skipped += max(0, len(rows) - ROWS_MAX)
            yield Update(rows[-ROWS_MAX:], skipped, self.event_id) if rows else None

    def close(self) -> None:
        self._consumer.close()

    @property
    def event_id(self) -> str:
        """The id of the server-sent event: the next offset of each partition."""
        positions = sorted(self._consumer.positions().items())
        return "-".join(f"{tp.partition}.{at}" for tp, at in positions)


def positions_of(event_id: str, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition from an event's id. Partitions that the id does not
    contain are left out."""
    positions = {}
    known = {tp.partition: tp for tp in tps}
    for part in event_id.split("-"):
        partition, dot, at = part.partition(".")
        if dot and is_offset(partition) and is_offset(at):
            tp = known.get(int(partition))
            if tp is not None:
                positions[tp] = int(at)
    return positions
