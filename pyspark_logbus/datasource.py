"""``format("logbus")``: the class from which Spark creates readers and writers. Spark finds the
format by its name. Call ``register`` in sessions that do not find it.

Spark creates a ``DefaultSource`` in several processes of the driver. Its constructor checks the
options and looks up the brokers before Spark pickles anything, so ``load()`` fails early. Methods
import readers and writers on use, so that processes that only plan or commit start fast.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from broker_lite.client.discovery import resolve
from broker_lite.errors import InvalidConfigError, LogbusError, MissingDependencyError
from pyspark_logbus.error_line import error_line
from pyspark_logbus.options import parse, read_options, require_topics, write_options
from pyspark_logbus.worker_process import modules_are_no_garbage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_logbus.batch_reader import LogbusReader
    from pyspark_logbus.query_options import WriteOptions
    from pyspark_logbus.read_task import ReadPlan
    from pyspark_logbus.stream_reader import LogbusStreamReader
    from pyspark_logbus.writers import LogbusStreamWriter, LogbusWriter

OLDEST_SPARK = (4, 2)
"""The oldest version of Spark with the Python data source interface that logbus uses: 4.2."""
RESOLVED_S = 60.0
"""Seconds for which ``resolve_once`` caches broker addresses. Spark plans a sink for every
micro-batch, and a lookup for each would be slow."""

_resolved: dict[tuple[str | None, str | None], tuple[float, str]] = {}


def resolve_once(servers: str | None, zookeeper: str | None) -> str:
    """Return the addresses of brokers (``host:port,…``).

    They come from the options ``servers`` or ``zookeeper``, else from the environment, else from
    the last ``logbus up``. Lookups are cached for ``RESOLVED_S`` seconds.
    """
    if servers:
        return resolve(servers)
    key = (servers, zookeeper)
    known = _resolved.get(key)
    now = time.monotonic()
    if known is None or now - known[0] > RESOLVED_S:
        known = _resolved[key] = (now, resolve(servers, zookeeper))
    return known[1]


def _check_spark(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_SPARK:
        raise MissingDependencyError(
            f"format('logbus') needs PySpark 4.2 or later, this is {version}; "
            "upgrade with: pip install 'pyspark[sql]>=4.2,<5'"
        )


class DefaultSource(DataSource):
    """The source and the sink of ``format("logbus")``, for batch queries and streams."""

    @error_line()
    def __init__(self, options: Mapping[str, str]) -> None:
        _check_spark(pyspark.__version__)
        super().__init__(dict(options))
        self._values = parse(options)
        servers = self._values.get("bootstrap.servers")
        zookeeper = self._values.get("zookeeper.connect")
        if servers and zookeeper:
            raise InvalidConfigError(
                "bootstrap.servers and zookeeper.connect both name a cluster; give one of them"
            )
        self._bootstrap = resolve_once(servers, zookeeper)
        self._is_planned = False
        modules_are_no_garbage()

    def __getstate__(self) -> dict[str, Any]:
        # Before a reader exists, Spark pickles the source for Python processes beside the driver,
        # which need the options. Later it pickles the source for tasks, which need only its name.
        if self._is_planned:
            return {"options": {}, "_values": {}, "_bootstrap": "", "_is_planned": True}
        return self.__dict__

    @classmethod
    def name(cls) -> str:
        return "logbus"

    @error_line()
    def schema(self) -> StructType:
        from pyspark_logbus.schema import source_schema

        require_topics(self._values)
        return source_schema(bool(self._values.get("includeHeaders", False)))

    @error_line()
    def reader(self, schema: StructType) -> LogbusReader:
        from pyspark_logbus.batch_reader import LogbusReader

        plan = self._plan(schema, streaming=False)
        return LogbusReader(plan.options, plan.for_tasks())

    def streamReader(self, schema: StructType) -> LogbusStreamReader:
        from pyspark_logbus.stream_reader import LogbusStreamReader

        try:
            return LogbusStreamReader(self._plan(schema, streaming=True))
        except LogbusError as error:
            # Let the reader raise the error later: Spark would hide an error that is raised here
            # behind one of its own.
            return LogbusStreamReader(None, error)

    @error_line()
    def writer(self, schema: StructType, overwrite: bool) -> LogbusWriter:
        from pyspark_logbus.writers import LogbusWriter

        return LogbusWriter.plan(self._write_options(streaming=False), schema, overwrite=overwrite)

    @error_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> LogbusStreamWriter:
        from pyspark_logbus.writers import LogbusStreamWriter

        # Complete mode arrives as overwrite; the sink appends, as Spark's Kafka sink does.
        return LogbusStreamWriter.plan(self._write_options(streaming=True), schema)

    def _write_options(self, *, streaming: bool) -> WriteOptions:
        return write_options(self._values, self._bootstrap, streaming=streaming)

    def _plan(self, schema: StructType, *, streaming: bool) -> ReadPlan:
        from pyspark_logbus.read_task import ReadPlan
        from pyspark_logbus.schema import check_user_schema

        check_user_schema(schema)
        chosen = read_options(self._values, self._bootstrap, streaming=streaming)
        self._is_planned = True
        return ReadPlan(chosen, schema, reads_once=streaming)


def register(spark: SparkSession) -> None:
    """Register ``format("logbus")`` in a session that does not find it by name, for example
    because the session started before logbus was installed."""
    spark.dataSource.register(DefaultSource)
