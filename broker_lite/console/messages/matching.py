"""The filters of a search, evaluated on Arrow columns. No I/O.

Each filter tests one field. For security, the console evaluates no expression that a user
enters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from broker_lite.client.arrays import scalar_of
from broker_lite.client.record_filters import has_header

FIELD_MAX = 1024
"""Maximum characters of a filter."""


class RecordFilters(NamedTuple):
    """The filters that a record must pass. An empty filter passes every record.

    - ``key``: the whole key
    - ``text``: a part of the value; upper and lower case are equal
    - ``header``: a header's name, or NAME=VALUE
    """

    key: str = ""
    text: str = ""
    header: str = ""

    @property
    def is_everything(self) -> bool:
        return not (self.key or self.text or self.header)

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> RecordFilters:
        """Return the filters that the query fields of a request contain."""
        return cls(*(fields.get(name, "")[:FIELD_MAX] for name in cls._fields))

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass all filters. ``batch`` must have the column ``headers`` if the
        filter ``header`` is set."""
        if self.key:
            batch = batch.filter(pc.equal(batch.column("key"), scalar_of(self.key.encode())))
        if self.text and batch.num_rows:
            values = batch.column("value")
            batch = batch.filter(pc.match_substring(values, self.text, ignore_case=True))
        if self.header and batch.num_rows:
            batch = batch.filter(has_header(batch.column("headers"), self.header))
        return batch
