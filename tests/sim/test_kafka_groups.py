"""Run seeds of Kafka groups. If a test removes one rule from the code, some seed must fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sim import kafka_groups
from sim.seeded import Violation, first_seed, play

from broker_lite.coordinator.group import Group
from broker_lite.metadata import group_claims, group_writer, znodes
from broker_lite.metadata.store import Check, Create, Operation, Set, Znode

SEEDS = 4
"""Number of fixed seeds, and number of further seeds that depend on the commit."""
PLANT_SEEDS = 10

Patch = pytest.MonkeyPatch


KEPT = {63008841: "a join deadline that expired without ZooKeeper fired repeatedly"}
"""Seeds that once failed, and why."""


@pytest.mark.parametrize("seed", [*range(SEEDS), *KEPT])
def test_kafka_group_simulation_passes_on_fixed_seeds_and_seeds_that_once_failed(seed: int) -> None:
    counts = kafka_groups.run(seed)
    assert counts["commits"] and counts["generations"]


def test_kafka_group_simulation_passes_on_seeds_derived_from_the_git_commit() -> None:
    first = first_seed()
    counts = Counter[str]()
    for seed in range(first, first + SEEDS):
        counts += kafka_groups.run(seed)
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
    assert counts["commits"] and counts["generations"]


class Restarts(kafka_groups.World):
    """A simulated run whose only fault is that the group's coordinator restarts repeatedly."""

    async def chaos(self) -> None:
        for _ in range(3):
            self.join()
        await asyncio.sleep(5.0)
        for _ in range(4):
            chosen = self.any_broker().groups.coordinator_of(kafka_groups.GROUP)
            assert chosen is not None
            self.restart(self.brokers[chosen.broker_id])
            for _ in range(500):
                await asyncio.sleep(0.01)
                self.check_readers()

    def check_readers(self) -> None:
        readers = Counter(part for member in self.living for part in member.positions)
        if any(count > 1 for count in readers.values()):
            rows = {row.name: (row.generation, sorted(row.positions)) for row in self.living}
            self.fail(f"partitions are read by two: {rows}")


@pytest.mark.parametrize("seed", range(3))
def test_no_partition_has_two_readers_while_the_coordinator_changes(seed: int) -> None:
    """A new coordinator gives the members of the former one time to join.

    Otherwise it would assign all partitions to the first member that joins, while the other members
    read on until their next heartbeat.
    """
    play(Restarts, seed)


def claims_are_not_checked(patch: Patch) -> None:
    """Plant a fault: a replaced coordinator can still write offsets."""
    operations = group_writer.GroupWriter._operations

    def unchecked(self: Any, *given: Any) -> list[Operation]:
        return [row for row in operations(self, *given) if not isinstance(row, Check)]

    patch.setattr(group_writer.GroupWriter, "_operations", unchecked)


def claims_are_not_compared(patch: Patch) -> None:
    """Plant a fault: a broker takes a group over without comparing the version of the znode that
    names the coordinator.
    """

    def uncompared(path: str, data: bytes, znode: Znode | None) -> Operation:
        return Create(path, data) if znode is None else Set(path, data)

    claims: Any = group_claims
    patch.setattr(claims, "put", uncompared)


def generations_restart(patch: Patch) -> None:
    """Plant a fault: a coordinator that takes a group over starts again at generation 0."""

    def restarted(group: str, znode: Znode | None) -> znodes.CoordinatorZnode:
        return read(group, znode)._replace(generation=0)

    read = znodes.read_coordinator
    claims: Any = group_claims
    patch.setattr(claims, "znodes", _Instead(read_coordinator=restarted))


def any_generation_commits(patch: Patch) -> None:
    """Plant a fault: the coordinator accepts commits of any generation."""

    def who(self: Any, member_id: str, instance_id: str | None, _: int) -> Any:
        return self._roster.why_not(self.name, member_id, instance_id)

    patch.setattr(Group, "_check_generation", who)


async def ask_no_broker(_: Any) -> None:
    """Replaces ``ask_others``. A broker cut off from ZooKeeper then does not learn from others
    that they coordinate its groups now, and keeps the groups."""


class _Instead:
    """A copy of the module ``znodes`` in which some functions are replaced."""

    def __init__(self, **instead: Any) -> None:
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(znodes, name)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (claims_are_not_checked, 9),
        (claims_are_not_compared, 150),
        (generations_restart, 0),
        (any_generation_commits, 0),
    ],
)
def test_kafka_group_simulation_fails_if_any_one_rule_of_the_protocol_is_removed(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    """Run seeds until the simulation detects that ``plant`` removed a rule.

    If the rule is about a coordinator's claim (its ownership of a group), about one seed in a
    hundred fails without it. Otherwise most seeds fail.
    """
    plant(monkeypatch)
    # A broker mostly learns from other brokers that it was replaced, and then never reaches the
    # check in ZooKeeper.
    monkeypatch.setattr(kafka_groups.BrokerProcess, "ask_others", ask_no_broker)
    with pytest.raises(Violation):
        for seed in range(first, first + PLANT_SEEDS):
            kafka_groups.run(seed)
