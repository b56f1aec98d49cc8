"""Look up the offsets at which a consumer of a native group (without a coordinator) starts to read
its partitions."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.client.consuming.changes import StartBasis
from broker_lite.client.consuming.starting import StartPlan, begin, find_topics
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Operation
from broker_lite.config import ConsumerConfig
from broker_lite.model import TopicPartition


def beginnings(
    cluster: Cluster,
    group: str,
    bases: Mapping[TopicPartition, StartBasis],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[StartPlan]:
    """Return the starting offset of each partition in ``bases``, which has the committed offsets.

    A partition of a recreated topic is left out while the brokers' metadata or this consumer's
    reads of ZooKeeper still show the former topic id."""

    def is_known(tp: TopicPartition) -> bool:
        view = cluster.view
        topic_id = bases[tp].topic_id
        return view.partition(tp) is not None and view.topic_id(tp.topic) == topic_id

    yield from find_topics(cluster, lambda: {tp.topic for tp in bases if not is_known(tp)})
    known = {tp: row for tp, row in bases.items() if is_known(tp)}
    return (yield from begin(cluster, group, known, config, deadline_ms))
