"""Spark expressions for the time and the kind of a log line.

The kind is the first of these that the line has: an HTTP status, a severity, an action, a program.
Other lines have the kind "other". A line without a time gets the timestamp of its record.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

OTHER = "other"

_ISO = r"^.{0,40}?(\d{4})[-/](\d\d)[-/](\d\d)[T ]+(\d\d:\d\d:\d\d)"
_ISO_ZONE = r"^.{0,40}?\d{4}[-/]\d\d[-/]\d\d[T ]+\d\d:\d\d:\d\d(?:[.,]\d+)? ?(Z|[+-]\d\d:?\d\d)"
_APACHE = r"\[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]"
_SYSLOG = r"^(\w{3}) +(\d{1,2}) (\d\d:\d\d:\d\d) "

_STATUS = r'" (\d{3}) (?:\d+|-)'
_SEVERITY = (
    r'(?i)^.{0,120}?(?:[\[ "]|^)'
    r"(trace|debug|info|notice|warn|warning|error|err|fatal|critical|panic)"
    r'(?:[\]: "]|$)'
)
_ACTION = r"^\d{4}-\d\d-\d\d [\d:]{8} ([a-z]+) "
_PROGRAM = r"^(?:\w{3} +\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT\S+) \S+ ([\w./@-]+?)(?:\[\d+\])?: "
_NAMED = r"^([A-Za-z][\w-]*)(?: \d{4}-\d\d-\d\d [\d:]{8})?: "


def event_time(line: Column, arrival: Column) -> Column:
    """Return an expression for the time that the log line names, else ``arrival``, the record's
    timestamp."""
    digits = [f.regexp_extract(line, _ISO, group) for group in (1, 2, 3, 4)]
    day = f.concat_ws("-", *digits[:3])
    zone = f.regexp_extract(line, _ISO_ZONE, 1)
    iso = f.try_to_timestamp(f.concat(day, f.lit(" "), digits[3], zone))
    apache = f.try_to_timestamp(f.regexp_extract(line, _APACHE, 1), f.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    # Classic syslog has no year. Use the latest year in which the time is at most a day in the
    # future.
    this_year = _syslog_time(line, f.year(arrival))
    last_year = _syslog_time(line, f.year(arrival) - 1)
    syslog = f.when(this_year <= arrival + f.expr("INTERVAL 1 DAY"), this_year).otherwise(last_year)
    return f.coalesce(iso, apache, syslog, arrival)


def kind(line: Column) -> Column:
    """Return an expression for the line's HTTP status, severity, action or program, else
    "other"."""
    severity = f.upper(_extract(line, _SEVERITY))
    return f.coalesce(
        _extract(line, _STATUS),
        severity,
        _extract(line, _ACTION),
        _extract(line, _PROGRAM),
        _extract(line, _NAMED),
        f.lit(OTHER),
    )


def _syslog_time(line: Column, year: Column) -> Column:
    parts = [f.regexp_extract(line, _SYSLOG, group) for group in (1, 2, 3)]
    text = f.concat_ws(" ", year.cast("string"), *parts)
    return f.try_to_timestamp(text, f.lit("yyyy MMM d HH:mm:ss"))


def _extract(line: Column, pattern: str) -> Column:
    text = f.regexp_extract(line, pattern, 1)
    return f.when(text != "", text)
