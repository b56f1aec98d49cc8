"""Rows about the brokers of a sampled cluster, for the command line and the console. No I/O."""

from __future__ import annotations

from typing import Any

from broker_lite.client.administration.admin import BrokerReport
from broker_lite.client.administration.health import broker_loads
from broker_lite.observing.sample import ClusterSample


def broker_rows(sample: ClusterSample) -> list[dict[str, Any]]:
    """Return a row for each broker that runs, and for each broker that does not run but has a
    replica."""
    view = sample.view
    reports = {report.broker_id: report for report in sample.reports}
    rows = []
    for broker_id, load in broker_loads(view).items():
        report = reports.get(broker_id, BrokerReport(broker_id, ()))
        endpoint = view.brokers.get(broker_id)
        known = [row for row in report.log_dirs if row.error is None]
        total = sum(max(row.total_bytes, 0) for row in known)
        usable = sum(max(row.usable_bytes, 0) for row in known)
        rows.append(
            {
                "id": broker_id,
                "address": None if endpoint is None else str(endpoint),
                "rack": view.racks.get(broker_id),
                "version": report.version,
                "runs": endpoint is not None,
                "is_controller": endpoint is not None and broker_id == view.controller_id,
                "leaders": load.leaders,
                "replicas": load.replicas,
                "in_sync": load.in_sync,
                "size_bytes": sum(sum(row.partitions.values()) for row in known) if known else None,
                "disk_used": 1 - usable / total if total else None,
                "disk_free_bytes": usable if total else None,
                "disk_full": report.is_disk_full,
                "metadata_age_s": report.metadata_age_s,
                "errors": [row.error.message for row in report.log_dirs if row.error is not None],
            }
        )
    return rows


def replica_rows(sample: ClusterSample, broker_id: int) -> list[dict[str, Any]]:
    """Return a row for each replica that a broker holds."""
    sizes = {
        tp: size
        for row in sample.log_dirs
        if row.broker_id == broker_id
        for tp, size in row.partitions.items()
    }
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "role": "leader" if part.leader == broker_id else "follower",
            "in_sync": broker_id in part.isr,
            "size_bytes": sizes.get(tp),
        }
        for tp, part in sample.view.rows
        if broker_id in part.replicas
    ]
