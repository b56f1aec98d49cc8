"""Seeds through simulated native groups: one owner at a time, nobody left out, none goes back."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from sim import groups
from sim.seeded import Violation

from broker_lite.client.native.member import Member
from broker_lite.client.native.view import View

SEEDS = 8
FIRST = os.environ.get("LOGBUS_SIM_SEED", "")
PLANT_SEEDS_MAX = 20

KEPT = {
    2: "a commit that waited was written under a later claim, of a topic made again",
    39: "a claim whose answer was lost was to be taken back, and that was lost too",
    106: "what was wanted of a session that had ended was done in the next one",
    793: "commits of one partition waited for each other while ZooKeeper was slow",
}
"""Seeds that once found something, and what."""


@pytest.mark.parametrize("seed", KEPT)
def test_kept_seeds(seed: int) -> None:
    groups.run(seed)


def test_fresh_seeds() -> None:
    first = int(FIRST) if FIRST else random.SystemRandom().randrange(1 << 31)
    counts = Counter[str]()
    for seed in range(first, first + SEEDS):
        counts += groups.run(seed)
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
    assert counts["commits"] and counts["kills"] and counts["resets"]


def test_the_same_seed_is_the_same_run() -> None:
    assert groups.run(5) == groups.run(5)


@pytest.mark.parametrize("rule", ["the lease", "the watch of the consumer registry"])
def test_a_rule_that_is_taken_out_is_missed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "the lease":
        monkeypatch.setattr(Member, "lease_until_ms", float("inf"))
    else:
        mark = View.mark

        def deaf(view: View, path: str) -> None:
            if not path.endswith("/ids"):
                mark(view, path)

        monkeypatch.setattr(View, "mark", deaf)
    with pytest.raises(Violation):
        for seed in range(PLANT_SEEDS_MAX):
            groups.run(seed)
