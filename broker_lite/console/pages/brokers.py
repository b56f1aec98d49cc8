"""The data of the pages about brokers: leaders, replicas, disks, racks and versions, and for one
broker its partitions and settings."""

from __future__ import annotations

from typing import Any

from broker_lite.client.administration.admin import BrokerReport
from broker_lite.client.administration.health import broker_loads
from broker_lite.console.lists import Column, listing
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.errors import BrokerIdNotRegisteredError, LogbusError
from broker_lite.observing.reading import ClusterReading

PARTITIONS = (
    Column("name", "Partition"),
    Column("role", "Role"),
    Column("in_sync", "In sync"),
    Column("size_bytes", "Data", "size"),
)


def brokers(ask: PageRequest) -> Data:
    return {"brokers": broker_rows(ask.reading)}


def broker_rows(reading: ClusterReading) -> list[dict[str, Any]]:
    """Return a row for each broker that runs, and for each broker that does not run but has a
    replica."""
    view = reading.sample.view
    reports = {report.broker_id: report for report in reading.sample.reports}
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


def broker(ask: PageRequest) -> Data:
    broker_text = ask.path["broker"]
    row = next((row for row in broker_rows(ask.reading) if str(row["id"]) == broker_text), None)
    if row is None:
        raise BrokerIdNotRegisteredError(
            f"no broker has id {broker_text[:20]}; see the page Brokers"
        )
    settings, refusal = _settings(ask, row["id"]) if row["runs"] else ([], "the broker is down")
    return {
        "broker": row,
        "partitions": listing(_partitions(ask, row["id"]), PARTITIONS, ask.query, sort="name"),
        "settings": [each for each in settings if not each["is_default"]],
        "settings_known": len(settings),
        "settings_refusal": refusal,
    }


def _partitions(ask: PageRequest, broker_id: int) -> list[dict[str, Any]]:
    sizes = {
        tp: size
        for row in ask.reading.sample.log_dirs
        if row.broker_id == broker_id
        for tp, size in row.partitions.items()
    }
    return [
        {
            "name": f"{tp.topic}-{tp.partition}",
            "topic": tp.topic,
            "role": "leader" if part.leader == broker_id else "follower",
            "in_sync": "yes" if broker_id in part.isr else "no",
            "size_bytes": sizes.get(tp),
        }
        for tp, part in ask.reading.sample.view.rows
        if broker_id in part.replicas
    ]


def _settings(ask: PageRequest, broker_id: int) -> tuple[list[dict[str, Any]], str]:
    """Return the broker's settings and an error message. The message is empty if the settings could
    be read; otherwise there are no settings."""
    try:
        (entries,) = ask.admin.describe_configs(brokers=[broker_id]).values()
    except LogbusError as error:
        return [], error.message
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "is_default": entry.is_default,
            "source": entry.source,
            "documentation": entry.documentation,
        }
        for entry in sorted(entries.values())
    ], ""
