"""Tests of the limit on the time series in the console's ``/metrics``."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from prometheus_client import ProcessCollector

from broker_lite.client.administration.admin import Admin
from broker_lite.client.administration.group_lag import PartitionLag
from broker_lite.client.administration.many_groups import GroupLag
from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.model import CommittedOffset, Endpoint
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
