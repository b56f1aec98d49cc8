"""Who leads what, and when to try again: the client's knowledge of the cluster. No I/O here.

``ClusterView`` is an immutable snapshot that users see. ``Cluster`` holds the newest one with the
addresses to ask and the retry policy; operations (``requests``) read and renew it. A view is
replaced whole, so readers on other threads need no lock; whoever renews it is one thread at a time
or does not mind that the last one wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker_lite.errors import (
    LeaderNotAvailableError,
    LogbusError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import NO_BROKER, NO_EPOCH, NULL_TOPIC_ID, Endpoint, TopicPartition

BACKOFF_FIRST_MS = 50
BACKOFF_MAX_MS = 1000


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition: ``leader`` is -1 while no in-sync replica lives."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: LogbusError | None = None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; a missing one has ``error`` set and no partitions."""

    name: str
    topic_id: str = NULL_TOPIC_ID
    error: LogbusError | None = None
    partitions: tuple[PartitionMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster as a broker described it: live brokers, and the topics that were asked for."""

    cluster_id: str = ""
    controller_id: int = NO_BROKER
    brokers: Mapping[int, Endpoint] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)

    def partition(self, where: TopicPartition) -> PartitionMetadata | None:
        """What is known of a partition, or None."""
        topic = self.topics.get(where.topic)
        if topic is None or not 0 <= where.partition < len(topic.partitions):
            return None
        return topic.partitions[where.partition]

    def leader(self, where: TopicPartition) -> Endpoint | None:
        """The address of a partition's leader, or None while it has none."""
        known = self.partition(where)
        return None if known is None else self.brokers.get(known.leader)

    def leader_epoch(self, where: TopicPartition) -> int:
        """The epoch of a partition's leader, -1 if unknown."""
        known = self.partition(where)
        return NO_EPOCH if known is None else known.leader_epoch

    def has_copies(self, where: TopicPartition) -> bool:
        """Whether more than one replica has every record: what one has damaged another has not."""
        known = self.partition(where)
        return known is not None and len(known.isr) > 1

    def topic_id(self, topic: str) -> str:
        """A topic's id, the null id if unknown."""
        known = self.topics.get(topic)
        return NULL_TOPIC_ID if known is None else known.topic_id

    def partitions_of(self, topic: str) -> tuple[TopicPartition, ...]:
        """All partitions of a topic, none if it is unknown."""
        known = self.topics.get(topic)
        rows = known.partitions if known else ()
        return tuple(TopicPartition(topic, row.partition) for row in rows)

    def merged(self, newer: ClusterView) -> ClusterView:
        """This view with what a newer, partial one says."""
        return replace(newer, topics={**self.topics, **newer.topics})


@dataclass(slots=True)
class Cluster:
    """The newest view, the addresses to ask, and the clock. ``now_ms`` is monotonic."""

    bootstrap: tuple[Endpoint, ...]
    now_ms: Callable[[], float]
    client_id: str = "logbus"
    view: ClusterView = field(default_factory=ClusterView)
    view_ms: float = float("-inf")
    _first: int = 0

    def candidates(self) -> list[Endpoint]:
        """Whom to ask what any broker knows: live brokers first, then the bootstrap addresses,
        beginning behind the last that failed."""
        known = [*self.view.brokers.values(), *self.bootstrap]
        unique = list(dict.fromkeys(known))
        turn = self._first % len(unique)
        return unique[turn:] + unique[:turn]

    def failed(self, endpoint: Endpoint) -> None:
        """An address did not answer: the next question goes to another."""
        if self.candidates()[0] == endpoint:
            self._first += 1

    def ask_another(self) -> None:
        """What an address said did not help: the next question goes to another."""
        self._first += 1

    def learn(self, view: ClusterView, *, everything: bool) -> ClusterView:
        """Take note of an answer: of the whole cluster, or of the topics that were asked for."""
        view = _without_older_leaders(view, self.view)
        self.view = view if everything else self.view.merged(view)
        self.view_ms = self.now_ms()
        return self.view

    def leader(self, where: TopicPartition) -> Endpoint:
        """The leader's address; raises the error that says why there is none."""
        found = self.view.leader(where)
        if found is not None:
            return found
        topic = self.view.topics.get(where.topic)
        if topic is None or topic.error is not None:
            raise (topic.error if topic and topic.error else unknown_topic(where.topic))
        known = self.view.partition(where)
        if known is None:
            raise UnknownTopicOrPartitionError(
                f"topic {where.topic!r} has {len(topic.partitions)} partitions, "
                f"none is {where.partition}"
            )
        raise no_leader(self.view, where, known)

    def by_leader(
        self, wheres: Iterable[TopicPartition]
    ) -> tuple[dict[Endpoint, list[TopicPartition]], dict[TopicPartition, LogbusError]]:
        """Partitions grouped by their leaders, and why the others have none."""
        groups: dict[Endpoint, list[TopicPartition]] = {}
        errors: dict[TopicPartition, LogbusError] = {}
        for where in wheres:
            try:
                groups.setdefault(self.leader(where), []).append(where)
            except LogbusError as error:
                errors[where] = error
        return groups, errors


def _without_older_leaders(view: ClusterView, known: ClusterView) -> ClusterView:
    """A broker that is cut off from the cluster tells of leaders that were deposed meanwhile."""
    topics = dict(view.topics)
    for name, topic in view.topics.items():
        before = known.topics.get(name)
        if before is None or before.topic_id != topic.topic_id:
            continue
        newest = {row.partition: row for row in before.partitions}
        rows = tuple(
            newest[row.partition]
            if row.partition in newest and newest[row.partition].leader_epoch > row.leader_epoch
            else row
            for row in topic.partitions
        )
        if rows != topic.partitions:
            topics[name] = replace(topic, partitions=rows)
    return replace(view, topics=topics) if topics != view.topics else view


def unknown_topic(name: str) -> UnknownTopicOrPartitionError:
    """The error for a topic that does not exist, with the cure."""
    return UnknownTopicOrPartitionError(
        f"topic {name!r} does not exist; create it with: logbus topic create {name}"
    )


def made_again(name: str) -> UnknownTopicIdError:
    """The error for another topic under the name of one that was read."""
    return UnknownTopicIdError(
        f"topic {name!r} was deleted and made again; make a new consumer to read it"
    )


def no_leader(
    view: ClusterView, where: TopicPartition, known: PartitionMetadata
) -> LeaderNotAvailableError:
    """The error for a partition that nobody leads: which brokers are down, and the cure."""
    candidates = (known.leader,) if known.leader >= 0 else known.isr or known.replicas
    down = [broker for broker in candidates if broker not in view.brokers]
    alive = f"alive: {_listed(sorted(view.brokers))}"
    if not down:
        why = (
            f"brokers {_listed(candidates)} hold it and are alive, but none was elected yet; if it "
            "stays so see the log of the controller"
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
            "lost for good, unclean.leader.election.enable=true lets another replica lead, which "
            "loses what that one lacks"
        )
    said = f" (a broker's answer: {known.error})" if known.error is not None else ""
    return LeaderNotAvailableError(f"{where} has no leader: {why}{said}")


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers)) or "none"


def backoff_ms(attempt: int, first_ms: float = BACKOFF_FIRST_MS) -> float:
    """The pause after the ``attempt``-th failure (from 0): doubling, at most a second."""
    return min(float(BACKOFF_MAX_MS), first_ms * (1 << min(attempt, 16)))


def group_by_topic(wheres: Sequence[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Partitions by topic, in the order of their first appearance."""
    groups: dict[str, list[TopicPartition]] = {}
    for where in wheres:
        groups.setdefault(where.topic, []).append(where)
    return groups
