"""Seeds of Kafka groups, and how soon the simulation finds a rule that is taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sim import kafka_groups
from sim.seeded import Violation

from broker_lite.coordinator.group import Group
from broker_lite.metadata import group_claims, group_writer, znodes
from broker_lite.metadata.store import Check, Operation, Set

SEEDS = 8
PLANT_SEEDS = 10

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", range(SEEDS))
def test_groups_of_kafka_members(seed: int) -> None:
    counts = kafka_groups.run(seed)
    assert counts["commits"] and counts["generations"]


def claims_are_not_checked(patch: Patch) -> None:
    """Offsets are written whoever coordinates the group by now."""
    operations = group_writer.GroupWriter._operations

    def unchecked(self: Any, part: Any) -> list[Operation]:
        return [row for row in operations(self, part) if not isinstance(row, Check)]

    patch.setattr(group_writer.GroupWriter, "_operations", unchecked)


def claims_are_not_compared(patch: Patch) -> None:
    """A broker takes a group over whoever claimed it since it looked."""
    claims: Any = group_claims
    patch.setattr(claims, "Set", lambda path, data, version: Set(path, data))


def claims_have_no_name(patch: Patch) -> None:
    """A claim is known by its version alone, also after the group was deleted and made again."""

    def checks(self: Any) -> tuple[Check, ...]:
        return (Check(znodes.coordinator_path(self.group), self.version),)

    patch.setattr(group_claims.Claim, "checks", property(checks))
    patch.setattr(kafka_groups, "DELETIONS", 0.7)


def generations_restart(patch: Patch) -> None:
    """A coordinator that takes a group over counts from 0."""

    def restarted(path: str, data: bytes) -> znodes.Coordinator:
        return decode(path, data)._replace(generation=0)

    decode = znodes.decode_coordinator
    claims: Any = group_claims
    patch.setattr(claims, "znodes", _Instead(decode_coordinator=restarted))


def any_generation_commits(patch: Patch) -> None:
    """A member commits, whichever generation it speaks of."""

    def who(self: Any, member_id: str, instance_id: str | None, _: int) -> Any:
        return self._roster.why_not(member_id, instance_id)

    patch.setattr(Group, "_of_generation", who)


class _Instead:
    """The module of znodes with something else in it."""

    def __init__(self, **instead: Any) -> None:
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(znodes, name)


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (claims_are_not_checked, 30),
        (claims_are_not_compared, 18),
        (claims_have_no_name, 144),
        (generations_restart, 0),
        (any_generation_commits, 0),
    ],
)
def test_a_rule_that_is_taken_out_is_missed(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    """The first two are each found by one seed in fifty, the third by one in sixty where groups are
    deleted often, the others by the first seed."""
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(first, first + PLANT_SEEDS):
            kafka_groups.run(seed)
