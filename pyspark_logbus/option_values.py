"""Parsers of option values for the table in ``options``. They do no I/O.

Each parser takes an option's name and its text, and returns the value. It raises InvalidConfigError
with the name, the text and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from broker_lite.errors import InvalidConfigError
from pyspark_logbus import offsets
from pyspark_logbus.offsets import LONG_MAX, OffsetSpec

INT_MAX = (1 << 31) - 1
_DURATION = re.compile(r"(\d{1,19})\s*([a-z]*)")
_UNITS = {
    "": 1,
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_LONG_UNITS = {"millisecond": "ms", "second": "s", "minute": "m", "hour": "h", "day": "d"}


def text(name: str, value: str) -> str:
    """Return ``value``, the value of the option ``name``, without surrounding blanks. Raises
    InvalidConfigError if it is blank."""
    if not value.strip():
        raise InvalidConfigError(f"{name} is empty; give a value or leave it out")
    return value.strip()


def verbatim(name: str, value: str) -> str:
    """Return ``value``, the value of the option ``name``, unchanged. A password may begin with a
    blank."""
    return value


def whole(at_least: int, at_most: int = LONG_MAX) -> Callable[[str, str], int]:
    """Return a parser of whole numbers from ``at_least`` to ``at_most``, both inclusive."""

    def parse(name: str, value: str) -> int:
        is_number = re.fullmatch(r"[+-]?\d{1,19}", value.strip())
        if not is_number or not at_least <= int(value) <= at_most:
            raise InvalidConfigError(
                f"{name}={value!r}: give a whole number, {at_least} or more"
                + (f" and at most {at_most}" if is_number and int(value) > at_most else "")
            )
        return int(value)

    return parse


def at_least(least: int) -> Callable[[str, str], int]:
    """Return a parser of positive whole numbers that returns ``least`` for any smaller number."""
    number = whole(1)
    return lambda name, value: max(least, number(name, value))


def flag(name: str, value: str) -> bool:
    """Parse ``true`` or ``false``, in upper or lower case."""
    if value.strip().lower() not in ("true", "false"):
        raise InvalidConfigError(f"{name}={value!r}: give true or false")
    return value.strip().lower() == "true"


def no_pushed_filters(name: str, value: str) -> bool:
    """Parse ``false``. Rejects ``true``: with pushed filters, Spark 4.3.0 would miss rows."""
    if flag(name, value):
        raise InvalidConfigError(
            f"{name}={value!r} is refused: Spark 4.3.0 keeps the filters of one query for all "
            "later queries of the same DataFrame, which then read too few rows. Use "
            "logbus.read(spark, topic, since=..., until=..., partitions=[...], columns=[...])"
        )
    return False


def one_of(*choices: str) -> Callable[[str, str], str]:
    """Return a parser that accepts ``choices`` (lower-case words) in upper or lower case."""

    def parse(name: str, value: str) -> str:
        if value.strip().lower() not in choices:
            raise InvalidConfigError(f"{name}={value!r}: give one of {', '.join(choices)}")
        return value.strip().lower()

    return parse


def duration_ms(name: str, value: str) -> int:
    """Parse a duration in Spark's forms (``15m``, ``5s``, ``2 minutes``) to milliseconds.

    A number without a unit is in milliseconds.
    """
    match = _DURATION.fullmatch(value.strip().lower())
    unit = match.group(2) if match else None
    if unit is not None:
        unit = _LONG_UNITS.get(unit.rstrip("s") if len(unit) > 2 else unit, unit)
    if match is None or unit not in _UNITS or int(match.group(1)) * _UNITS[unit] > LONG_MAX:
        raise InvalidConfigError(f"{name}={value!r}: give a duration such as 15m, 5s or 200ms")
    return int(int(match.group(1)) * _UNITS[unit])


def timestamp(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", value.strip()) or int(value) > LONG_MAX:
        raise InvalidConfigError(
            f"{name}={value!r}: expected a single long value; give milliseconds since the epoch"
        )
    return int(value)


def topics(name: str, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(t.strip() for t in value.split(",") if t.strip()))
    if not names:
        raise InvalidConfigError(
            f"{name}={value!r}: No topics to subscribe to; give topic names separated by commas"
        )
    return names


_ESCAPE_OR_SET = re.compile(r"\\.|\[\^?\]?((?:\\.|[^\]\\])*)\]", re.DOTALL)
"""Matches an escape sequence, or a character class of a Python regular expression."""


def pattern(name: str, value: str) -> str:
    r"""Parse a regular expression that means the same in Python and in Java, because Spark's Kafka
    source takes Java's syntax.

    Raises InvalidConfigError for the syntax that both languages have with different meanings, and
    for invalid Python syntax. The latter includes most syntax that only Java has, such as ``\Q``
    and ``\p{L}``.
    """
    for match in _ESCAPE_OR_SET.finditer(value):
        members = re.sub(r"\\.", "", match[1] or "")
        if "&&" in members:
            what, instead = "intersects sets (&&)", "use a lookahead: (?![aeiou])[a-z]"
        elif "[" in members:
            what, instead = "has a set inside a set", "join the sets: [a-z0-9]"
        elif match[0] == r"\0":
            what, instead = r"has an octal escape (\0)", r"write the character, or \x61"
        else:
            continue
        raise InvalidConfigError(
            f"{name}={value!r} {what}, which Java reads differently from Python; {instead}"
        )
    try:
        re.compile(text(name, value))
    except re.error as error:
        raise InvalidConfigError(
            f"{name}={value!r} is not a Python regular expression ({error}); it must match the "
            "whole topic name"
        ) from None
    return value.strip()


def starting(name: str, value: str) -> OffsetSpec:
    """Parse the start of a query: one word for all partitions, or JSON with an offset for each
    partition."""
    return offsets.parse_offsets(name, value, words=("earliest", "latest", "group"))


def ending(name: str, value: str) -> OffsetSpec:
    """Parse the end of a batch query: ``latest``, or JSON with an offset for each partition.
    Rejects ``earliest``."""
    spec = offsets.parse_offsets(name, value, words=("latest", "earliest"))
    if spec == offsets.EARLIEST_EVERYWHERE or (
        isinstance(spec, offsets.PerPartition)
        and any(o == offsets.EARLIEST for row in spec.topics.values() for o in row.values())
    ):
        raise InvalidConfigError(
            f"{name}: ending offset can't be earliest (-2); give latest (-1) or offsets"
        )
    return spec


def acks(name: str, value: str) -> str:
    """Parse ``all``, ``1`` or ``0``. ``-1`` means ``all``, as in Kafka."""
    word = {"-1": "all"}.get(value.strip().lower(), value.strip().lower())
    return one_of("all", "1", "0")(name, word)


COMPRESSIONS = ("none", "lz4", "zstd")
NEAREST_COMPRESSION = {"gzip": "zstd", "snappy": "lz4"}
"""Codecs that Kafka has and the sink does not write, each with the codec that the sink writes
instead. zstd compresses about as well as gzip, and lz4 is about as fast as snappy."""


def compression(name: str, value: str) -> str:
    """Return the codec ``value``, or the nearest one that the sink writes
    (``NEAREST_COMPRESSION``)."""
    word = value.strip().lower()
    return NEAREST_COMPRESSION.get(word) or one_of(*COMPRESSIONS)(name, value)
