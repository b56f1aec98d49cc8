"""The data of the overview page: the cluster's health, traffic, lag and disks, the busiest topics,
and the groups with the largest lag."""

from __future__ import annotations

from typing import Any

from broker_lite.console.page_request import Data, PageRequest
from broker_lite.observing.brokers import broker_rows
from broker_lite.observing.reading import ClusterReading
from broker_lite.observing.sampler import LAG, RECORDS, SIZE
from broker_lite.observing.verdict import partitions

FIRST = 5
"""Number of topics, and number of groups, on the overview."""


def overview(ask: PageRequest) -> Data:
    reading = ask.reading
    totals = ask.sampler.totals if ask.sees_all else None
    topics = sorted(reading.topics.values(), key=lambda row: (-row.records_per_s, row.name))
    groups = sorted(reading.groups.values(), key=lambda row: (-(row.lag or 0), row.name))
    return {
        "state": reading.state,
        "summary": _summary(reading),
        "causes": [cause._asdict() for cause in reading.causes],
        "cluster": _facts(reading),
        "totals": {
            "records_per_s": reading.records_per_s,
            "size_bytes": reading.size_bytes,
            "lag": reading.lag,
            "disk": _disk(reading),
        },
        "history": {
            name: None if totals is None else totals.values(name) for name in (RECORDS, SIZE, LAG)
        },
        "history_s": 0.0 if totals is None else ask.sampler.span_s(len(totals.values(LAG))),
        "topics": [row._asdict() for row in topics[:FIRST]],
        "groups": [row._asdict() for row in groups[:FIRST]],
        "brokers": broker_rows(reading.sample),
    }


def _summary(reading: ClusterReading) -> dict[str, int]:
    rows = partitions(reading.sample)
    return {
        "brokers": len(reading.sample.view.brokers),
        "topics": len(reading.topics),
        "partitions": len(rows),
        "healthy": sum(row.state == "ok" for row in rows),
        "groups": len(reading.groups),
    }


def _facts(reading: ClusterReading) -> dict[str, Any]:
    view = reading.sample.view
    return {
        "cluster_id": view.cluster_id,
        "controller": view.controller_id if view.controller_id in view.brokers else None,
        "moves": len(reading.sample.moves),
        "zookeeper": _zookeeper(reading),
    }


def _zookeeper(reading: ClusterReading) -> dict[str, Any] | None:
    """Return how many brokers are connected to ZooKeeper, and the age of the oldest metadata that a
    broker uses, in seconds; None if no broker reports its metadata's age."""
    ages = [row.metadata_age_s for row in reading.sample.reports if row.metadata_age_s is not None]
    if not ages:
        return None
    return {"connected": ages.count(0.0), "brokers": len(ages), "metadata_age_s": max(ages)}


def _disk(reading: ClusterReading) -> dict[str, float] | None:
    """Return the fullest disk of the cluster; None if no broker reports its disk."""
    known = [row for row in reading.sample.log_dirs if row.total_bytes > 0]
    if not known:
        return None
    fullest = min(known, key=lambda row: row.usable_bytes / row.total_bytes)
    return {
        "broker": fullest.broker_id,
        "used": 1 - fullest.usable_bytes / fullest.total_bytes,
        "free_bytes": fullest.usable_bytes,
        "total_bytes": fullest.total_bytes,
    }
