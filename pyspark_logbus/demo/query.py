"""The Spark session of the demo, and its query from the lines topic to the counts topic.

The query counts lines in windows of event time, in complete mode and without a watermark. So it
also counts late lines, and each result replaces the earlier result of its key. Its state grows with
the number of minutes, so the query suits only a bounded number of lines.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_logbus.demo import parsing
from pyspark_logbus.settings import spark_conf

_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = File
appender.out.name = out
appender.out.fileName = {log}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{{ISO8601_OFFSET_DATE_TIME_HHCMM}} %p %c{{1}}: %m%n
"""

_JVM_SECONDS = 20.0
"""Seconds after which ``stop_session`` kills Spark's JVM. Before it exits, the JVM deletes its
temporary files."""

_jvms: list[subprocess.Popen[bytes]] = []
"""Spark's JVM processes. ``stop_session`` also stops a JVM whose session did not start."""


def start_session(directory: Path) -> SparkSession:
    """Start a local Spark session with two cores, which logs only to ``spark.log`` in
    ``directory``."""
    vars(java_gateway)["Popen"] = _start_jvm
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    properties = directory / "log4j2.properties"
    properties.write_text(_LOG4J.format(log=directory / "spark.log"), "utf-8")
    checkpoint = str(directory / "checkpoint")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("logbus demo")
        .config(
            "spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={properties.as_uri()}"
        )
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # The demo counts log lines by minute. In UTC no hour occurs twice (no daylight saving
        # time), and a time without a zone is shown as it stands in the log.
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.streaming.numRecentProgressUpdates", "10000")
    )
    for key, value in spark_conf(checkpoint_location=checkpoint).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _start_jvm(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
    with _signals_wait():
        jvm = subprocess.Popen(*arguments, **options)
        _jvms.append(jvm)
    return jvm


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block ends.

    An exception that a signal handler raises inside Popen would lose the new process before it is
    in ``_jvms``. Blocking the signals would not help, because the child process would inherit the
    blocked mask.
    """
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for each in arrived:
            signal.raise_signal(each)


def stop_session() -> None:
    """Stop Spark, if it was started, and wait until its JVM has exited.

    The JVM writes to the demo's folder until it exits. ``stop_session`` kills a JVM that has not
    exited within 20 s.
    """
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
    for jvm in _jvms:
        if jvm.stdin is not None:
            jvm.stdin.close()
        if session is None:
            # Also terminate a JVM that is still starting: it does not notice yet that its input is
            # closed.
            jvm.terminate()
        try:
            jvm.wait(_JVM_SECONDS)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()


def start_counting(
    spark: SparkSession,
    bootstrap: str,
    *,
    lines: str,
    counts: str,
    group: str,
    checkpoint: Path,
) -> StreamingQuery:
    """Start the query that counts the lines by minute and kind."""
    read = (
        spark.readStream.format("logbus")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", lines)
        .option("startingOffsets", "earliest")
        .option("group.id", group)
        .load()
    )
    line = f.col("value").cast("string")
    parsed = read.select(
        parsing.event_time(line, f.col("timestamp")).alias("event_time"),
        parsing.kind(line).alias("kind"),
    )
    counted = parsed.groupBy(f.window("event_time", "1 minute"), "kind").count()
    minute = f.date_format("window.start", "yyyy-MM-dd HH:mm").alias("minute")
    results = counted.select(
        f.to_json(f.struct(minute, "kind")).alias("key"),
        f.to_json(f.struct(minute, "kind", "count")).alias("value"),
    )
    return (
        results.writeStream.format("logbus")
        .option("bootstrap.servers", bootstrap)
        .option("topic", counts)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("complete")
        .queryName("logbus demo")
        .start()
    )
