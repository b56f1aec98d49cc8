"""Which partitions a consumer reads and where it begins, as operations for both shells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_lite.client import requests
from broker_lite.client.admin import isolation_code
from broker_lite.client.cluster import Cluster, made_again
from broker_lite.client.steps import Operation
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NULL_TOPIC_ID,
    TopicPartition,
)


def resolve_partitions(
    cluster: Cluster,
    topics: Sequence[str],
    partitions: Iterable[TopicPartition | int] | None,
    deadline_ms: float,
) -> Operation[list[TopicPartition]]:
    """All partitions of the topics, or those that were chosen, which must exist."""
    chosen: list[TopicPartition] | None = None
    if partitions is not None:
        chosen = []
        for each in partitions:
            if isinstance(each, TopicPartition):
                chosen.append(each)
            elif len(topics) == 1:
                chosen.append(TopicPartition(topics[0], int(each)))
            else:
                raise InvalidConfigError(
                    f"partition {each}: of which topic? give TopicPartition(topic, {each})"
                )
        topics = tuple(dict.fromkeys([*topics, *(where.topic for where in chosen)]))
    if not topics:
        raise InvalidConfigError("a consumer needs a topic: bus.consumer('topic')")
    view = yield from requests.known_topics(cluster, topics, deadline_ms)
    if chosen is None:
        return [where for topic in topics for where in view.partitions_of(topic)]
    for where in chosen:
        if view.partition(where) is None:
            raise UnknownTopicOrPartitionError(
                f"topic {where.topic!r} has {len(view.partitions_of(where.topic))} partitions, "
                f"numbered from 0; {where.partition} is none"
            )
    return list(dict.fromkeys(chosen))


def starting_offsets(
    cluster: Cluster,
    group: str | None,
    wheres: Sequence[TopicPartition],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[dict[TopicPartition, int]]:
    """The group's offsets; where there is none, what ``start`` says. Raises UnknownTopicIdError
    for a topic that is made again meanwhile: offsets of two topics would be mixed."""
    ids = {where.topic: cluster.view.topic_id(where.topic) for where in wheres}
    offsets: dict[TopicPartition, int] = {}
    if group is not None:
        found = requests.raise_first(
            (yield from requests.committed(cluster, group, wheres, deadline_ms))
        )
        for where, row in found.items():
            if row.topic_id not in (NULL_TOPIC_ID, ids[where.topic]):
                raise made_again(where.topic)
        offsets = {where: row.offset for where, row in found.items()}
    missing = [where for where in wheres if where not in offsets]
    if missing and config.start == "none":
        raise OffsetOutOfRangeError(
            f"group {group!r} has no offset for {missing[0]} and start='none' allows no other; "
            "commit one, or give start='earliest' or 'latest'"
        )
    if missing:
        timestamp = EARLIEST_TIMESTAMP if config.start == "earliest" else LATEST_TIMESTAMP
        listed = yield from reset_offsets(cluster, missing, timestamp, config, deadline_ms)
        offsets.update(listed)
    for topic, topic_id in ids.items():
        if cluster.view.topic_id(topic) != topic_id:
            raise made_again(topic)
    return {where: offsets[where] for where in wheres}


def reset_offsets(
    cluster: Cluster,
    wheres: Sequence[TopicPartition],
    timestamp_ms: int,
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[dict[TopicPartition, int]]:
    """Offsets by time (-2 earliest, -1 latest); the end where nothing is as new."""
    isolation_level = isolation_code(config.isolation_level)
    listed = requests.raise_first(
        (
            yield from requests.list_offsets(
                cluster,
                dict.fromkeys(wheres, timestamp_ms),
                isolation_level=isolation_level,
                deadline_ms=deadline_ms,
            )
        )
    )
    offsets = {where: row.offset for where, row in listed.items()}
    behind = [where for where, offset in offsets.items() if offset < 0]
    if behind and timestamp_ms != LATEST_TIMESTAMP:
        ends = yield from reset_offsets(cluster, behind, LATEST_TIMESTAMP, config, deadline_ms)
        offsets.update(ends)
    return offsets
