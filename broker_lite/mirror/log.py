"""``Telling``: a mirror's lines for people. What lasts is said once, not at every look."""

from __future__ import annotations

from collections.abc import Callable


class Telling:
    """``say`` gets each line; it is called on the mirror's thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._told: set[str] = set()

    def once(self, text: str) -> None:
        """Say it, unless it was said before."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)
