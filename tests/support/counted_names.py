"""Topic names that count how often they are compared, to test the cost of an assignment."""

from __future__ import annotations


class CountedName(str):
    """The name of a topic. ``comparisons`` counts the comparisons of all names since a test set it
    to 0."""

    comparisons = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)
