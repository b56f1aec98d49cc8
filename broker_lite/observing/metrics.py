"""The metrics of a whole cluster, such as the lag of groups. No single broker knows their values,
so the console serves these metrics.

The values are those of the sampler's last reading. ``sample_age_seconds`` is the age of that
reading. ``server.exposition`` writes the text of a scrape. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.model import TopicPartition
from broker_lite.observing.reading import ClusterReading
from broker_lite.observing.sampler import Sampler
from broker_lite.server.metrics import COUNTER, GAUGE, HISTOGRAM, Metric, Sample

SERIES_MAX = 20_000
"""Maximum time series in the answer to one scrape, without those under kafka_exporter's names.
Above it, the series of partitions are dropped first, then those of groups, then those of topics."""
RESERVED_SERIES = 32
"""Part of ``SERIES_MAX`` that is reserved for series which are never dropped: the histogram
``sample_duration_seconds`` (17), ``series_dropped``, and the metrics of the process."""

CLUSTER_METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("cluster_brokers", GAUGE, "Brokers that run."),
        Metric("topic_partitions", GAUGE, "Partitions of a topic.", ("topic",)),
        Metric("topic_size_bytes", GAUGE, "Stored bytes of a topic, all replicas.", ("topic",)),
        Metric(
            "topic_under_replicated_partitions",
            GAUGE,
            "Partitions with a replica that is not in sync, or without a leader.",
            ("topic",),
        ),
        Metric("topic_records", COUNTER, "Sum of the end offsets of a topic.", ("topic",)),
        Metric("group_lag_records", GAUGE, "Unread records.", ("group", "topic")),
        Metric("group_lag_seconds", GAUGE, "Age of the oldest unread record.", ("group", "topic")),
        Metric("group_members", GAUGE, "Live members of a group.", ("group",)),
        Metric("sample_age_seconds", GAUGE, "Age of the console's last reading of the cluster."),
        Metric("series_dropped", GAUGE, "Series beyond the limit of 20,000."),
        Metric("sample_duration_seconds", HISTOGRAM, "Duration of a reading of the cluster."),
        Metric("sample_failures", COUNTER, "Failed readings of the cluster.", ("reason",)),
        Metric("partition_start_offset", GAUGE, "First offset.", ("topic", "partition")),
        Metric("partition_end_offset", GAUGE, "End offset.", ("topic", "partition")),
        Metric("partition_leader", GAUGE, "Leader's id; -1 without one.", ("topic", "partition")),
        Metric("partition_isr_size", GAUGE, "In-sync replicas.", ("topic", "partition")),
        Metric(
            "group_committed_offset",
            GAUGE,
            "Committed offset.",
            ("group", "topic", "partition"),
        ),
    )
}
"""The metrics of a cluster by name, without the prefix ``logbus_`` and the suffix ``_total``. Those
with the label ``partition`` need the console's option --by-partition."""

Values = dict[tuple[str, ...], float]
"""The value of a metric for each combination of label values."""


def samples(sampler: Sampler, *, by_partition: bool) -> list[Sample]:
    """Return all metrics of the sampler's last reading, at most ``SERIES_MAX`` time series. Metrics
    of single partitions are included only with ``by_partition``."""
    reading = sampler.reading
    metrics: dict[str, Values] = {"sample_failures": {}}
    for reason, count in sampler.failures_by_reason.items():
        metrics["sample_failures"][(reason,)] = count
    if reading is not None:
        metrics["sample_age_seconds"] = {(): sampler.age_s}
        metrics["cluster_brokers"] = {(): len(reading.sample.view.brokers)}
        metrics |= _topics(reading) | _groups(reading)
        if by_partition:
            metrics |= _partitions(reading)
    dropped = _limit(metrics)
    metrics["series_dropped"] = {(): dropped}
    rows = [Sample(CLUSTER_METRICS[name], values) for name, values in metrics.items()]
    buckets = (tuple(sampler.durations.counts), sampler.durations.total)
    duration = CLUSTER_METRICS["sample_duration_seconds"]
    return [*rows, Sample(duration, {}, {(): buckets})]


def _limit(metrics: dict[str, Values]) -> int:
    """Drop time series from the end of ``metrics`` until the limit is kept. Return the number of
    dropped series."""
    room, dropped = SERIES_MAX - RESERVED_SERIES, 0
    for name, values in metrics.items():
        limited = dict(list(values.items())[: max(room, 0)]) if len(values) > room else values
        dropped += len(values) - len(limited)
        room -= len(limited)
        metrics[name] = limited
    return dropped


def _topics(reading: ClusterReading) -> dict[str, Values]:
    rows = reading.topics.values()
    ends: Values = {}
    for tp, end in reading.ends.items():
        ends[(tp.topic,)] = ends.get((tp.topic,), 0) + end
    return {
        "topic_partitions": {(row.name,): row.partitions for row in rows},
        "topic_size_bytes": {(row.name,): row.size_bytes for row in rows},
        "topic_under_replicated_partitions": {(row.name,): row.unhealthy for row in rows},
        "topic_records": ends,
    }


def _groups(reading: ClusterReading) -> dict[str, Values]:
    records: Values = {}
    seconds: Values = {}
    for name, lag in reading.lags.items():
        for tp, part in lag.partitions.items():
            labels = (name, tp.topic)
            if part.records is not None:
                records[labels] = records.get(labels, 0) + part.records
            if part.seconds is not None:
                seconds[labels] = max(seconds.get(labels, 0.0), part.seconds)
    members: Values = {(row.name,): row.members for row in reading.groups.values()}
    return {
        "group_lag_records": records,
        "group_lag_seconds": seconds,
        "group_members": members,
    }


def _partitions(reading: ClusterReading) -> dict[str, Values]:
    leaders: Values = {}
    in_sync: Values = {}
    for tp, part in reading.sample.view.rows:
        leaders[_labels(tp)] = part.leader
        in_sync[_labels(tp)] = len(part.isr)
    committed: Values = {
        (name, *_labels(tp)): part.committed.offset
        for name, lag in reading.lags.items()
        for tp, part in lag.partitions.items()
        if part.committed is not None
    }
    return {
        "partition_start_offset": {_labels(tp): at for tp, at in reading.starts.items()},
        "partition_end_offset": {_labels(tp): at for tp, at in reading.ends.items()},
        "partition_leader": leaders,
        "partition_isr_size": in_sync,
        "group_committed_offset": committed,
    }


def _labels(tp: TopicPartition) -> tuple[str, str]:
    return tp.topic, str(tp.partition)
