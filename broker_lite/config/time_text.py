"""Times as users write them: ISO 8601, milliseconds since 1970, or a distance back from now.

Pure: the caller gives the time of now.
"""

from __future__ import annotations

import datetime
import re

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d{1,12})([smhd])")
_MILLISECONDS_DIGITS_MIN = 9
"""A shorter number is more likely a year, a date or an offset."""


def parse_time_ms(text: str, now_ms: int) -> int | None:
    """Milliseconds since 1970 of ``-1d``, ``2026-11-20``, ``2026-11-20T10:00:00Z`` (UTC where no
    zone is named) or ``1763632800000``; None for any other text."""
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    if text.isdigit() and len(text) >= _MILLISECONDS_DIGITS_MIN:
        return int(text)
    try:
        return datetime_ms(datetime.datetime.fromisoformat(text))
    except ValueError:
        return None


def datetime_ms(time: datetime.datetime) -> int:
    """Milliseconds since 1970; a time without a zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return int(time.timestamp() * 1000)
