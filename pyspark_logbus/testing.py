"""A pytest plugin for tests of your streams: a real cluster, topics and a Spark session.

pytest loads the plugin in every session where logbus is installed. So the plugin imports other
modules only when a test uses a fixture. Its guide is ``docs/pages/how-to/test-with-pytest.md``.
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
"""The environment variable with the number of brokers that the plugin starts."""
STREAM_SECONDS = 60.0
"""Seconds after which ``logbus_stream`` stops a query and fails the test."""


class NamedCluster(NamedTuple):
    """The cluster that ``--logbus-bootstrap`` names. The plugin neither starts nor stops it."""

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
    parser.addini("logbus_brokers", "Number of brokers to start (default: 1).", default="")
    parser.addini("logbus_bootstrap", "Run the tests on this cluster.", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "logbus(brokers): the test needs a cluster of at least this many brokers"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[_MARKED] = max((_marked(item) for item in items), default=1)


_MARKED = pytest.StashKey[int]()
"""The pytest stash key of the number of brokers to start: the largest number in the ``logbus``
markers of the collected tests."""


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
    sources = {
        "--logbus-brokers": config.getoption("--logbus-brokers"),
        "the ini key logbus_brokers": config.getini("logbus_brokers"),
        f"the environment variable {BROKERS}": os.environ.get(BROKERS),
    }
    for source, value in sources.items():
        if value in (None, ""):
            continue
        if not re.fullmatch("0*[1-9][0-9]*", str(value)):
            raise pytest.UsageError(
                f"{source} is {value!r}, but a cluster has at least one broker; give a whole "
                "number from 1"
            )
        return max(int(value), config.stash.get(_MARKED, 1))
    return config.stash.get(_MARKED, 1)


@pytest.fixture(scope="session")
def logbus_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster | NamedCluster]:
    """A cluster for all tests of this process: the cluster that --logbus-bootstrap or the ini key
    logbus_bootstrap names, else a new one.

    At the end of the session the fixture kills the processes of a new cluster.
    """
    config = request.config
    named = config.getoption("--logbus-bootstrap") or config.getini("logbus_bootstrap")
    if named:
        yield NamedCluster(named)
        return
    # Import here: every pytest session loads this module, and few need a cluster.
    from broker_lite.errors import MissingDependencyError
    from broker_lite.local.cluster import LocalCluster

    cluster = LocalCluster(
        brokers=_broker_count(config), directory=tmp_path_factory.mktemp("logbus")
    )
    try:
        cluster.start()
    except MissingDependencyError as error:
        cure = f"{error.message}, or name a running cluster with --logbus-bootstrap HOST:PORT"
        if config.getoption("--logbus-require"):
            pytest.fail(f"--logbus-require: {cure}", pytrace=False)
        pytest.skip(f"logbus_cluster cannot start a cluster: {cure}")
    try:
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture(scope="session")
def logbus_bus(logbus_cluster: LocalCluster | NamedCluster) -> Iterator[Bus]:
    """A ``Bus`` that is connected to the cluster. It makes producers and consumers, and administers
    topics."""
    from broker_lite.bus.blocking import connect

    with connect(logbus_cluster.bootstrap_servers) as bus:
        yield bus


@pytest.fixture(scope="session")
def logbus(logbus_bus: Bus) -> Bus:
    """The former name of ``logbus_bus``, which the next release removes."""
    return logbus_bus


@pytest.fixture(scope="session")
def _logbus_used(
    logbus_bus: Bus, logbus_cluster: LocalCluster | NamedCluster
) -> Iterator[tuple[list[str], list[str]]]:
    """Two lists: the topics and the groups that tests created. At the end of the session, this
    fixture deletes them if the cluster is one that the user named, because that cluster stays."""
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
    """A function that creates topics and returns their names, which begin with the test's name.

    Example: ``logbus_topics(2, partitions=3, config={"retention.ms": 1000})``.
    """

    def create(count: int = 1, **settings: Any) -> list[str]:
        names = [_fresh(request) for _ in range(count)]
        for name in names:
            logbus_bus.create_topic(name, **({"partitions": 1} | settings))
            _logbus_used[0].append(name)
        return names

    return create


@pytest.fixture
def logbus_topic(logbus_topics: Topics) -> str:
    """The name of a new topic with one partition. It begins with the test's name."""
    return logbus_topics()[0]


@pytest.fixture
def logbus_group(_logbus_used: tuple[list[str], list[str]], request: pytest.FixtureRequest) -> str:
    """A name for a new consumer group. It begins with the test's name."""
    name = _fresh(request)
    _logbus_used[1].append(name)
    return name


@pytest.fixture(scope="session")
def logbus_spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A Spark session with the settings of ``spark_conf()``. If the plugin pytest-spark is
    installed, this is its session."""
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
    """A function that writes a stream to a topic until its source has no more data, and returns the
    ended query: ``logbus_stream(df, topic, **options)``.

    If the test leaves a query active, the fixture stops it and fails the test.
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
            pytest.fail(
                f"the query to {topic} did not end within {STREAM_SECONDS:g} s; give "
                "logbus_stream a source that ends"
            )
        return query

    yield run
    refuse_active(logbus_spark, before)


def refuse_active(spark: SparkSession, before: set[str]) -> None:
    """Stop the queries that the test left active (run ids not in ``before``), and fail the test if
    there are any."""
    left = [query for query in spark.streams.active if query.runId not in before]
    for query in left:
        query.stop()
    if left:
        names = ", ".join(query.name or query.id for query in left)
        pytest.fail(f"the test left {len(left)} queries active: {names}; stop them in the test")


def _fresh(request: pytest.FixtureRequest) -> str:
    test = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:60]
    return f"{test}-{uuid.uuid4().hex[:8]}"
