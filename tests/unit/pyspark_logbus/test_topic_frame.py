"""Tests of ``logbus.read``, which translates start and end time to options of a batch query."""

from __future__ import annotations

import datetime

import pytest

from broker_lite.errors import InvalidConfigError
from pyspark_logbus import options
from pyspark_logbus.topic_frame import plan_part

NOW = 1_763_700_000_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MIDNIGHT = 1_763_596_800_000
"""2025-11-20 in UTC."""


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("-1d", NOW - DAY_MS),
        ("-90s", NOW - 90_000),
        ("2025-11-20", MIDNIGHT),
        ("2025-11-20T10:00:00", MIDNIGHT + 10 * HOUR_MS),
        ("2025-11-20T12:00:00+02:00", MIDNIGHT + 10 * HOUR_MS),
        (str(MIDNIGHT), MIDNIGHT),
        (MIDNIGHT, MIDNIGHT),
        (datetime.date(2025, 11, 20), MIDNIGHT),
        (datetime.datetime(2025, 11, 20), MIDNIGHT),
        (datetime.datetime(2025, 11, 20, tzinfo=datetime.timezone(-datetime.timedelta(hours=1))),
         MIDNIGHT + HOUR_MS),
    ],
)  # fmt: skip
def test_times_without_zone_are_utc(time, expected):
    part = plan_part("events", since=time, now_ms=NOW)
    assert part.since_ms == expected
    assert part.options["startingTimestamp"] == str(expected)


def test_since_and_until_of_logbus_read_become_valid_spark_options():
    part = plan_part(
        "events", since="2025-11-20", until="2025-11-21", partitions=[2, 0], late="10m", now_ms=NOW
    )
    assert part.until_ms == MIDNIGHT + DAY_MS
    assert part.options == {
        "assign": '{"events": [2, 0]}',
        "startingTimestamp": str(MIDNIGHT),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": str(MIDNIGHT + DAY_MS + 600_000),
    }
    options.read_options(options.parse(part.options), "h:1", streaming=False)
    exact = plan_part("events", until="2025-11-21", late=None, now_ms=NOW)
    assert exact.options == {"subscribe": "events"}
    assert exact.until_ms == MIDNIGHT + DAY_MS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"since": "yesterday"}, "since='yesterday': give a datetime"),
        ({"until": "-1w"}, "until='-1w': give a datetime"),
        ({"since": -1}, "since=-1: give a datetime"),
        ({"since": True}, "since=True: give a datetime"),
        # Spark itself refuses these with errors about its own functions.
        ({"since": 1.7e12}, r"since=1700000000000\.0: give a datetime"),
        ({"until": 1_700_000_000_000_000_000}, "until=1700000000000000000: give a datetime"),
        ({"since": "-1h", "until": "-2h"}, "since='-1h' .* is after until='-2h'"),
        ({"columns": ["value", "nosuch"]}, "columns=.*'nosuch'.* give some of key, value"),
        ({"columns": []}, "give some of key, value"),
        ({"columns": ["key", "key"]}, "each once"),
        ({"until": "-1h", "late": "soon"}, "late='soon': give a duration"),
    ],
)
def test_invalid_time_bound_error_names_the_bound(given, message):
    with pytest.raises(InvalidConfigError, match=message):
        plan_part("events", **given, now_ms=NOW)


def test_option_push_filters_is_refused_and_the_error_advises_logbus_read():
    with pytest.raises(InvalidConfigError, match=r"pushFilters='true' is refused: .*logbus\.read"):
        options.parse({"subscribe": "t", "pushFilters": "true"})
    assert options.parse({"subscribe": "t", "pushFilters": "false"})["pushFilters"] is False
