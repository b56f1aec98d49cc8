"""The times of a batch's rows, in arrays, whichever body it has. Pure, any thread."""

from __future__ import annotations

import numpy as np

from broker_lite.record.arrays import numpy_of
from broker_lite.record.arrow import decode
from broker_lite.record.batch import BatchHeader, Buffer
from broker_lite.record.transcode import rows_to_columns


def first_row(
    data: Buffer, header: BatchHeader, offset: int, timestamp: int
) -> tuple[int, int] | None:
    """Offset and time of the first row from ``offset`` on that is as late as ``timestamp`` (ms).

    None where there is none. ``data`` begins with the batch. Raises CorruptMessageError.
    """
    columns = decode(data, header) if header.is_columns else rows_to_columns(data, header)
    if columns.timestamp is None:
        return offset, header.constant_timestamp
    times = numpy_of(columns.timestamp, np.int64)
    deltas = columns.offset_deltas
    offsets = header.base_offset + (np.arange(len(times)) if deltas is None else deltas)
    rows = np.flatnonzero((times >= timestamp) & (offsets >= offset))
    return (int(offsets[rows[0]]), int(times[rows[0]])) if len(rows) else None
