"""Spark sources and sinks that do nothing: the floor of any Python data source.

``floor`` reads ready Arrow batches from memory, and its sink drops all rows. As a stream, ``floor``
yields two rows for each micro-batch, for ever. ``nothing`` is a stream that ends. Spark's workers
import this module, so its folder must be on PYTHONPATH.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)


@lru_cache(maxsize=128)
def ready_batch(rows: int, value_bytes: int, number: int = 0) -> pa.RecordBatch:
    """Return a batch of ``rows`` values, which each worker process builds once."""
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(rows, pa.binary()),
            pa.array([b"%0*d" % (value_bytes, n) for n in range(rows)], pa.binary()),
            pa.array(["a-topic"] * rows),
            pa.array([0] * rows, pa.int32()),
            pa.array(range(rows), pa.int64()),
            pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")),
            pa.array([0] * rows, pa.int32()),
        ],
        schema=ARROW,
    )


class Floor(DataSource):
    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return DDL

    def reader(self, schema):
        return FloorReader(self.options, schema.names)

    def writer(self, schema, overwrite):
        return FloorWriter()

    def streamReader(self, schema):
        return FloorStreamReader()

    def streamWriter(self, schema, overwrite):
        return FloorStreamWriter()


class FloorReader(DataSourceReader):
    def __init__(self, options, names=ARROW.names) -> None:
        self.names = names
        self.rows = int(options["rows"])
        self.tasks = int(options["tasks"])
        self.batch_rows = int(options["batchrows"])
        self.value_bytes = int(options["valuebytes"])
        self.batches = int(options.get("batches", 1))

    def partitions(self):
        return [InputPartition(task) for task in range(self.tasks)]

    def read(self, partition):
        for number in range(self.rows // self.tasks // self.batch_rows):
            batch = ready_batch(self.batch_rows, self.value_bytes, number % self.batches)
            yield batch.select(self.names)


class FloorStreamReader(DataSourceStreamReader):
    def initialOffset(self):
        return {"n": 0}

    def latestOffset(self, start, limit):
        return {"n": start["n"] + 2}

    def partitions(self, start, end):
        return [InputPartition(end["n"] - start["n"])]

    def read(self, partition):
        yield ready_batch(2, 10).slice(0, partition.value)


class Nothing(DataSource):
    """A stream that reads a backlog of ready batches from memory and ends.

    Without the option ``rows``, the backlog is empty: then a query only starts and ends.
    """

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema):
        return NothingReader(self.options)


class NothingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options) -> None:
        self.floor = FloorReader(
            {"rows": 0, "tasks": 4, "batchrows": 2500, "valuebytes": 0} | options
        )

    def prepareForTriggerAvailableNow(self):
        pass

    def initialOffset(self):
        return {"n": 0}

    def latestOffset(self, start, limit):
        return {"n": self.floor.rows}

    def partitions(self, start, end):
        return self.floor.partitions() if end["n"] > start["n"] else []

    def read(self, partition):
        return self.floor.read(partition)


class _Drain:
    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()


class FloorWriter(_Drain, DataSourceArrowWriter):
    pass


class FloorStreamWriter(_Drain, DataSourceStreamArrowWriter):
    def commit(self, messages, batchId):
        pass

    def abort(self, messages, batchId):
        pass
