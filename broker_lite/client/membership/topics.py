"""``SubscribedTopics``: the subscription of a Kafka group's member and its topics' metadata.

A group leader also keeps the metadata from which it made the last assignment. ``MemberMachine``
refreshes the metadata, and joins again if new metadata would lead to another assignment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.membership.events import TopicFacts
from broker_lite.model import INTERNAL_PREFIX, TopicPartition

Found = Mapping[str, TopicFacts]


class SubscribedTopics:
    """The topics to which a member subscribes; with a ``pattern``, the existing topics that
    match."""

    def __init__(self, names: Sequence[str], pattern: str | None) -> None:
        self.names = tuple(sorted(set(names)))
        self._pattern = None if pattern is None else re.compile(pattern)
        self._facts: dict[str, TopicFacts] = {}
        self._led: dict[str, TopicFacts] | None = None
        """The metadata from which the group's assignment was made; None if the member does not
        lead."""
        self._others: frozenset[str] = frozenset()
        """The topics to which any member subscribed when this member last led the group.

        Some may not exist."""

    @property
    def are_unknown(self) -> bool:
        """Whether the member subscribes to a pattern that no known topic matches."""
        return self._pattern is not None and not self.names

    @property
    def watched(self) -> tuple[str, ...] | None:
        """The topics whose metadata the member must refresh; None (all) if it subscribes to a
        pattern."""
        return None if self._pattern is not None else tuple(sorted({*self.names, *self._others}))

    def learn(self, topics: Found) -> bool:
        """Store new metadata. Return whether the topics that match the pattern have changed."""
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
        """Begin to lead the group, whose members subscribe to the topics ``subscribed``.

        ``topics`` has the topics' present metadata. If ``assigns``, this member makes the
        assignment now. Otherwise the previous leader's assignment stays. This member assumes that
        the assignment was made from the metadata known here before; if ``topics`` differs, the
        group makes a new one."""
        led = topics if assigns else {**topics, **self._facts}
        self._led = {topic: led[topic] for topic in subscribed if topic in topics}
        self._facts.update(topics)
        self._others = frozenset(subscribed)

    def stop_leading(self) -> None:
        """Record that this member does not lead the group any more."""
        self._led = None

    @property
    def partition_counts(self) -> dict[str, int]:
        """Partition count of each topic whose partitions this group leader assigns."""
        return {topic: row.partition_count for topic, row in (self._led or {}).items()}

    def would_assign_otherwise(self, topics: Found) -> bool:
        """Return whether the metadata differ from those of this group leader's last assignment."""
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
