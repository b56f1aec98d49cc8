"""The Grafana dashboards that ``logbus generate grafana`` prints, in the classic JSON model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

SCHEMA_VERSION = 39
"""Version of Grafana's JSON model; Grafana 10.4 and later read it."""
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
"""A panel's width and height in Grafana's grid units, and the number of panels in a row."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A chart of one PromQL expression. ``unit`` is a unit of Grafana; ``legend`` is a template
    with labels, such as ``{{instance}}``."""

    title: str
    expression: str
    unit: str = "short"
    legend: str = "{{instance}}"


def _quantile(metric: str, by: str = "instance") -> str:
    return f"histogram_quantile(0.99, sum by ({by}, le) (rate({metric}_bucket[$__rate_interval])))"


def _rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


DASHBOARDS: Mapping[str, tuple[Panel, ...]] = {
    "cluster": (
        Panel("Ready brokers", "sum(logbus_ready)", legend="ready"),
        Panel("Controllers", "sum(logbus_controller_active)", legend="controllers"),
        Panel("Leaderless partitions", "max(logbus_leaderless_partitions)", legend="leaderless"),
        Panel("Under-replicated partitions", "logbus_under_replicated_partitions"),
        Panel("Partitions below min.insync.replicas", "logbus_under_min_isr_partitions"),
        Panel("Largest replica lag", "logbus_replica_lag_seconds_max", "s"),
        Panel("Received", _rate("logbus_received_bytes_total"), "Bps"),
        Panel("Sent", _rate("logbus_sent_bytes_total"), "Bps"),
        Panel("Free disk space", "logbus_disk_free_bytes / logbus_disk_size_bytes", "percentunit",
              "{{instance}} {{dir}}"),
        Panel("Leader elections", _rate("logbus_leader_elections_total", "instance, kind"),
              "ops", "{{instance}} {{kind}}"),
        Panel("Changes of in-sync replicas", _rate("logbus_isr_changes_total", "change"), "ops",
              "{{change}}"),
        Panel("Connected to ZooKeeper", "logbus_zookeeper_connected"),
    ),
    "broker": (
        Panel("Requests", _rate("logbus_requests_total", "api"), "reqps", "{{api}}"),
        Panel("Request duration, p99", _quantile("logbus_request_duration_seconds", "api"), "s",
              "{{api}}"),
        Panel("Request errors", _rate("logbus_request_errors_total", "api, error"), "ops",
              "{{api}} {{error}}"),
        Panel("Event loop delay, p99", _quantile("logbus_loop_delay_seconds"), "s"),
        Panel("Append duration, p99", _quantile("logbus_append_duration_seconds"), "s"),
        Panel("Flush duration, p99", _quantile("logbus_flush_duration_seconds"), "s"),
        Panel("Connections", "logbus_connections", legend="{{instance}} {{listener}}"),
        Panel("Request memory", "logbus_request_memory_bytes", "bytes"),
        Panel("Resident memory", "process_resident_memory_bytes", "bytes"),
        Panel("CPU", _rate("process_cpu_seconds_total"), "percentunit"),
        Panel("ZooKeeper request duration, p99",
              _quantile("logbus_zookeeper_request_duration_seconds", "operation"), "s",
              "{{operation}}"),
        Panel("Open files", "process_open_fds"),
    ),
    "topics": (
        Panel("Received bytes", _rate("logbus_received_bytes_total", "topic"), "Bps", "{{topic}}"),
        Panel("Received records", _rate("logbus_received_records_total", "topic"), "ops",
              "{{topic}}"),
        Panel("Sent bytes", _rate("logbus_sent_bytes_total", "topic"), "Bps", "{{topic}}"),
        Panel("Log size", "logbus_log_size_bytes", "bytes", "{{instance}} {{dir}}"),
        Panel("Segments", "logbus_log_segments"),
        Panel("Transcoded batches", _rate("logbus_transcoded_batches_total", "from, to"), "ops",
              "{{from}} to {{to}}"),
    ),
    "groups": (
        Panel("Groups", "sum by (state) (logbus_coordinated_groups)", legend="{{state}}"),
        Panel("Members", "logbus_coordinated_members"),
        Panel("Lag in seconds", "logbus_group_lag_seconds", "s", "{{group}} {{topic}}"),
        Panel("Lag in records", "logbus_group_lag_records", legend="{{group}} {{topic}}"),
        Panel("Rebalances", _rate("logbus_group_rebalances_total", "reason"), "ops", "{{reason}}"),
        Panel("Offset commit duration, p99", _quantile("logbus_offset_commit_duration_seconds"),
              "s"),
        Panel("Failed offset commits", _rate("logbus_offset_commit_errors_total", "error"), "ops",
              "{{error}}"),
        Panel("Open transactions", "logbus_open_transactions"),
        Panel("Oldest open transaction", "logbus_oldest_transaction_age_seconds", "s"),
        Panel("Ended transactions", _rate("logbus_transactions_total", "outcome"), "ops",
              "{{outcome}}"),
        Panel("Batches of Spark sinks", _rate("logbus_spark_sink_batches_total", "outcome"), "ops",
              "{{outcome}}"),
        Panel("Transaction duration, p99", _quantile("logbus_transaction_duration_seconds"), "s"),
        Panel("Records behind an open transaction", "logbus_last_stable_offset_lag_records_max"),
    ),
    "spark": (
        Panel("Unread records", "logbus_spark_lag_records", legend="{{query}}"),
        Panel("Rows", _rate("logbus_spark_input_rows_total", "query"), "ops", "{{query}}"),
        Panel("Batches", _rate("logbus_spark_batches_total", "query"), "ops", "{{query}}"),
        Panel("Batch duration, p99", _quantile("logbus_spark_batch_duration_seconds", "query"),
              "s", "{{query}}"),
        Panel("Time since the last batch", "time() - logbus_spark_last_batch_timestamp_seconds",
              "s", "{{query}}"),
        Panel("Skipped records", _rate("logbus_spark_lost_records_total", "query"), "ops",
              "{{query}}"),
    ),
}  # fmt: skip
"""The charts (panels) of each dashboard. A test checks the metrics and labels of their
expressions."""


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard of ``DASHBOARDS`` as Grafana imports it."""
    return {
        "title": f"logbus: {name}",
        "uid": f"logbus-{name}",
        "tags": ["logbus"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Source", "type": "datasource",
                      "query": "prometheus"}]
        },
        "panels": [_panel(number, row) for number, row in enumerate(DASHBOARDS[name])],
    }  # fmt: skip


def _panel(number: int, row: Panel) -> dict[str, Any]:
    line, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": row.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": row.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": "A", "expr": row.expression, "legendFormat": row.legend,
             "datasource": _SOURCE}
        ],
    }  # fmt: skip
