"""Template filters that format numbers, sizes and times for people. No I/O."""

from __future__ import annotations

import datetime
import re
import shlex
from urllib.parse import quote

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
NONE = "–"
_WORD = re.compile(r"[a-z]+(-[a-z]+)*('s)?,?")


def size(count: float | None) -> str:
    """Return a number of bytes in powers of 1000, such as 1.2 GB; a dash for None."""
    if count is None or count < 0:
        return NONE
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 999.95 or (unit == "B" and value < 1000):
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} {_UNITS[-1]}"


def number(value: float | None) -> str:
    """Return a number with separators, such as 1,234; a dash for None."""
    return NONE if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a number in at most five characters, such as 12.3k; a dash for None."""
    if value is None:
        return NONE
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration in one or two units: 30 ms, 4 s, 2 min, 3 h 20 min; a dash for None."""
    if seconds is None:
        return NONE
    if 0 < seconds < 0.1:
        return f"{max(seconds * 1000, 1):.0f} ms"
    if seconds < 60:
        return (
            f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
        )
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def percent(part: float | None) -> str:
    """Return a fraction of 1 as a percentage; a dash for None."""
    return NONE if part is None else f"{part:.0%}"


def clock(timestamp_ms: float | None) -> str:
    """Return a time in UTC with milliseconds; a dash for -1 and for times beyond the calendar."""
    if timestamp_ms is None or timestamp_ms < 0:
        return NONE
    try:
        at = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return NONE
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 topic, 2 topics, 2 queries."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1] + 'ies' if noun.endswith('ry') else noun + 's'}"


def sentence(text: str) -> str:
    """Return a text with an upper-case first letter, unless it begins with a name, such as
    retention.ms=soon, whose spelling must not change."""
    is_word = _WORD.fullmatch(text.partition(" ")[0])
    return f"{text[:1].upper()}{text[1:]}" if is_word else text


def segment(name: str) -> str:
    """Return a name, percent-encoded, as one segment of a URL's path."""
    return quote(name, safe="")


FILTERS = {
    "size": size,
    "number": number,
    "short": short,
    "duration": duration,
    "percent": percent,
    "clock": clock,
    "plural": plural,
    "sentence": sentence,
    "segment": segment,
    "quoted": shlex.quote,
}
