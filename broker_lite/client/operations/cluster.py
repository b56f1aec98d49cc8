"""The client's metadata of a cluster: brokers, topics and partition leaders. No I/O.

``ClusterView`` is an immutable snapshot, which users see. ``Cluster`` is shared by a client's
operations (``requests``): the newest view, the brokers' addresses and the clock. A refresh replaces
the whole view, so readers on other threads need no lock. Of two simultaneous refreshes, the later
response counts. A partition that it lacks, or has in an earlier leader epoch, stays as it was."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.errors import (
    LeaderNotAvailableError,
    LogbusError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NO_BROKER, NO_EPOCH, NULL_TOPIC_ID, Endpoint, TopicPartition

BACKOFF_FIRST_MS = 50
BACKOFF_MAX_MS = 1000
"""``BACKOFF_FIRST_MS`` is the pause (ms) before the first retry, ``BACKOFF_MAX_MS`` the longest."""


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The metadata of one partition. ``leader`` is -1 while the partition has no leader."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: LogbusError | None = None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """The metadata of one topic. For a missing topic, ``error`` is set and ``partitions`` is
    empty."""

    name: str
    topic_id: str = NULL_TOPIC_ID
    error: LogbusError | None = None
    partitions: tuple[PartitionMetadata, ...] = ()

    @property
    def rows(self) -> Iterator[tuple[TopicPartition, PartitionMetadata]]:
        """Each partition with its metadata."""
        return ((TopicPartition(self.name, row.partition), row) for row in self.partitions)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The metadata that a broker returned: the live brokers and the requested topics.

    ``racks`` has the rack of each broker with the setting ``broker.rack``."""

    cluster_id: str = ""
    controller_id: int = NO_BROKER
    brokers: Mapping[int, Endpoint] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    racks: Mapping[int, str] = field(default_factory=dict)

    @property
    def rows(self) -> Iterator[tuple[TopicPartition, PartitionMetadata]]:
        """Each partition of the topics with its metadata."""
        return (row for topic in self.topics.values() for row in topic.rows)

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        """Return the metadata of a partition, or None if it is unknown."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.partitions):
            return None
        return topic.partitions[tp.partition]

    def leader(self, tp: TopicPartition) -> Endpoint | None:
        """Return the address of a partition's leader, or None without a live leader."""
        known = self.partition(tp)
        return None if known is None else self.brokers.get(known.leader)

    def leader_epoch(self, tp: TopicPartition) -> int:
        """Return the leader epoch of a partition, or -1 if it is unknown."""
        known = self.partition(tp)
        return NO_EPOCH if known is None else known.leader_epoch

    def has_copies(self, tp: TopicPartition) -> bool:
        """Return whether more than one replica is in sync: another may have an intact copy of a
        batch."""
        known = self.partition(tp)
        return known is not None and len(known.isr) > 1

    def topic_id(self, topic: str) -> str:
        """Return a topic's id, or the null id if unknown."""
        known = self.topics.get(topic)
        return NULL_TOPIC_ID if known is None else known.topic_id

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return all partitions of a topic; none for an unknown topic."""
        known = self.topics.get(topic)
        rows = known.partitions if known else ()
        return tuple(TopicPartition(topic, row.partition) for row in rows)

    def merged(self, newer: ClusterView) -> ClusterView:
        """Return ``newer``, plus the topics that only this view has.

        ``newer`` may contain only a few requested topics."""
        return replace(newer, topics={**self.topics, **newer.topics})


@dataclass(slots=True)
class Cluster:
    """The newest metadata, bootstrap addresses and clock, which all operations of a client share.

    ``now_ms`` returns monotonic time. ``view_ms`` is the time of the newest metadata, ``whole_ms``
    that of the newest metadata of all topics. ``user`` is the user name of the login; "" if a
    certificate or a token names the user. ``has_answered`` says whether a broker has ever answered
    this client, or the ``Bus`` that created it. If so, the addresses are right, and operations need
    not give up after five seconds."""

    bootstrap: tuple[Endpoint, ...]
    now_ms: Callable[[], float]
    user: str = ""
    has_answered: bool = False
    view: ClusterView = field(default_factory=ClusterView)
    view_ms: float = float("-inf")
    whole_ms: float = float("-inf")
    _first: int = 0

    def candidates(self) -> list[Endpoint]:
        """Return the brokers to try, in order, for a request that any broker can answer.

        They are the live brokers and the bootstrap addresses. An address that failed moves to the
        end."""
        known = [*self.view.brokers.values(), *self.bootstrap]
        unique = list(dict.fromkeys(known))
        turn = self._first % len(unique)
        return unique[turn:] + unique[:turn]

    def failed(self, endpoint: Endpoint) -> None:
        """Record that a broker did not answer, so that another broker is tried first."""
        if self.candidates()[0] == endpoint:
            self._first += 1

    def ask_another(self) -> None:
        """Choose another broker for the next request that any broker can answer.

        The present one may have answered with outdated metadata."""
        self._first += 1

    def learn(self, view: ClusterView, *, everything: bool) -> ClusterView:
        """Store new metadata, and return the resulting view.

        If ``everything``, ``view`` has all topics and replaces the old view; otherwise only the
        topics in ``view`` are replaced."""
        view = _without_older_rows(view, self.view)
        self.view = view if everything else self.view.merged(view)
        self.view_ms = self.now_ms()
        self.has_answered = True
        if everything:
            self.whole_ms = self.view_ms
        return self.view

    def leader(self, tp: TopicPartition) -> Endpoint:
        """Return the address of the partition's leader.

        Without a leader or partition, raise an error that says why and what to do."""
        endpoint = self.view.leader(tp)
        if endpoint is not None:
            return endpoint
        topic = self.view.topics.get(tp.topic)
        if topic is None or topic.error is not None:
            raise (topic.error if topic and topic.error else unknown_topic(tp.topic))
        known = self.view.partition(tp)
        if known is None:
            raise UnknownTopicOrPartitionError(
                f"topic {tp.topic!r} has {len(topic.partitions)} partitions, numbered from 0, and "
                f"no partition {tp.partition}"
            )
        raise no_leader(self.view, tp, known)

    def by_leader(
        self, tps: Iterable[TopicPartition]
    ) -> tuple[dict[Endpoint, list[TopicPartition]], dict[TopicPartition, LogbusError]]:
        """Group partitions by leader's address; also return an error for each without a leader."""
        groups: dict[Endpoint, list[TopicPartition]] = {}
        errors: dict[TopicPartition, LogbusError] = {}
        for tp in tps:
            try:
                groups.setdefault(self.leader(tp), []).append(tp)
            except LogbusError as error:
                errors[tp] = error
        return groups, errors


def cluster_at(
    bootstrap_servers: str | Sequence[str], user: str = "", *, has_answered: bool = False
) -> Cluster:
    """Return a ``Cluster`` for a new client, with these addresses and without metadata.

    ``user`` and ``has_answered``: see ``Cluster``. Raises InvalidConfigError for an invalid
    address."""
    return Cluster(parse_endpoints(bootstrap_servers), monotonic_ms, user, has_answered)


def _without_older_rows(view: ClusterView, known: ClusterView) -> ClusterView:
    """Return ``view``, but keep partitions of ``known`` that ``view`` lacks, or has in an earlier
    leader epoch.

    If a broker is cut off from the controller, its metadata has neither new leaders nor added
    partitions."""
    topics = dict(view.topics)
    for name, topic in view.topics.items():
        before = known.topics.get(name)
        if before is None or before.topic_id != topic.topic_id or topic.error is not None:
            continue
        newest = {row.partition: row for row in before.partitions}
        rows = tuple(
            newest[row.partition]
            if row.partition in newest and newest[row.partition].leader_epoch > row.leader_epoch
            else row
            for row in topic.partitions
        )
        rows += before.partitions[len(rows) :]
        if rows != topic.partitions:
            topics[name] = replace(topic, partitions=rows)
    return replace(view, topics=topics) if topics != view.topics else view


def unknown_topic(name: str, known: Iterable[str] = ()) -> UnknownTopicOrPartitionError:
    """Return the error for a topic that does not exist.

    The error suggests similar names among the topics ``known``, or the command that creates the
    topic."""
    near = difflib.get_close_matches(name, list(known), n=3)
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    else:
        hint = f"create it with: logbus topic create {shlex.quote(name)}"
    return UnknownTopicOrPartitionError(f"topic {name!r} does not exist; {hint}")


def deleted_topic(name: str) -> UnknownTopicOrPartitionError:
    """Return the error for a topic that was deleted while a client read it."""
    return UnknownTopicOrPartitionError(
        f"topic {name!r} was deleted while it was read; to read a new topic of this name, create "
        "the topic, then a new consumer"
    )


def made_again(name: str) -> UnknownTopicIdError:
    """Return the error for a topic that was deleted and recreated with the same name."""
    return UnknownTopicIdError(
        f"topic {name!r} was deleted and recreated; create a new consumer to read the new topic"
    )


def no_leader(
    view: ClusterView, tp: TopicPartition, known: PartitionMetadata
) -> LeaderNotAvailableError:
    """Return the error for a partition without a leader: which brokers are down, what to do."""
    candidates = (known.leader,) if known.leader >= 0 else known.isr or known.replicas
    down = [broker for broker in candidates if broker not in view.brokers]
    alive = f"alive: {_listed(sorted(view.brokers))}"
    if not down:
        why = (
            f"brokers {_listed(candidates)} hold it and are alive, but none was elected yet; if it "
            "stays so, see the log of the controller"
            + (f", broker {view.controller_id}" if view.controller_id >= 0 else ": there is none")
        )
    elif known.leader >= 0:
        why = (
            f"broker {known.leader}, which led it, is down ({alive}); start it, or wait until "
            "another in-sync replica is elected"
        )
    else:
        why = (
            f"every in-sync replica is down: broker {_listed(down)} ({alive}); start it. If it is "
            "lost for good, unclean.leader.election.enable=true lets another replica lead and "
            "loses the records that this replica lacks"
        )
    said = f" (a broker's answer: {known.error})" if known.error is not None else ""
    return LeaderNotAvailableError(f"{tp} has no leader: {why}{said}")


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def backoff_ms(attempt: int, first_ms: float = BACKOFF_FIRST_MS) -> float:
    """Return the pause (ms) before a retry. ``attempt`` is the number of failed retries.

    The pause is ``first_ms`` at first, and doubles with each failure, up to a second."""
    return min(float(BACKOFF_MAX_MS), first_ms * (1 << min(attempt, 16)))


def group_by_topic(tps: Sequence[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group partitions by topic, in the order of first appearance."""
    groups: dict[str, list[TopicPartition]] = {}
    for tp in tps:
        groups.setdefault(tp.topic, []).append(tp)
    return groups
