"""``logbus.read``: a DataFrame of a part of a topic, which fetches little more than this part.

Spark 4.3.0 cannot safely push a filter into a Python source, because it keeps the pushed filters
for every later query of the same DataFrame. So the bounds in time are arguments of ``read``. The
bounds become options of a batch query, to limit its offset ranges, and a filter on the timestamp,
to remove the other rows. ``read`` runs on the driver, also over Spark Connect."""

from __future__ import annotations

import datetime
import json
import operator
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from broker_lite.config.time_text import datetime_ms, parse_time_ms
from broker_lite.errors import InvalidConfigError
from pyspark_logbus import option_values
from pyspark_logbus.offsets import LONG_MAX
from pyspark_logbus.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Time = str | int | datetime.date
"""A bound of ``read`` (``since`` or ``until``): text, milliseconds since 1970, a date or a
datetime."""
LATE = "1h"
"""The default of ``read``'s argument ``late``: one hour."""


class Part(NamedTuple):
    """The plan of one ``read``: the options and columns to load, and the range of timestamps (ms)
    to keep."""

    options: dict[str, str]
    columns: tuple[str, ...]
    since_ms: int | None
    until_ms: int | None


def read(
    spark: SparkSession,
    topic: str,
    *,
    since: Time | None = None,
    until: Time | None = None,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    late: str | None = LATE,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a DataFrame of the records with ``since <= timestamp < until``.

    - ``since``, ``until``: a datetime, ISO 8601 text (UTC if it has no zone), a time before now
      (``-1d``, ``-12h``), or milliseconds since 1970. Without a bound, all records.
    - ``partitions``: numbers of the partitions to read. Default: all.
    - ``columns``: names of the columns, in this order. Default: all but ``headers``.
    - ``late``: how long after its timestamp a record may be appended, for example ``1h``. The query
      reads each partition up to its first record at or after ``until + late``; with None, to the
      partition's end. A topic with LogAppendTime does not need ``late``.
    - ``options``: further options of a batch query.

    With a bound, the result leaves out records without a timestamp. The DataFrame keeps the offsets
    of its first action; call ``read`` again to see newer records. Raises InvalidConfigError.
    """
    part = plan_part(
        topic,
        since=since,
        until=until,
        partitions=partitions,
        columns=columns,
        late=late,
        now_ms=int(time.time() * 1000),
    )
    is_bounded = part.since_ms is not None or part.until_ms is not None
    loaded = dict.fromkeys((*part.columns, "timestamp") if is_bounded else part.columns)
    schema = ", ".join(f"`{name}` {COLUMNS[name].simpleString()}" for name in loaded)
    reader = spark.read.format("logbus").schema(schema)
    frame = reader.options(**{**(options or {}), **part.options}).load()
    if part.since_ms is not None:
        frame = frame.where(F.col("timestamp") >= F.timestamp_millis(F.lit(part.since_ms)))
    if part.until_ms is not None:
        frame = frame.where(F.col("timestamp") < F.timestamp_millis(F.lit(part.until_ms)))
    return frame.select(*part.columns)


def plan_part(
    topic: str,
    *,
    since: Time | None = None,
    until: Time | None = None,
    partitions: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    late: str | None = LATE,
    now_ms: int,
) -> Part:
    """Return the arguments of ``read`` as options of a batch query. ``now_ms`` is the time from
    which ``-1d`` counts. Raises InvalidConfigError."""
    since_ms = None if since is None else _time_ms("since", since, now_ms)
    until_ms = None if until is None else _time_ms("until", until, now_ms)
    if since_ms is not None and until_ms is not None and since_ms > until_ms:
        raise InvalidConfigError(
            f"since={since!r} ({since_ms} ms) is after until={until!r} ({until_ms} ms); give a "
            "since before the until"
        )
    given: dict[str, str] = {}
    if partitions is None:
        given["subscribe"] = topic
    else:
        given["assign"] = json.dumps({topic: list(partitions)})
    if since_ms is not None:
        given["startingTimestamp"] = str(since_ms)
        given["startingOffsetsByTimestampStrategy"] = "latest"
    if until_ms is not None and late is not None:
        given["endingTimestamp"] = str(until_ms + option_values.duration_ms("late", late))
    default = [name for name in COLUMNS if name != "headers"]
    chosen = tuple(default if columns is None else columns)
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen or len(set(chosen)) < len(chosen):
        raise InvalidConfigError(
            f"columns={list(chosen)!r}: give some of {', '.join(COLUMNS)}, each once"
        )
    return Part(given, chosen, since_ms, until_ms)


def _time_ms(name: str, value: Time, now_ms: int) -> int:
    time_ms: int | None
    match value:
        case str():
            time_ms = parse_time_ms(value.strip(), now_ms)
        case datetime.datetime():
            time_ms = datetime_ms(value)
        case datetime.date():
            time_ms = datetime_ms(datetime.datetime(value.year, value.month, value.day))
        case bool():
            time_ms = None
        case _:
            time_ms = operator.index(value) if hasattr(value, "__index__") else None
    if time_ms is None or not 0 <= time_ms <= LONG_MAX // 1000:  # Spark's times are in µs.
        raise InvalidConfigError(
            f"{name}={value!r}: give a datetime, 2026-11-20, 2026-11-20T10:00:00+01:00 (UTC where "
            "no zone is named), -1d (s, m, h or d before now), or milliseconds since 1970"
        )
    return time_ms
