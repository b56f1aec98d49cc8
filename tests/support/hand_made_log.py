"""A handwritten log with transactions and compacted batches.

The log has row batches and column batches, without and with offset gaps. It has empty batches, as
Kafka's log cleaner leaves them, and control batches. Its transactions are committed or aborted, and
some have the same producer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker_lite.client.arrays import binary_of
from broker_lite.record import arrow
from broker_lite.record import format as fmt
from broker_lite.record.arrow import Columns
from broker_lite.record.batch import read_header, set_crc
from broker_lite.wire.fetch import AbortedTransaction
from support.row_codec import Row, encode_rows

TIME_MS = 1_700_000_000_000
EPOCH = 0
TRANSACTIONAL = fmt.ATTRIBUTE_TRANSACTIONAL
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def value_at(offset: int, size: int = 0) -> bytes:
    return (b"value %d" % offset).ljust(size, b".")


def finished(buffer: bytearray | memoryview, base: int, end: int, **fields: int) -> bytes:
    """Return a batch with its offsets and CRC set, from offset ``base`` to ``end`` (exclusive)."""
    header = read_header(buffer)._replace(
        base_offset=base, last_offset_delta=end - base - 1, leader_epoch=EPOCH
    )
    fmt.HEADER.pack_into(buffer, 0, *header._replace(**fields))
    set_crc(buffer)
    return bytes(buffer)


def rows(
    offsets: Sequence[int], end: int = 0, *, pid: int = -1, size: int = 0, codec: int = 0
) -> bytes:
    """Return a batch in Kafka's format (a row batch) with records at these offsets; its last offset
    is ``end - 1``.

    With ``pid`` (a producer id) the batch belongs to a transaction.
    """
    made = encode_rows(
        [Row(at, TIME_MS, b"k", value_at(at, size)) for at in offsets],
        codec=codec,
        attributes=TRANSACTIONAL if pid >= 0 else 0,
        producer_id=pid,
        producer_epoch=0 if pid >= 0 else -1,
        base_sequence=0 if pid >= 0 else -1,
    )
    return finished(made, offsets[0], end or offsets[-1] + 1)


def columns(offsets: Sequence[int], end: int = 0, *, pid: int = -1, size: int = 0) -> bytes:
    """Return a column batch with the records that ``rows`` returns as a row batch."""
    base, deltas = offsets[0], np.array([at - offsets[0] for at in offsets], np.int32)
    is_dense = int(deltas[-1]) == len(offsets) - 1
    made = arrow.encode(
        Columns(
            len(offsets),
            binary_of([b"k"] * len(offsets)),
            binary_of([value_at(at, size) for at in offsets]),
            offset_deltas=None if is_dense else deltas,
        ),
        timestamp_ms=TIME_MS,
        attributes=TRANSACTIONAL if pid >= 0 else 0,
        producer_id=pid,
        producer_epoch=0 if pid >= 0 else -1,
        base_sequence=0 if pid >= 0 else -1,
    )
    return finished(made, base, end or offsets[-1] + 1)


def marker(offset: int, pid: int, kind: bytes) -> bytes:
    """Return the control batch that ends a transaction."""
    made = encode_rows(
        [Row(offset, TIME_MS, kind, b"\0\0\0\0\0\0")],
        attributes=TRANSACTIONAL | fmt.ATTRIBUTE_CONTROL,
        producer_id=pid,
        producer_epoch=0,
    )
    return finished(made, offset, offset + 1)


def empty(base: int, end: int) -> bytes:
    """Return a batch without records, as compaction leaves it."""
    header = read_header(encode_rows([Row(base, TIME_MS, None, None)]))
    buffer = bytearray(fmt.HEADER_BYTES)
    fmt.HEADER.pack_into(buffer, 0, *header._replace(length=fmt.HEADER_BYTES - 12))
    return finished(buffer, base, end, record_count=0)


_MARKERS = {
    AbortedTransaction(1, 11): 19,
    AbortedTransaction(3, 29): 34,
    AbortedTransaction(5, 45): 46,
}
"""The aborted transactions, and the offset of each transaction's abort marker."""
ABORTED = list(_MARKERS)


def aborted_from(offset: int) -> list[AbortedTransaction]:
    """Return the aborted transactions in the response to a fetch from ``offset`` to the end."""
    return [each for each, end in _MARKERS.items() if end >= offset]


COMMITTED = [0, 1, 2, 3, 6, 13, 14, 16, 17, 24, 25, 32, 33, 40, 43, 47]
"""The offsets of the records that a read_committed consumer returns."""
UNCOMMITTED = sorted([*COMMITTED, 11, 12, 18, 29, 30, 31, 45])
END = 53


def contiguous(size: int = 0) -> list[bytes]:
    """Return the log from offset 0 to END, without gaps between batches, as logbus writes it.

    Values are padded to ``size`` bytes.
    """
    return [
        rows([0, 1, 2], size=size),
        rows([3, 6], 11, size=size),  # Of offsets 3 to 10, compaction left two records.
        rows([11, 12], pid=1, size=size),  # These records belong to an aborted transaction.
        columns([13, 14], pid=2, size=size),
        marker(15, 2, COMMIT),
        rows([16, 17], pid=4, size=size),
        rows([18], pid=1, size=size),  # This record belongs to an aborted transaction.
        marker(19, 1, ABORT),
        marker(20, 4, COMMIT),
        empty(21, 24),
        # These records belong to a later, committed transaction of producer 1.
        columns([24, 25], pid=1, size=size),
        marker(26, 1, COMMIT),
        empty(27, 28),
        marker(28, 9, ABORT),  # The marker's producer has no records in this log.
        columns([29, 30], pid=3, size=size),  # These records belong to an aborted transaction.
        rows([31], pid=3, size=size),  # This record belongs to an aborted transaction.
        rows([32], size=size),
        columns([33], size=size),
        marker(34, 3, ABORT),
        empty(35, 40),
        columns([40, 43], 45, size=size),  # Of offsets 40 to 44, compaction left two records.
        columns([45], 46, pid=5, size=size),  # This record belongs to an aborted transaction.
        marker(46, 5, ABORT),
        rows([47], 50, size=size),
        empty(50, 52),
        marker(52, 2, COMMIT),
    ]


def with_gaps(size: int = 0) -> list[bytes]:
    """Return the log without its empty batches: gaps remain, as after Kafka's compaction."""
    return [each for each in contiguous(size) if read_header(each).record_count]
