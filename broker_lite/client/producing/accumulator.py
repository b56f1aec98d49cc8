"""Collect the records of a producer until they are split into batches.

``OpenRows`` collects the records that ``Producer.send`` receives for one topic in Python lists,
without hashing or encoding. Once they fill a batch or have waited for ``linger_ms``, ``split``
turns them into columns and makes a batch for each partition, in a few vectorised operations. A
key's murmur2 hash selects the partition; rows without a key go to the sticky partition. Rows of a
partition keep their order.

``Chunk`` takes the place of ``OpenRows`` for rows sent as Arrow data. ``send`` runs on the caller's
thread under the producer's lock, ``split`` on the sender's thread."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_lite.client.arrays import binary_of, headers_of
from broker_lite.client.producing.batches import ProducerBatch
from broker_lite.client.producing.futures import Outcome
from broker_lite.client.producing.partitioner import Sticky, partitions_for
from broker_lite.errors import (
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidSchemaError,
)
from broker_lite.record import arrow
from broker_lite.record.arrays import fixed, numpy_of
from broker_lite.record.arrow import TIMESTAMP_TYPE, Columns

ROW_OVERHEAD_BYTES = 20
"""Approximate bytes of a row in memory, apart from key, value and headers."""
RECORD_OVERHEAD_BYTES = 1024
"""Upper bound of the bytes that a batch of one record has beside key, value and headers."""
PARTITIONS_FILLED_MAX = 8
"""A topic's rows with keys are collected up to this multiple of the batch size, then split into
batches.

Keys spread the rows over several partitions, so several batches fill in parallel."""

PartitionIndex = npt.NDArray[np.int32]


class OpenRows(Outcome):
    """Records of one topic that ``send`` received and that are not in batches yet. ``send`` appends
    records while ``is_open``."""

    __slots__ = (
        "deadline_ms",
        "has_keys",
        "headers",
        "is_open",
        "keys",
        "limit_bytes",
        "partitions",
        "size_bytes",
        "timestamp_ms",
        "values",
    )

    def __init__(
        self, topic: str, waking: Any, wake: Callable[[Any], None], limit_bytes: int
    ) -> None:
        super().__init__(topic, waking, wake)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: dict[int, list[tuple[str, bytes | None]]] | None = None
        self.partitions: dict[int, int] | None = None
        self.has_keys = False
        self.is_open = True
        self.size_bytes = 0
        self.limit_bytes = limit_bytes
        self.timestamp_ms = -1
        self.deadline_ms = 0.0

    def set_optional_fields(
        self,
        index: int,
        headers: Sequence[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Store the headers, partition and timestamp of row ``index`` in dictionaries, because few
        records have them."""
        if headers:
            if self.headers is None:
                self.headers = {}
            self.headers[index] = list(headers)
        if partition is not None:
            if self.partitions is None:
                self.partitions = {}
            self.partitions[index] = partition
        if timestamp_ms is not None:
            if self.times is None:
                self.times = {}
            self.times[index] = timestamp_ms

    def take_columns(self) -> tuple[Columns, PartitionIndex | None]:
        """Return the rows as columns, and an array of the partitions that the caller chose (-1: the
        producer chooses), or None if the producer chooses for all rows.

        This object is empty afterwards."""
        count = len(self.values)
        value = binary_of(self.values)
        key = binary_of(self.keys) if self.has_keys else None
        headers = timestamp = requested = None
        if self.headers is not None:
            headers = headers_of([self.headers.get(index) for index in range(count)])
        if self.times is not None:
            times = np.full(count, self.timestamp_ms, np.int64)
            times[list(self.times)] = list(self.times.values())
            timestamp = fixed(times, TIMESTAMP_TYPE)
        if self.partitions is not None:
            requested = np.full(count, -1, np.int32)
            requested[list(self.partitions)] = list(self.partitions.values())
        self.values, self.keys, self.headers, self.partitions = [], [], None, None
        return Columns(count, key, value, timestamp, headers), requested


class Chunk(Outcome):
    """Rows that a caller sent as Arrow data.

    ``requested`` is the caller's partition for all rows, or an array with each row's (-1: the
    producer chooses); None means that the producer chooses for all."""

    __slots__ = ("columns", "deadline_ms", "requested", "size_bytes", "timestamp_ms")

    def __init__(
        self,
        topic: str,
        waking: Any,
        wake: Callable[[Any], None],
        *,
        columns: Columns,
        requested: PartitionIndex | int | None,
        size_bytes: int,
        timestamp_ms: int,
    ) -> None:
        super().__init__(topic, waking, wake)
        self.columns: Columns | None = columns
        self.requested = requested
        self.size_bytes = size_bytes
        self.timestamp_ms = timestamp_ms
        self.deadline_ms = 0.0

    def take_columns(self) -> tuple[Columns, PartitionIndex | int | None]:
        assert self.columns is not None
        columns, self.columns = self.columns, None
        return columns, self.requested


Waiting = OpenRows | Chunk
"""Rows that are not in batches yet. The sender sets their delivery deadline (``deadline_ms``)."""


class RowPiece(NamedTuple):
    """A part of the rows of one ``send_arrow`` call, so small that each partition needs at most one
    batch for it."""

    columns: Columns
    requested: PartitionIndex | int | None
    size_bytes: int


class TopicShape(NamedTuple):
    """Properties of a topic, for ``split``: the number of partitions, the partitions with a leader
    (``available``), and the object that chooses the sticky partition."""

    partition_count: int
    available: Sequence[int]
    sticky: Sticky


def split(rows: Waiting, shape: TopicShape, batch_bytes: int) -> list[ProducerBatch]:
    """Split rows by partition into batches of about ``batch_bytes`` at most.

    A larger row becomes a batch of its own. Raises InvalidPartitionsError if the caller chose a
    partition that the topic does not have."""
    columns, requested = rows.take_columns()
    placed = _place(columns, requested, shape, rows.topic)
    inverse = None
    if isinstance(placed, int):
        groups = [(placed, columns)]
    else:
        order = np.argsort(placed, kind="stable")
        inverse = np.empty(len(order), np.int32)
        inverse[order] = np.arange(len(order), dtype=np.int32)
        groups = list(_groups(_take(columns, order), placed[order]))
    # Do not split rows of up to 9/8 of ``batch_bytes``: a small batch would follow every full one.
    is_small = rows.size_bytes <= batch_bytes + batch_bytes // 8
    batches = []
    for partition, part in groups:
        for piece in (part,) if is_small else arrow.split(part, batch_bytes):
            share = rows.size_bytes * piece.row_count // columns.row_count
            batches.append(
                ProducerBatch(
                    rows.topic,
                    partition,
                    piece,
                    timestamp_ms=rows.timestamp_ms,
                    size_bytes=share,
                    deadline_ms=rows.deadline_ms,
                    outcome=rows,
                )
            )
    batches[0].size_bytes += rows.size_bytes - sum(batch.size_bytes for batch in batches)
    rows.expect(batches, inverse)
    return batches


def _place(
    columns: Columns, requested: PartitionIndex | int | None, shape: TopicShape, topic: str
) -> PartitionIndex | int:
    """Return the partition of each row in an array, or one number if all rows have the same
    partition. ``requested`` is the caller's choice; -1 or None lets the producer choose."""
    count = shape.partition_count
    if isinstance(requested, int):
        _check_partition(requested, requested, count, topic)
        return requested
    if requested is None and columns.key is None:
        return shape.sticky.choose(count, shape.available)
    if count == 1 and requested is None:
        return 0
    if requested is None:
        placed = partitions_for(_plain(columns.key), count)
    else:
        _check_partition(int(requested.min()), int(requested.max()), count, topic, least=-1)
        placed = requested
        if (placed < 0).any() and columns.key is not None:
            placed = np.where(placed < 0, partitions_for(_plain(columns.key), count), placed)
    if (placed < 0).any():
        sticky = shape.sticky.choose(count, shape.available)
        placed = np.where(placed < 0, np.int32(sticky), placed)
    first = int(placed[0])
    return first if (placed == first).all() else placed


def _check_partition(low: int, high: int, count: int, topic: str, least: int = 0) -> None:
    if low < least or high >= count:
        wrong = low if low < least else high
        raise InvalidPartitionsError(
            f"partition {wrong} of topic {topic!r} does not exist: the topic has {count} "
            "partitions, numbered from 0"
        )


def _plain(keys: pa.Array) -> pa.Array:
    return keys if keys.type == pa.binary() else keys.cast(pa.binary())


def _take(columns: Columns, order: npt.NDArray[np.int64]) -> Columns:
    indexes = fixed(order, pa.int64())
    selected = [
        None if column is None else column.take(indexes)
        for column in (columns.key, columns.value, columns.timestamp, columns.headers)
    ]
    return Columns(columns.row_count, *selected)


def _groups(columns: Columns, placed: PartitionIndex) -> Iterator[tuple[int, Columns]]:
    edges = np.flatnonzero(np.diff(placed)) + 1
    starts = [0, *edges.tolist(), len(placed)]
    for start, stop in pairwise(starts):
        yield int(placed[start]), columns.slice(start, stop)


# Functions that check and convert the arguments of ``send`` and ``send_arrow``.


def as_bytes(value: Any, what: str) -> bytes:
    """Return text (as UTF-8) or a bytes-like object as bytes.

    Raises InvalidRecordError, which names the record's field ``what``, for other types and for text
    that UTF-8 cannot encode."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRecordError(f"{what} cannot be encoded: {error}; give bytes") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidRecordError(f"{what} is {type(value).__name__}; give bytes, str or None")


def checked_headers(headers: Any) -> tuple[list[tuple[str, bytes | None]], int]:
    """Return a record's headers as a list of (name, bytes or None), and their size in bytes.

    ``headers`` is a dict or pairs. Raises InvalidRecordError for anything else."""
    items = headers.items() if hasattr(headers, "items") else headers
    if not isinstance(items, Iterable):
        raise InvalidRecordError(f"headers={headers!r}: give a dict or (name, value) pairs")
    checked, size = [], 0
    for item in items:
        try:
            name, value = item
        except (TypeError, ValueError):
            raise InvalidRecordError(f"header {item!r}: give (name, value) pairs") from None
        if not isinstance(name, str):
            raise InvalidRecordError(f"header name {name!r}: give text")
        if value is not None:
            value = as_bytes(value, f"header {name!r}")
            size += len(value)
        size += len(as_bytes(name, f"header name {name!r}")) + ROW_OVERHEAD_BYTES
        checked.append((name, value))
    return checked, size


def tables_of(data: Any) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of Arrow data, or of another library's DataFrame or Arrow stream.

    Raises InvalidSchemaError for other data."""
    if isinstance(data, pa.RecordBatch):
        yield data
        return
    if isinstance(data, pa.Table):
        yield from data.to_batches()
        return
    if hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
        return
    if isinstance(data, pa.RecordBatchReader):
        yield from data
        return
    if hasattr(data, "to_arrow"):
        yield from tables_of(data.to_arrow())
        return
    raise InvalidSchemaError(
        f"send_arrow takes a pyarrow Table, RecordBatch or anything with __arrow_c_stream__, "
        f"not {type(data).__name__}"
    )


_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""Name of the column in which Arrow stores a pandas frame's unnamed index. ``columns_of`` leaves
this column out."""


def columns_of(
    batch: pa.RecordBatch, key: str | None, value: str | None
) -> tuple[Columns, PartitionIndex | None]:
    """Return the rows of an Arrow record batch, and the column ``partition`` or None.

    ``key`` and ``value`` name the columns of keys and values (None: "key" and "value"). Other
    columns are ``headers``, ``timestamp`` and ``partition``. Raises InvalidSchemaError for unknown,
    missing or repeated columns and wrong types."""
    names = batch.schema.names
    known = {key or "key", value or "value", "headers", "timestamp", "partition"}
    for name in (key, value):
        if name is not None and name not in names:
            raise InvalidSchemaError(
                f"there is no column {name!r}; the columns are {', '.join(names)}"
            )
    if value is None and "value" not in names:
        raise InvalidSchemaError(
            f"there is no column 'value'; name one of {', '.join(names)} with value=…"
        )
    unknown = [name for name in names if name not in known and not _PANDAS_INDEX.fullmatch(name)]
    if unknown:
        raise InvalidSchemaError(
            f"column {unknown[0]!r} is not a field of a record; drop it, or name columns with "
            "key=… and value=…"
        )

    for name in names:
        if name in known and names.count(name) > 1:
            raise InvalidSchemaError(
                f"there are {names.count(name)} columns {name!r}; keep one and drop the others"
            )

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in names else None

    requested = column("partition")
    return (
        Columns(
            batch.num_rows,
            _bytes_column(column(key or "key"), key or "key"),
            _bytes_column(column(value or "value"), value or "value"),
            column("timestamp"),
            column("headers"),
        ),
        None if requested is None else _partition_column(requested),
    )


def _bytes_column(array: pa.Array | None, name: str) -> pa.Array | None:
    if array is None or pa.types.is_null(array.type):
        return None
    return arrow.as_binary(array, name)


def _partition_column(array: pa.Array) -> PartitionIndex:
    if not pa.types.is_integer(array.type):
        raise InvalidSchemaError(f"column 'partition' is {array.type}; it must be an integer")
    try:
        whole = array.cast(pa.int32()).fill_null(-1)
    except pa.ArrowInvalid as error:
        raise InvalidPartitionsError(f"column 'partition': {error}") from None
    return numpy_of(whole, np.int32)
