"""The fixture that runs each contract test twice: on the simulated and on a real ZooKeeper."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from worlds import RealWorld, SimWorld, World


@pytest.fixture(params=["sim", pytest.param("zookeeper", marks=pytest.mark.real)])
def world(request: pytest.FixtureRequest) -> World:
    """The simulated ZooKeeper (``sim``) or a real ZooKeeper (``zookeeper``)."""
    if request.param == "sim":
        return SimWorld()
    return RealWorld(request.getfixturevalue("zookeeper"))
