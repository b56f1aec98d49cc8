"""The start offsets of claimed partitions, as an operation for both faces."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.client.consuming.changes import Standing
from broker_lite.client.consuming.starting import Begun, begin, find_topics
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.transport.steps import Operation
from broker_lite.config import ConsumerConfig
from broker_lite.model import TopicPartition


def beginnings(
    cluster: Cluster,
    group: str,
    standings: Mapping[TopicPartition, Standing],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[Begun]:
    """Return the start offsets (``starting.begin``), without partitions that no broker knows
    under the registry's topic id."""

    def is_known(where: TopicPartition) -> bool:
        view = cluster.view
        topic_id = standings[where].topic_id
        return view.partition(where) is not None and view.topic_id(where.topic) == topic_id

    yield from find_topics(
        cluster, lambda: {where.topic for where in standings if not is_known(where)}
    )
    known = {where: row for where, row in standings.items() if is_known(where)}
    return (yield from begin(cluster, group, known, config, deadline_ms))
