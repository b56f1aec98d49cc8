"""Look up starting offsets and commit offsets, as a group member.

A partition without a committed offset starts where the option ``start`` says. The exception is a
partition that was added to its topic after the group began to read it: all its records are new, so
it starts at the earliest one. There are two signs that a partition was added:

- It did not exist when this member joined the group.
- When this member joined, the group had committed offsets for partitions of the topic, but only
  with lower numbers. This sign is used only with automatic commits, which commit every
  partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from broker_lite.client.consuming.changes import MemberIdentity, StartBasis
from broker_lite.client.consuming.starting import StartPlan, begin, find_topics
from broker_lite.client.membership.errors import denied_member
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.cluster import Cluster, backoff_ms
from broker_lite.client.operations.requests import PerPartition
from broker_lite.client.transport.steps import Operation, Pause
from broker_lite.config import ConsumerConfig
from broker_lite.errors import (
    FencedInstanceIdError,
    GroupAuthorizationError,
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
"""Milliseconds for which a member waits for open transactions that will commit offsets of the
group.

Then it begins to read only the partitions whose offsets none of these transactions commits."""


@dataclass(slots=True)
class JoinSnapshot:
    """Topics and committed offsets at a member's join, by which it recognises partitions added
    later.

    ``counts`` has the number of partitions of each topic, ``ids`` each topic's id."""

    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    """For each topic, the highest number of a partition with a committed offset; empty without
    automatic commits, since a user's own commits may leave out partitions."""
    ids: dict[str, str] = field(default_factory=dict)
    former: set[str] = field(default_factory=set)
    """Topics that were recreated after the group committed offsets for them."""

    def is_added(self, tp: TopicPartition, topic_id: str) -> bool:
        """Return whether the partition was created after the group began to read the topic."""
        if tp.topic in self.former:
            return True
        known = self.ids.get(tp.topic, NULL_TOPIC_ID)
        if known != topic_id and NULL_TOPIC_ID not in (known, topic_id):
            return True
        count = self.counts.get(tp.topic, 0)
        return tp.partition >= count or tp.partition > self.last.get(tp.topic, count)


def join_snapshot(
    cluster: Cluster,
    group: str,
    topics: tuple[str, ...],
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[JoinSnapshot]:
    """Return the ``JoinSnapshot`` of a member that joins now.

    ``topics`` is empty if it subscribes to a pattern. Raises UnknownTopicOrPartitionError if one of
    ``topics`` does not exist."""
    if topics:
        view = yield from requests.known_topics(cluster, topics, deadline_ms)
    else:
        view = yield from requests.refresh(cluster, None, deadline_ms)
    snapshot = JoinSnapshot({name: len(row.partitions) for name, row in view.topics.items()})
    snapshot.ids = {name: row.topic_id for name, row in view.topics.items()}
    try:
        committed = yield from group_requests.committed(
            cluster, group, None, deadline_ms, snapshot.former
        )
    except GroupAuthorizationError as error:
        raise denied_member(error, cluster.user, group) from None
    if not config.auto_commit:
        return snapshot
    for tp, row in committed.items():
        if isinstance(row, CommittedOffset) and _is_same(cluster, tp, row):
            snapshot.last[tp.topic] = max(tp.partition, snapshot.last.get(tp.topic, -1))
    return snapshot


def _is_same(cluster: Cluster, tp: TopicPartition, row: CommittedOffset) -> bool:
    """Return whether a committed offset belongs to the present topic, not to a deleted one."""
    return row.topic_id in (NULL_TOPIC_ID, cluster.view.topic_id(tp.topic))


def beginnings(
    cluster: Cluster,
    group: str,
    tps: Iterable[TopicPartition],
    *,
    snapshot: JoinSnapshot,
    config: ConsumerConfig,
    deadline_ms: float,
) -> Operation[StartPlan]:
    """Return the starting offsets of a group member's partitions, by the rules of
    ``starting.begin``.

    Partitions that no broker knows yet are left out; with ``read_committed`` also those whose
    committed offset an open transaction may still change (KIP-447)."""
    partitions = sorted(tps)
    if config.start != "earliest":
        # The client's metadata may still be those of a deleted topic with the same name, so refresh
        # them.
        topics = {tp.topic for tp in partitions}
        yield from requests.refresh(cluster, sorted(topics), deadline_ms)
    yield from find_topics(
        cluster, lambda: {w.topic for w in partitions if cluster.view.partition(w) is None}
    )
    ready = [tp for tp in partitions if cluster.view.partition(tp) is not None]
    if config.isolation_level == "read_committed":
        until_ms = min(cluster.now_ms() + STABLE_WAIT_MS, deadline_ms)
        committed, unstable = yield from group_requests.stable(
            cluster, group, ready, until_ms=until_ms, deadline_ms=deadline_ms
        )
        ready = [tp for tp in ready if tp not in unstable]
    else:
        committed = yield from group_requests.committed(cluster, group, ready, deadline_ms)
    rows = requests.raise_first(committed)
    bases = {}
    for tp in ready:
        topic_id = cluster.view.topic_id(tp.topic)
        row = rows.get(tp)
        if row is not None and not _is_same(cluster, tp, row):
            row = None
        bases[tp] = StartBasis(row, snapshot.is_added(tp, topic_id), topic_id)
    return (yield from begin(cluster, group, bases, config, deadline_ms))


class CommittingMember(Protocol):
    """The group member that commits. A rebalance may change its member id or generation during a
    commit."""

    @property
    def identity(self) -> MemberIdentity | None:
        """The identity (member id, generation, instance id) to commit with; None if not a
        member."""

    def holds(self, tp: TopicPartition, grant: int | None) -> bool:
        """Return whether the member still owns the partition by the assignment with the number
        ``grant``."""


def commit(
    cluster: Cluster,
    group: str,
    rows: Mapping[TopicPartition, CommittedOffset],
    *,
    grants: Mapping[TopicPartition, int],
    member: CommittingMember,
    deadline_ms: float,
) -> Operation[PerPartition[None]]:
    """Commit offsets as a group member. Return None or an error for each partition.

    ``grants`` has the number of each partition's assignment (``Assign``). A partition that
    the member has lost gets NotOwnerError, and its committed offset does not change. During a
    rebalance the commit is retried. If it has not succeeded at the deadline, the partitions get
    RebalanceInProgressError, and the caller may commit again."""
    done: PerPartition[None] = {}
    pending = dict(rows)
    attempt = 0
    while pending:
        # Read the member's identity (id and generation) before checking that it still owns the
        # partitions. If a rebalance happens in between, the commit has the old generation, and the
        # coordinator refuses the commit.
        identity = member.identity
        for tp in list(pending):
            if identity is None or not member.holds(tp, grants.get(tp)):
                done[tp] = not_owner(tp)
                del pending[tp]
        if identity is None or not pending:
            break
        outcomes = yield from group_requests.commit_offsets(
            cluster, group, pending, deadline_ms, identity
        )
        problem: LogbusError | None = None
        for tp, error in outcomes.items():
            match error:
                case IllegalGenerationError() | RebalanceInProgressError():
                    problem = error
                    continue
                case UnknownMemberIdError():
                    done[tp] = not_owner(tp)
                case FencedInstanceIdError():
                    done[tp] = NotOwnerError(f"{tp}: {error.message}")
                case _:
                    done[tp] = error
            pending.pop(tp, None)
        pause_ms = backoff_ms(attempt)
        if problem is None:
            break
        if cluster.now_ms() + pause_ms >= deadline_ms:
            late = RebalanceInProgressError(f"group {group!r} still rebalances; commit again")
            done.update(dict.fromkeys(pending, late))
            break
        yield Pause(pause_ms)
        attempt += 1
    return done


def not_owner(tp: TopicPartition) -> NotOwnerError:
    return NotOwnerError(
        f"{tp} is not assigned to this member any more; drop its records, because the next owner "
        "resumes from the committed offset"
    )
