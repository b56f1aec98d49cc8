"""``SubscribedTopics``: the topics of a Kafka group's member, without I/O.

It has the member's subscription and the metadata of its topics. If the member leads the group, it
also has the metadata from which the member made the last assignment. ``MemberMachine`` refreshes
the metadata regularly, and joins again if the new metadata would lead to another assignment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.membership.events import TopicFacts
from broker_lite.model import INTERNAL_PREFIX, TopicPartition

Found = Mapping[str, TopicFacts]


class SubscribedTopics:
    """The topics of a member. ``names`` has the topics to which it subscribes. With a ``pattern``,
    these are the existing topics whose name matches."""

    def __init__(self, names: Sequence[str], pattern: str | None) -> None:
        self.names = tuple(sorted(set(names)))
        self._pattern = None if pattern is None else re.compile(pattern)
        self._facts: dict[str, TopicFacts] = {}
        self._led: dict[str, TopicFacts] | None = None
        """The topics' metadata from which this member made the group's last assignment; None if it
        does not lead the group."""
        self._others: frozenset[str] = frozenset()
        """The topics to which any member subscribed when this member last led the group. Some may
        not exist."""

    @property
    def are_unknown(self) -> bool:
        """Return whether the member subscribes to a pattern, and no existing topic is known that
        matches."""
        return self._pattern is not None and not self.names

    @property
    def watched(self) -> tuple[str, ...] | None:
        """Return the topics whose metadata the member must refresh regularly; None for all topics,
        if it subscribes to a pattern."""
        return None if self._pattern is not None else tuple(sorted({*self.names, *self._others}))

    def learn(self, topics: Found) -> bool:
        """Store new metadata of the topics. Return whether other topics than before match the
        pattern."""
        self._facts = dict(topics)
        before = self.names
        if self._pattern is not None:
            self.names = self._matching(topics)
        return self.names != before

    def ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the topic id of each of these partitions, where it is known."""
        known = ((tp, self._facts.get(tp.topic)) for tp in tps)
        return {tp: row.topic_id for tp, row in known if row is not None}

    def lead(self, subscribed: Sequence[str], topics: Found, *, assigns: bool) -> None:
        """Begin to lead the group. Its members subscribe to the topics ``subscribed``, and
        ``topics`` has the topics' present metadata.

        ``assigns`` says whether this member makes the assignment now. Otherwise the assignment of
        the previous leader stays. The metadata from which that leader made it are unknown; this
        member assumes that they were no newer than those of its own last refresh.
        """
        led = topics if assigns else {**topics, **self._facts}
        self._led = {topic: led[topic] for topic in subscribed if topic in topics}
        self._facts.update(topics)
        self._others = frozenset(subscribed)

    def stop_leading(self) -> None:
        """Record that this member does not lead the group any more."""
        self._led = None

    @property
    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic, by the metadata from which this member, as
        group leader, makes the assignment."""
        return {topic: row.partition_count for topic, row in (self._led or {}).items()}

    def would_assign_otherwise(self, topics: Found) -> bool:
        """Return whether this member leads the group, and the metadata ``topics`` differs from that
        of the last assignment, so that a new assignment is necessary."""
        if self._led is None:
            return False
        now = {t: row for t, row in topics.items() if t in self.names or t in self._others}
        return now != self._led

    def _matching(self, topics: Found) -> tuple[str, ...]:
        assert self._pattern is not None
        return tuple(
            sorted(
                name
                for name in topics
                if not name.startswith(INTERNAL_PREFIX) and self._pattern.fullmatch(name)
            )
        )
