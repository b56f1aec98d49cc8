"""One Spark session that does what its parent asks: a line of JSON in, a line of JSON out.

The same session serves both sides in turns, so that both have the same JVM, the same compiled code
of Spark itself and the same settings; ``format`` is all that differs. What is timed runs from
``load()`` to the end of the action. The side ``floor`` is a Python source that has its rows ready
and a sink that drops them. ``peers.spark_session`` is the parent; what Spark prints goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
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


class Host:
    """``calls`` are its public methods; each returns what goes to the parent."""

    def __init__(self, spark: Any, work: str) -> None:
        self.spark = spark
        self.work = work
        self.query: Any = None
        self.checkpoints = 0
        self.has_floor = False

    def read(
        self, side: str, address: str, topic: str, columns: list[str], options: dict[str, str]
    ) -> dict[str, Any]:
        """A batch read to a sink that drops everything."""
        before = time.perf_counter()
        self._noop(self._table(side, address, topic, columns, options))
        return {"seconds": time.perf_counter() - before}

    def aggregate(self, side: str, address: str, topic: str, columns: list[str]) -> dict[str, Any]:
        """A batch read whose values are all looked at; also what both sides must agree about."""
        before = time.perf_counter()
        frame = self._table(side, address, topic, columns, {})
        found = frame.selectExpr(
            "count(*) rows", "sum(length(value)) bytes", "sum(crc32(value)) checksum"
        ).collect()[0]
        return {"seconds": time.perf_counter() - before, "result": list(found)}

    def columns_seen(self, side: str, address: str, topic: str) -> dict[str, Any]:
        """That all seven columns are there and sound: sums over each, one task's worth of rows."""
        frame = self._table(side, address, topic, list(COLUMNS), {})
        found = frame.selectExpr(
            "count(*)",
            "count(key)",
            "count(value)",
            "count(distinct topic)",
            "count(distinct partition, offset)",
            "count(timestamp)",
            "sum(timestampType)",
        ).collect()[0]
        return {"result": list(found)}

    def stream(
        self, side: str, address: str, topic: str, options: dict[str, str]
    ) -> dict[str, Any]:
        """A backlog to its end with availableNow; from ``start()`` until the query ended."""
        before = time.perf_counter()
        query = self._to_the_end(
            self._stream(side, address, topic, {"startingOffsets": "earliest", **options})
        )
        seconds = time.perf_counter() - before
        rows = sum(p.numInputRows for p in query.recentProgress)
        return {"seconds": seconds, "rows": rows, "batches": len(query.recentProgress)}

    def stream_nothing(self, rows: int = 0, value_bytes: int = 0) -> dict[str, Any]:
        """The same from a Python source that does nothing, but to hand over so many ready rows:
        what Spark itself takes for it."""
        self._with_floor()
        before = time.perf_counter()
        reader = self.spark.readStream.format("nothing")
        query = self._to_the_end(reader.options(rows=rows, valuebytes=value_bytes).load())
        seconds = time.perf_counter() - before
        return {"seconds": seconds, "rows": sum(p.numInputRows for p in query.recentProgress)}

    def generate(self, folder: str) -> dict[str, Any]:
        """What the rows to be written cost alone."""
        before = time.perf_counter()
        self._noop(self.spark.read.parquet(folder))
        return {"seconds": time.perf_counter() - before}

    def write(
        self, side: str, address: str, topic: str, folder: str, options: dict[str, str]
    ) -> dict[str, Any]:
        """The lines of a folder's Parquet files to a topic."""
        before = time.perf_counter()
        frame = self.spark.read.parquet(folder)
        self._save(frame, side, address, topic, options)
        return {"seconds": time.perf_counter() - before}

    def pipeline(
        self,
        side: str,
        address: str,
        source: str,
        target: str,
        needle: str,
        word: int,
        reading: dict[str, str],
        writing: dict[str, str],
    ) -> dict[str, Any]:
        """Lines with ``needle`` in them by one of their words: read, filter, aggregate, write."""
        before = time.perf_counter()
        lines = self._table(side, address, source, ["value"], reading).selectExpr(
            "cast(value as string) line"
        )
        found = (
            lines.where(f"contains(line, '{needle}')")
            .selectExpr(f"split(line, ' ')[{word}] key", "length(line) bytes")
            .groupBy("key")
            .agg({"bytes": "sum", "*": "count"})
            .selectExpr("key", "concat_ws(' ', `count(1)`, `sum(bytes)`) value")
        )
        self._save(found, side, address, target, writing)
        return {"seconds": time.perf_counter() - before}

    def copy(
        self,
        side: str,
        address: str,
        source: str,
        target: str,
        needle: str,
        reading: dict[str, str],
        writing: dict[str, str],
    ) -> dict[str, Any]:
        """Lines without ``needle`` to another topic: a stream to its end, read and written."""
        before = time.perf_counter()
        frame = self._stream(side, address, source, {"startingOffsets": "earliest", **reading})
        kept = frame.select("value").where(f"not contains(cast(value as string), '{needle}')")
        query = (
            kept.writeStream.format(side)
            .trigger(availableNow=True)
            .option("kafka.bootstrap.servers", address)
            .option("topic", target)
            .options(**writing)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        query.awaitTermination()
        return {"seconds": time.perf_counter() - before}

    def loop_start(
        self, side: str, address: str, source: str, target: str, options: dict[str, str]
    ) -> dict[str, Any]:
        """Begin to pass each record on, as soon as Spark can; returns after the first trigger."""
        frame = self._stream(side, address, source, {"startingOffsets": "latest", **options})
        self.query = (
            frame.select("key", "value")
            .writeStream.format(side)
            .option("kafka.bootstrap.servers", address)
            .option("topic", target)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        while not self.query.lastProgress:
            if self.query.exception():
                raise RuntimeError(str(self.query.exception()))
            time.sleep(0.01)
        return {}

    def loop_stop(self) -> dict[str, Any]:
        """End it; the triggers' times in ms, of those that had rows."""
        progress = [p for p in self.query.recentProgress if p.numInputRows]
        self.query.stop()
        return {"triggers_ms": [p.durationMs["triggerExecution"] for p in progress]}

    def close(self) -> None:
        self.spark.stop()

    def _table(
        self, side: str, address: str, topic: str, columns: list[str], options: dict[str, str]
    ) -> Any:
        if side == FLOOR:
            self._with_floor()
        reader = self.spark.read.format(side).option("kafka.bootstrap.servers", address)
        reader = reader.option("subscribe", topic).options(**options)
        if len(columns) == len(COLUMNS):
            return reader.load()
        if side == "kafka":  # it has one schema, and drops columns after it made them
            return reader.load().select(*columns)
        return reader.schema(", ".join(f"{name} {COLUMNS[name]}" for name in columns)).load()

    def _stream(self, side: str, address: str, topic: str, options: dict[str, str]) -> Any:
        reader = self.spark.readStream.format(side).option("kafka.bootstrap.servers", address)
        return reader.option("subscribe", topic).options(**options).load()

    def _to_the_end(self, frame: Any) -> Any:
        query = (
            frame.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", self._checkpoint())
            .start()
        )
        query.awaitTermination()
        return query

    def _save(
        self, frame: Any, side: str, address: str, topic: str, options: dict[str, str]
    ) -> None:
        if side == FLOOR:
            self._with_floor()
        writer = frame.write.format(side).mode("append").option("topic", topic)
        writer.option("kafka.bootstrap.servers", address).options(**options).save()

    def _with_floor(self) -> None:
        """Only for whom it serves: a session's first read is nobody's second."""
        if not self.has_floor:
            from spark_floor import Floor, Nothing

            self.spark.dataSource.register(Floor)
            self.spark.dataSource.register(Nothing)
            self.has_floor = True

    def _noop(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _checkpoint(self) -> str:
        self.checkpoints += 1
        return f"{self.work}/checkpoint-{self.checkpoints}"


def start_session(conf: dict[str, str]) -> Any:
    """A local session on two cores."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").appName("bench").config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def serve(host: Host, requests: IO[str], replies: IO[str]) -> None:
    for line in requests:
        asked = json.loads(line)
        name = asked.pop("call")
        try:
            reply = getattr(host, name)(**asked)
        except Exception as error:  # told to the parent, which decides
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
