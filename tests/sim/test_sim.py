"""Seeds through the simulated cluster: nothing acknowledged is lost or doubled, whatever breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim import scenario

SEEDS = range(20)
KEPT = (55,)
"""Seeds that once found something: 55 a loop that spun while ZooKeeper did not answer."""
TWICE = (1, 8, 11, 16)
TWICE_SAFETY_S = 15.0

_DIGESTS = """
import sys
sys.path.insert(0, sys.argv[1])
from sim import scenario
for seed in sys.argv[3:]:
    print(scenario.run(int(seed), float(sys.argv[2])).digest)
"""


@pytest.mark.parametrize("seed", [*SEEDS, *KEPT])
def test_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    outcome = scenario.run(seed)
    assert outcome.counts["acked"] > 100
    assert outcome.counts["read"] > 10


def test_a_seed_does_the_same_in_every_process() -> None:
    """Also where Python hashes text in another way, and after other seeds ran before."""
    here = [scenario.run(seed, TWICE_SAFETY_S).digest for seed in TWICE]
    again = [scenario.run(seed, TWICE_SAFETY_S).digest for seed in reversed(TWICE)]
    assert here == again[::-1]
    assert len(set(here)) == len(TWICE)
    arguments = [str(Path(__file__).parents[1]), str(TWICE_SAFETY_S), *map(str, TWICE)]
    elsewhere = subprocess.run(
        [sys.executable, "-c", _DIGESTS, *arguments],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert elsewhere.stdout.split() == here
