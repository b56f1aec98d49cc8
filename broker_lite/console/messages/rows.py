"""Convert records to the rows that a page shows, with readable keys, values and headers. The option
--no-payloads hides all three."""

from __future__ import annotations

from typing import Any

from broker_lite.client.record_files import Row
from broker_lite.console.messages import values


def shown_rows(rows: list[Row], *, hides_payloads: bool) -> list[dict[str, Any]]:
    """Return records as dictionaries of texts and numbers."""
    cut = values.cut_for(len(rows))

    def show(value: bytes | None) -> dict[str, Any]:
        shown = values.HIDDEN if hides_payloads else values.shown(value, cut)
        return shown._asdict()

    return [
        {
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp_ms": row["timestamp_ms"],
            "key": show(row["key"]),
            "value": show(row["value"]),
            "headers": [] if hides_payloads else _headers(row["headers"], cut),
            "headers_total": 0 if hides_payloads else len(row["headers"]),
        }
        for row in rows
    ]


def _headers(pairs: list[dict[str, Any]], cut: int) -> list[dict[str, Any]]:
    """Return the first headers of a record for display, with long names and values shortened."""
    first = pairs[: values.HEADERS_MAX]
    each = max(values.HEADER_BYTES, cut // max(len(first), 1))
    return [
        {"name": values.preview(pair["key"]), **values.shown(pair["value"], each)._asdict()}
        for pair in first
    ]


def as_fields(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON objects in the values of records as a table: ``names`` are its columns, the
    field names, and ``cells`` has a row of texts for each record."""
    shown = [values.DisplayedValue(**row["value"]) for row in rows]
    names = values.fields_of(shown)
    return {"names": names, "cells": [values.cells(row, names) for row in shown]}
