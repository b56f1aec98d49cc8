"""Convert JSON objects, one a line as ``consume -o jsonl`` prints them, to tables of records to
send.

An unknown field of an object is an error, because a record cannot hold this field, which would be
lost. The error names the line, the field and the correct form."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from broker_lite.client import arrays
from broker_lite.errors import InvalidSchemaError
from broker_lite.record.arrays import fixed
from broker_lite.record.arrow import TIMESTAMP_TYPE

_CARRIED = ("key", "value", "timestamp", "timestamp_ms", "headers")
_PASSED_OVER = ("topic", "partition", "offset")
"""Fields with the position from which ``consume`` read the record. ``produce`` ignores them."""
_TIMESTAMP_MS_MAX = (1 << 53) - 1
"""The latest timestamp in ms that the producer accepts."""
_UNKNOWN_MS = -1
"""The timestamp that ``consume`` prints for a record without a timestamp."""
_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[ \t\r\n,:]+")
"""The text between two tokens of a JSON object: space, commas and colons."""

Row = tuple[bytes | None, bytes | None, int | None, list[tuple[str, bytes | None]]]
"""A record: key, value, timestamp in ms, headers."""


class Parsed(NamedTuple):
    """The records of the lines before the first bad line, the number of these lines, and the error
    about the bad line; None if no line is bad."""

    records: pa.Table
    line_count: int
    error: InvalidSchemaError | None


def parsed(lines: list[bytes], first_number: int, source: str) -> Parsed:
    """Return the records in these lines, without empty lines. The error about a bad line names
    ``source`` and the line's number; the first line has number ``first_number``."""
    rows = []
    for count, line in enumerate(lines):
        if line.strip():
            try:
                rows.append(_row(line))
            except ValueError as error:
                refusal = InvalidSchemaError(f"{source} line {first_number + count}: {error}")
                return Parsed(_table_of(rows), count, refusal)
    return Parsed(_table_of(rows), len(lines), None)


def _table_of(rows: list[Row]) -> pa.Table:
    columns = {
        "key": arrays.binary_of([key for key, _, _, _ in rows]),
        "value": arrays.binary_of([value for _, value, _, _ in rows]),
    }
    stamps = [timestamp for _, _, timestamp, _ in rows]
    if any(stamp is not None for stamp in stamps):
        times = np.array([stamp or 0 for stamp in stamps], np.int64)
        is_known = np.array([stamp is not None for stamp in stamps])
        columns["timestamp"] = fixed(times, pa.int64(), is_known).cast(TIMESTAMP_TYPE)
    if any(headers for _, _, _, headers in rows):
        columns["headers"] = arrays.headers_of([headers for _, _, _, headers in rows])
    return pa.table(columns)


def _row(line: bytes) -> Row:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(
            f"not a JSON object: {line[:80]!r}. Correct it, or send the lines as they are: "
            "--input lines"
        )
    unknown = [name for name in fields if name not in _CARRIED and name not in _PASSED_OVER]
    if unknown:
        raise ValueError(
            f"field {unknown[0]!r} is not a field of a record and would be lost; a record has "
            f"{', '.join(_CARRIED)} (and may have {', '.join(_PASSED_OVER)}, which are not used). "
            'Wrap it: {"value": …}, or send the lines as they are: --input lines'
        )
    if "value" not in fields:
        raise ValueError(
            "there is no field 'value', so the record would be a tombstone (null); to send a "
            'tombstone, write {"value": null}'
        )
    return (
        _bytes(fields.get("key"), "key", line),
        _bytes(fields["value"], "value", line),
        _timestamp_ms(fields),
        headers_of(fields.get("headers")),
    )


def _bytes(value: Any, field: str, line: bytes | None = None) -> bytes | None:
    """Return the bytes for which a JSON value stands. With ``line``, the JSON object that has the
    value in ``field``, an object, array or number becomes the text that the line has for it."""
    if value is None:
        return None
    try:
        if isinstance(value, dict) and set(value) == {"$b64"}:
            return _from_base64(value["$b64"], field)
        if isinstance(value, str):
            return value.encode("utf-8")
        if line is not None:
            return _source_of(field, line.decode("utf-8", "surrogatepass")).encode("utf-8")
        return json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(
            f"field {field!r} has half a surrogate pair, which UTF-8 cannot encode; give bytes as "
            '{"$b64": "…"}'
        ) from None


def _source_of(field: str, text: str) -> str:
    """Return the text of a field's value in a valid JSON object, as it is written there: JSON that
    is decoded and encoded again has other spaces, and numbers such as 1.1 for 1.10."""
    found, at = "", text.index("{") + 1
    while text[at := _after_gap(text, at)] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _after_gap(text, at)
        _, at = _DECODER.raw_decode(text, start)
        if name == field:
            found = text[start:at]
    return found


def _after_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def _from_base64(text: Any, field: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"field {field!r}: $b64 is not valid base64 ({error}): {str(text)[:40]!r}; use A-Z "
            "a-z 0-9 + /, and = up to a multiple of four characters"
        ) from None


def _timestamp_ms(fields: Mapping[str, Any]) -> int | None:
    """Return the record's timestamp in ms, or None. The field ``timestamp_ms`` takes precedence
    over ``timestamp``; ``consume`` prints the same time in both."""
    timestamp = fields.get("timestamp")
    if isinstance(timestamp, str):
        try:
            moment = datetime.fromisoformat(timestamp)
        except ValueError:
            raise _wrong_time("timestamp", timestamp) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        timestamp = round(moment.timestamp() * 1000)
    found = None
    for field, value in (("timestamp", timestamp), ("timestamp_ms", fields.get("timestamp_ms"))):
        if value is None:
            continue
        if type(value) is not int or not _UNKNOWN_MS <= value <= _TIMESTAMP_MS_MAX:
            raise _wrong_time(field, value)
        found = None if value == _UNKNOWN_MS else value
    return found


def _wrong_time(field: str, value: object) -> ValueError:
    return ValueError(
        f"field {field!r} is not a time: {value!r}; give milliseconds since 1970 as a number"
        + (', or text such as "2026-01-31T12:00:00Z"' if field == "timestamp" else "")
    )


def headers_of(pairs: Any) -> list[tuple[str, bytes | None]]:
    """Return the headers in a parsed JSON list of pairs; an empty list for None. Raises ValueError,
    whose message shows the right form."""
    if pairs is None:
        return []
    headers = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(
                f"field 'headers' is not a list of pairs: {str(pairs)[:60]}; "
                'give [["name", "value"], …]'
            )
        name = _bytes(pair[0], "headers")
        assert name is not None
        headers.append((name.decode(), _bytes(pair[1], "headers")))
    return headers
