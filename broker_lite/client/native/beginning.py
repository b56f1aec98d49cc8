"""Where to begin to read the partitions that were claimed, as an operation for both faces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.client import requests
from broker_lite.client.cluster import Cluster, backoff_ms
from broker_lite.client.native.events import Start
from broker_lite.client.starting import reset_offsets
from broker_lite.client.steps import Operation, Pause
from broker_lite.config import ConsumerConfig
from broker_lite.errors import OffsetOutOfRangeError
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)

LOOKUP_MS = 1000
"""Brokers hear of a topic at about the same time as the group's members do."""


class Begun(NamedTuple):
    """``offsets``: where to begin; a partition that no broker knows yet is absent. ``commits``: of
    those, what the group has to remember, since the end will be somewhere else. ``epochs``: the
    leader epochs of what the group has read."""

    offsets: dict[TopicPartition, int]
    commits: dict[TopicPartition, CommittedOffset]
    epochs: dict[TopicPartition, int]


def beginnings(
    cluster: Cluster,
    group: str,
    starts: Mapping[TopicPartition, Start],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[Begun]:
    """The committed offsets; where there are none, what ``start`` says, but the earliest of a
    partition that was added. Raises OffsetOutOfRangeError for start='none'."""
    yield from _known(cluster, starts)
    view = cluster.view
    ready = [
        where
        for where, start in starts.items()
        if view.partition(where) is not None and view.topic_id(where.topic) == start.topic_id
    ]
    offsets: dict[TopicPartition, int] = {}
    epochs: dict[TopicPartition, int] = {}
    early: list[TopicPartition] = []
    late: list[TopicPartition] = []
    for where in ready:
        start = starts[where]
        if start.committed is not None:
            offsets[where] = start.committed.offset
            if start.committed.leader_epoch >= 0:
                epochs[where] = start.committed.leader_epoch
        elif start.is_added or config.start == "earliest":
            early.append(where)
        elif config.start == "latest":
            late.append(where)
        else:
            raise OffsetOutOfRangeError(
                f"group {group!r} has no offset for {where} and start='none' allows no other; "
                "commit one, or give start='earliest' or 'latest'"
            )
    if early:
        offsets |= yield from reset_offsets(cluster, early, EARLIEST_TIMESTAMP, config, deadline_ms)
    commits = {}
    if late:
        ends = yield from reset_offsets(cluster, late, LATEST_TIMESTAMP, config, deadline_ms)
        offsets |= ends
        commits = {
            where: CommittedOffset(at, topic_id=starts[where].topic_id)
            for where, at in ends.items()
        }
    return Begun(offsets, commits, epochs)


def _known(cluster: Cluster, starts: Mapping[TopicPartition, Start]) -> Operation[None]:
    """Ask for metadata until it has what the registries have, for a second at most."""
    until_ms = cluster.now_ms() + LOOKUP_MS
    attempt = 0
    while True:
        view = cluster.view
        missing = {
            where.topic
            for where, start in starts.items()
            if view.partition(where) is None or view.topic_id(where.topic) != start.topic_id
        }
        if not missing:
            return
        if attempt:
            pause_ms = backoff_ms(attempt)
            if cluster.now_ms() + pause_ms >= until_ms:
                return
            yield Pause(pause_ms)
        yield from requests.refresh(cluster, sorted(missing), until_ms + LOOKUP_MS)
        attempt += 1
