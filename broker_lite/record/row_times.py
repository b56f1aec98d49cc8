"""Find records by their timestamps in a batch of rows or of columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from broker_lite.model import NO_TIMESTAMP
from broker_lite.record import format as fmt
from broker_lite.record.arrays import numpy_of
from broker_lite.record.arrow import decode
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.transcode import rows_to_columns

_Int64s = npt.NDArray[np.int64]


def first_row(
    data: Buffer, header: BatchHeader, offset: int, timestamp: int
) -> tuple[int, int] | None:
    """Return the offset and timestamp (ms) of the first record whose offset is at least ``offset``
    and whose timestamp is at least ``timestamp``; None if there is none.

    ``data`` starts with the batch. Raises CorruptMessageError."""
    columns = _offsets_and_times(data, header)
    if columns is None:
        return offset, header.constant_timestamp
    offsets, times = columns
    rows = np.flatnonzero((times >= timestamp) & (offsets >= offset))
    return (int(offsets[rows[0]]), int(times[rows[0]])) if len(rows) else None


def newest_row(data: Buffer, header: BatchHeader, offset: int) -> int:
    """Return the maximum timestamp (ms) of the records of a batch from ``offset`` on, or -1 if
    there are none. ``data`` starts with the batch. Raises CorruptMessageError."""
    columns = _offsets_and_times(data, header)
    if columns is None:
        return header.constant_timestamp
    offsets, times = columns
    return int(times[offsets >= offset].max(initial=NO_TIMESTAMP))


def _offsets_and_times(data: Buffer, header: BatchHeader) -> tuple[_Int64s, _Int64s] | None:
    """Return the offsets and the timestamps of the records of a batch. Return None if the header
    suffices: all records have the same timestamp, and the offsets have no gaps."""
    if header.is_columns:
        columns = decode(data, header)
    else:
        columns = rows_to_columns(data, header, fmt.BROKER_DECOMPRESSED_BYTES_MAX)
    deltas = columns.offset_deltas
    if columns.timestamp is not None:
        times = numpy_of(columns.timestamp, np.int64)
    elif header.record_count <= header.last_offset_delta:
        times = np.full(columns.row_count, header.constant_timestamp, np.int64)
    else:
        return None
    rows = np.arange(len(times)) if deltas is None else deltas
    return header.base_offset + rows.astype(np.int64), times
