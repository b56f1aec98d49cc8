"""The topics of a group member: its subscription, the topics that it knows, and those of its last
assignment as group leader.

``MemberMachine`` has one instance. It refreshes the ``watched`` topics, and joins again when a
refresh changes the assignment. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.membership.events import TopicFacts
from broker_lite.model import INTERNAL_PREFIX, TopicPartition

Found = Mapping[str, TopicFacts]


class SubscribedTopics:
    """The topics of a member. ``names`` has the subscribed topic names, or the names of known
    topics that match the ``pattern``."""

    def __init__(self, names: Sequence[str], pattern: str | None) -> None:
        self.names = tuple(sorted(set(names)))
        self._pattern = None if pattern is None else re.compile(pattern)
        self._facts: dict[str, TopicFacts] = {}
        self._led: dict[str, TopicFacts] | None = None
        """The metadata from which this member made the last assignment, or None if it does not lead
        the group."""
        self._others: frozenset[str] = frozenset()
        """The topics of all members when this member last led the group, including topics that do
        not exist."""

    @property
    def are_unknown(self) -> bool:
        """Return whether the member has a pattern that no known topic matches."""
        return self._pattern is not None and not self.names

    @property
    def watched(self) -> tuple[str, ...] | None:
        """Return the topics whose metadata the member must refresh. None means all topics."""
        return None if self._pattern is not None else tuple(sorted({*self.names, *self._others}))

    def learn(self, topics: Found) -> bool:
        """Update the known topics. Return whether the matches of the pattern changed."""
        self._facts = dict(topics)
        before = self.names
        if self._pattern is not None:
            self.names = self._matching(topics)
        return self.names != before

    def ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the known topic ids of these partitions."""
        known = ((tp, self._facts.get(tp.topic)) for tp in tps)
        return {tp: row.topic_id for tp, row in known if row is not None}

    def lead(self, subscribed: Sequence[str], topics: Found, *, assigns: bool) -> None:
        """Start to lead a group whose members subscribe to the topics ``subscribed``. ``topics``
        has their metadata.

        If this member does not make the assignment, it assumes that the previous leader's metadata
        was no newer than its own last refresh.
        """
        led = topics if assigns else {**topics, **self._facts}
        self._led = {topic: led[topic] for topic in subscribed if topic in topics}
        self._facts.update(topics)
        self._others = frozenset(subscribed)

    def stop_leading(self) -> None:
        """Drop the metadata of the last assignment, because this member does not lead the group
        now."""
        self._led = None

    @property
    def partition_counts(self) -> dict[str, int]:
        """Return the partition counts from which the leader made its assignment."""
        return {topic: row.partition_count for topic, row in (self._led or {}).items()}

    def would_assign_otherwise(self, topics: Found) -> bool:
        """Return whether this member leads the group and would assign otherwise with the metadata
        ``topics``."""
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
