"""A Spark source and sink that do nothing: the floor of any Python data source.

``floor`` reads Arrow batches that are ready in memory, as a batch or as a stream with a backlog
that ends, and its sink drops all rows. Spark's workers import this module.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
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


@lru_cache(maxsize=1)
def ready_batch(rows: int, value_bytes: int) -> pa.RecordBatch:
    """Return a batch of ``rows`` records. Each worker process builds it only once."""
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
        return FloorStreamReader(self.options)


class FloorReader(DataSourceReader):
    def __init__(self, options, names=ARROW.names) -> None:
        self.names = names
        self.rows = int(options["rows"])
        self.tasks = int(options["tasks"])
        self.batch_rows = int(options["batchrows"])
        self.value_bytes = int(options["valuebytes"])

    def partitions(self):
        return [InputPartition(task) for task in range(self.tasks)]

    def read(self, partition):
        for _ in range(self.rows // self.tasks // self.batch_rows):
            yield ready_batch(self.batch_rows, self.value_bytes).select(self.names)


class FloorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options) -> None:
        self.floor = FloorReader(options)

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


class FloorWriter(DataSourceArrowWriter):
    def write(self, iterator):
        for _ in iterator:
            pass
        return WriterCommitMessage()
