"""Every rule that ``plants`` takes out is missed by the simulator soon.

How many seeds that takes from several beginnings is the table in README.md: where it is dozens, the
test begins shortly before one that was found to miss the rule.
"""

from __future__ import annotations

import pytest
from sim import scenario
from sim.damage_plants import PLANTS, under
from sim.plants import Plant

SEEDS_MAX = 500
SAFETY_S = 40.0
BEGINS = {
    "any_disk_leads": 7,
    "controller_is_not_fenced": 128,
    "diverging_log_begins_anew": 22,
    "epoch_ends_at_the_log_end": 24,
    "joins_though_moved_away": 70,
    "joins_without_the_epochs_start": 24,
    "lost_answers_mean_done": 62,
    "old_registrations_fetch": 183,
    "strays_stay": 11,
    "versions_are_not_compared": 78,
    "who_joins_does_not_count": 86,
    "who_leaves_counts_no_more": 24,
}
"""What a seed does changes with the simulator; the test takes longer then, and finds the rule."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    begin = BEGINS.get(plant.__name__, 0)
    for seed in range(begin, begin + SEEDS_MAX):
        try:
            scenario.run(seed, SAFETY_S, **under(plant))
        except scenario.Failed as failed:
            print(f"{plant.__name__}: seed {seed}: {str(failed).splitlines()[0]}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice {plant.__name__}")


def test_there_are_enough() -> None:
    assert len(PLANTS) >= 20
    assert all(plant.__doc__ for plant in PLANTS)
    assert {plant.__name__ for plant in PLANTS} >= BEGINS.keys()
