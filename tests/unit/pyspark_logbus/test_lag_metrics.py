"""Tests of the driver's metrics of queries, which come from Spark's progress documents."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pyspark_logbus.lag_metrics import SPARK_METRICS, LagMetrics

CLUSTER = "abcdefghijklmnopqrstuQ"


class Streams:
    """Simulates ``SparkSession.streams``, with which listeners are registered."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def addListener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def removeListener(self, listener: Any) -> None:
        self.listeners.remove(listener)


class Session:
    def __init__(self) -> None:
        self.streams = Streams()


def progress(rows: int, *, end: int, lost: int = 0, name: str | None = "q") -> Any:
    latest = {
        "lagAfterBatchTotal": end,
        "topics": {"t": {"0": end}},
        "lostRecords": lost,
        "group": "g",
    }
    source = {
        "latestOffset": json.dumps(latest),
        "endOffset": {"cluster": CLUSTER, "topics": {"t": {"offsets": {"0": 7}}}},
        "numInputRows": rows,
    }
    document = {"id": "u-1", "name": name, "batchId": 3, "batchDuration": 250, "sources": [source]}
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(document)))


@pytest.fixture
def missing_rows_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_logbus.progress_listener._missing", lambda *_: None)


@pytest.mark.usefixtures("missing_rows_unknown")
def test_lag_metrics_count_batches_rows_lag_and_lost_records_of_a_query() -> None:
    session, registry = Session(), CollectorRegistry()
    metrics = LagMetrics(session, registry)  # type: ignore[arg-type]
    (listener,) = session.streams.listeners

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"logbus_spark_{name}", {"query": "q"} | labels)

    listener.onQueryProgress(progress(5, end=10, lost=2))
    listener.onQueryProgress(progress(1, end=7, lost=3))
    assert value("batches_total") == 2
    assert value("input_rows_total") == 6
    assert value("lost_records_total") == 3
    assert value("lag_records") == 0
    assert value("batch_duration_seconds_sum") == 0.5
    assert value("query_info", query_id="u-1", group="g") == 1
    # The query restarts, so Spark's count of lost records begins again at 0.
    listener.onQueryProgress(progress(1, end=9, lost=1))
    assert (value("lost_records_total"), value("lag_records")) == (4, 2)
    listener.onQueryTerminated(SimpleNamespace(id="u-1"))
    assert value("lag_records") is value("query_info", query_id="u-1", group="g") is None
    assert value("batches_total") == 3
    metrics.close()
    assert not session.streams.listeners
    LagMetrics(session, registry)  # type: ignore[arg-type]


def test_lag_metrics_do_not_count_queries_of_other_sources() -> None:
    session, registry = Session(), CollectorRegistry()
    LagMetrics(session, registry)  # type: ignore[arg-type]
    document = {"id": "u-2", "name": "other", "batchId": 1, "sources": [{"latestOffset": "7"}]}
    event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(document)))
    session.streams.listeners[0].onQueryProgress(event)
    assert not [sample for family in registry.collect() for sample in family.samples]


def test_each_metric_has_its_declared_labels() -> None:
    assert {labels for _, _, labels in SPARK_METRICS.values()} == {
        ("query",),
        ("query_id", "query", "group"),
    }
