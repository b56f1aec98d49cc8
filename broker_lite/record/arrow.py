"""The body of columns: Arrow columns to a whole batch and back. See FORMAT.md.

Invariants: a batch that is written has at least one row, offset 0 in every input array has been
rebased, and its CRC is set. Nothing read is used before the sizes that it declares were checked
and ``validate(full=True)`` passed: without that a crafted payload ends the process. Called by
clients and Spark's executors on any thread; the broker needs ``message`` only.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.record.batch import BatchHeader, Buffer

Compression = Literal["none", "lz4", "zstd"]

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("ms", tz="UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", TIMESTAMP_TYPE),
        ("headers", HEADERS_TYPE),
    ]
)


class Columns(NamedTuple):
    """Rows as Arrow columns of SCHEMA's types; a column that says nothing is None.

    ``key``, ``value``, ``headers``: None when null in every row (a row without headers has null).
    ``timestamp``: None when the same in every row, ``header.constant_timestamp``; never null.
    ``offset_deltas``: int32, row i has offset ``base_offset + offset_deltas[i]``; None when dense.
    """

    row_count: int
    key: pa.Array | None
    value: pa.Array | None
    timestamp: pa.Array | None = None
    headers: pa.Array | None = None
    offset_deltas: npt.NDArray[np.int32] | None = None

    def slice(self, start: int, stop: int) -> Columns:
        """Rows ``start`` to ``stop`` (exclusive) without a copy."""
        raise NotImplementedError


def encode(
    columns: Columns,
    *,
    timestamp_ms: int,
    compression: Compression = "none",
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> memoryview:
    """One whole writable batch: base offset 0, leader epoch -1, CRC set.

    Takes slices, chunked arrays, string/large/view types of key and value, timestamps of any unit.
    ``timestamp_ms`` is the time of rows that have none. ``attributes`` carries the timestamp type,
    transactional and control bits; the codec bits are set here. Raises MessageTooLargeError over
    ``fmt.BATCH_BYTES_MAX`` or ``fmt.RECORDS_MAX``, InvalidRecordError without rows or with
    columns of other types or lengths.
    """
    raise NotImplementedError


def decode(buffer: Buffer, header: BatchHeader) -> Columns:
    """The columns of one batch, over ``buffer``'s own memory where they are not compressed.

    ``buffer`` holds exactly the batch. The CRC is the caller's (``batch.check_crc``). Raises
    CorruptMessageError for whatever is wrong, before anything of a declared size is allocated.
    """
    raise NotImplementedError
