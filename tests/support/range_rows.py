"""Make batches of one offset range, as if a task of Spark's source had fetched them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from broker_lite.client.fetch.range_reader import FetchedBatch
from broker_lite.record import arrow
from broker_lite.record import format as fmt
from broker_lite.record.arrow import TIMESTAMP_TYPE, Columns
from broker_lite.record.batch import read_header
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.options import parse, read_options
from pyspark_logbus.read_task import ReadPlan

RANGE = OffsetRange("topic-a", 3, 100, 200)


def fetched(
    count=4, *, first=0, rows=None, base=100, key=None, value=None, times=None, headers=None,
    base_time=1_700_000_000_123, log_append=False, deltas=None,
):  # fmt: skip
    columns = Columns(
        count,
        key,
        pa.array([b"v%d" % i for i in range(count)]) if value is None else value,
        None if times is None else pa.array(times, pa.int64()).view(TIMESTAMP_TYPE),
        headers,
    )
    header = read_header(arrow.encode(columns, compression="none", timestamp_ms=base_time))
    header = header._replace(base_offset=base)
    if log_append:
        header = header._replace(
            attributes=header.attributes | fmt.ATTRIBUTE_LOG_APPEND_TIME, max_timestamp=999
        )
        columns = columns._replace(timestamp=None)
    if deltas is not None:
        columns = columns._replace(offset_deltas=np.array(deltas, np.int32))
    return FetchedBatch(header, columns, first, count - first if rows is None else rows)


def plan_of(servers: str, schema: StructType, **given: str) -> ReadPlan:
    """Return the plan of a batch query with the given options."""
    options = read_options(parse({"subscribe": "t", **given}), servers, streaming=False)
    return ReadPlan(options, schema, reads_once=False)
