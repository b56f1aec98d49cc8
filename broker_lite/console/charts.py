"""Draw charts as SVG paths on the server, so that a page needs no script for them. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

POINTS_MAX = 120
"""Maximum points of a chart. If a series has more values, each point is the mean of several."""
WIDTH, HEIGHT = 400.0, 100.0
"""Size of a chart in units of its SVG view box."""


class Chart(NamedTuple):
    """A chart of a series of values.

    ``line`` and ``area`` are SVG paths in a box of ``WIDTH`` by ``HEIGHT``; both are empty if the
    series has fewer than two points. ``low``, ``high`` and ``last`` are the least, the greatest and
    the last value."""

    line: str
    area: str
    low: float
    high: float
    last: float
    points: tuple[float, ...]


def chart(values: Sequence[float], *, points_max: int = POINTS_MAX) -> Chart:
    """Return the chart of a series of values. The lower edge of the chart is zero."""
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
