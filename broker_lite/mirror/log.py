"""The log of a mirror. It can leave out a line that it has logged before."""

from __future__ import annotations

from collections.abc import Callable


class MirrorLog:
    """The log of a mirror. It passes each line to the function ``write``, on the mirror's
    thread."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write
        self._written: set[str] = set()

    def write_once(self, text: str) -> None:
        """Log a line, unless the same line was logged before."""
        if text not in self._written:
            self._written.add(text)
            self.write(text)
