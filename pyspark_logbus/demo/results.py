"""Read the topic with the counts, and keep the last value of each key."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker_lite.bus.blocking import Bus

_POLL_SECONDS = 0.25


class Count(NamedTuple):
    """The number of lines of one kind in one minute."""

    minute: str
    kind: str
    lines: int


class Results:
    """The last count of the lines of each minute and kind. A consumer thread reads the counts
    topic.

    ``rows`` is the number of records that the thread has read. ``error`` is the error that ended
    the thread.
    """

    def __init__(self, bus: Bus, topic: str) -> None:
        self.rows = 0
        self.error: BaseException | None = None
        self._bus = bus
        self._topic = topic
        self._last: dict[bytes, bytes] = {}
        self._changed: dict[bytes, None] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-results", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the consumer thread and wait until it ends."""
        self._stopping.set()
        self._thread.join()

    def total(self) -> int:
        """Return the number of counted lines: the sum of the last counts."""
        with self._lock:
            return sum(json.loads(value)["count"] for value in self._last.values())

    def by_kind(self) -> dict[str, int]:
        """Return the number of lines of each kind over all minutes, the most frequent kind
        first."""
        sums: dict[str, int] = {}
        with self._lock:
            values = list(self._last.values())
        for value in values:
            document = json.loads(value)
            sums[document["kind"]] = sums.get(document["kind"], 0) + document["count"]
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def take_changed(self, most: int) -> list[Count]:
        """Return at most ``most`` counts that changed since the previous call, newest first."""
        with self._lock:
            keys = list(self._changed)[-most:]
            self._changed.clear()
            values = [self._last[key] for key in reversed(keys)]
        return [_count(value) for value in values]

    def _run(self) -> None:
        try:
            with self._bus.consumer(self._topic, start="earliest") as consumer:
                while not self._stopping.is_set():
                    batch = consumer.poll_arrow(_POLL_SECONDS)
                    if batch.num_rows:
                        self._take(
                            batch.column("key").to_pylist(), batch.column("value").to_pylist()
                        )
        except BaseException as error:
            self.error = error

    def _take(self, keys: list[bytes], values: list[bytes]) -> None:
        with self._lock:
            for key, value in zip(keys, values, strict=True):
                if self._last.get(key) != value:
                    self._last[key] = value
                    self._changed.pop(key, None)
                    self._changed[key] = None
            self.rows += len(keys)


def _count(value: bytes) -> Count:
    document = json.loads(value)
    return Count(document["minute"], document["kind"], document["count"])
