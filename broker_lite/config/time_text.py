"""Parse and format the times in commands: ISO 8601, ms since 1970, or an age such as ``-1d``."""

from __future__ import annotations

import datetime
import re

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,12})([smhd])")
_MILLISECONDS = re.compile("[0-9]{9,18}")
"""The digits of a time in milliseconds since 1970. A number with fewer digits is probably a year or
an offset, and is refused."""


def parse_time_ms(text: str, now_ms: int) -> int | None:
    """Return a time as milliseconds since 1970, or None if the text is not a time.

    Accepts ``-1d`` (before ``now_ms``; units s, m, h, d), ``2026-11-20``, ``2026-11-20T10:00:00Z``
    and ``1763632800000``. A time without a zone is UTC."""
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        return datetime_ms(datetime.datetime.fromisoformat(text))
    except ValueError:
        return None


def datetime_ms(time: datetime.datetime) -> int:
    """Return a time as milliseconds since 1970. A time without a zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return int(time.timestamp() * 1000)


def iso(timestamp_ms: int) -> str | None:
    """Return a time as ISO 8601 in UTC with milliseconds; None for -1 and for times beyond the
    calendar."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
