"""``Telling``: a mirror's log lines. A lasting condition is logged once."""

from __future__ import annotations

from collections.abc import Callable


class Telling:
    """Passes each line to ``say`` on the mirror's thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._told: set[str] = set()

    def once(self, text: str) -> None:
        """Log the line, unless it was logged before."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)
