"""A real cluster and what is needed to talk to it; one per worker, temporary, gone at the end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import EmbeddedZooKeeper

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers and ZooKeeper. A test that kills something starts it again. Members of groups
    may ask for shorter sessions than by default, so that a test need not wait long for a death, and
    a group's first member waits less for others."""
    directory = tmp_path_factory.mktemp("cluster")
    config = {
        "group.min.session.timeout.ms": "500",
        "group.initial.rebalance.delay.ms": "50",
    }
    with LocalCluster(brokers=3, directory=directory, config=config) as running:
        yield running


@pytest.fixture
def make_cluster(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., LocalCluster]]:
    """A function that starts a cluster of the test's own (same arguments as LocalCluster).

    Its brokers are its own. ZooKeeper is the worker's, under a chroot of the cluster's own, unless
    the test asks for ``own_zookeeper``: to stop it, say.
    """
    started: list[LocalCluster] = []

    def make(brokers: int = 1, *, own_zookeeper: bool = False, **options: object) -> LocalCluster:
        options.setdefault("directory", tmp_path / f"cluster-{len(started)}")
        if not own_zookeeper:
            server: EmbeddedZooKeeper = request.getfixturevalue("zookeeper")
            options["zookeeper"] = f"{server.address}/cluster-{next(_NUMBERS)}/logbus"
        started.append(LocalCluster(brokers, **options))  # type: ignore[arg-type]
        return started[-1].start()

    yield make
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper without brokers; a test takes a chroot of its own in it."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def bus(cluster: LocalCluster) -> Iterator[Bus]:
    """A connection to the worker's cluster."""
    with connect(cluster.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(bus: Bus) -> str:
    """A new topic of three partitions."""
    name = f"fixture-{os.getpid()}-{next(_NUMBERS)}"
    bus.create_topic(name, partitions=3)
    return name
