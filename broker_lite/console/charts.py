"""Charts as SVG paths, which the server draws, so that a page needs no script. The module does no
I/O.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

POINTS_MAX = 120
"""Maximum points of a chart. A longer series is cut into this many parts, and each point is the
mean of a part."""
WIDTH, HEIGHT = 400.0, 100.0
"""Size of a chart in units of its SVG view box."""


class Chart(NamedTuple):
    """A chart as SVG paths. ``line`` and ``area`` are paths in a box of ``WIDTH`` by ``HEIGHT``.
    Both are empty for a series of fewer than two points."""

    line: str
    area: str
    low: float
    high: float
    last: float
    points: tuple[float, ...]


def chart(values: Sequence[float], *, points_max: int = POINTS_MAX) -> Chart:
    """Return a series as a chart whose lower edge is zero."""
    points = _means(values, points_max)
    if len(points) < 2:
        last = points[-1] if points else 0.0
        return Chart("", "", last, last, last, tuple(points))
    high = max(points)
    top = high * 1.1 or 1.0
    step = WIDTH / (len(points) - 1)
    pairs = [
        f"{number * step:.1f},{HEIGHT - HEIGHT * value / top:.1f}"
        for number, value in enumerate(points)
    ]
    line = "M" + " L".join(pairs)
    area = f"{line} L{WIDTH:.0f},{HEIGHT:.0f} L0,{HEIGHT:.0f} Z"
    return Chart(line, area, min(points), high, points[-1], tuple(points))


def _means(values: Sequence[float], count: int) -> list[float]:
    if len(values) <= count:
        return list(values)
    edges = [round(number * len(values) / count) for number in range(count + 1)]
    return [sum(values[first:last]) / (last - first) for first, last in itertools.pairwise(edges)]
