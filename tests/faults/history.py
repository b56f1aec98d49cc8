"""A workload for clusters under faults that records all records that it sent and read.

``Workload`` writes unique values through idempotent producers with acks=all, and reads all records
at the same time. ``History`` stores the acknowledged and the read records. ``anomalies`` compares
both with the logs after the faults. No acknowledged record may be lost, duplicated or out of order.
Every record that a reader returned must still be at its offset. Every reader must reach the end of
the acknowledged records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_lite import client
from broker_lite.bus import Bus
from broker_lite.client.producing.futures import RecordFuture
from broker_lite.config import ProducerConfig
from broker_lite.errors import LogbusError, RetriableError
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

SHOWN = 5
"""Maximum number of anomalies of one kind in a message."""
UNANSWERED_MAX = 2000
"""Maximum unacknowledged records of a writer, which limits the load on a recovering cluster."""
READERS = ("r0", "r1")
WAIT_S = 60.0


@dataclass(slots=True)
class Sent:
    """A sent record: its writer, its number and its result."""

    writer: str
    partition: int
    value: bytes
    floor: int
    """End of the partition's acknowledged records when this record was sent."""
    sent_s: float
    offset: int = -1
    error: str = ""


class History:
    """The sent, acknowledged and read records of one topic. Threads may share a history."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.read: dict[int, dict[int, bytes]] = {}
        """Values that any reader returned, by partition and offset."""
        self.found: list[str] = []
        """Anomalies detected while the workload runs."""
        self._ends: dict[int, int] = {}
        self._lock = threading.Lock()

    def send(self, writer: str, partition: int, value: bytes) -> Sent:
        """Record in the history that a writer is about to send the value."""
        with self._lock:
            floor = self._ends.get(partition, 0)
            sent = Sent(writer, partition, value, floor, time.monotonic())
            self.sent.append(sent)
        return sent

    def acked(self, sent: Sent, offset: int) -> None:
        """Record that the cluster acknowledged the record at ``offset``."""
        with self._lock:
            sent.offset = offset
            self._ends[sent.partition] = max(self._ends.get(sent.partition, 0), offset + 1)
            if offset < sent.floor:
                self.found.append(
                    f"stale: {sent.value!r} was acknowledged at {sent.partition}:{offset}, but "
                    f"{sent.floor} records were acknowledged before it was sent"
                )

    def saw(self, reader: str, partition: int, offset: int, wanted: int, value: bytes) -> None:
        """Record that a reader whose position was ``wanted`` received ``value`` at ``offset``."""
        with self._lock:
            seen = self.read.setdefault(partition, {}).setdefault(offset, value)
            if seen != value:
                self.found.append(
                    f"inconsistent: {reader} read {value!r} at {partition}:{offset}, where {seen!r}"
                    " had been read"
                )
            if offset != wanted:
                kind = "skipped" if offset > wanted else "read again"
                self.found.append(f"{kind}: {reader} at {partition}:{offset} after {wanted - 1}")

    def ends(self) -> dict[int, int]:
        """Return the end offset of the acknowledged records by partition."""
        with self._lock:
            return dict(self._ends)

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged records."""
        return sum(sent.offset >= 0 for sent in self.sent)

    @property
    def failed(self) -> list[Sent]:
        """Return the records that the producer reported as not written."""
        return [sent for sent in self.sent if sent.error]

    def anomalies(self, logs: Mapping[int, Sequence[tuple[int, bytes]]]) -> list[str]:
        """Compare the history with the final logs and return the anomalies.

        ``logs`` holds (offset, value) pairs by partition.
        """
        found = list(self.found)
        places: dict[bytes, list[tuple[int, int]]] = {}
        for partition, rows in logs.items():
            if [offset for offset, _ in rows] != list(range(len(rows))):
                found.append(f"gap: the offsets of {partition} are not contiguous from 0 on")
            for offset, value in rows:
                places.setdefault(value, []).append((partition, offset))
        known = {sent.value for sent in self.sent}
        found += [f"unexpected: {v!r} at {at}" for v, at in places.items() if v not in known]
        found += [f"doubled: {v!r} at {at}" for v, at in places.items() if len(at) > 1]
        latest: dict[tuple[str, int], int] = {}
        for sent in self.sent:
            if sent.offset < 0:
                continue
            at = places.get(sent.value, [])
            if not at:
                found.append(f"lost: {sent.value!r}, acknowledged at {_place(sent)}")
            elif (sent.partition, sent.offset) not in at:
                found.append(f"moved: {sent.value!r} from {_place(sent)} to {at}")
            stream = (sent.writer, sent.partition)
            if sent.offset < latest.get(stream, -1):
                found.append(f"reordered: {sent.value!r} at {_place(sent)} is before older ones")
            latest[stream] = max(latest.get(stream, -1), sent.offset)
        for partition, seen in self.read.items():
            there = dict(logs.get(partition, ()))
            found += [
                f"uncommitted: {value!r} was read at {partition}:{offset}, where now "
                f"{there.get(offset)!r} is"
                for offset, value in seen.items()
                if there.get(offset) != value
            ]
        return found


def _place(sent: Sent) -> str:
    return f"{sent.partition}:{sent.offset}"


def shortened(found: Iterable[str]) -> str:
    """Return a message with the number of anomalies and the first ones of each kind."""
    kinds: dict[str, list[str]] = {}
    for line in found:
        kinds.setdefault(line.partition(":")[0], []).append(line)
    return "\n".join(
        f"{len(lines)} {kind}\n  " + "\n  ".join(lines[:SHOWN]) for kind, lines in kinds.items()
    )


@dataclass
class _Gap:
    """A partition's last acknowledgement, and its longest time without acknowledgement."""

    last_s: float
    longest_s: float = 0.0
    fresh: int = 0
    """Number of acknowledgements of records that were sent after a wait began."""


@dataclass
class Workload:
    """Writers and readers of one topic, from ``start`` to ``finish``; a context manager.

    There is one writer for each partition, and one writer to all partitions. Each writer sends
    ``rate`` records a second. Unless ``failures_allowed`` is set, an error of a producer is an
    anomaly.
    """

    bootstrap_servers: str
    topic: str
    partitions: int
    rate: int = 200
    failures_allowed: bool = False
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._all_read = threading.Event()
        self._progress = threading.Condition()
        self._gaps: dict[int, _Gap] = {}
        self._since_s = 0.0
        self._reached: dict[str, dict[int, int]] = {name: {} for name in READERS}
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self) -> Workload:
        """Start the writers and readers of the workload."""
        everything = tuple(range(self.partitions))
        streams = [(f"w{n}", (n,)) for n in everything] + [("wide", everything)]
        for name, partitions in streams:
            self._run(self._write, name, partitions)
        for name in READERS:
            self._run(self._read, name)
        self.mark()
        return self

    def __enter__(self) -> Workload:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending, wait for all pending acknowledgements, then stop the readers."""
        self._over.set()
        self._all_read.set()
        self._join(len(self._threads))

    def _join(self, count: int) -> None:
        for thread in self._threads[:count]:
            thread.join(2 * WAIT_S)
            assert not thread.is_alive(), f"{thread.name} hangs"
        del self._threads[:count]

    def mark(self) -> None:
        """Restart the measurement of how long each partition had no acknowledgement."""
        now = time.monotonic()
        with self._progress:
            self._gaps = {n: _Gap(now) for n in range(self.partitions)}

    def longest_gap_s(self) -> float:
        """Return the longest time in which a partition had no acknowledgement, measured from the
        last call of ``mark`` on."""
        now = time.monotonic()
        with self._progress:
            return max(max(gap.longest_s, now - gap.last_s) for gap in self._gaps.values())

    def wait_acked(self, count: int = 20, timeout_s: float = WAIT_S) -> float:
        """Wait until each partition has ``count`` acknowledgements of records sent after the call.

        Return the longest time, in seconds since ``mark``, that a partition had no acknowledgement.
        Raises the error of a failed reader or writer.
        """
        deadline = time.monotonic() + timeout_s
        with self._progress:
            self._since_s = time.monotonic()
            for gap in self._gaps.values():
                gap.fresh = 0
            while True:
                left = [n for n, gap in self._gaps.items() if gap.fresh < count]
                if self._errors:
                    raise self._errors[0]
                if not left:
                    break
                assert self._progress.wait(deadline - time.monotonic()), (
                    f"partitions {left} of {self.topic} were not acknowledged in {timeout_s:.0f} s"
                )
        return self.longest_gap_s()

    def finish(self) -> History:
        """Stop the workload, read the topic again, and compare it with the history.

        Raises AssertionError for an anomaly.
        """
        self._over.set()
        self._join(len(self._threads) - len(READERS))
        self._wait_read(self.history.ends())
        self.stop()
        if self._errors:
            raise self._errors[0]
        assert not [sent for sent in self.history.sent if sent.offset < 0 and not sent.error]
        found = self.history.anomalies(read_log(self.bootstrap_servers, self.topic))
        if not self.failures_allowed:
            found += [f"failed: {s.value!r}: {s.error}" for s in self.history.failed]
        assert not found, f"{self.topic}, {len(self.history.sent)} sent:\n{shortened(found)}"
        return self.history

    def _wait_read(self, ends: Mapping[int, int]) -> None:
        def behind() -> list[str]:
            return [
                f"{name} at {number}:{reached.get(number, 0)} of {end}"
                for name, reached in self._reached.items()
                for number, end in ends.items()
                if reached.get(number, 0) < end
            ]

        with self._progress:
            done = self._progress.wait_for(lambda: self._errors or not behind(), WAIT_S)
            assert done, f"readers of {self.topic} stay behind: {behind()}"

    def _run(self, work: object, *arguments: object) -> None:
        def guarded() -> None:
            try:
                work(*arguments)  # type: ignore[operator]
            except BaseException as error:
                with self._progress:
                    self._errors.append(error)
                    self._progress.notify_all()

        name = f"{self.topic}-{arguments[0]}"
        self._threads.append(threading.Thread(target=guarded, name=name, daemon=True))
        self._threads[-1].start()

    def _write(self, name: str, partitions: Sequence[int]) -> None:
        step_s = len(partitions) / self.rate
        waiting = threading.Semaphore(UNANSWERED_MAX)
        producer = client.Producer(
            self.bootstrap_servers, ProducerConfig(linger_ms=2, client_id=name)
        )
        with producer:
            number = 0
            while not self._over.wait(step_s):
                for partition in partitions:
                    if not waiting.acquire(timeout=0):
                        break
                    sent = self.history.send(name, partition, b"%s-%d" % (name.encode(), number))
                    number += 1
                    future = producer.send(self.topic, sent.value, partition=partition)
                    future.add_done_callback(lambda f, s=sent: self._answered(s, f, waiting))
            try:
                producer.flush()
            except LogbusError:
                if not self.failures_allowed:
                    raise

    def _answered(self, sent: Sent, future: RecordFuture, waiting: threading.Semaphore) -> None:
        waiting.release()
        try:
            offset = future.result(0).offset
        except LogbusError as error:
            sent.error = str(error)
            return
        self.history.acked(sent, offset)
        now = time.monotonic()
        with self._progress:
            gap = self._gaps[sent.partition]
            gap.longest_s = max(gap.longest_s, now - gap.last_s)
            gap.last_s = now
            gap.fresh += sent.sent_s >= self._since_s
            self._progress.notify_all()

    def _read(self, name: str) -> None:
        wanted = self._reached[name]
        with _consumer(self.bootstrap_servers, self.topic, self.partitions) as consumer:
            while not self._all_read.is_set():
                for record in consumer.poll(0.1):
                    at = wanted.get(record.partition, 0)
                    self.history.saw(name, record.partition, record.offset, at, record.value)
                    wanted[record.partition] = record.offset + 1
                with self._progress:
                    self._progress.notify_all()


def _consumer(bootstrap_servers: str, topic: str, partitions: int) -> client.Consumer:
    tps = [TopicPartition(topic, n) for n in range(partitions)]
    return Bus(bootstrap_servers, client_id="history", options={}).consumer(
        topic, partitions=tps, start="earliest"
    )


def read_log(bootstrap_servers: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Return the committed records of a topic: (offset, value) pairs by partition."""
    deadline = time.monotonic() + WAIT_S
    with client.Admin(bootstrap_servers) as admin:
        while True:
            try:
                tps = admin.cluster([topic]).partitions_of(topic)
                begins = admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
                listed = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
                break
            except RetriableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    counts = {tp.partition: at.offset - begins[tp].offset for tp, at in listed.items()}
    found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in counts}
    with _consumer(bootstrap_servers, topic, len(counts)) as consumer:
        while any(len(found[n]) < count for n, count in counts.items()):
            records = consumer.poll(1.0)
            assert records or time.monotonic() < deadline, f"{topic} cannot be read: {counts}"
            for record in records:
                found[record.partition].append((record.offset, record.value or b""))
    return found
