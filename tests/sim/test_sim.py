"""Seeds through the simulated cluster: nothing acknowledged is lost or doubled, whatever breaks."""

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
FRESH_SEEDS = 32
"""Of each part; about fifteen seconds."""

KEPT = {
    35: "a follower's cut that a failing disk had done in part",
    39: "a topic that was made a moment before the end",
    40: "a deposed leader judged sequences that it cannot know, and a producer's user heard it",
    55: "a loop that spun while ZooKeeper did not answer",
    78: "a log that was being made was hosted twice, so two machines wrote to it",
    88: "two fetches of one follower ended each other's wait without end",
    91: "an ISR shrank, on a suspicion, to a disk that was lost",
    344: "sequences judged by a deposed leader, of a producer of rows",
    405: "a producer that was new to a leader which had been deposed before it began",
    82051277: "the scenario ended while a request of the administrator began a move",
    803811581: "a cut inside the first batch of a log, after which the log began at the cut",
    920016: "a broker stayed registered as full when ZooKeeper did not answer that it had room",
    930167: "a flipped bit in a header fenced a producer when its log was opened again",
    8102152: "what a failed fsync left in a page of the cache was believed after a restart",
    1791202826: "a batch that was tried again at a deposed leader ended as out of order",
}
"""Seeds that once found something, and what; what a seed does changes with the simulator, so each
of these has a test of its own besides where it was a fault of production code."""
KEPT_TRANSACTIONS = {
    9401061: "a log that was cut to a snapshot listed aborted transactions behind its end",
    700159: "a sink's slot that the log did not hold as free was ended again by the next run",
}
"""The same of seeds with transactions and a sink."""
TWICE = range(20)
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
@pytest.mark.parametrize("part", range(FRESH_PARTS))
def test_fresh_seeds_pass(part: int) -> None:
    first = first_seed() + part * 1_000_000_000
    seeds = range(first, first + FRESH_SEEDS)
    acked = sum(scenario.run(seed).counts.get("acked", 0) for seed in seeds)
    print(f"seeds {seeds[0]} to {seeds[-1]}: {acked} batches acknowledged")
    assert acked > 0


@pytest.mark.parametrize("seed", KEPT)
def test_seeds_of_earlier_failures_pass(seed: int) -> None:
    assert scenario.run(seed).counts["acked"] > 0


@pytest.mark.parametrize("seed", KEPT_TRANSACTIONS)
def test_seeds_of_earlier_failures_of_transactions_pass(seed: int) -> None:
    options = TRANSACTIONS if seed > 9_000_000 else {"transacts": True}
    outcome = scenario.run(seed, **options)
    assert outcome.counts["committed transactions"] > 0


@pytest.mark.slow
def test_seed_is_deterministic_across_processes() -> None:
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


def test_failing_seed_prints_how_to_reproduce_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Violation("the test says so")

    monkeypatch.setattr(scenario, "unsettled", refuse)
    with pytest.raises(scenario.Failed) as caught:
        scenario.run(7, 5.0)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("seed 7 at ")
    assert lines[0].endswith("Violation: the test says so")
    assert lines[1] == "(sim.scenario.run(7, 5) does it again)"
    assert len(lines) > 20
