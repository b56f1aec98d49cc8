"""Lookups in the logs of several partitions, which one job on a read thread carries out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from broker_lite.errors import LogbusError, UnreadableRecordsError
from broker_lite.model import NO_OFFSET
from broker_lite.server.network.quotas import Spent
from broker_lite.server.partitions.disk import Disk
from broker_lite.server.partitions.replica import Replica

T = TypeVar("T")


class LogLookup(NamedTuple, Generic[T]):
    """A lookup in the log of ``replica``: the read thread calls ``function``."""

    replica: Replica
    function: Callable[[], T]


async def look_up(
    disk: Disk, rows: Sequence[T | LogLookup[T]], spent: Spent
) -> list[T | LogbusError]:
    """Return ``rows`` with the result of each lookup, or its LogbusError, in place of the lookup.
    ``spent`` receives the seconds of the read thread.

    If the disk fails to read records, the replica hands over its leadership. The failed read of an
    index names no offset, and reports nothing: the records themselves may be intact."""
    lookups = [row for row in rows if isinstance(row, LogLookup)]
    results = await disk.run_reads([lookup.function for lookup in lookups], spent)
    for lookup, result in zip(lookups, results, strict=True):
        if isinstance(result, UnreadableRecordsError) and result.offset != NO_OFFSET:
            lookup.replica.report_corruption(result.offset, result)
    found = iter(results)
    return [next(found) if isinstance(row, LogLookup) else row for row in rows]
