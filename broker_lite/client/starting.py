"""Which partitions a consumer reads and where it begins, as operations for both shells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
    CommittedOffset,
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


class Starts(NamedTuple):
    """Where to begin. ``epochs``: of what the group has read before its offset, where it said; so
    that a log that lost it since, by an unclean election, is not read on as if nothing were."""

    offsets: dict[TopicPartition, int]
    epochs: dict[TopicPartition, int]


def starting_offsets(
    cluster: Cluster,
    group: str | None,
    wheres: Sequence[TopicPartition],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[Starts]:
    """The group's offsets; where there is none, what ``start`` says, but the earliest of a topic
    that was made again since the group read the former one. Raises UnknownTopicIdError
    for a topic that is made again meanwhile: offsets of two topics would be mixed."""
    ids = {where.topic: cluster.view.topic_id(where.topic) for where in wheres}
    offsets: dict[TopicPartition, int] = {}
    epochs: dict[TopicPartition, int] = {}
    former: set[str] = set()
    if group is not None:
        rows = yield from _group_offsets(cluster, group, wheres, ids, deadline_ms, former)
        offsets = {where: row.offset for where, row in rows.items()}
        epochs = {where: row.leader_epoch for where, row in rows.items() if row.leader_epoch >= 0}
    # All of a topic that was made again since the group began was written since.
    early = [where for where in wheres if where not in offsets and where.topic in former]
    if early:
        offsets |= yield from reset_offsets(cluster, early, EARLIEST_TIMESTAMP, config, deadline_ms)
    missing = [where for where in wheres if where not in offsets]
    if missing and config.start == "none":
        raise OffsetOutOfRangeError(
            f"group {group!r} has no offset for {missing[0]} and start='none' allows no other; "
            "commit one, or give start='earliest' or 'latest'"
        )
    ends: dict[TopicPartition, int] = {}
    if missing and config.start == "earliest":
        offsets |= yield from reset_offsets(
            cluster, missing, EARLIEST_TIMESTAMP, config, deadline_ms
        )
    elif missing:
        ends = yield from reset_offsets(cluster, missing, LATEST_TIMESTAMP, config, deadline_ms)
        offsets |= ends
    for topic, topic_id in ids.items():
        if cluster.view.topic_id(topic) != topic_id:
            raise made_again(topic)
    if ends and group is not None and config.auto_commit:
        # Else the end would be somewhere else for whoever takes over after a crash.
        commits = {
            where: CommittedOffset(at, topic_id=ids[where.topic]) for where, at in ends.items()
        }
        done = yield from requests.commit_offsets(cluster, group, commits, deadline_ms)
        requests.raise_first(done)
    return Starts({where: offsets[where] for where in wheres}, epochs)


def _group_offsets(
    cluster: Cluster,
    group: str,
    wheres: Sequence[TopicPartition],
    ids: Mapping[str, str],
    deadline_ms: float,
    former: set[str],
) -> Operation[dict[TopicPartition, CommittedOffset]]:
    """Where the group stands; absent where it has no offset."""
    found = requests.raise_first(
        (yield from requests.committed(cluster, group, wheres, deadline_ms, former))
    )
    for where, row in found.items():
        if row.topic_id not in (NULL_TOPIC_ID, ids[where.topic]):
            raise made_again(where.topic)
    return found


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
