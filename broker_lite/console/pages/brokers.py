"""The data of the pages about brokers: leaders, replicas, disks, racks and versions, and for one
broker its partitions and settings."""

from __future__ import annotations

from typing import Any

from broker_lite.console.lists import Column, listing
from broker_lite.console.page_request import Data, PageRequest
from broker_lite.errors import BrokerIdNotRegisteredError, LogbusError
from broker_lite.observing.brokers import broker_rows, replica_rows

PARTITIONS = (
    Column("name", "Partition"),
    Column("role", "Role"),
    Column("in_sync", "In sync"),
    Column("size_bytes", "Data", "size"),
)


def brokers(ask: PageRequest) -> Data:
    return {"brokers": broker_rows(ask.reading.sample)}


def broker(ask: PageRequest) -> Data:
    broker_text = ask.path["broker"]
    rows = broker_rows(ask.reading.sample)
    row = next((row for row in rows if str(row["id"]) == broker_text), None)
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
    return [
        row
        | {
            "name": f"{row['topic']}-{row['partition']}",
            "in_sync": "yes" if row["in_sync"] else "no",
        }
        for row in replica_rows(ask.reading.sample, broker_id)
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
