"""Tests of counters, gauges and histograms: their names, limits and text formats."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from broker_lite.errors import TABLE
from broker_lite.server.dispatch import LABELS, OTHER_APIS, TIMED
from broker_lite.server.exposition import Exposition, text
from broker_lite.server.metrics import (
    COUNTER,
    HISTOGRAM,
    METRICS,
    OTHER,
    SECONDS,
    SLICE,
    Metric,
    Metrics,
    Sample,
    in_slices,
)


def test_metrics_text_is_in_prometheus_format() -> None:
    metrics = Metrics()
    metrics.counter("requests", "fetch").n += 1
    metrics.count("requests", "produce", amount=2)
    metrics.gauge("connections", lambda: {("PLAINTEXT",): 7})
    metrics.gauge("ready", lambda: True)
    for part in range(2):
        histogram = metrics.histogram("request_duration_seconds", "produce")
        histogram.observe(0.004 + part)
    lines = text(metrics).splitlines()
    assert lines.count("# TYPE logbus_requests_total counter") == 1
    assert any(line.startswith("# HELP logbus_requests_total ") for line in lines)
    assert 'logbus_requests_total{api="produce"} 2.0' in lines
    assert 'logbus_connections{listener="PLAINTEXT"} 7.0' in lines
    assert "logbus_ready 1.0" in lines
    row = "logbus_request_duration_seconds_{}"
    assert row.format('bucket{api="produce",le="0.002"} 0.0') in lines
    assert row.format('bucket{api="produce",le="0.005"} 1.0') in lines
    assert row.format('bucket{api="produce",le="+Inf"} 2.0') in lines
    assert row.format('sum{api="produce"} 1.008') in lines


def test_openmetrics_is_served_if_the_request_accepts_it() -> None:
    exposition = Exposition(Metrics())
    body, content_type = exposition.render([], "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_metric_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.count("replica_fetch_errors", 'a"b\\c\nd')
    assert r'{error="a\"b\\c\nd"} 1.0' in text(metrics)


def test_undeclared_metric_name_raises_key_error() -> None:
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.count("request")
    with pytest.raises(KeyError):
        metrics.gauge("request", lambda: 1)


def test_metrics_of_topics_beyond_the_limit_share_one_series() -> None:
    metrics = Metrics(topics_max=2)
    for number in range(1000):
        metrics.traffic(f"t{number}").sent_bytes.n += 1
    assert metrics.value("sent_bytes", "t0") == metrics.value("sent_bytes", "t1") == 1
    assert metrics.value("sent_bytes", OTHER) == 998


def test_broker_exports_at_most_1500_metric_series() -> None:
    """The broker has 1,000 topics, and every API has returned every error.

    Labels other than topic, API and error have few values, none of which a client can choose.
    """
    metrics = Metrics()
    apis = [*(LABELS[key] for key in TIMED), OTHER_APIS]
    values = {
        "topic": [f"topic{number}" for number in range(1000)],
        "error": [error.name for error in TABLE],
        "api": apis,
    }

    def labels(metric: Metric, others: int) -> Iterator[tuple[str, ...]]:
        few = [f"other{number}" for number in range(others)]
        return itertools.product(*(values.get(label, few) for label in metric.labels))

    for metric in METRICS.values():
        if metric.kind == COUNTER:
            for each in labels(metric, 4):
                metrics.count(metric.name, *each)
        elif metric.kind == HISTOGRAM:
            for each in labels(metric, 6):
                metrics.histogram(metric.name, *each)
        else:
            found = dict.fromkeys(labels(metric, 3), 1.0)
            metrics.gauge(metric.name, lambda found=found: found)  # type: ignore[misc]
    lines = [line for line in text(metrics).splitlines() if line.startswith("logbus_")]
    assert 1000 < len(lines) <= 1500
    assert any('topic="(other)"' in line for line in lines)


def test_metric_names_are_lower_case_without_unit_abbreviations() -> None:
    for metric in METRICS.values():
        assert metric.name == metric.name.lower()
        assert not metric.name.endswith(("_ms", "_total")), metric.name
        assert metric.help.endswith(".")
    assert list(SECONDS) == sorted(SECONDS)


def counted_turns(metrics: Metrics) -> tuple[list[Sample], int]:
    """Return the metrics, and how often the event loop ran another task while they were read."""

    async def main() -> tuple[list[Sample], int]:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        samples = await Exposition(metrics).samples()
        counting.cancel()
        return samples, turns

    return asyncio.run(main())


def test_request_for_metrics_lets_the_event_loop_run_between_two_metrics() -> None:
    """Regression: a request blocked the loop of a broker with 6,000 partitions for 13 ms."""
    samples, turns = counted_turns(Metrics())
    assert turns >= len(samples) > 10


def test_gauge_over_many_rows_lets_the_event_loop_run_between_two_slices() -> None:
    """Regression: one gauge blocked the loop of a broker with 2,000 partitions for 2 ms."""
    metrics = Metrics()
    metrics.gauge("partitions", lambda: in_slices(range(10 * SLICE), lambda row: row > 0))
    metrics.gauge("replica_lag_records_max", lambda: in_slices(range(3), float, max))
    metrics.gauge("log_segments", lambda: in_slices((), float))
    samples, turns = counted_turns(metrics)
    assert turns >= len(samples) + 10
    found = {sample.metric.name: sample.values.get(()) for sample in samples}
    assert found["partitions"] == 10 * SLICE - 1
    assert (found["replica_lag_records_max"], found["log_segments"]) == (2, 0)
