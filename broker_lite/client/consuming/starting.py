"""Find a consumer's partitions and the offsets where it begins to read them.

The functions are operations: generators that yield requests, which the blocking and the asyncio
consumer both run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from broker_lite.client.consuming.changes import StartBasis
from broker_lite.client.operations import group_requests, offset_requests, requests
from broker_lite.client.operations.cluster import Cluster, backoff_ms, made_again
from broker_lite.client.transport.steps import Operation, Pause
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NULL_TOPIC_ID,
    CommittedOffset,
    TopicPartition,
)

LOOKUP_MS = 1000
"""Milliseconds for which ``find_topics`` repeats the lookup of a topic that brokers do not know."""


def resolve_partitions(
    cluster: Cluster,
    topics: Sequence[str],
    partitions: Iterable[TopicPartition | int] | None,
    deadline_ms: float,
) -> Operation[list[TopicPartition]]:
    """Return all partitions of ``topics``, or only the chosen ``partitions``.

    Raises UnknownTopicOrPartitionError if a topic or a chosen partition does not exist.
    """
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
                    f"partition {each} names no topic; give TopicPartition(topic, {each})"
                )
        topics = tuple(dict.fromkeys([*topics, *(tp.topic for tp in chosen)]))
    if not topics:
        raise InvalidConfigError("a consumer needs a topic: bus.consumer('topic')")
    view = yield from requests.known_topics(cluster, topics, deadline_ms)
    if chosen is None:
        return [tp for topic in topics for tp in view.partitions_of(topic)]
    for tp in chosen:
        if view.partition(tp) is None:
            raise UnknownTopicOrPartitionError(
                f"topic {tp.topic!r} has {len(view.partitions_of(tp.topic))} partitions, "
                f"numbered from 0, and no partition {tp.partition}; choose another"
            )
    return list(dict.fromkeys(chosen))


class Starts(NamedTuple):
    """Starting offsets of partitions, with leader epochs.

    ``epochs`` has the leader epochs of committed offsets, where known. The leader compares them
    with its log, to find out whether an unclean election lost records before the offset."""

    offsets: dict[TopicPartition, int]
    epochs: dict[TopicPartition, int]


class StartPlan(NamedTuple):
    """Starting offsets, and the offsets that the member must commit before it reads.

    ``commits`` has the log end offsets from which ``start="latest"`` reads. Without the commit, the
    partition's next owner would start at a later log end and skip records."""

    starts: Starts
    commits: dict[TopicPartition, CommittedOffset]


def begin(
    cluster: Cluster,
    group: str | None,
    bases: Mapping[TopicPartition, StartBasis],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[StartPlan]:
    """Return where to begin reading each partition in ``bases``.

    A partition begins at its committed offset. Without a committed offset, it begins at its
    earliest record if it was added after the group began to read the topic, else where the option
    ``start`` says; if that is "none", raises OffsetOutOfRangeError."""
    offsets: dict[TopicPartition, int] = {}
    epochs: dict[TopicPartition, int] = {}
    early: list[TopicPartition] = []
    late: list[TopicPartition] = []
    for tp, (committed, is_added, _) in bases.items():
        if committed is not None:
            offsets[tp] = committed.offset
            if committed.leader_epoch >= 0:
                epochs[tp] = committed.leader_epoch
        elif is_added or config.start == "earliest":
            early.append(tp)
        elif config.start == "latest":
            late.append(tp)
        else:
            raise OffsetOutOfRangeError(
                f"group {group!r} has no committed offset for {tp}, and start='none' gives no "
                "other start; commit an offset, or give start='earliest' or 'latest'"
            )
    if early:
        offsets |= yield from reset_offsets(cluster, early, EARLIEST_TIMESTAMP, config, deadline_ms)
    commits = {}
    if late:
        ends = yield from reset_offsets(cluster, late, LATEST_TIMESTAMP, config, deadline_ms)
        offsets |= ends
        commits = {tp: CommittedOffset(at, topic_id=bases[tp].topic_id) for tp, at in ends.items()}
    return StartPlan(Starts({tp: offsets[tp] for tp in bases}, epochs), commits)


def starting_offsets(
    cluster: Cluster,
    group: str | None,
    tps: Sequence[TopicPartition],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[Starts]:
    """Return the starting offsets of a consumer that is not a member of a group.

    With ``group``, they are its committed offsets; a topic that was recreated after the commit
    starts at its earliest record. Raises UnknownTopicIdError if a topic is recreated during the
    call."""
    ids = {tp.topic: cluster.view.topic_id(tp.topic) for tp in tps}
    rows: dict[TopicPartition, CommittedOffset] = {}
    former: set[str] = set()
    if group is not None:
        rows = yield from _group_offsets(
            cluster,
            group,
            tps,
            ids=ids,
            former=former,
            deadline_ms=deadline_ms,
            is_stable=config.isolation_level == "read_committed",
        )
    bases = {tp: StartBasis(rows.get(tp), tp.topic in former, ids[tp.topic]) for tp in tps}
    plan = yield from begin(cluster, group, bases, config, deadline_ms)
    for topic, topic_id in ids.items():
        if cluster.view.topic_id(topic) != topic_id:
            raise made_again(topic)
    if plan.commits and group is not None and config.auto_commit:
        done = yield from group_requests.commit_offsets(cluster, group, plan.commits, deadline_ms)
        requests.raise_first(done)
    return plan.starts


def find_topics(cluster: Cluster, missing: Callable[[], set[str]]) -> Operation[None]:
    """Refresh the metadata until no topic is missing (``missing()``), for at most one second.

    A group member may learn of a new topic from its group before the brokers know it."""
    until_ms = cluster.now_ms() + LOOKUP_MS
    attempt = 0
    while topics := missing():
        if attempt:
            pause_ms = backoff_ms(attempt)
            if cluster.now_ms() + pause_ms >= until_ms:
                return
            yield Pause(pause_ms)
        yield from requests.refresh(cluster, sorted(topics), until_ms + LOOKUP_MS)
        attempt += 1


def _group_offsets(
    cluster: Cluster,
    group: str,
    tps: Sequence[TopicPartition],
    *,
    ids: Mapping[str, str],
    former: set[str],
    deadline_ms: float,
    is_stable: bool,
) -> Operation[dict[TopicPartition, CommittedOffset]]:
    """Return the group's committed offsets, without partitions that have none.

    Names of topics that were recreated after the commit are added to ``former``. With
    ``is_stable``, wait for open transactions with offsets of the group. Raises
    UnstableOffsetCommitError after the deadline."""
    if is_stable:
        rows, unstable = yield from group_requests.stable(
            cluster, group, tps, until_ms=deadline_ms, deadline_ms=deadline_ms, former=former
        )
        if unstable:
            raise UnstableOffsetCommitError(
                f"the committed offset of group {group!r} for {min(unstable)} is not final: an "
                "open transaction writes it. Wait for its end (see: logbus transactions list)"
            )
    else:
        rows = yield from group_requests.committed(cluster, group, tps, deadline_ms, former)
    committed = requests.raise_first(rows)
    for tp, row in committed.items():
        if row.topic_id not in (NULL_TOPIC_ID, ids[tp.topic]):
            raise made_again(tp.topic)
    return committed


def reset_offsets(
    cluster: Cluster,
    tps: Sequence[TopicPartition],
    timestamp_ms: int,
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[dict[TopicPartition, int]]:
    """Return the offset of each partition's first record at or after a timestamp.

    The timestamp is in ms since 1970; -2 stands for the earliest record and -1 for the end of the
    log. A partition without such a record has its end offset."""
    isolation_level = offset_requests.isolation_code(config.isolation_level)
    listed = requests.raise_first(
        (
            yield from offset_requests.list_offsets(
                cluster,
                dict.fromkeys(tps, timestamp_ms),
                isolation_level=isolation_level,
                deadline_ms=deadline_ms,
            )
        )
    )
    offsets = {tp: row.offset for tp, row in listed.items()}
    behind = [tp for tp, offset in offsets.items() if offset < 0]
    if behind and timestamp_ms != LATEST_TIMESTAMP:
        ends = yield from reset_offsets(cluster, behind, LATEST_TIMESTAMP, config, deadline_ms)
        offsets.update(ends)
    return offsets
