"""Metrics of running queries on the driver, for Prometheus.

Create ``LagMetrics(spark)`` to count the batches and the lag of every query of the session that
reads logbus. Then serve the metrics, for example with
``prometheus_client.start_http_server(9500)``. The module needs ``prometheus-client``, which
``pyspark-logbus[broker]`` installs. ``LagMetrics`` runs on Spark's listener thread and sends no
requests to brokers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(
        "LagMetrics needs prometheus-client: pip install prometheus-client", name=error.name
    ) from None

from pyspark_logbus.progress_listener import LagListener, QueryLag, lag_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds, in seconds, of the histogram of batch durations."""

_Kind = type[Counter] | type[Gauge] | type[Histogram]

SPARK_METRICS: Mapping[str, tuple[_Kind, str, tuple[str, ...]]] = {
    "spark_query_info": (
        Gauge,
        "Always 1 while the query runs; the labels describe it.",
        ("query_id", "query", "group"),
    ),
    "spark_batches": (Counter, "Batches that ended.", ("query",)),
    "spark_input_rows": (Counter, "Rows read from logbus.", ("query",)),
    "spark_lost_records": (Counter, "Deleted records that planning skipped.", ("query",)),
    "spark_missing_rows": (
        Counter,
        "Offsets without a row: corrupt or deleted records.",
        ("query",),
    ),
    "spark_lag_records": (Gauge, "Unread records after the last batch.", ("query",)),
    "spark_last_batch_timestamp_seconds": (Gauge, "When the last batch ended.", ("query",)),
    "spark_batch_duration_seconds": (Histogram, "Duration of a batch.", ("query",)),
}
"""Kind, help text and labels of every metric, by the metric's name without ``logbus_`` and
``_total``."""


class LagMetrics(LagListener):
    """A listener with metrics of batches and lag, for every query of ``spark`` that reads logbus.

    The label ``query`` is the query's name, or its id if it has no name. ``registry`` defaults to
    that of prometheus_client. ``close`` stops the metrics. Raises ValueError if the registry
    already has a LagMetrics.
    """

    def __init__(self, spark: SparkSession, registry: CollectorRegistry | None = None) -> None:
        super().__init__(lambda _: None)
        self._registry = REGISTRY if registry is None else registry
        self._metrics: dict[str, Any] = {
            name: _metric(name, self._registry) for name in SPARK_METRICS
        }
        self._lost: dict[str, int] = {}
        """By query id, the number of lost records that the query's current run has reported."""
        self._labels: dict[str, tuple[str, str]] = {}
        """Name and group of each running query, by its id."""
        self._spark = spark
        spark.streams.addListener(self)

    def close(self) -> None:
        """Stop counting and remove these metrics from the registry."""
        self._spark.streams.removeListener(self)
        for metric in self._metrics.values():
            self._registry.unregister(metric)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        lags = lag_of(progress)
        if lags:
            self._record(lags, float(progress.get("batchDuration", 0)) / 1000)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remove the gauges of a query that ended, so that its last lag triggers no alert."""
        query_id = str(event.id)
        self._lost.pop(query_id, None)
        name, group = self._labels.pop(query_id, ("", ""))
        if not name:
            return
        self._metrics["spark_query_info"].remove(query_id, name, group)
        if all(name != other for other, _ in self._labels.values()):
            self._metrics["spark_lag_records"].remove(name)

    def _record(self, lags: list[QueryLag], duration_s: float) -> None:
        """Count one batch of a query. ``lags`` has an entry for each logbus source of the query."""
        first = lags[0]
        query, metrics = first.query_name or first.query_id, self._metrics
        group = first.group or self._labels.get(first.query_id, ("", ""))[1]
        if self._labels.get(first.query_id, (query, group)) != (query, group):
            metrics["spark_query_info"].remove(first.query_id, *self._labels[first.query_id])
        self._labels[first.query_id] = query, group
        metrics["spark_query_info"].labels(first.query_id, query, group).set(1)
        metrics["spark_batches"].labels(query).inc()
        metrics["spark_batch_duration_seconds"].labels(query).observe(duration_s)
        metrics["spark_last_batch_timestamp_seconds"].labels(query).set(time.time())
        metrics["spark_input_rows"].labels(query).inc(sum(lag.rows for lag in lags))
        missing = sum(lag.missing_rows or 0 for lag in lags)
        metrics["spark_missing_rows"].labels(query).inc(missing)
        behind = [lag.records_behind for lag in lags]
        if None in behind:
            # Spark repeated this batch after a restart. Its report then lacks the log ends, so the
            # lag is unknown until the next batch.
            return
        metrics["spark_lag_records"].labels(query).set(sum(each or 0 for each in behind))
        lost = sum(lag.lost_records for lag in lags)
        known = self._lost.get(first.query_id, 0)
        # After a restart the query counts lost records from 0 again. If the count is lower than
        # before, add all of it.
        metrics["spark_lost_records"].labels(query).inc(lost - known if lost >= known else lost)
        self._lost[first.query_id] = lost


def _metric(name: str, registry: CollectorRegistry) -> Any:
    kind, text, labels = SPARK_METRICS[name]
    if kind is Histogram:
        return Histogram(f"logbus_{name}", text, labels, registry=registry, buckets=BUCKETS)
    return kind(f"logbus_{name}", text, labels, registry=registry)
