"""The sampler: a thread that reads the state of a cluster every five seconds.

The result of one round is a reading. All parts of a process that show the cluster, such as the
console's pages and its ``/metrics``, share one sampler, so further viewers cost the brokers
nothing. If a round fails, the sampler keeps the last successful reading, whose age grows."""

from __future__ import annotations

import threading
import time
from collections import deque

from broker_lite.client.administration.admin import Admin
from broker_lite.errors import LogbusError
from broker_lite.observing.history import KEPT, Recorder
from broker_lite.observing.reading import ClusterReading, take_reading
from broker_lite.server.metrics import Histogram

INTERVAL_S = 5.0
"""Seconds between two reads of the cluster."""
RECORDS, SIZE, LAG = "records_per_s", "size_bytes", "lag"
"""Names of the time series in ``Sampler.totals``."""


class Sampler:
    """The thread that reads the cluster every ``interval_s`` seconds. Any thread may read the
    public attributes.

    ``reading`` is the last successful reading. ``totals``, ``topics`` and ``groups`` have time
    series of the last hour."""

    def __init__(self, admin: Admin, *, interval_s: float = INTERVAL_S) -> None:
        self.reading: ClusterReading | None = None
        self.failure = ""
        """The error of the last read of the cluster; empty after a success."""
        self.failures = 0
        self.failures_by_reason: dict[str, int] = {}
        """Number of failed reads by error name."""
        self.durations = Histogram()
        self.totals, self.topics, self.groups = Recorder(), Recorder(), Recorder()
        self._times_ms: deque[float] = deque(maxlen=KEPT)
        self._admin = admin
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._readings = 0
        self._wake = threading.Event()
        self._is_reading = self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="logbus-sampler", daemon=True)

    def start(self) -> Sampler:
        """Start the thread, and return this sampler."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread, after a read of the cluster that is in progress."""
        self._is_stopped = True
        self._wake.set()
        self._thread.join(INTERVAL_S)

    @property
    def age_s(self) -> float:
        """Seconds since the cluster was last read; infinite before the first time."""
        reading = self.reading
        return float("inf") if reading is None else time.time() - reading.at_ms / 1000

    def span_s(self, count: int) -> float:
        """Return the seconds that the last ``count`` readings span, from the first to the last."""
        times = list(self._times_ms)[-count:] if count else []
        return (times[-1] - times[0]) / 1000 if times else 0.0

    def read_again(self, timeout_s: float = INTERVAL_S) -> None:
        """Start a whole reading of the cluster (see ``WHOLE_S``) now, for example after a change.
        Wait until it is complete, at most ``timeout_s`` seconds."""
        with self._changed:
            # A reading in progress began before the caller's change, so wait for the next one.
            target_count = self._readings + (2 if self._is_reading else 1)
            self._wake.set()
            self._changed.wait_for(lambda: self._readings >= target_count, timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Wait until the cluster has been read once, at most ``timeout_s`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._readings > 0, timeout_s)

    def _run(self) -> None:
        while not self._is_stopped:
            with self._changed:
                is_whole = self._wake.is_set()
                self._wake.clear()
                self._is_reading = True
            self._read(is_whole=is_whole)
            with self._changed:
                self._is_reading = False
                self._readings += 1
                self._changed.notify_all()
            self._wake.wait(self._interval_s)

    def _read(self, *, is_whole: bool) -> None:
        try:
            reading = take_reading(self._admin, self.reading, is_whole=is_whole)
        except LogbusError as error:
            self.failure = error.message or str(error)
            self.failures += 1
            before = self.failures_by_reason.get(error.name, 0)
            self.failures_by_reason = {**self.failures_by_reason, error.name: before + 1}
            return
        self.durations.observe(reading.took_s)
        self.totals.add(
            [(RECORDS, reading.records_per_s), (SIZE, reading.size_bytes), (LAG, reading.lag)]
        )
        self.topics.add((row.name, row.records_per_s) for row in reading.topics.values())
        self.groups.add((row.name, row.lag or 0) for row in reading.groups.values())
        self._times_ms.append(reading.at_ms)
        self.reading, self.failure = reading, ""
