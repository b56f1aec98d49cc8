"""Make the producers of this process write row batches.

Apache Kafka stores row batches too; only logbus stores column batches.
"""

from __future__ import annotations

from typing import Any

from broker_lite.record import arrow
from broker_lite.record.batch import read_header
from broker_lite.record.transcode import columns_to_rows

encode_columns = arrow.encode


def encode_rows(*arguments: Any, **options: Any) -> memoryview:
    """Encode Arrow columns as a column batch; return it converted to a row batch."""
    batch = encode_columns(*arguments, **options)
    return memoryview(columns_to_rows(batch, read_header(batch)))
