"""The values that Spark pickles for reading tasks, in batch queries and streams.

Spark sends one ``ReadPlan`` with the read function, and a ``ReadTask`` to each task. Executors
import this module, so it imports only modules that executors load anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from broker_lite.config.client_security import ClientSecurity
from broker_lite.security.bearer import AccessToken
from pyspark_logbus.offset_ranges import OffsetRange
from pyspark_logbus.query_options import ReadOptions


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The settings that all tasks of a query share: its options, and the columns to read."""

    options: ReadOptions
    schema: StructType
    reads_once: bool
    """Whether the query reads each record only once, as streams do. A reader on the broker's
    machine then leaves nothing of the segment files in the page cache."""

    def for_tasks(self) -> ReadPlan:
        """Return this plan with the options to pickle for tasks."""
        return replace(self, options=self.options.for_tasks())

    def with_token(self, token: AccessToken | None) -> ReadPlan:
        """Return the plan with a newer access token, unless ``token`` is None."""
        security = self.options.security
        if token is None or not isinstance(security, ClientSecurity):
            return self
        secured = replace(self.options, security=replace(security, secret=token))
        return replace(self, options=secured)


class ReadTask(InputPartition):
    """The ranges that one task reads, in reading order.

    Spark pickles a stream's plan once, but the tasks of each batch anew. With OAUTHBEARER, the
    plan's access token expires, so each task has a newer one (``token``).
    """

    def __init__(self, ranges: tuple[OffsetRange, ...], token: AccessToken | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.token = token

    def __repr__(self) -> str:
        named = (f"{r.topic}-{r.partition} [{r.start}, {r.end})" for r in self.ranges)
        return f"ReadTask({', '.join(named)})"
