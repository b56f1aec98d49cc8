"""Run seeds of ZooKeeper-based groups: a partition has one owner, and no offset goes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sim import groups
from sim.seeded import Violation, first_seed

from broker_lite.metadata.store import Create, Operation, Set
from broker_lite.native.events import StreamCommit
from broker_lite.native.member import NativeShell
from broker_lite.native.ownership import Ownership
from broker_lite.native.view import View

Patch = pytest.MonkeyPatch

SEEDS = 8
PLANT_SEEDS_MAX = 20

KEPT = {
    0: "a reader committed a position from before its partition moved away and back",
    40: "the position of the first claim was written when the second one ended",
    112: "a new member read a new topic first, and took it for one of the group's start",
    48: "a partition revoked during an offset lookup was delivered",
}
"""Seeds that once failed, and why."""


@pytest.mark.parametrize("seed", KEPT)
def test_zk_based_group_simulation_passes_on_seeds_that_once_failed(seed: int) -> None:
    groups.run(seed)


def test_zk_based_group_simulation_passes_on_seeds_derived_from_the_git_commit() -> None:
    first = first_seed()
    counts = Counter[str]()
    for seed in range(first, first + SEEDS):
        counts += groups.run(seed)
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
    assert counts["commits"] and counts["kills"] and counts["resets"]


def test_two_group_simulations_with_the_same_seed_take_the_same_steps() -> None:
    assert groups.run(5) == groups.run(5)


def member_reads_without_a_lease(patch: Patch) -> None:
    """Plant a fault: a member goes on reading after the end of its lease on its partitions."""
    patch.setattr(NativeShell, "lease_until_ms", float("inf"))


def the_consumer_registry_is_not_watched(patch: Patch) -> None:
    """Plant a fault: a member does not watch for members that join or leave."""
    mark = View.mark

    def deaf(view: View, path: str) -> None:
        if not path.endswith("/ids"):
            mark(view, path)

    patch.setattr(View, "mark", deaf)


def commits_are_not_compared(patch: Patch) -> None:
    """Plant a fault: a commit does not compare the znode's version: it may undo an offset reset."""
    _unversioned(patch, of_claims=False)


def claims_are_not_compared(patch: Patch) -> None:
    """Plant a fault: a member that becomes the owner of a partition rewrites the committed offset
    without comparing the version of the offset's znode.
    """
    _unversioned(patch, of_claims=True)


def _unversioned(patch: Patch, *, of_claims: bool) -> None:
    write: Any = Ownership._write

    def blind(ownership: Ownership, operations: Sequence[Operation], then: Any) -> None:
        if any(isinstance(each, Create) for each in operations) is of_claims:
            operations = [
                each._replace(version=-1) if isinstance(each, Set) else each for each in operations
            ]
        write(ownership, operations, then)

    patch.setattr(Ownership, "_write", blind)


def commit_counts_for_the_present_claim(patch: Patch) -> None:
    """Plant a fault: a position that was read in a former ownership of the partition is committed
    in the present ownership.
    """
    commit = Ownership.commit

    def blind(ownership: Ownership, event: StreamCommit) -> None:
        held = ownership.owned.items()
        commit(ownership, event._replace(grants={tp: row.grant for tp, row in held}))

    patch.setattr(Ownership, "commit", blind)


def last_position_counts_for_the_present_claim(patch: Patch) -> None:
    """Plant a fault: the position at which a reader gave the partition up in a former ownership is
    committed in the present one.
    """
    settled = Ownership.settled

    def blind(ownership: Ownership, tp: Any, final: Any, grant: int) -> None:
        held = ownership.owned.get(tp)
        settled(ownership, tp, final, grant if held is None else held.grant)

    patch.setattr(Ownership, "settled", blind)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (commit_counts_for_the_present_claim, 0),
        (last_position_counts_for_the_present_claim, 39),
        (member_reads_without_a_lease, 2),
        (the_consumer_registry_is_not_watched, 2),
        (commits_are_not_compared, 1),
        (claims_are_not_compared, 14),
    ],
)
def test_zk_based_group_simulation_fails_if_any_one_rule_of_the_protocol_is_removed(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    """``plant`` removes a rule. The test runs seeds from ``first`` on: this seed, or one shortly
    after it, fails without the rule.

    With ``claims_are_not_compared`` or ``last_position_counts_for_the_present_claim``, one seed in
    seventy fails. With each other ``plant``, every second seed fails.
    """
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(first, first + PLANT_SEEDS_MAX):
            groups.run(seed)
