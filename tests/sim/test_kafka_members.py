"""Seeds of logbus's members of Kafka groups, and rules of theirs that the simulation misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from sim import kafka_members
from sim.seeded import Violation, first_seed

from broker_lite.client.membership import assignors
from broker_lite.client.membership.machine import NO_GENERATION, Machine
from broker_lite.client.membership.member import Member

SEEDS = 3
"""That are always the same, and as many that no commit before tried."""
KEPT = {
    1533: "a cooperative member that lost what it was to give up did not join again",
    18: "a member whose join was lost read on, since it beat, when the group had gathered without",
}
"""Seeds that once found something, and what."""
PLANT_SEEDS = 12

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", [*range(SEEDS), *KEPT])
def test_members_of_kafka_groups(seed: int) -> None:
    counts = kafka_members.run(seed)
    assert counts["commits"] and counts["generations"]


def test_fresh_seeds() -> None:
    first = first_seed()
    counts = Counter[str]()
    for seed in range(first, first + SEEDS):
        counts += kafka_members.run(seed)
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
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


def no_lease(patch: Patch) -> None:
    """What is owned is handed out, however long ago the coordinator confirmed the session."""
    always = property(lambda _: float("inf"), lambda *_: None)
    patch.setattr(Member, "lease_until_ms", always, raising=False)


def any_beat_renews_the_lease(patch: Patch) -> None:
    """Also while the group gathers, which ends without a member whose join does not arrive."""
    confirm = Machine._confirm
    patch.setattr(Machine, "_confirm", lambda self, *, is_calm=True: confirm(self))


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (nothing_is_held_back, 0),
        (readers_are_not_waited_for, 0),
        (what_is_lost_is_kept, 0),
        (no_lease, 4),
        (any_beat_renews_the_lease, 31),
    ],
)
def test_a_rule_that_is_taken_out_is_missed(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    """The last two are found by one seed in eight."""
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(first, first + PLANT_SEEDS):
            kafka_members.run(seed)
