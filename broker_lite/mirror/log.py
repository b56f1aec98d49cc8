"""``Telling``: the log of a mirror. A condition that lasts is logged only once."""

from __future__ import annotations

from collections.abc import Callable


class Telling:
    """Passes each line to the function ``say``, on the mirror's thread."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._told: set[str] = set()

    def once(self, text: str) -> None:
        """Log a line, unless the same line was logged before."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)
