"""The subscription of a member, the known topics, and the metadata of its last assignment as
leader. Pure.

``Machine`` keeps one instance, refreshes the ``watched`` topics, and joins again when a refresh
changes the assignment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.membership.events import TopicFacts
from broker_lite.model import INTERNAL_PREFIX, TopicPartition

Found = Mapping[str, TopicFacts]


class SubscribedTopics:
    """The subscribed topics. ``names`` are the subscribed names, or the known matches of
    ``pattern``."""

    def __init__(self, names: Sequence[str], pattern: str | None) -> None:
        self.names = tuple(sorted(set(names)))
        self._pattern = None if pattern is None else re.compile(pattern)
        self._facts: dict[str, TopicFacts] = {}
        self._led: dict[str, TopicFacts] | None = None
        """The metadata of the last assignment, if this member leads."""
        self._others: frozenset[str] = frozenset()
        """Subscriptions of the other members when this member led last; the topics need not
        exist."""

    @property
    def are_unknown(self) -> bool:
        """Return whether no known topic matches the pattern."""
        return self._pattern is not None and not self.names

    @property
    def watched(self) -> tuple[str, ...] | None:
        """Return the topics to refresh; None: all."""
        return None if self._pattern is not None else tuple(sorted({*self.names, *self._others}))

    def learn(self, found: Found) -> bool:
        """Update the known topics; return whether the matches of the pattern changed."""
        self._facts = dict(found)
        before = self.names
        if self._pattern is not None:
            self.names = self._matching(found)
        return self.names != before

    def ids(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the known topic ids of these partitions."""
        known = ((tp, self._facts.get(tp.topic)) for tp in tps)
        return {tp: row.topic_id for tp, row in known if row is not None}

    def lead(self, wanted: Sequence[str], found: Found, *, assigns: bool) -> None:
        """Start to lead a group with these subscriptions. If the member does not assign, it assumes
        that the previous leader assigned by metadata no newer than this member's last refresh."""
        led = found if assigns else {**found, **self._facts}
        self._led = {topic: led[topic] for topic in wanted if topic in found}
        self._facts.update(found)
        self._others = frozenset(wanted)

    def stop_leading(self) -> None:
        """Stop leading."""
        self._led = None

    @property
    def partition_counts(self) -> dict[str, int]:
        """Return the partition counts that the leader assigns by."""
        return {topic: row.partition_count for topic, row in (self._led or {}).items()}

    def would_assign_otherwise(self, found: Found) -> bool:
        """Return whether the member leads and its metadata is outdated."""
        if self._led is None:
            return False
        now = {t: row for t, row in found.items() if t in self.names or t in self._others}
        return now != self._led

    def _matching(self, found: Found) -> tuple[str, ...]:
        assert self._pattern is not None
        return tuple(
            sorted(
                name
                for name in found
                if not name.startswith(INTERNAL_PREFIX) and self._pattern.fullmatch(name)
            )
        )
