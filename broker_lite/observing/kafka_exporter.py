"""The metrics of a cluster under the names of kafka_exporter, for existing dashboards and alerts.

``logbus console --compat kafka_exporter`` serves these metrics in addition to logbus's own. No
I/O."""

from __future__ import annotations

from broker_lite.client.operations.cluster import PartitionMetadata
from broker_lite.model import TopicPartition
from broker_lite.observing.reading import ClusterReading
from broker_lite.server.metrics import GAUGE, Metric, Sample

PREFIX = "kafka_"
_TP = ("topic", "partition")
_GROUP = ("consumergroup", "topic")

KAFKA_METRICS = {
    metric.name: metric
    for metric in (
        Metric("brokers", GAUGE, "Brokers that run.", (), PREFIX),
        Metric("topic_partitions", GAUGE, "Partitions of a topic.", ("topic",), PREFIX),
        Metric("topic_partition_current_offset", GAUGE, "End offset.", _TP, PREFIX),
        Metric("topic_partition_oldest_offset", GAUGE, "First offset.", _TP, PREFIX),
        Metric("topic_partition_leader", GAUGE, "Leader's id; -1 without one.", _TP, PREFIX),
        Metric("topic_partition_leader_is_preferred", GAUGE, "1 if so.", _TP, PREFIX),
        Metric("topic_partition_replicas", GAUGE, "Replicas.", _TP, PREFIX),
        Metric("topic_partition_in_sync_replica", GAUGE, "In-sync replicas.", _TP, PREFIX),
        Metric("topic_partition_under_replicated_partition", GAUGE, "1 if so.", _TP, PREFIX),
        Metric("consumergroup_current_offset", GAUGE, "Committed offset.",
               (*_GROUP, "partition"), PREFIX),
        Metric("consumergroup_current_offset_sum", GAUGE, "Committed offsets.", _GROUP, PREFIX),
        Metric("consumergroup_lag", GAUGE, "Unread records.", (*_GROUP, "partition"), PREFIX),
        Metric("consumergroup_lag_sum", GAUGE, "Unread records.", _GROUP, PREFIX),
        Metric("consumergroup_members", GAUGE, "Live members.", ("consumergroup",), PREFIX),
    )
}  # fmt: skip
"""The metrics of kafka_exporter by name, without the prefix ``kafka_``."""

Values = dict[tuple[str, ...], float]
"""The value of a metric for each combination of label values."""


def kafka_samples(reading: ClusterReading) -> list[Sample]:
    """Return all metrics of ``KAFKA_METRICS`` for a reading of the cluster."""
    view = reading.sample.view
    metrics: dict[str, Values] = {name: {} for name in KAFKA_METRICS}
    metrics["brokers"][()] = len(view.brokers)
    for name, topic in view.topics.items():
        metrics["topic_partitions"][(name,)] = len(topic.partitions)
    for tp, part in view.rows:
        for metric, value in _of_partition(tp, part, reading).items():
            metrics[metric][(tp.topic, str(tp.partition))] = value
    for name, row in reading.groups.items():
        metrics["consumergroup_members"][(name,)] = row.members
        for tp, lag in reading.lags[name].partitions.items():
            labels = (name, tp.topic, str(tp.partition))
            if lag.committed is not None:
                metrics["consumergroup_current_offset"][labels] = lag.committed.offset
            if lag.records is not None:
                metrics["consumergroup_lag"][labels] = lag.records
    for metric in ("consumergroup_current_offset", "consumergroup_lag"):
        for (name, topic_name, _), value in metrics[metric].items():
            sums = metrics[f"{metric}_sum"]
            sums[(name, topic_name)] = sums.get((name, topic_name), 0) + value
    return [Sample(KAFKA_METRICS[name], values) for name, values in metrics.items()]


def _of_partition(
    tp: TopicPartition, part: PartitionMetadata, reading: ClusterReading
) -> dict[str, float]:
    values: dict[str, float] = {
        "topic_partition_leader": part.leader,
        "topic_partition_leader_is_preferred": part.replicas[:1] == (part.leader,),
        "topic_partition_replicas": len(part.replicas),
        "topic_partition_in_sync_replica": len(part.isr),
        "topic_partition_under_replicated_partition": len(part.isr) < len(part.replicas),
    }
    if tp in reading.ends:
        values["topic_partition_current_offset"] = reading.ends[tp]
    if tp in reading.starts:
        values["topic_partition_oldest_offset"] = reading.starts[tp]
    return values
