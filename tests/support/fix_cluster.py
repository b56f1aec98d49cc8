"""Fixtures of a real cluster. Each test worker has one cluster, which is removed at the end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import EmbeddedZooKeeper
from support.faces import FACES, Face

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The worker's cluster of three brokers and ZooKeeper. A test that kills a process must restart
    it, because other tests use the same cluster.

    The minimum session timeout and the initial rebalance delay are shorter than the defaults, so
    that tests of groups wait less.
    """
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
    """Return a function that starts another cluster for the test, with LocalCluster's arguments.

    The cluster has its own chroot in the ZooKeeper of the pytest worker. With ``own_zookeeper`` it
    has its own ZooKeeper, which the test may stop.
    """
    yield from _makers(tmp_path, request)


@pytest.fixture(scope="module")
def make_module_cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., LocalCluster]]:
    """Return a function like ``make_cluster``'s, for clusters that all tests of a module use."""
    yield from _makers(tmp_path_factory.mktemp("clusters"), request)


def _makers(folder: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., LocalCluster]]:
    started: list[LocalCluster] = []

    def make(brokers: int = 1, *, own_zookeeper: bool = False, **options: object) -> LocalCluster:
        options.setdefault("directory", folder / f"cluster-{len(started)}")
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
    """A ZooKeeper without brokers for a pytest-xdist worker. Each test uses its own chroot."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture
def bus(cluster: LocalCluster) -> Iterator[Bus]:
    """A client connected to the worker's cluster: a Bus, as ``connect`` returns it."""
    with connect(cluster.bootstrap_servers) as connected:
        yield connected


@pytest.fixture(params=FACES, ids=lambda each: each.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """The blocking client or the asyncio client; a test runs with each."""
    made = request.param()
    yield made
    made.close()


@pytest.fixture
def face_bus(face: Face, cluster: LocalCluster) -> Iterator[Any]:
    """A client of the kind ``face`` (blocking or asyncio) that is connected to the worker's
    cluster.
    """
    with face.connect(cluster.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(bus: Bus) -> str:
    """The name of a new topic with three partitions."""
    name = f"fixture-{os.getpid()}-{next(_NUMBERS)}"
    bus.create_topic(name, partitions=3)
    return name
