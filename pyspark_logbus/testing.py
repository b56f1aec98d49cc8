"""A pytest plugin for tests of your streams: a real cluster, topics and a Spark session.

pytest loads it in every session where logbus is installed, so it imports nothing until a fixture is
used. ``docs/pages/how-to/test-with-pytest.md`` is the guide.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from broker_lite.bus.blocking import Bus
    from broker_lite.local.cluster import LocalCluster

BROKERS = "LOGBUS_TEST_BROKERS"
STREAM_SECONDS = 60.0
"""Seconds after which ``logbus_stream`` fails for a query that has not ended."""


class NamedCluster(NamedTuple):
    """The cluster of ``--logbus-bootstrap``, which the tests neither start nor stop."""

    bootstrap_servers: str


Topics = Callable[..., list[str]]
Stream = Callable[..., "StreamingQuery"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("logbus")
    group.addoption(
        "--logbus-bootstrap",
        metavar="HOST:PORT,…",
        help="Run the tests on this cluster; their topics and groups are deleted at the end.",
    )
    group.addoption("--logbus-brokers", type=int, metavar="N", help="Number of brokers to start.")
    group.addoption(
        "--logbus-require",
        action="store_true",
        help="Fail tests that need a cluster if no cluster can be started (Java is missing).",
    )
    parser.addini("logbus_brokers", "Brokers of the cluster of logbus (default: 1)", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "logbus(brokers): the test needs a cluster of at least this many brokers"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[_MARKED] = max((_marked(item) for item in items), default=1)


_MARKED = pytest.StashKey[int]()
"""The maximum of the collected tests' markers."""


def _marked(item: pytest.Item) -> int:
    marker = item.get_closest_marker("logbus")
    if marker is None:
        return 1
    count = marker.kwargs.get("brokers", 1)
    if marker.args or set(marker.kwargs) - {"brokers"} or not isinstance(count, int):
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.logbus takes brokers=N: @pytest.mark.logbus(brokers=3)"
        )
    return count


def _broker_count(config: pytest.Config) -> int:
    named = config.getoption("--logbus-brokers")
    text = named or config.getini("logbus_brokers") or os.environ.get(BROKERS) or 1
    try:
        return max(int(text), config.stash.get(_MARKED, 1))
    except ValueError:
        raise pytest.UsageError(f"logbus_brokers, {BROKERS}: {text!r} is no number") from None


@pytest.fixture(scope="session")
def logbus_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster | NamedCluster]:
    """A cluster for all tests of this process, or the one of --logbus-bootstrap.

    Its processes are killed at the end of the session, without a clean stop.
    """
    named = request.config.getoption("--logbus-bootstrap")
    if named:
        yield NamedCluster(named)
        return
    # Every pytest session loads this module; brokers are imported only on use.
    from broker_lite.errors import MissingDependencyError
    from broker_lite.local.cluster import LocalCluster

    cluster = LocalCluster(
        brokers=_broker_count(request.config), directory=tmp_path_factory.mktemp("logbus")
    )
    try:
        cluster.start()
    except MissingDependencyError as error:
        if request.config.getoption("--logbus-require"):
            pytest.fail(f"--logbus-require: {error.message}", pytrace=False)
        pytest.skip(f"no cluster of logbus can be started: {error.message}")
    try:
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="session")
def logbus_bus(logbus_cluster: LocalCluster | NamedCluster) -> Iterator[Bus]:
    """A connection to the cluster: topics, producers, consumers, administration."""
    from broker_lite.bus.blocking import connect

    with connect(logbus_cluster.bootstrap_servers) as bus:
        yield bus


@pytest.fixture(scope="session")
def logbus(logbus_bus: Bus) -> Bus:
    """The former name of ``logbus_bus``, for one more release."""
    return logbus_bus


@pytest.fixture(scope="session")
def _logbus_used(
    logbus_bus: Bus, logbus_cluster: LocalCluster | NamedCluster
) -> Iterator[tuple[list[str], list[str]]]:
    """The topics and groups of all tests. On a cluster of --logbus-bootstrap they are deleted at
    the end."""
    from broker_lite.errors import GroupIdNotFoundError

    topics: list[str] = []
    groups: list[str] = []
    yield topics, groups
    if not isinstance(logbus_cluster, NamedCluster):
        return
    for topic in topics:
        logbus_bus.delete_topic(topic, if_exists=True)
    for group in groups:
        with contextlib.suppress(GroupIdNotFoundError):
            logbus_bus.admin.delete_group(group)


@pytest.fixture
def logbus_topics(
    logbus_bus: Bus,
    _logbus_used: tuple[list[str], list[str]],
    request: pytest.FixtureRequest,
) -> Topics:
    """Create topics: ``logbus_topics(2, partitions=3, config={"retention.ms": 1000})`` returns
    their names, which begin with the test's."""

    def create(count: int = 1, **settings: Any) -> list[str]:
        names = [_fresh(request) for _ in range(count)]
        for name in names:
            logbus_bus.create_topic(name, **({"partitions": 1} | settings))
            _logbus_used[0].append(name)
        return names

    return create


@pytest.fixture
def logbus_topic(logbus_topics: Topics) -> str:
    """A new topic of one partition, named for the test."""
    return logbus_topics()[0]


@pytest.fixture
def logbus_group(_logbus_used: tuple[list[str], list[str]], request: pytest.FixtureRequest) -> str:
    """The name of a new consumer group."""
    name = _fresh(request)
    _logbus_used[1].append(name)
    return name


@pytest.fixture(scope="session")
def logbus_spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A Spark session with ``spark_conf()`` and this Python; that of pytest-spark if installed."""
    pytest.importorskip("pyspark.sql", reason="pip install 'pyspark-logbus[spark]'")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if request.config.pluginmanager.hasplugin("spark"):
        yield request.getfixturevalue("spark_session")
        return
    from pyspark.sql import SparkSession

    from pyspark_logbus.settings import spark_conf

    builder = SparkSession.builder.master("local[2]").appName("logbus-tests")
    conf: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **spark_conf(),
    }
    spark = builder.config(map=conf).getOrCreate()
    yield spark
    spark.stop()


@pytest.fixture
def logbus_stream(
    logbus_spark: SparkSession,
    logbus_cluster: LocalCluster | NamedCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stream]:
    """Writes a stream to a topic until its source has no more data:
    ``logbus_stream(df, topic, **options)`` returns the ended query.

    A query that the test leaves active is stopped, and fails the test.
    """
    before = {query.runId for query in logbus_spark.streams.active}

    def run(frame: DataFrame, topic: str, **options: str) -> StreamingQuery:
        settings = {
            "bootstrap.servers": logbus_cluster.bootstrap_servers,
            "topic": topic,
            "checkpointLocation": str(tmp_path_factory.mktemp("checkpoint")),
        }
        writer = frame.writeStream.format("logbus").trigger(availableNow=True)
        query = writer.options(**(settings | options)).start()
        if not query.awaitTermination(int(STREAM_SECONDS)):
            query.stop()
            pytest.fail(f"the query to {topic} has not ended after {STREAM_SECONDS:g} s")
        return query

    yield run
    refuse_active(logbus_spark, before)


def refuse_active(spark: SparkSession, before: set[str]) -> None:
    """Stop the queries whose run is not in ``before``, and fail the test if there are any."""
    left = [query for query in spark.streams.active if query.runId not in before]
    for query in left:
        query.stop()
    if left:
        names = ", ".join(query.name or query.id for query in left)
        pytest.fail(f"the test left {len(left)} queries active: {names}; stop them in the test")


def _fresh(request: pytest.FixtureRequest) -> str:
    test = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:60]
    return f"{test}-{uuid.uuid4().hex[:8]}"
