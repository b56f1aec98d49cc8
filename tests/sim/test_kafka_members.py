"""Seeds of logbus's members of Kafka groups, and rules of theirs that the simulation misses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sim import kafka_members
from sim.seeded import Violation

from broker_lite.client.membership import assignors
from broker_lite.client.membership.machine import NO_GENERATION, Machine

SEEDS = 6
KEPT = 1533
"""It found a cooperative member that lost what it was to give up, and did not join again."""
PLANT_SEEDS = 12

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", [*range(SEEDS), KEPT])
def test_members_of_kafka_groups(seed: int) -> None:
    counts = kafka_members.run(seed)
    assert counts["commits"] and counts["generations"]


def nothing_is_held_back(patch: Patch) -> None:
    """A leader gives a partition to one member while another still has it."""
    patch.setattr(assignors, "hold_back", lambda *_: None)


def readers_are_not_waited_for(patch: Patch) -> None:
    """A member joins again while its reader still reads."""
    patch.setattr(Machine, "_prepare", lambda self: self._join())


def what_is_lost_is_kept(patch: Patch) -> None:
    """A member whose session ended goes on with what it had when it has joined again."""

    def forget(self: Machine) -> None:
        self.generation = NO_GENERATION

    patch.setattr(Machine, "_lose_all", forget)


@pytest.mark.parametrize(
    "plant", [nothing_is_held_back, readers_are_not_waited_for, what_is_lost_is_kept]
)
def test_a_rule_that_is_taken_out_is_missed(
    plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(PLANT_SEEDS):
            kafka_members.run(seed)
