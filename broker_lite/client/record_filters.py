"""Filters of records that commands and the console share. They evaluate Arrow columns and do no
I/O.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def has_header(headers: pa.Array, header: str) -> pa.Array:
    """Return for each record whether it has a header. ``header`` is the header's name, or
    NAME=VALUE."""
    name, equals, value = header.partition("=")
    pairs = pc.list_flatten(headers)
    matches = pc.equal(pc.struct_field(pairs, "key"), name)
    if equals:
        same = pc.equal(pc.struct_field(pairs, "value"), pa.scalar(value.encode()))
        matches = pc.and_(matches, pc.fill_null(same, False))
    rows = pc.unique(pc.filter(pc.list_parent_indices(headers), matches))
    numbers = pa.array(range(len(headers)), rows.type)
    return pc.is_in(numbers, value_set=rows)
