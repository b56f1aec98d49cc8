"""The work of a task: picklable, and the same for batch and streaming queries.

The plan travels once with the read function, the ranges once with each task. Executors import this
module, so it imports only what they have anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_logbus.offset_ranges import OffsetRange


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The settings that every task of a query shares. Times in ms, sizes in bytes."""

    bootstrap_servers: str
    schema: StructType
    fail_on_data_loss: bool
    isolation: str
    fetch_bytes: int
    local_reads: bool
    poll_timeout_ms: int
    request_timeout_ms: int
    client_id: str
    reads_once: bool = False
    """Streams read a record once, so the page cache need not keep its pages."""


class ReadTask(InputPartition):
    """The ranges that one task reads, in this order."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(None)
        self.ranges = ranges

    def __repr__(self) -> str:
        named = (f"{r.topic}-{r.partition} [{r.start}, {r.end})" for r in self.ranges)
        return f"ReadTask({', '.join(named)})"
