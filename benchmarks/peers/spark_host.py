"""Run a Spark session that executes requests: a JSON line on stdin, a JSON line on stdout.

The same session serves both sides alternately, with the same JVM, compiled code and settings; only
``format`` differs. Times run from ``load()`` to the end of the action. The side ``floor`` is a
Python source with rows ready in memory, and a sink that drops rows. ``peers.spark_session`` sends
the requests. Spark's own output goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import IO, Any

FLOOR = "floor"
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}


@dataclass(frozen=True)
class End:
    """A topic as source or sink of a side (a compared system). The side ``floor`` has no address
    and no topic."""

    side: str
    address: str
    topic: str
    options: dict[str, str]


class Host:
    """The Spark session. Each public method executes a request and returns its response."""

    def __init__(self, spark: Any, work: str) -> None:
        self.spark = spark
        self.work = work
        self.query: Any = None
        self.checkpoints = 0
        self.has_floor = False

    def read(self, source: End, columns: list[str]) -> dict[str, Any]:
        """Read the source as a batch into a sink that drops all rows."""
        before = time.perf_counter()
        self._noop(self._table(source, columns))
        return {"seconds": time.perf_counter() - before}

    def aggregate(self, source: End) -> dict[str, Any]:
        """Read the source as a batch; return the count, total size and checksum of its values."""
        found = (
            self._table(source, ["value"])
            .selectExpr("count(*) rows", "sum(length(value)) bytes", "sum(crc32(value)) checksum")
            .collect()[0]
        )
        return {"result": list(found)}

    def stream(self, source: End) -> dict[str, Any]:
        """Process a backlog with availableNow; measure from ``start()`` until the query ends."""
        before = time.perf_counter()
        query = (
            self._stream(source, "earliest")
            .writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - before
        return {"seconds": seconds, "rows": sum(p.numInputRows for p in query.recentProgress)}

    def write(self, folder: str, target: End) -> dict[str, Any]:
        """Write the lines of a folder of Parquet files to a topic."""
        before = time.perf_counter()
        self._save(self.spark.read.parquet(folder), target)
        return {"seconds": time.perf_counter() - before}

    def pipeline(self, source: End, target: End, needle: str, word: int) -> dict[str, Any]:
        """Read lines, filter them by ``needle``, count them by one of their words, write counts."""
        before = time.perf_counter()
        lines = self._table(source, ["value"]).selectExpr("cast(value as string) line")
        found = (
            lines.where(f"contains(line, '{needle}')")
            .selectExpr(f"split(line, ' ')[{word}] key", "length(line) bytes")
            .groupBy("key")
            .agg({"bytes": "sum", "*": "count"})
            .selectExpr("key", "concat_ws(' ', `count(1)`, `sum(bytes)`) value")
        )
        self._save(found, target)
        return {"seconds": time.perf_counter() - before}

    def copy(self, source: End, target: End) -> dict[str, Any]:
        """Copy all values to another topic with a streaming query."""
        before = time.perf_counter()
        frame = self._stream(source, "earliest").select("value")
        self._to(frame, target).trigger(availableNow=True).start().awaitTermination()
        return {"seconds": time.perf_counter() - before}

    def loop_start(self, source: End, target: End) -> dict[str, Any]:
        """Start a streaming query that copies each record; return after its first trigger."""
        frame = self._stream(source, "latest").select("key", "value")
        self.query = self._to(frame, target).start()
        while not self.query.lastProgress:
            if self.query.exception():
                raise RuntimeError(str(self.query.exception()))
            time.sleep(0.01)
        return {}

    def loop_stop(self) -> dict[str, Any]:
        """Stop the query of ``loop_start``; return the durations, in ms, of those triggers that
        processed rows."""
        progress = [p for p in self.query.recentProgress if p.numInputRows]
        self.query.stop()
        return {"triggers_ms": [p.durationMs["triggerExecution"] for p in progress]}

    def close(self) -> None:
        self.spark.stop()

    def _table(self, source: End, columns: list[str]) -> Any:
        reader = self.spark.read.format(source.side)
        reader = reader.option("kafka.bootstrap.servers", source.address)
        reader = reader.option("subscribe", source.topic).options(**source.options)
        if len(columns) == len(COLUMNS):
            return reader.load()
        # Spark's Kafka source has a fixed schema, so select columns of it. logbus's source and the
        # floor return only the columns of a given schema.
        if source.side == "kafka":
            return reader.load().select(*columns)
        return reader.schema(", ".join(f"{name} {COLUMNS[name]}" for name in columns)).load()

    def _stream(self, source: End, since: str) -> Any:
        if source.side == FLOOR:
            return self.spark.readStream.format(FLOOR).options(**source.options).load()
        reader = self.spark.readStream.format(source.side)
        reader = reader.option("kafka.bootstrap.servers", source.address)
        reader = reader.option("startingOffsets", since).option("subscribe", source.topic)
        return reader.options(**source.options).load()

    def _to(self, frame: Any, target: End) -> Any:
        """Return the writer of a stream to ``target``, with a new checkpoint."""
        writer = frame.writeStream.format(target.side).option("topic", target.topic)
        writer = writer.option("kafka.bootstrap.servers", target.address).options(**target.options)
        return writer.option("checkpointLocation", self._checkpoint())

    def _save(self, frame: Any, target: End) -> None:
        writer = frame.write.format(target.side).mode("append").option("topic", target.topic)
        writer.option("kafka.bootstrap.servers", target.address).options(**target.options).save()

    def register_floor(self) -> None:
        """Register the source and sink of the side ``floor``, before a timed run that needs them.

        Other sessions do not register them, because this might change the time of their first read.
        """
        if not self.has_floor:
            from peers.spark_floor import Floor

            self.spark.dataSource.register(Floor)
            self.has_floor = True

    def _noop(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _checkpoint(self) -> str:
        self.checkpoints += 1
        return f"{self.work}/checkpoint-{self.checkpoints}"


def start_session(conf: dict[str, str]) -> Any:
    """Start a local session with two cores."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").appName("bench").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def serve(host: Host, requests: IO[str], replies: IO[str]) -> None:
    for line in requests:
        asked = json.loads(line)
        name = asked.pop("call")
        ends = {each: End(**asked.pop(each)) for each in ("source", "target") if each in asked}
        try:
            if any(each.side == FLOOR for each in ends.values()):
                host.register_floor()
            reply = getattr(host, name)(**asked, **ends)
        except Exception as error:  # Report the error; the parent process decides how to continue.
            reply = {"error": f"{name}: {type(error).__name__}: {error}"[:4000]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    host = Host(start_session(json.loads(sys.argv[1])), sys.argv[2])
    replies.write("{}\n")
    replies.flush()
    try:
        serve(host, sys.stdin, replies)
    finally:
        host.close()


if __name__ == "__main__":
    main()
