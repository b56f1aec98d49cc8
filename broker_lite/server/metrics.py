"""All metrics of a broker: their declarations and their values.

``METRICS`` declares every metric once. The code of a frequent event holds its ``Counter`` or
``Histogram``, so that no request looks up a metric by name. Gauges are functions called when the
metrics are read. Each histogram has one thread that calls ``observe``; all else, except slow
gauges, runs on the event loop's thread."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

PREFIX = "logbus_"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds in seconds of a histogram's buckets. One more bucket counts longer durations."""
SERIES_MAX = 200
"""Maximum number of series (label values) of a counter by API; the default maximum by topic.

Further label values are counted together, under ``OTHER``."""
FEW_SERIES_MAX = 20
"""Maximum number of series of a counter whose label is neither topic nor API. With this limit,
``SERIES_MAX`` and the default ``metrics.topics.max``, a broker has at most 1,500 series."""
OTHER = "(other)"
"""The label value under which a counter counts all values beyond its maximum number of series.
No topic or error has this name."""

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


class Metric(NamedTuple):
    """The declaration of a metric; ``name`` lacks ``prefix`` and the suffix ``_total``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    prefix: str = PREFIX


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        # Metrics of the process and its connections.
        Metric("broker_info", GAUGE, "Always 1; the labels describe the broker.",
               ("version", "cluster_id", "broker_id", "rack")),
        Metric("ready", GAUGE, "1 if the broker is ready, as /readyz answers."),
        Metric("controller_active", GAUGE, "1 if the broker is the controller."),
        Metric("loop_delay_seconds", HISTOGRAM, "Delay of a timer on the event loop."),
        Metric("loop_rule_violations", COUNTER, "Loop delays above 5 ms."),
        Metric("connections", GAUGE, "Open client connections.", ("listener",)),
        Metric("insecure_listeners", GAUGE,
               "1 if other machines reach the listener without TLS, logins and ACLs.",
               ("listener",)),
        Metric("connections_refused", COUNTER, "Connections refused, by reason.", ("reason",)),
        Metric("certificate_end_seconds", GAUGE, "Unix time at which a certificate expires.",
               ("listener",)),
        Metric("certificate_reloads_failed", COUNTER, "Changed TLS files that are unusable.",
               ("listener",)),
        Metric("request_memory_bytes", GAUGE, "Memory of requests and unsent answers."),
        Metric("request_memory_limit_bytes", GAUGE, "Setting queued.max.bytes."),
        # Metrics of requests.
        Metric("requests", COUNTER, "Requests received.", ("api",)),
        Metric("request_duration_seconds", HISTOGRAM,
               "Time from a request's arrival to its response, less a fetch's wait for data.",
               ("api",)),
        Metric("request_errors", COUNTER,
               "Requests, and partitions of produce and fetch requests, that failed.",
               ("api", "error")),
        Metric("fetch_wait_seconds", HISTOGRAM, "Time that a fetch waited for data."),
        # Metrics of the records that clients send and receive.
        Metric("received_bytes", COUNTER, "Bytes of appended batches.", ("topic",)),
        Metric("received_records", COUNTER, "Records of appended batches.", ("topic",)),
        Metric("sent_bytes", COUNTER, "Bytes of batches sent to consumers.", ("topic",)),
        Metric("local_reads", COUNTER,
               "Segment files for readers on this machine: path sent, descriptor sent, or ticket "
               "refused.", ("outcome",)),
        Metric("transcoded_batches", COUNTER, "Batches converted for clients that read only rows.",
               ("from", "to")),
        # Metrics of replication, quotas and logins.
        Metric("partitions", GAUGE, "Replicas on this broker.", ("role",)),
        Metric("under_replicated_partitions", GAUGE,
               "Led partitions with a replica outside the in-sync replicas."),
        Metric("under_min_isr_partitions", GAUGE,
               "Led partitions with fewer in-sync replicas than min.insync.replicas."),
        Metric("reassigning_partitions", GAUGE,
               "Partitions with a reassignment in progress; on the controller."),
        Metric("leaderless_partitions", GAUGE, "Partitions without a leader; on the controller."),
        Metric("replica_lag_records_max", GAUGE,
               "Lag in records of the slowest follower of a led partition."),
        Metric("replica_lag_seconds_max", GAUGE,
               "Longest time since an in-sync follower of a led partition was caught up."),
        Metric("leader_elections", COUNTER,
               "Times that a replica of this broker became leader; kind: preferred or other.",
               ("kind",)),
        Metric("isr_changes", COUNTER, "Changes of in-sync replicas.", ("change",)),
        Metric("replication_received_bytes", COUNTER, "Bytes fetched from leaders."),
        Metric("replication_sent_bytes", COUNTER, "Bytes sent to followers."),
        Metric("replica_fetches", COUNTER, "Fetch requests sent to leaders."),
        Metric("replica_fetch_errors", COUNTER, "Failed fetches from leaders.", ("error",)),
        Metric("peers_connected", GAUGE, "Brokers to which a connection is open."),
        Metric("peer_connections_lost", COUNTER, "Connections to brokers that closed."),
        Metric("peers_suspected", COUNTER, "Brokers that refused a connection."),
        Metric("quota_throttles", COUNTER, "Responses that throttled a client.", ("quota",)),
        Metric("request_throttle_seconds", COUNTER, "Time for which clients were throttled.",
               ("quota",)),
        Metric("authentication_failures", COUNTER, "Logins that were refused.", ("mechanism",)),
        # Metrics of the log and the disk.
        Metric("append_duration_seconds", HISTOGRAM,
               "Time to write a group of batches to log files, without its flush."),
        Metric("flush_duration_seconds", HISTOGRAM, "Time of a flush of log files."),
        Metric("log_size_bytes", GAUGE, "Bytes of all log segments.", ("dir",)),
        Metric("log_segments", GAUGE, "Log segments."),
        Metric("disk_size_bytes", GAUGE, "Size of the log directory's file system.", ("dir",)),
        Metric("disk_free_bytes", GAUGE, "Free bytes of the log directory's file system.",
               ("dir",)),
        Metric("disk_full", GAUGE, "1 if the disk is full: the broker refuses records.", ("dir",)),
        Metric("disk_failed", GAUGE, "1 if the log directory failed.", ("dir",)),
        Metric("stray_partitions", GAUGE,
               "Partition directories that ZooKeeper did not assign to the broker at its start."),
        Metric("recovery_duration_seconds", GAUGE, "Time to open all logs at the last start."),
        Metric("segments_deleted", COUNTER,
               "Segments deleted by retention; reason: time, size or log_start.", ("reason",)),
        Metric("corrupt_batches", COUNTER,
               "Times that the broker found a corrupt batch; outcome: read from the log, recovery "
               "of the log, or replica_fetch from a leader.", ("outcome",)),
        # Metrics of requests that wait for an answer.
        Metric("produces_waiting", GAUGE, "Produce requests without an answer."),
        Metric("produces_timed_out", COUNTER, "Produce requests that timed out."),
        Metric("follower_fetches_waiting", GAUGE, "Fetches of followers that wait for data."),
        # Metrics of consumer groups.
        Metric("coordinated_groups", GAUGE, "Groups that this broker coordinates.", ("state",)),
        Metric("coordinated_members", GAUGE, "Members of the groups that this broker coordinates."),
        Metric("group_rebalances", COUNTER,
               "Generations that groups started; reason: members joined or left, or other.",
               ("reason",)),
        Metric("offset_commit_duration_seconds", HISTOGRAM,
               "Time of an offset commit from its request to its write in ZooKeeper."),
        Metric("offset_commit_errors", COUNTER, "Partitions whose offset commit failed.",
               ("error",)),
        # Metrics of transactions.
        Metric("open_transactions", GAUGE,
               "Open transactions, and open batches of Spark sinks, that this broker coordinates."),
        Metric("oldest_transaction_age_seconds", GAUGE,
               "Age of the oldest open transaction; 0 if none is open."),
        Metric("last_stable_offset_lag_records_max", GAUGE,
               "Most records of a led partition that open transactions hide from consumers."),
        Metric("transactions", COUNTER,
               "Transactions that ended; outcome: committed or aborted by the coordinator, or "
               "hanging: ended in a partition by its leader.", ("outcome",)),
        Metric("transaction_duration_seconds", HISTOGRAM,
               "Time from a transaction's begin to its last marker."),
        Metric("spark_sink_batches", COUNTER,
               "Batches of exactly-once Spark sinks by outcome; repeated: a commit of a batch that "
               "was committed before.", ("outcome",)),
        # Metrics of the ZooKeeper session and the metadata.
        Metric("zookeeper_connected", GAUGE, "1 if the session with ZooKeeper is connected."),
        Metric("metadata_age_seconds", GAUGE,
               "Time since the metadata, permissions and users included, were last known to be "
               "current; 0 while ZooKeeper is connected."),
        Metric("unreadable_znodes", GAUGE,
               "Users, access control lists and quotas in ZooKeeper that the broker cannot read."),
        Metric("zookeeper_session_losses", COUNTER, "Sessions that expired."),
        Metric("zookeeper_write_conflicts", COUNTER,
               "Writes that ZooKeeper refused because another broker wrote first."),
        Metric("zookeeper_request_duration_seconds", HISTOGRAM,
               "Time from a request to ZooKeeper to its answer.", ("operation",)),
    )
}  # fmt: skip
"""Every metric of a broker by name."""

Labels = tuple[str, ...]
Value = float | Mapping[Labels, float]
"""The value of a gauge, or its values by labels."""
Read = Callable[[], Value | Generator[None, None, Value]]
"""A function that returns the value of a gauge, or computes it in slices: see ``in_slices``."""
SLICE = 200
"""Rows, such as partitions, that a gauge reads before the event loop may serve requests."""
Row = TypeVar("Row")


def in_slices(
    rows: Iterable[Row],
    value: Callable[[Row], float],
    combine: Callable[[Iterable[float]], float] = sum,
) -> Generator[None, None, float]:
    """Compute a gauge over many rows: the sum of their values, or with ``combine=max`` the largest.
    Yield after each ``SLICE`` rows. No value may be negative."""
    every, found = list(rows), 0.0
    for begin in range(0, len(every), SLICE):
        found = combine((found, *map(value, every[begin : begin + SLICE])))
        yield
    return found


class Counter:
    """A count that only grows: ``counter.n += amount``."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n: float = 0


class Histogram:
    """A histogram of durations. One thread calls ``observe``; any thread may read."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Add one duration to the histogram."""
        self.counts[bisect.bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


class TopicTraffic(NamedTuple):
    """The counters of one topic: what producers sent to it, and consumers received from it."""

    received_bytes: Counter
    received_records: Counter
    sent_bytes: Counter


class Sample(NamedTuple):
    """The values of one metric at one time: values by labels, or a histogram's buckets and sum."""

    metric: Metric
    values: Mapping[Labels, float]
    buckets: Mapping[Labels, tuple[tuple[int, ...], float]] = {}


class Metrics:
    """The values of all metrics of one broker.

    ``topics_max`` is the maximum number of topics with series of their own; the others share
    ``OTHER``. Every method raises KeyError for a name that ``METRICS`` does not declare."""

    def __init__(self, topics_max: int = SERIES_MAX) -> None:
        self._topics_max = topics_max
        self._counters: dict[str, dict[Labels, Counter]] = {}
        self._histograms: dict[str, list[tuple[Labels, Histogram]]] = {}
        self._gauges: dict[str, Read] = {}
        self._slow_gauges: dict[str, Callable[[], Value]] = {}
        for metric in METRICS.values():
            if metric.kind == COUNTER:
                self._counters[metric.name] = {} if metric.labels else {(): Counter()}

    def counter(self, name: str, *labels: str) -> Counter:
        """Return the counter of these label values; equal labels return the same counter."""
        series = self._counters[name]
        counter = series.get(labels)
        if counter is None:
            kinds = METRICS[name].labels
            limit = SERIES_MAX if "api" in kinds else FEW_SERIES_MAX
            limit = self._topics_max if kinds == ("topic",) else limit
            if len(series) >= limit:
                labels = (OTHER,) * len(labels)
            counter = series.setdefault(labels, Counter())
        return counter

    def count(self, name: str, *labels: str, amount: float = 1) -> None:
        """Add ``amount`` to a counter. Code that counts often should call ``counter`` once and use
        the counter that it returns."""
        self.counter(name, *labels).n += amount

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return a new histogram. Each thread that counts needs a histogram of its own.

        ``samples`` adds up the histograms of a metric that have equal labels."""
        assert METRICS[name].kind == HISTOGRAM
        histogram = Histogram()
        self._histograms.setdefault(name, []).append((labels, histogram))
        return histogram

    def gauge(self, name: str, read: Read) -> None:
        """Register a gauge. ``read`` runs on the event loop's thread, so it must return within
        microseconds, or compute its value ``in_slices``."""
        assert METRICS[name].kind == GAUGE
        self._gauges[name] = read

    def slow_gauge(self, name: str, read: Callable[[], Value]) -> None:
        """Register a gauge whose ``read`` makes system calls; another thread runs it."""
        assert METRICS[name].kind == GAUGE
        self._slow_gauges[name] = read

    def traffic(self, topic: str) -> TopicTraffic:
        """Return the counters of a topic's records."""
        return TopicTraffic(*(self.counter(name, topic) for name in TopicTraffic._fields))

    def value(self, name: str, *labels: str) -> float:
        """Return a counter's value; 0 if nothing has been counted."""
        counter = self._counters[name].get(labels)
        return counter.n if counter is not None else 0

    def total(self, name: str) -> float:
        """Return the sum of a counter over all its labels."""
        return sum(counter.n for counter in self._counters[name].values())

    def samples(self) -> list[Sample]:
        """Return a copy of the values of each metric, except those of ``slow_samples``. Call it on
        the event loop's thread."""
        return [sample for sample in self.steps() if sample is not None]

    def steps(self) -> Iterator[Sample | None]:
        """Yield the values that ``samples`` returns, and None after each slice of a gauge. After
        each step the caller may let the event loop serve requests."""
        for name, series in self._counters.items():
            values = {labels: counter.n for labels, counter in series.items()}
            yield Sample(METRICS[name], values)
        for name, read in list(self._gauges.items()):
            value = read()
            yield _gauge(name, (yield from value) if isinstance(value, Generator) else value)
        for name, rows in list(self._histograms.items()):
            sums: dict[Labels, tuple[tuple[int, ...], float]] = {}
            for labels, histogram in rows:
                counts, total = sums.get(labels, ((0,) * (len(SECONDS) + 1), 0.0))
                added = tuple(a + b for a, b in zip(counts, histogram.counts, strict=True))
                sums[labels] = added, total + histogram.total
            yield Sample(METRICS[name], {}, sums)

    def slow_samples(self) -> list[Sample]:
        """Return the values of the slow gauges, which call the operating system. Any thread may
        call this."""
        return [_gauge(name, read()) for name, read in self._slow_gauges.items()]


def _gauge(name: str, value: Value) -> Sample:
    return Sample(METRICS[name], value if isinstance(value, Mapping) else {(): float(value)})
