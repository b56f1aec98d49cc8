"""All benchmarks, in the order of the rows of the table. Each module lists its benchmarks in
``ROWS``."""

from __future__ import annotations

from peers.row import Row
from peers.rows import (
    brokers,
    consume,
    disk,
    growth,
    netdb11,
    produce,
    python,
    spark_latency,
    spark_pipeline,
    spark_read,
    spark_stream,
    spark_write,
    start,
)

_MODULES = (
    brokers,
    consume,
    disk,
    growth,
    netdb11,
    produce,
    python,
    spark_latency,
    spark_pipeline,
    spark_read,
    spark_stream,
    spark_write,
    start,
)
ROWS: tuple[Row, ...] = tuple(
    sorted(
        (row for module in _MODULES for row in module.ROWS),
        key=lambda row: (row.number, row.name),
    )
)
