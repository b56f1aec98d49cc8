"""Tests of charts, which draw a series of values as an SVG path."""

from __future__ import annotations

import re

import pytest

from broker_lite.console.charts import HEIGHT, POINTS_MAX, WIDTH, chart


def test_chart_spans_its_box_and_begins_at_zero() -> None:
    drawn = chart([0.0, 5.0, 10.0])
    pairs = [
        tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", drawn.line)
    ]
    assert [x for x, _ in pairs] == [0.0, WIDTH / 2, WIDTH]
    assert pairs[0][1] == HEIGHT and 0 < pairs[2][1] < pairs[1][1] < HEIGHT
    assert (drawn.low, drawn.high, drawn.last) == (0.0, 10.0, 10.0)


@pytest.mark.parametrize("values", [[], [3.0]])
def test_chart_of_fewer_than_two_values_has_no_line(values: list[float]) -> None:
    assert (chart(values).line, chart(values).last) == ("", sum(values))


def test_chart_of_zeros_is_a_line_at_the_bottom() -> None:
    assert chart([0.0, 0.0]).line == f"M0.0,{HEIGHT} L{WIDTH},{HEIGHT}"


def test_chart_points_are_means_of_samples() -> None:
    drawn = chart([float(number % 2) for number in range(6 * POINTS_MAX)])
    assert len(drawn.points) == POINTS_MAX and set(drawn.points) == {0.5}
