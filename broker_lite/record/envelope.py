"""Format a record as one JSON object, as ``logbus consume -o json`` prints it."""

from __future__ import annotations

import base64
import json
from typing import Any

from broker_lite.config.time_text import iso


def envelope(row: dict[str, Any], value_form: str) -> str:
    """Return a record as one line of JSON.

    ``row`` has the columns of Spark's Kafka source, but ``timestamp_ms`` (-1 if unknown) instead of
    ``timestamp``. ``value_form`` says how the record's value appears in the line:

    - "auto": a value that is a JSON object or array appears as this object or array, and any other
      value as a string;
    - "json": any valid JSON appears as JSON;
    - "str": always as a string;
    - "base64": as ``{"$b64": …}``. In the other forms too, bytes that are not UTF-8 appear this
      way.

    A value also appears as a string if it is nested too deeply, has text that UTF-8 cannot express
    (an unpaired surrogate) or a number that JSON cannot (NaN, 1e999), or is an object with a field
    ``$b64``."""
    try:
        text = _line(row, value_form)
        text.encode()
    except (RecursionError, ValueError):
        return _line(row, "str")
    return text


def _line(row: dict[str, Any], value_form: str) -> str:
    shown = {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": iso(row["timestamp_ms"]),
        "timestamp_ms": row["timestamp_ms"],
        "key": json_text(row["key"]),
        "value": _json_value(row["value"], value_form),
        "headers": [[h["key"], json_text(h["value"])] for h in row.get("headers") or ()],
    }
    return json.dumps(shown, ensure_ascii=False, allow_nan=False)


def json_text(value: bytes | None) -> Any:
    """Return bytes as text for JSON: a string, or ``{"$b64": …}`` if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"$b64": base64.b64encode(value).decode("ascii")}


def _json_value(value: bytes | None, form: str) -> Any:
    if value is None:
        return None
    if form == "base64":
        return {"$b64": base64.b64encode(value).decode("ascii")}
    # In the form "auto" only objects and arrays are JSON. A value such as 404 stays a string.
    if form == "json" or (form == "auto" and value[:1] in (b"{", b"[")):
        try:
            found = json.loads(value)
        except ValueError:
            return json_text(value)
        # Return a JSON object that has the key $b64 as text: readers decode such an object to
        # bytes.
        if not isinstance(found, dict) or "$b64" not in found:
            return found
    return json_text(value)
