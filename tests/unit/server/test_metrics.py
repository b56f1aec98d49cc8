"""Counters, gauges and histograms: their table, their limits and their text."""

from __future__ import annotations

import pytest

from broker_lite.server.exposition import Exposition, text
from broker_lite.server.metrics import COUNTER, METRICS, OTHER, SECONDS, SERIES_MAX, Metrics


def test_text_is_in_prometheus_format() -> None:
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


def test_openmetrics_is_served_to_those_who_ask() -> None:
    exposition = Exposition(Metrics())
    body, content_type = exposition.render([], "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    metrics.count("replica_fetch_errors", 'a"b\\c\nd')
    assert r'{error="a\"b\\c\nd"} 1.0' in text(metrics)


def test_unknown_names_are_refused() -> None:
    metrics = Metrics()
    with pytest.raises(KeyError):
        metrics.count("request")
    with pytest.raises(KeyError):
        metrics.gauge("request", lambda: 1)


def test_topics_beyond_the_limit_share_a_series() -> None:
    metrics = Metrics(topics_max=2)
    for number in range(1000):
        metrics.traffic(f"t{number}").sent_bytes.n += 1
    assert metrics.value("sent_bytes", "t0") == metrics.value("sent_bytes", "t1") == 1
    assert metrics.value("sent_bytes", OTHER) == 998


def test_a_broker_never_exceeds_its_series() -> None:
    """Page limit: 1,500 series without those of the process, whatever clients send."""
    metrics = Metrics()
    for metric in METRICS.values():
        if metric.kind == COUNTER:
            for number in range(1000):
                metrics.count(metric.name, *(f"{label}{number}" for label in metric.labels))
    lines = [line for line in text(metrics).splitlines() if line.startswith("logbus_")]
    labelled = sum(1 for each in METRICS.values() if each.kind == COUNTER and each.labels)
    # prometheus_client adds a _created line to each counter only in OpenMetrics.
    assert len(lines) <= labelled * (SERIES_MAX + 1) + len(METRICS)


def test_names_end_in_units() -> None:
    for metric in METRICS.values():
        assert metric.name == metric.name.lower()
        assert not metric.name.endswith(("_ms", "_total")), metric.name
        assert metric.help.endswith(".")
    assert list(SECONDS) == sorted(SECONDS)
