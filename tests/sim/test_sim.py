"""Run seeds of the simulated cluster: no fault may lose or duplicate an acknowledged record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim import scenario
from sim.checker import Violation
from sim.seeded import first_seed
from sim.soak import TRANSACTIONS

FRESH_PARTS = 4
FRESH_SEEDS = 10
"""Number of seeds of each part, which takes about eight seconds."""

KEPT = {
    35: "a failing disk executed a follower's truncation in part",
    39: "a topic was created just before the end",
    40: "a deposed leader without the latest sequences returned an error to a producer",
    55: "a loop did not pause while ZooKeeper was unavailable",
    78: "a log in creation was opened twice, so two state machines wrote to it",
    88: "two fetches of one follower cancelled each other endlessly",
    91: "a suspicion shrank the ISR to a lost disk",
    344: "a deposed leader refused the sequences of a row producer",
    405: "a leader deposed before its epoch began refused an unknown producer",
    82051277: "the scenario ended while a request started a reassignment",
    803811581: "after a truncation in its first batch a log started at the truncation offset",
    3656347: "the only in-sync replica was damaged, and no other had the records",
    920016: "a broker stayed registered as full after a lost response of ZooKeeper",
    930167: "a flipped bit in a batch header fenced a producer after recovery",
    8102152: "recovery trusted cached pages that a failed fsync had left",
    42001804: "the checker expected the first part of a batch that a truncation removed",
    1791202826: "a retry at a deposed leader failed as out of order",
}
"""Seeds that once failed, and why.

A change of the simulator changes what a seed tests, so each fault also has its own test.
"""
KEPT_TRANSACTIONS = {
    9401061: "a log truncated to a snapshot listed aborted transactions beyond its end",
    700159: "the next run ended a sink's slot again because the log lacked its release",
    6000978: "the start of an old copy of a disk made the checker forget a truncation",
    29501759: "a deposed leader refused an offset that was committed under the next leader",
    32001209: "a new coordinator aborted an attempt that joined after the abort of its batch",
    32004510: "a controller took a lost write for applied, and three partitions had no leader",
}
"""Seeds with transactions and a sink that once failed, and why."""
TWICE = range(8)
TWICE_SAFETY_S = 15.0

_DIGESTS = """
import sys
sys.path.insert(0, sys.argv[1])
from sim import scenario
from sim.checker import Violation
for seed in sys.argv[3:]:
    print(scenario.run(int(seed), float(sys.argv[2])).digest)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(FRESH_PARTS))
def test_cluster_simulation_passes_on_seeds_derived_from_the_git_commit(part: int) -> None:
    first = first_seed() + part * 1_000_000_000
    seeds = range(first, first + FRESH_SEEDS)
    acked = sum(scenario.run(seed).counts.get("acked", 0) for seed in seeds)
    print(f"seeds {seeds[0]} to {seeds[-1]}: {acked} batches acknowledged")
    assert acked > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", KEPT)
def test_cluster_simulation_passes_on_seeds_that_once_failed(seed: int) -> None:
    assert scenario.run(seed).counts["acked"] > 0


@pytest.mark.parametrize("seed", KEPT_TRANSACTIONS)
def test_cluster_simulation_with_transactions_passes_on_seeds_that_once_failed(seed: int) -> None:
    options = TRANSACTIONS if seed > 6_000_000 else {"transacts": True}
    outcome = scenario.run(seed, **options)
    assert outcome.counts["committed transactions"] > 0


@pytest.mark.slow
def test_simulation_of_a_seed_takes_the_same_steps_in_another_process() -> None:
    """The trace must not depend on PYTHONHASHSEED, or on seeds that ran before in the same
    process."""
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


def test_failed_simulation_prints_how_to_reproduce_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Violation("the test says so")

    monkeypatch.setattr(scenario, "unsettled", refuse)
    with pytest.raises(scenario.Failed) as caught:
        scenario.run(7, 5.0)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("seed 7 at ")
    assert lines[0].endswith("Violation: the test says so")
    assert lines[1] == "(sim.scenario.run(7, 5) repeats it)"
    assert len(lines) > 20
