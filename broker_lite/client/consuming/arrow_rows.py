"""Build the Arrow record batch that ``poll_arrow`` returns, from the slices of decoded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from broker_lite.client.arrays import topic_column
from broker_lite.client.received import MILLIS_MAX, Slice, offsets_of, timestamps_of
from broker_lite.model import TopicPartition
from broker_lite.record.arrays import fixed
from broker_lite.record.arrow import HEADERS_TYPE

TIMESTAMP_US = pa.timestamp("us", tz="UTC")
ROW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_US),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of Spark's Kafka source; ``headers`` is an optional eighth column."""
ROW_SCHEMA_WITH_HEADERS = ROW_SCHEMA.append(pa.field("headers", HEADERS_TYPE))
JOINED_ROWS = 4096
"""Number of rows at which ``poll_arrow`` adds no further batch to its result: joining batches
copies them."""
JOINED_BYTES = 64 << 20
"""Maximum decoded bytes that one ``poll_arrow`` concatenates; Arrow's limit is 2 GiB a column."""


@dataclass(slots=True)
class ConcatenatedSlices:
    """The slices (rows of one batch each) that ``poll_arrow`` concatenates, and their total rows
    and bytes."""

    slices: list[tuple[TopicPartition, Slice]] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0

    def add(self, tp: TopicPartition, rows: Slice) -> bool:
        """Add a slice (rows of one batch), and return True. Return False, and add nothing, if the
        slices would exceed JOINED_BYTES together."""
        size = _decoded_bytes(rows)
        if self.slices and self.size_bytes + size > JOINED_BYTES:
            return False
        self.slices.append((tp, rows))
        self.size_bytes += size
        self.row_count += rows.row_count
        return True


def _decoded_bytes(rows: Slice) -> int:
    first, count, columns = rows.first_row, rows.row_count, rows.columns
    arrays = (columns.key, columns.value, columns.headers)
    return sum(each.slice(first, count).nbytes for each in arrays if each is not None)


def arrow_rows(parts: Sequence[tuple[TopicPartition, Slice]], *, headers: bool) -> pa.RecordBatch:
    """Return the rows of the slices (parts of batches) as one Arrow record batch of ROW_SCHEMA;
    ``headers`` adds the column of headers."""
    schema = ROW_SCHEMA_WITH_HEADERS if headers else ROW_SCHEMA
    if not parts:
        empty = [pa.nulls(0, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(empty, schema=schema)
    columns = [_row_columns(tp, rows, headers) for tp, rows in parts]
    if len(columns) == 1:
        return pa.RecordBatch.from_arrays(columns[0], schema=schema)
    joined = [pa.concat_arrays(list(pieces)) for pieces in zip(*columns)]
    return pa.RecordBatch.from_arrays(joined, schema=schema)


def _row_columns(tp: TopicPartition, rows: Slice, headers: bool) -> list[pa.Array]:
    count, first = rows.row_count, rows.first_row

    def column(array: pa.Array | None, kind: pa.DataType) -> pa.Array:
        return pa.nulls(count, kind) if array is None else array.slice(first, count)

    columns = [
        column(rows.columns.key, pa.binary()),
        column(rows.columns.value, pa.binary()),
        topic_column(tp.topic, count),
        fixed(np.full(count, tp.partition, np.int32), pa.int32()),
        fixed(offsets_of(rows), pa.int64()),
        _timestamp_column(rows),
        fixed(np.full(count, int(rows.header.is_log_append_time), np.int32), pa.int32()),
    ]
    if headers:
        columns.append(column(rows.columns.headers, HEADERS_TYPE))
    return columns


def _timestamp_column(rows: Slice) -> pa.Array:
    times = timestamps_of(rows)
    return fixed(times * 1000, TIMESTAMP_US, (times >= 0) & (times <= MILLIS_MAX))
