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

    - "auto": a value that is a JSON object or array in one line appears byte for byte, and any
      other value as a string;
    - "json": any valid JSON appears as JSON, with spaces in place of its line ends;
    - "str": always as a string;
    - "base64": as ``{"$b64": …}``. In the other forms too, bytes that are not UTF-8 appear this
      way.

    A value also appears as a string if it is nested too deeply, has text that UTF-8 cannot express
    (an unpaired surrogate) or NaN, or is an object with a field ``$b64``."""
    position = {
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": row["offset"],
        "timestamp": iso(row["timestamp_ms"]),
        "timestamp_ms": row["timestamp_ms"],
        "key": json_text(row["key"]),
    }
    value = _value_in_json(row["value"], value_form)
    headers = [[h["key"], json_text(h["value"])] for h in row.get("headers") or ()]
    return f'{_dumped(position)[:-1]}, "value": {value}, "headers": {_dumped(headers)}}}'


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_text(value: bytes | None) -> Any:
    """Return bytes as text for JSON: a string, or ``{"$b64": …}`` if they are not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"$b64": base64.b64encode(value).decode("ascii")}


def _value_in_json(value: bytes | None, form: str) -> str:
    """Return the JSON text that stands for a record's value in its line."""
    if value is not None and form == "base64":
        return _dumped({"$b64": base64.b64encode(value).decode("ascii")})
    text = json_text(value)
    if isinstance(text, str) and form in ("auto", "json"):
        line = text.replace("\n", " ").replace("\r", " ").strip(" \t")
        # In the form "auto" only objects and arrays are JSON. A value such as 404 stays a string.
        is_shown = form == "json" or (line == text and text.startswith(("{", "[")))
        if is_shown and _may_be_embedded(line):
            return line
    return _dumped(text)


def _may_be_embedded(text: str) -> bool:
    """Return whether a text is JSON that readers of the line decode to the same value."""
    try:
        found = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            _dumped(found).encode()  # Raises ValueError for an unpaired surrogate.
    except (RecursionError, ValueError):
        return False
    # Readers decode a JSON object that has the key $b64 to bytes.
    return not isinstance(found, dict) or "$b64" not in found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
