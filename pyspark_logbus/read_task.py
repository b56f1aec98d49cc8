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
from pyspark_logbus.connection_security import QuerySecurity, for_tasks
from pyspark_logbus.offset_ranges import OffsetRange


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The settings that all tasks of a query share. Times are in ms and sizes in bytes."""

    bootstrap_servers: str
    schema: StructType
    fail_on_data_loss: bool
    isolation: str
    fetch_bytes: int
    local_reads: bool
    poll_timeout_ms: int
    request_timeout_ms: int
    client_id: str
    security: QuerySecurity = None
    reads_once: bool = False
    """Whether the query reads each record only once, as streams do. A task on the broker's machine
    then reads the segment files without filling the page cache."""

    def for_tasks(self) -> ReadPlan:
        """Return the plan in the form that Spark pickles for tasks, with the security settings that
        ``connection_security.for_tasks`` returns.

        Call it on the driver. It logs in to the cluster, and raises the login's error.
        """
        security = for_tasks(
            self.bootstrap_servers, self.security, self.client_id, self.request_timeout_ms
        )
        return self if security is self.security else replace(self, security=security)

    def with_token(self, token: AccessToken | None) -> ReadPlan:
        """Return the plan with a newer access token, unless ``token`` is None."""
        if token is None or not isinstance(self.security, ClientSecurity):
            return self
        return replace(self, security=replace(self.security, secret=token))


class ReadTask(InputPartition):
    """The ranges that one task reads, in reading order.

    Spark pickles the plan of a stream once, but the tasks of each batch anew. So a task of a stream
    with OAUTHBEARER has the access token (``token``).
    """

    def __init__(self, ranges: tuple[OffsetRange, ...], token: AccessToken | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.token = token

    def __repr__(self) -> str:
        named = (f"{r.topic}-{r.partition} [{r.start}, {r.end})" for r in self.ranges)
        return f"ReadTask({', '.join(named)})"
