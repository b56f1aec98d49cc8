"""Every rule that ``plants`` takes out is missed by the simulator soon.

How many seeds that takes from several beginnings is the table in README.md.
"""

from __future__ import annotations

import pytest
from sim import scenario
from sim.plants import PLANTS, Plant

SEEDS_MAX = 500
SAFETY_S = 40.0


@pytest.mark.timeout(400)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_simulator_notices(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            scenario.run(seed, SAFETY_S)
        except scenario.Failed as failed:
            print(f"{plant.__name__}: seed {seed}: {str(failed).splitlines()[0]}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice {plant.__name__}")


def test_there_are_enough() -> None:
    assert len(PLANTS) >= 20
    assert all(plant.__doc__ for plant in PLANTS)
