"""Check which timestamp and which kind the demo parses from log lines of many formats.

The kind of a line is a log level, a status or a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from pyspark_logbus.demo import parsing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARRIVAL = "2026-01-02 03:04:05"
LINES = [
    # In access logs of Apache and nginx the kind is the HTTP status.
    (
        '83.149.9.216 - - [17/May/2015:10:05:03 +0000] "GET /a.png HTTP/1.1" 200 203023 "-" "x"',
        "2015-05-17 10:05:03",
        "200",
    ),
    ('::1 - - [17/May/2015:12:05:03 +0200] "GET /" 304 -', "2015-05-17 10:05:03", "304"),
    # The severity may be anywhere in the line.
    ("2026-11-21T11:21:13.420687826Z main WARN Either no config", "2026-11-21 11:21:13", "WARN"),
    ("2026-11-21T12:21:13.420+01:00 INFO Executor: Running task", "2026-11-21 11:21:13", "INFO"),
    ("2026-11-21 11:21:13,420 ERROR logbus.broker: it failed", "2026-11-21 11:21:13", "ERROR"),
    ("2026/11/21 11:21:13 [error] 7#7: *1 open() failed", "2026-11-21 11:21:13", "ERROR"),
    ('{"time": "2026-11-21T11:21:13Z", "level": "warn"}', "2026-11-21 11:21:13", "WARN"),
    # In Debian's package logs the kind is the action or the program.
    ("2026-05-20 04:01:22 status installed libc6:amd64", "2026-05-20 04:01:22", "status"),
    ("2026-05-20 04:01:22 startup archives unpack", "2026-05-20 04:01:22", "startup"),
    (
        "update-alternatives 2025-06-24 10:11:12: run with --install",
        "2025-06-24 10:11:12",
        "update-alternatives",
    ),
    ("Start-Date: 2026-05-20  04:01:20", "2026-05-20 04:01:20", "Start-Date"),
    # In both syslog formats the kind is the program. The old format has no year.
    ("2026-11-21T11:21:13.42+00:00 host sshd[42]: Accepted", "2026-11-21 11:21:13", "sshd"),
    ("Jan  1 23:59:59 host CRON[1]: (root) CMD", "2026-01-01 23:59:59", "CRON"),
    ("Nov 21 11:21:13 host systemd[1]: Started", "2025-11-21 11:21:13", "systemd"),
    # Any other line has its arrival time.
    ("Unpacking libc6 ...", ARRIVAL, "other"),
    ("", ARRIVAL, "other"),
    ("9999-99-99 99:99:99 nonsense", ARRIVAL, "other"),
    ("[99/Xyz/2015:10:05:03 +0000]", ARRIVAL, "other"),
]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_demo_parses_the_time_and_event_kind_of_log_lines_in_many_formats(
    spark: SparkSession, ansi: str
) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        line, arrival = f.col("line"), f.to_timestamp(f.lit(ARRIVAL))
        found = (
            spark.createDataFrame([(text,) for text, _, _ in LINES], "line string")
            .select(
                f.date_format(parsing.event_time(line, arrival), "yyyy-MM-dd HH:mm:ss"),
                parsing.kind(line),
            )
            .collect()
        )
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert [tuple(row) for row in found] == [(time, kind) for _, time, kind in LINES]
