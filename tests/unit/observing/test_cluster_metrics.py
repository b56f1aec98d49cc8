"""Tests of the console's ``/metrics``: its values, and the limit on its time series."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from prometheus_client import ProcessCollector

from broker_lite.client.administration.admin import Admin
from broker_lite.client.administration.group_lag import PartitionLag
from broker_lite.client.administration.many_groups import GroupLag
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.model import CommittedOffset, Endpoint
from broker_lite.observing.kafka_exporter import kafka_samples
from broker_lite.observing.metrics import CLUSTER_METRICS, SERIES_MAX, samples
from broker_lite.observing.reading import ClusterReading, GroupReading, TopicReading
from broker_lite.observing.sample import ClusterSample
from broker_lite.observing.sampler import Sampler
from broker_lite.server.exposition import render

BY_TOPIC, BY_GROUP, BY_PARTITION = 4, 2, 4
"""Series of each topic, of each topic that a group reads, and of each partition."""


class Shape(NamedTuple):
    """The size of a cluster: its topics, the partitions of each, its groups, and the topics that
    each group reads."""

    topics: int
    partitions: int
    groups: int
    read: int

    @property
    def series(self) -> tuple[int, int, int]:
        """The number of series of topics, of groups and of partitions."""
        committed = self.groups * self.read * self.partitions
        return (
            BY_TOPIC * self.topics,
            self.groups * (1 + BY_GROUP * self.read),
            BY_PARTITION * self.topics * self.partitions + committed,
        )


def reading(shape: Shape) -> ClusterReading:
    """Return the reading of a cluster with this shape."""
    names = [f"t{number}" for number in range(shape.topics)]
    parts = tuple(PartitionMetadata(n, 0, 1, (0,), (0,)) for n in range(shape.partitions))
    view = ClusterView(
        "c", 0, {0: Endpoint("h", 1)}, {n: TopicMetadata(n, partitions=parts) for n in names}
    )
    tps = [tp for tp, _ in view.rows]
    lag = PartitionLag(CommittedOffset(1), 9, 8, 7.0, None)
    lags = {
        f"g{group}": GroupLag(
            "Stable", partitions=dict.fromkeys(tps[: shape.read * shape.partitions], lag)
        )
        for group in range(shape.groups)
    }
    return ClusterReading(
        at_ms=0.0,
        whole_ms=0.0,
        took_s=0.0,
        sample=ClusterSample(view, {}, {}, ()),
        causes=(),
        starts=dict.fromkeys(tps, 0),
        ends=dict.fromkeys(tps, 9),
        topics={n: TopicReading(n, shape.partitions, 1, 9, 9, 0.0, 0, None) for n in names},
        groups={n: GroupReading(n, "Kafka", "Stable", 1, (), 8, 7.0, "") for n in lags},
        lags=lags,
        records_per_s=0.0,
    )


def level(name: str) -> int:
    """Return 0 for a metric of topics, 1 for one of groups, 2 for one of partitions, else -1."""
    labels = CLUSTER_METRICS[name].labels
    if "partition" in labels:
        return 2
    return 1 if "group" in labels else 0 if "topic" in labels else -1


@pytest.mark.parametrize(
    "shape",
    [
        Shape(10, 3, 2, 10),
        Shape(4986, 1, 0, 0),
        Shape(1000, 10, 50, 5),
        Shape(4000, 1, 4, 100),
        Shape(1, 20_000, 1, 1),
        Shape(4900, 1, 10, 400),
        Shape(6000, 2, 3, 1),
        Shape(100, 1, 200, 100),
    ],
    ids=str,
)
@pytest.mark.parametrize("by_partition", [True, False])
def test_console_drops_the_series_of_partitions_first_above_20000(
    shape: Shape, by_partition: bool
) -> None:
    sampler = Sampler(Admin("127.0.0.1:1"))
    sampler.reading = reading(shape)
    rows = samples(sampler, by_partition=by_partition)
    kept = [0, 0, 0]
    for row in rows:
        if level(row.metric.name) >= 0:
            kept[level(row.metric.name)] += len(row.values)
    wanted = [*shape.series[:2], shape.series[2] if by_partition else 0]
    (dropped,) = (row.values[()] for row in rows if row.metric.name == "series_dropped")
    assert dropped == sum(wanted) - sum(kept)
    assert (dropped > 0) == (sum(wanted) > SERIES_MAX - 34)
    for important in (0, 1):
        assert kept[important] == wanted[important] or not any(kept[important + 1 :])
    body, _ = render(rows, ProcessCollector(registry=None), "")
    series = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert len(series) <= SERIES_MAX
    if dropped:
        assert len(series) > SERIES_MAX - 20


def test_console_metrics_have_the_values_of_the_last_reading() -> None:
    parts = (PartitionMetadata(0, 2, 1, (2, 0, 1), (2, 0)), PartitionMetadata(1, -1, 1, (1,), ()))
    view = ClusterView("c", 0, {0: Endpoint("h", 1)}, {"t": TopicMetadata("t", partitions=parts)})
    one, two = (tp for tp, _ in view.rows)
    lags = {
        one: PartitionLag(CommittedOffset(3), 9, 6, 7.0, None),
        two: PartitionLag(CommittedOffset(1), 5, 4, 8.0, None),
    }
    found = reading(Shape(0, 0, 0, 0))._replace(
        sample=ClusterSample(view, {}, {}, ()),
        starts={one: 2, two: 0},
        ends={one: 9, two: 5},
        topics={"t": TopicReading("t", 2, 3, 12, 700, 0.0, 1, 10)},
        groups={"g": GroupReading("g", "Consumer", "Stable", 4, ("t",), 10, 8.0, "")},
        lags={"g": GroupLag("Stable", partitions=lags)},
    )
    sampler = Sampler(Admin("127.0.0.1:1"))
    sampler.reading = found
    sampler.failures_by_reason = {"NO_BROKERS": 2}
    sampler.durations.observe(0.3)
    rows = [*samples(sampler, by_partition=True), *kafka_samples(found)]
    values = {f"{row.metric.prefix}{row.metric.name}": dict(row.values) for row in rows}
    assert values.pop("logbus_sample_age_seconds")[()] > 0
    assert values == {
        "logbus_cluster_brokers": {(): 1},
        "logbus_topic_partitions": {("t",): 2},
        "logbus_topic_size_bytes": {("t",): 700},
        "logbus_topic_under_replicated_partitions": {("t",): 1},
        "logbus_topic_records": {("t",): 14},
        "logbus_group_lag_records": {("g", "t"): 10},
        "logbus_group_lag_seconds": {("g", "t"): 8.0},
        "logbus_group_members": {("g",): 4},
        "logbus_series_dropped": {(): 0},
        "logbus_sample_failures": {("NO_BROKERS",): 2},
        "logbus_sample_duration_seconds": {},
        "logbus_partition_start_offset": {("t", "0"): 2, ("t", "1"): 0},
        "logbus_partition_end_offset": {("t", "0"): 9, ("t", "1"): 5},
        "logbus_partition_leader": {("t", "0"): 2, ("t", "1"): -1},
        "logbus_partition_isr_size": {("t", "0"): 2, ("t", "1"): 0},
        "logbus_group_committed_offset": {("g", "t", "0"): 3, ("g", "t", "1"): 1},
        "kafka_brokers": {(): 1},
        "kafka_topic_partitions": {("t",): 2},
        "kafka_topic_partition_current_offset": {("t", "0"): 9, ("t", "1"): 5},
        "kafka_topic_partition_oldest_offset": {("t", "0"): 2, ("t", "1"): 0},
        "kafka_topic_partition_leader": {("t", "0"): 2, ("t", "1"): -1},
        "kafka_topic_partition_leader_is_preferred": {("t", "0"): True, ("t", "1"): False},
        "kafka_topic_partition_replicas": {("t", "0"): 3, ("t", "1"): 1},
        "kafka_topic_partition_in_sync_replica": {("t", "0"): 2, ("t", "1"): 0},
        "kafka_topic_partition_under_replicated_partition": {("t", "0"): True, ("t", "1"): True},
        "kafka_consumergroup_current_offset": {("g", "t", "0"): 3, ("g", "t", "1"): 1},
        "kafka_consumergroup_current_offset_sum": {("g", "t"): 4},
        "kafka_consumergroup_lag": {("g", "t", "0"): 6, ("g", "t", "1"): 4},
        "kafka_consumergroup_lag_sum": {("g", "t"): 10},
        "kafka_consumergroup_members": {("g",): 4},
    }
    (buckets,) = (row.buckets for row in rows if row.metric.name == "sample_duration_seconds")
    assert sum(buckets[()][0]) == 1 and buckets[()][1] == 0.3
