"""Start offsets and commits of a group member, as operations for both faces.

A partition without a committed offset starts by ``start``. A partition that was added after the
group began to read starts at its earliest record instead. A partition counts as added if it
appeared while the member was present, or if its number is above the last committed one when the
member joined. The second rule holds only for automatic commits, which cover all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broker_lite.client.consuming.changes import MemberIdentity, Standing
from broker_lite.client.consuming.starting import Begun, begin, find_topics
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.cluster import Cluster, backoff_ms
from broker_lite.client.operations.requests import PerPartition
from broker_lite.client.transport.steps import Operation, Pause
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    LogbusError,
    NotOwnerError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from broker_lite.model import (
    NULL_TOPIC_ID,
    CommittedOffset,
    TopicPartition,
)

STABLE_WAIT_MS = 1000
"""Milliseconds to wait for an open transaction before the other partitions start without the
unstable ones."""


@dataclass(slots=True)
class FirstLook:
    """The topics and the group's offsets when the member joined."""

    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """The highest committed partition of each topic of which all partitions are committed."""
    ids: dict[str, str] = field(default_factory=dict)
    former: set[str] = field(default_factory=set)
    """Topics that were recreated since the group began to read their predecessors."""

    def is_added(self, where: TopicPartition, topic_id: str) -> bool:
        """Return whether the group began to read before this partition of the topic was created."""
        if where.topic in self.former:
            return True
        known = self.ids.get(where.topic, NULL_TOPIC_ID)
        if known != topic_id and NULL_TOPIC_ID not in (known, topic_id):
            return True
        count = self.counts.get(where.topic, 0)
        return where.partition >= count or where.partition > self.last.get(where.topic, count)


def first_look(
    cluster: Cluster,
    group: str,
    topics: tuple[str, ...],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[FirstLook]:
    """Return the first look. ``topics`` is () for a pattern. Raises
    UnknownTopicOrPartitionError."""
    if topics:
        view = yield from requests.known_topics(cluster, topics, deadline_ms)
    else:
        view = yield from requests.refresh(cluster, None, deadline_ms)
    look = FirstLook({name: len(row.partitions) for name, row in view.topics.items()})
    look.ids = {name: row.topic_id for name, row in view.topics.items()}
    found = yield from group_requests.committed(cluster, group, None, deadline_ms, look.former)
    if not config.auto_commit:
        return look
    for where, row in found.items():
        if isinstance(row, CommittedOffset) and _is_same(cluster, where, row):
            look.last[where.topic] = max(where.partition, look.last.get(where.topic, -1))
    return look


def _is_same(cluster: Cluster, where: TopicPartition, row: CommittedOffset) -> bool:
    """Return whether an offset belongs to the topic that has the name now."""
    return row.topic_id in (NULL_TOPIC_ID, cluster.view.topic_id(where.topic))


def beginnings(
    cluster: Cluster,
    group: str,
    wheres: Iterable[TopicPartition],
    *,
    look: FirstLook,
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[Begun]:
    """Return start offsets (``starting.begin``), without partitions that no broker knows yet.

    A consumer of committed records also leaves out partitions for which an open transaction has an
    offset that it has not committed (KIP-447).
    """
    wanted = sorted(wheres)
    if config.start != "earliest":
        # The cached metadata may describe a deleted topic of this name.
        topics = {where.topic for where in wanted}
        yield from requests.refresh(cluster, sorted(topics), deadline_ms)
    yield from find_topics(
        cluster, lambda: {w.topic for w in wanted if cluster.view.partition(w) is None}
    )
    ready = [where for where in wanted if cluster.view.partition(where) is not None]
    if config.isolation_level == "read_committed":
        until_ms = min(cluster.now_ms() + STABLE_WAIT_MS, deadline_ms)
        found, unstable = yield from group_requests.stable(
            cluster, group, ready, until_ms=until_ms, deadline_ms=deadline_ms
        )
        ready = [where for where in ready if where not in unstable]
    else:
        found = yield from group_requests.committed(cluster, group, ready, deadline_ms)
    rows = requests.raise_first(found)
    standings = {}
    for where in ready:
        topic_id = cluster.view.topic_id(where.topic)
        row = rows.get(where)
        if row is not None and not _is_same(cluster, where, row):
            row = None
        standings[where] = Standing(row, look.is_added(where, topic_id), topic_id)
    return (yield from begin(cluster, group, standings, config, deadline_ms))


class Seat(Protocol):
    """The committer: a member whose identity may change during a commit."""

    @property
    def identity(self) -> MemberIdentity | None:
        """Return the identity to commit with; None: not a member now."""

    def holds(self, where: TopicPartition, grant: int | None) -> bool:
        """Return whether the reader still has a partition under this grant."""


def commit(
    cluster: Cluster,
    group: str,
    rows: Mapping[TopicPartition, CommittedOffset],
    *,
    grants: Mapping[TopicPartition, int],
    seat: Seat,
    deadline_ms: float,
) -> Operation[PerPartition[None]]:
    """Commit as a member of the present generation; return each partition's result.

    ``grants`` has the grant under which the reader read each partition. NotOwnerError: the member
    lost the partition, and nothing was changed. During a rebalance that keeps the partition the
    commit waits; RebalanceInProgressError after the timeout: commit again.
    """
    done: PerPartition[None] = {}
    pending = dict(rows)
    attempt = 0
    while pending:
        # Identity before rows: no commit runs in a generation that began in between.
        identity = seat.identity
        for where in list(pending):
            if identity is None or not seat.holds(where, grants.get(where)):
                done[where] = not_owner(where)
                del pending[where]
        if identity is None or not pending:
            break
        found = yield from group_requests.commit_offsets(
            cluster, group, pending, deadline_ms, identity
        )
        problem: LogbusError | None = None
        for where, error in found.items():
            match error:
                case IllegalGenerationError() | RebalanceInProgressError():
                    problem = error
                    continue
                case UnknownMemberIdError():
                    done[where] = not_owner(where)
                case FencedInstanceIdError():
                    done[where] = NotOwnerError(f"{where}: {error.message}")
                case _:
                    done[where] = error
            pending.pop(where, None)
        pause_ms = backoff_ms(attempt)
        if problem is None:
            break
        if cluster.now_ms() + pause_ms >= deadline_ms:
            late = RebalanceInProgressError(f"group {group!r} gathers still; commit again")
            done.update(dict.fromkeys(pending, late))
            break
        yield Pause(pause_ms)
        attempt += 1
    return done


def not_owner(where: TopicPartition) -> NotOwnerError:
    return NotOwnerError(
        f"{where} is not this member's (any more); its next owner goes on from what was committed"
    )
