"""Every rule that ``plants`` takes out is missed by the simulator soon.

How many seeds that takes from several beginnings is the table in README.md: where it is dozens, the
test begins shortly before one that was found to miss the rule.
"""

from __future__ import annotations

import pytest
from sim import scenario
from sim.plants import PLANTS, Plant

SEEDS_MAX = 500
SAFETY_S = 40.0
BEGINS = {
    "controller_is_not_fenced": 118,
    "old_registrations_fetch": 130,
    "versions_are_not_compared": 42,
    "who_joins_does_not_count": 85,
    "who_leaves_counts_no_more": 22,
}
"""What a seed does changes with the simulator; the test takes longer then, and finds the rule."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    begin = BEGINS.get(plant.__name__, 0)
    for seed in range(begin, begin + SEEDS_MAX):
        try:
            scenario.run(seed, SAFETY_S)
        except scenario.Failed as failed:
            print(f"{plant.__name__}: seed {seed}: {str(failed).splitlines()[0]}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice {plant.__name__}")


def test_there_are_enough() -> None:
    assert len(PLANTS) >= 20
    assert all(plant.__doc__ for plant in PLANTS)
    assert {plant.__name__ for plant in PLANTS} >= BEGINS.keys()
