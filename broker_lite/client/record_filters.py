"""Filters for records, used by commands and the web console. They evaluate Arrow columns and do no
I/O.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def has_header(headers: pa.Array, header: str) -> pa.Array:
    """Return a Boolean for each record: whether it has the header. ``header`` is a header's name
    (with any value) or NAME=VALUE; ``headers`` is the records' headers column."""
    name, equals, value = header.partition("=")
    pairs = pc.list_flatten(headers)
    matches = pc.equal(pc.struct_field(pairs, "key"), name)
    if equals:
        same = pc.equal(pc.struct_field(pairs, "value"), pa.scalar(value.encode()))
        matches = pc.and_(matches, pc.fill_null(same, False))
    rows = pc.unique(pc.filter(pc.list_parent_indices(headers), matches))
    numbers = pa.array(range(len(headers)), rows.type)
    return pc.is_in(numbers, value_set=rows)
