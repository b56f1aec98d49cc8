"""A pytest plugin for tests of your streams: a cluster, a bus and a topic as fixtures.

pytest loads it in every session where logbus is installed, so it imports nothing until a fixture is
used. ``logbus_cluster`` is one cluster a session (LOGBUS_TEST_BROKERS brokers, 1 by default),
``logbus`` a bus on it, ``logbus_topic`` a new topic of one partition.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker_lite.bus.blocking import Bus
    from broker_lite.local.cluster import LocalCluster

BROKERS = "LOGBUS_TEST_BROKERS"


@pytest.fixture(scope="session")
def logbus_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real cluster: ZooKeeper and brokers as child processes that end with the session."""
    # Every pytest session loads this module; brokers are imported only on use.
    from broker_lite.local.cluster import LocalCluster

    directory = tmp_path_factory.mktemp("logbus")
    with LocalCluster(brokers=int(os.environ.get(BROKERS, "1")), directory=directory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def logbus(logbus_cluster: LocalCluster) -> Iterator[Bus]:
    """A connection to the cluster: topics, producers, consumers."""
    from broker_lite.bus.blocking import connect

    with connect(logbus_cluster.bootstrap_servers) as bus:
        yield bus


@pytest.fixture
def logbus_topic(logbus: Bus, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new topic of one partition, named for the test."""
    test = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:60]
    name = f"{test}-{uuid.uuid4().hex[:8]}"
    logbus.create_topic(name, partitions=1)
    yield name
    logbus.delete_topic(name)
