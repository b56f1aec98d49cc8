"""The start offsets of claimed partitions, as an operation for both faces."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.client.consuming.starting import Begun, Standing, begin, find_topics
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Operation
from broker_lite.config import ConsumerConfig
from broker_lite.model import TopicPartition
from broker_lite.native.events import PartitionStart


def beginnings(
    cluster: Cluster,
    group: str,
    starts: Mapping[TopicPartition, PartitionStart],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[Begun]:
    """Return the start offsets (``starting.begin``), without partitions that no broker knows
    under the registry's topic id."""

    def is_known(where: TopicPartition) -> bool:
        view = cluster.view
        topic_id = starts[where].topic_id
        return view.partition(where) is not None and view.topic_id(where.topic) == topic_id

    yield from find_topics(
        cluster, lambda: {where.topic for where in starts if not is_known(where)}
    )
    standings = {
        where: Standing(start.committed, start.is_added, start.topic_id)
        for where, start in starts.items()
        if is_known(where)
    }
    return (yield from begin(cluster, group, standings, config, deadline_ms))
