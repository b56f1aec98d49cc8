"""Change topics at random under a running query: create, extend, trim, delete, send records.

``Life`` makes the changes and records the expected result. A query that starts at the earliest
offset must return every record that is left once. It may also return deleted records, but no
record twice. A seed determines the changes, but not how far the query has read at each change.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from broker_lite.bus import Bus
from broker_lite.model import TopicPartition

TOPICS_MAX = 4
PARTITIONS_MAX = 6


class Sent(NamedTuple):
    partition: int
    offset: int


class Life:
    """Applies random changes, one at a time, to topics whose names begin with ``prefix``."""

    def __init__(self, bus: Bus, prefix: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.told: list[str] = []
        """Descriptions of the changes in their order."""
        self._bus = bus
        self.prefix = prefix
        self._made = 0
        self._sent = 0
        self._partitions: dict[str, int] = {}
        self._records: dict[str, dict[str, Sent]] = {}
        self._actions: list[tuple[Callable[[], str], int]] = [
            (self.send, 60),
            (self.make, 8),
            (self.grow, 8),
            (self.trim, 10),
            (self.delete, 7),
            (self.make_again, 7),
        ]

    def act(self) -> None:
        """Make one random change; most changes produce records."""
        actions, weights = zip(*self._actions, strict=True)
        [action] = self.random.choices(actions, weights)
        self.told.append(action())

    def required(self) -> set[str]:
        """Return the values of all records that were not deleted."""
        return {value for records in self._records.values() for value in records}

    def _any(self) -> str:
        return self.random.choice(sorted(self._partitions))

    def send(self) -> str:
        topic = self._any() if self._partitions else self._new()
        partition = self.random.randrange(self._partitions[topic])
        values = [str(self._sent + number) for number in range(self.random.randint(1, 40))]
        self._sent += len(values)
        with self._bus.producer() as producer:
            sent = [producer.send(topic, v.encode(), partition=partition) for v in values]
            for value, future in zip(values, sent, strict=True):
                self._records[topic][value] = Sent(partition, future.result(60).offset)
        return f"send {len(values)} to {topic}-{partition}"

    def _new(self, name: str = "") -> str:
        self._made += 1
        name = name or f"{self.prefix}{self._made}"
        self._partitions[name] = self.random.randint(1, 3)
        self._records[name] = {}
        self._bus.create_topic(name, partitions=self._partitions[name])
        return name

    def make(self) -> str:
        if len(self._partitions) >= TOPICS_MAX:
            return self.send()
        name = self._new()
        return f"make {name} with {self._partitions[name]}"

    def grow(self) -> str:
        if not self._partitions:
            return self.send()
        topic = self._any()
        if self._partitions[topic] >= PARTITIONS_MAX:
            return self.send()
        self._partitions[topic] += 1
        self._bus.admin.create_partitions(topic, self._partitions[topic])
        return f"grow {topic} to {self._partitions[topic]}"

    def trim(self) -> str:
        if not self.required():
            return self.send()
        topic = self.random.choice(sorted(name for name, kept in self._records.items() if kept))
        records = self._records[topic]
        partition, offset = self.random.choice(sorted(records.values()))
        self._bus.admin.delete_records({TopicPartition(topic, partition): offset})
        self._records[topic] = {
            value: sent
            for value, sent in records.items()
            if sent.partition != partition or sent.offset >= offset
        }
        return f"trim {topic}-{partition} before {offset}"

    def delete(self) -> str:
        if not self._partitions:
            return self.send()
        topic = self._any()
        self._bus.delete_topic(topic)
        del self._partitions[topic], self._records[topic]
        return f"delete {topic}"

    def make_again(self) -> str:
        if not self._partitions:
            return self.send()
        topic = self._any()
        self._bus.delete_topic(topic)
        self._new(topic)
        return f"make {topic} again with {self._partitions[topic]}"


class Seen:
    """A function for ``foreachBatch`` that collects the values of each batch after a random delay.

    The values of a repeated batch replace those of its first run.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._batches: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, frame: Any, batch: int) -> None:
        # Spark has planned the batch but not read it, so records may be deleted in between.
        threading.Event().wait(self._random.choice((0, 0, 0.02, 0.1)))
        values = [bytes(row.value).decode() for row in frame.select("value").collect()]
        with self._lock:
            self._batches[batch] = values

    def values(self) -> Counter[str]:
        """Return how often each value was received."""
        with self._lock:
            return Counter(value for values in self._batches.values() for value in values)
