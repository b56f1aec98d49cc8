"""Fixtures that run Spark's source and sink on real brokers without a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from support.plain_connection import until_known
from support.spark_planning import fill, make_planner, new_topic

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster
from pyspark_logbus.stream_planner import StreamPlanner


@pytest.fixture
def make_topic(bus: Bus) -> Callable[..., str]:
    """Return a function that creates a topic whose partitions hold the given numbers of records."""
    return partial(new_topic, bus)


@pytest.fixture
def planner(bus: Bus) -> Iterator[Callable[..., StreamPlanner]]:
    """Yield a function that creates a planner from the options of a streaming source. The planner
    is the object with which Spark's driver chooses the offset range of each micro-batch.
    """
    made: list[StreamPlanner] = []

    def make(**given: str) -> StreamPlanner:
        made.append(make_planner(bus, **given))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def make_again(cluster: LocalCluster, bus: Bus) -> Callable[[str, int], None]:
    """Return a function that recreates a topic and waits until every broker lists it."""

    def make(topic: str, count: int) -> None:
        bus.delete_topic(topic)
        until_known(cluster.bootstrap_servers, topic, bus.create_topic(topic, partitions=1))
        fill(bus, topic, count)

    return make
