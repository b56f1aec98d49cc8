"""Filters for records, used by commands and the web console, on Arrow columns without I/O."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_lite.client.arrays import scalar_of
from broker_lite.record.arrays import fixed


def has_header(headers: pa.Array, header: str) -> pa.Array:
    """Return for each record whether it has the header ``header``, given as NAME or NAME=VALUE.

    ``headers`` is the records' headers column."""
    name, equals, value = header.partition("=")
    pairs = pc.list_flatten(headers)
    matches = pc.equal(pc.struct_field(pairs, "key"), scalar_of(_bytes(name), pa.string()))
    if equals:
        same = pc.equal(pc.struct_field(pairs, "value"), scalar_of(_bytes(value)))
        # For a header whose value is null the comparison gives null, and the filter drops this
        # header.
        matches = pc.and_(matches, same)
    rows = pc.unique(pc.filter(pc.list_parent_indices(headers), matches))
    numbers = fixed(np.arange(len(headers)), pa.int64())
    return pc.is_in(numbers, value_set=rows.cast(pa.int64()))


def _bytes(text: str) -> bytes:
    """Return the bytes of a command-line argument, which need not be valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")
