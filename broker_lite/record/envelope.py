"""Format a record as one JSON object, as ``logbus consume -o json`` prints it."""

from __future__ import annotations

import base64
import json
from typing import Any

from broker_lite.config.time_text import iso


def envelope(row: dict[str, Any], value_form: str) -> str:
    """Return a record as one line of JSON.

    ``row`` has the columns of Spark's Kafka source, with ``timestamp_ms`` (-1: unknown) in place of
    ``timestamp``. ``value_form`` selects the form of the value:

    - "auto": a JSON object or array becomes JSON, any other value text;
    - "json": any valid JSON becomes JSON;
    - "str": text;
    - "base64": ``{"$b64": …}``, as are all bytes that are not UTF-8 in the other forms.

    A JSON value stays text if it is nested too deeply or escapes an unpaired surrogate.
    """
    try:
        text = _line(row, value_form)
        text.encode()
    except (RecursionError, UnicodeEncodeError):
        return _line(row, "str")
    return text


def _line(row: dict[str, Any], value_form: str) -> str:
    shown = {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": iso(row["timestamp_ms"]),
        "timestamp_ms": row["timestamp_ms"],
        "key": _json_text(row["key"]),
        "value": _json_value(row["value"], value_form),
        "headers": [[h["key"], _json_text(h["value"])] for h in row.get("headers") or ()],
    }
    return json.dumps(shown, ensure_ascii=False)


def _json_text(value: bytes | None) -> Any:
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
    # "auto" treats only objects and arrays as JSON; a log line "404" stays text.
    if form == "json" or (form == "auto" and value[:1] in (b"{", b"[")):
        try:
            return json.loads(value)
        except ValueError:
            pass
    return _json_text(value)
