"""Run seeds of a group that Kafka members and ZooKeeper-based members may join.

If a test removes one rule from the code, some seed must fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sim import either_kind
from sim.scheduler import SimLoop
from sim.seeded import Violation, first_seed

from broker_lite.coordinator import events as ev
from broker_lite.coordinator.group import Group
from broker_lite.errors import LogbusError
from broker_lite.metadata import znodes
from broker_lite.metadata.group_deletion import GroupAge, GroupDeletion
from broker_lite.metadata.store import Delete, Operation, Set, Znode
from broker_lite.model import CommittedOffset
from broker_lite.native import machine

SEEDS = 3
"""Number of fixed seeds, and number of further seeds that depend on the commit."""
PLANT_SEEDS = 25

KEPT = {
    200: "a group taken over by two concurrent requests started a generation twice",
    30608: "the retention ignored a native member that left before any broker looked",
    31641: "the simulation reported a commit in a group whose members had left but were stored",
    31751: "the retention ignored a native member that left while a broker looked",
}
"""Seeds that once failed, and why."""

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", KEPT)
def test_simulation_of_kafka_and_zookeeper_based_members_passes_on_seeds_that_once_failed(
    seed: int,
) -> None:
    either_kind.run(seed)


@pytest.mark.parametrize("members", [0, 1])
def test_simulation_fails_if_a_late_commit_reaches_a_group_with_members(
    members: int,
) -> None:
    """A commit without a member id may be applied late, and so set the offset back, but only when
    the group has no members.

    Regression: the simulation reported a late commit to an empty group as a fault (seed 30713).
    """
    world = either_kind.World(SimLoop(), 0)  # type: ignore[abstract]
    world.kind = znodes.KIND_KAFKA
    claimed = znodes.CoordinatorZnode(1, 1, 1, 5, None, "1-1", 1)
    world._coordinator = claimed
    world.assigned((0, 5), {"m1": bytes(range(either_kind.PARTITIONS))})
    path = znodes.offset_path(either_kind.GROUP, either_kind.TOPIC, 0)

    def write(number: int, metadata: str) -> None:
        row = CommittedOffset(number, metadata=metadata, topic_id="t", commit_ms=1)
        world.wrote(1, [Set(path, znodes.encode_offset(row))])

    write(19, "0/5 m1")
    if members:
        with pytest.raises(Violation, match="beside the members of generation 5"):
            write(17, f"{either_kind.NOBODY} 4")
        return
    gone = claimed._replace(generation=6, members=0, empty_since_ms=1)
    coordinator = znodes.coordinator_path(either_kind.GROUP)
    world.wrote(1, [Set(coordinator, znodes.encode_coordinator(gone))])
    write(17, f"{either_kind.NOBODY} 4")
    assert world.counts["set back"] == 1


def test_group_has_either_zk_based_or_kafka_members_and_expires_when_empty() -> None:
    first, counts = first_seed(), Counter[str]()
    for seed in (*range(SEEDS), *range(first, first + SEEDS)):
        counts += either_kind.run(seed)
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
    assert counts["taken over"] and counts["deletions"] and counts["generations"]


def claims_are_taken_over_without_a_version(patch: Patch) -> None:
    """Plant a fault: a ZooKeeper-based member takes a group over without comparing the version of
    the coordinator's znode.
    """

    def blind(
        group: str, znode: Znode, coordinator: Znode | None, *, has_pending: bool
    ) -> list[Operation]:
        rows = made(group, znode, coordinator, has_pending=has_pending)
        kept = [row for row in rows if not isinstance(row, Delete)]
        return [row._replace(version=-1) if isinstance(row, Set) else row for row in kept]

    made = machine.made_native
    patch.setattr(machine, "made_native", blind)


def takeover_keeps_the_claim(patch: Patch) -> None:
    """Plant a fault: a ZooKeeper-based member takes a group over but keeps its coordinator."""

    def half(
        group: str, znode: Znode, coordinator: Znode | None, *, has_pending: bool
    ) -> list[Operation]:
        return made(group, znode, coordinator, has_pending=has_pending)[:1]

    made = machine.made_native
    patch.setattr(machine, "made_native", half)


def native_member_joins_a_kafka_group(patch: Patch) -> None:
    """Plant a fault: a ZooKeeper-based member joins a Kafka group that has members."""
    patch.setattr(machine, "is_open", lambda group, kind, _: kind == znodes.KIND_KAFKA)


def group_with_members_expires(patch: Patch) -> None:
    """Plant a fault: a group with members expires if it commits nothing."""
    age: Any = GroupDeletion.age

    async def blind(self: GroupDeletion, group: str) -> GroupAge:
        found: GroupAge = await age(self, group)
        return found._replace(empty_since_ms=0)

    patch.setattr(GroupDeletion, "age", blind)


def commits_without_a_member_beside_members(patch: Patch) -> None:
    """Plant a fault: a group with members accepts a commit without a member id."""
    committing: Any = Group._check_commit

    def blind(self: Group, event: ev.Commit) -> LogbusError | None:
        if event.generation < 0 and not event.member_id:
            return None
        refused: LogbusError | None = committing(self, event)
        return refused

    patch.setattr(Group, "_check_commit", blind)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (claims_are_taken_over_without_a_version, 6),
        (takeover_keeps_the_claim, 0),
        (native_member_joins_a_kafka_group, 1),
        (group_with_members_expires, 1),
        (commits_without_a_member_beside_members, 1),
    ],
)
def test_simulation_of_kafka_and_zookeeper_based_members_fails_if_any_protocol_rule_is_removed(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    """Run seeds until the simulation detects that ``plant`` removed a rule.

    About one seed in two detects the removal. With ``claims_are_taken_over_without_a_version``,
    one seed in fourteen does.
    """
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(first, first + PLANT_SEEDS):
            either_kind.run(seed)
