"""Record time series of one hour, as ring buffers of 32-bit floats, and compute the rate of a
counter. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

KEPT = 720
"""Maximum values of a series: one hour with a sample every five seconds."""
SERIES_MAX = 200
"""Maximum number of series in a Recorder, which ignores the values of further ones."""


class Series:
    """A ring buffer of the newest ``KEPT`` values, which takes 2.9 kB."""

    __slots__ = ("_next", "_values")

    def __init__(self) -> None:
        self._values = array("f")
        self._next = 0

    def add(self, value: float) -> None:
        if len(self._values) < KEPT:
            self._values.append(value)
        else:
            self._values[self._next] = value
            self._next = (self._next + 1) % KEPT

    def values(self) -> list[float]:
        """Return the values, oldest first."""
        return [*self._values[self._next :], *self._values[: self._next]]


class Recorder:
    """Time series by name, for example one for each topic, at most ``SERIES_MAX``. ``add`` deletes
    each series whose name it does not receive."""

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}

    def add(self, values: Iterable[tuple[str, float]]) -> None:
        """Append the newest value to each series. ``values`` has pairs of name and value."""
        newest = dict(values)
        self._series = {name: row for name, row in self._series.items() if name in newest}
        for name, value in newest.items():
            if name not in self._series:
                if len(self._series) >= SERIES_MAX:
                    continue
                self._series[name] = Series()
            self._series[name].add(value)

    def values(self, name: str) -> list[float]:
        """Return the values of a series, oldest first; empty for a name that is not recorded."""
        series = self._series.get(name)
        return [] if series is None else series.values()


def rate(before: float, now: float, seconds: float) -> float:
    """Return a counter's growth per second; 0 if the counter fell or no time has passed."""
    return max(0.0, now - before) / seconds if seconds > 0 else 0.0
