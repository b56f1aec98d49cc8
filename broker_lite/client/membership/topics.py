"""``Topics``: what a member subscribes to, what is known of it, and by what it has led. Pure.

``Machine`` keeps one, looks at what ``watched`` says, and joins again when that makes a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.membership.events import TopicFacts
from broker_lite.model import TopicPartition

INTERNAL_PREFIX = "__"
"""Topics that no pattern matches."""

Found = Mapping[str, TopicFacts]


class Topics:
    """``names`` are subscribed to, or match ``pattern`` as far as is known."""

    def __init__(self, names: Sequence[str], pattern: str | None) -> None:
        self.names = tuple(sorted(set(names)))
        self._pattern = None if pattern is None else re.compile(pattern)
        self._facts: dict[str, TopicFacts] = {}
        self._led: dict[str, TopicFacts] | None = None
        """By what it assigned, where it leads."""
        self._others: frozenset[str] = frozenset()
        """What those whom it led last are subscribed to, also topics that are not there (yet)."""

    @property
    def are_unknown(self) -> bool:
        """Nothing is known to match the pattern."""
        return self._pattern is not None and not self.names

    @property
    def watched(self) -> tuple[str, ...] | None:
        """What a look is to ask for; None: all topics."""
        return None if self._pattern is not None else tuple(sorted({*self.names, *self._others}))

    def learn(self, found: Found) -> bool:
        """Take what a look found in; whether other topics match the pattern now."""
        self._facts = dict(found)
        before = self.names
        if self._pattern is not None:
            self.names = self._matching(found)
        return self.names != before

    def ids(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Of which topic each is, as far as that is known."""
        known = ((where, self._facts.get(where.topic)) for where in wheres)
        return {where: row.topic_id for where, row in known if row is not None}

    def lead(self, wanted: Sequence[str], found: Found, *, assigns: bool) -> None:
        """It leads members who want these topics. Where it assigns nothing, what others lead by
        still is no newer than what was known before it joined."""
        led = found if assigns else {**found, **self._facts}
        self._led = {topic: led[topic] for topic in wanted if topic in found}
        self._facts.update(found)
        self._others = frozenset(wanted)

    def stop_leading(self) -> None:
        """Another one does, or nobody."""
        self._led = None

    @property
    def partition_counts(self) -> dict[str, int]:
        """Of the topics that it leads by."""
        return {topic: row.partition_count for topic, row in (self._led or {}).items()}

    def would_assign_otherwise(self, found: Found) -> bool:
        """Whether it leads, and by what is not so any more."""
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
