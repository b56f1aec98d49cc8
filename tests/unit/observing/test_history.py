"""Tests of the console's history of metrics: newest values, maximum number of series, rates."""

from __future__ import annotations

from broker_lite.observing.history import KEPT, SERIES_MAX, Recorder, Series, rate


def test_series_of_a_metric_keeps_the_newest_values_in_order() -> None:
    series = Series()
    for value in range(KEPT + 3):
        series.add(value)
    assert series.values() == list(range(3, KEPT + 3))


def test_metrics_recorder_limits_the_number_of_series_and_drops_stale_series() -> None:
    recorder = Recorder()
    recorder.add((f"t{n}", n) for n in range(SERIES_MAX + 1))
    assert recorder.values("t7") == [7] and recorder.values(f"t{SERIES_MAX}") == []
    recorder.add([("t7", 8), ("new", 1)])
    assert (recorder.values("t7"), recorder.values("new")) == ([7, 8], [1])
    assert recorder.values("t8") == []


def test_rate_of_a_counter_is_never_negative() -> None:
    assert rate(10, 30, 5) == 4
    assert rate(30, 10, 5) == 0
    assert rate(0, 10, 0) == 0
