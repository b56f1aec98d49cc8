"""Bits that flip on the disks of one or two of three replicas are found and mended.

A sample; ``make chaos FLIPS=2000`` does two thousand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from faults import bit_flips
from faults.replicated import Replicated

from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("replicated-faults")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Replicated]:
    with LocalCluster(3, directory=tmp_path / "cluster") as running:
        replicated = Replicated(running.brokers)
        yield replicated
        replicated.close()


def test_flipped_bits_are_found_before_delivery_and_repaired(cluster: Replicated) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    try:
        found = bit_flips.run(cluster, Random(seed), 60)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    assert found["flips"] == 60
