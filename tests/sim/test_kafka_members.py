"""Run seeds of logbus's members of Kafka groups. Where a test removes a rule from the code, some
seed must fail.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from sim import kafka_members
from sim.groups import SESSION_S
from sim.kafka_groups import GROUP
from sim.seeded import Violation, first_seed, play

from broker_lite.client.membership import assignors
from broker_lite.client.membership.machine import NO_GENERATION, MemberMachine
from broker_lite.client.membership.member import MemberShell
from broker_lite.config import BrokerConfig
from broker_lite.model import TopicPartition
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator

SEEDS = 3
"""Number of fixed seeds, and number of further seeds that depend on the commit."""
KEPT = {
    1533: "a cooperative member that lost its revoked partitions did not rejoin",
    18: "a member with a lost join read on, renewed by heartbeats, after the rebalance",
    3: "a leader evicted before it sent the assignment read on, renewed by heartbeats",
}
"""Seeds that once failed, and why."""
PLANT_SEEDS = 12

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", [*range(SEEDS), *KEPT])
def test_kafka_member_simulation_passes_on_fixed_seeds_and_seeds_that_once_failed(
    seed: int,
) -> None:
    counts = kafka_members.run(seed)
    assert counts["commits"] and counts["generations"]


def test_kafka_member_simulation_passes_on_seeds_derived_from_the_git_commit() -> None:
    first = first_seed()
    counts = Counter[str]()
    for seed in range(first, first + SEEDS):
        counts += kafka_members.run(seed)
    print(f"seeds {first} to {first + SEEDS - 1}: {dict(counts)}")
    assert counts["commits"] and counts["generations"]


class Cuts(kafka_members.World):
    """A simulation whose only fault cuts the coordinator off from ZooKeeper.

    Another broker then coordinates the group, and one more member joins there.
    """

    async def chaos(self) -> None:
        self.is_calm = True
        for _ in range(3):
            self.join()
        await asyncio.sleep(5.0)
        for _ in range(2):
            chosen = self.any_broker().groups.coordinator_of(GROUP)
            assert chosen is not None
            store = self.brokers[chosen.broker_id].zk
            store.cut()
            self.later(10.0, store.heal)
            await asyncio.sleep(SESSION_S + self.chance.random())
            self.join()
            await asyncio.sleep(10.0)

    def handed_out(self, reader: kafka_members.MachineMember, tp: TopicPartition) -> None:
        super().handed_out(reader, tp)
        if self.counts["read by two after a move"]:
            self.fail(f"{tp} is handed out by {reader.name} and by one of another coordinator")


def cut_off(patch: Patch) -> Counter[str]:
    """Run two seeds that cut a coordinator off from ZooKeeper, with the shortest session timeout
    that brokers allow."""
    patch.setattr(kafka_members, "SESSION_MS", BrokerConfig().group_session_timeout_min_ms)
    return sum((play(Cuts, seed) for seed in range(2)), Counter[str]())


def test_no_partition_has_two_readers_while_the_coordinator_is_cut_off_from_zookeeper(
    monkeypatch: Patch,
) -> None:
    """A coordinator without a connection to ZooKeeper must stop confirming heartbeats.

    Otherwise its members would read on, while the next coordinator assigns the same partitions to
    its own members.
    """
    counts = cut_off(monkeypatch)
    assert counts["handed out"] and counts["claims"] >= 6


def test_simulation_detects_that_a_coordinator_cut_off_from_zookeeper_confirms_members(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(GroupCoordinator, "give_up", lambda *_: None)
    with pytest.raises(Violation, match="one of another coordinator"):
        cut_off(monkeypatch)


def partition_is_assigned_while_owned(patch: Patch) -> None:
    """Plant a fault: the group's leader assigns a partition that another member still owns."""
    patch.setattr(assignors, "hold_back", lambda *_: None)


def member_rejoins_while_its_reader_reads(patch: Patch) -> None:
    """Plant a fault: a member rejoins while its reader still reads."""
    patch.setattr(MemberMachine, "_release_then_join", lambda self: self._join())


def lost_partitions_are_kept(patch: Patch) -> None:
    """Plant a fault: a member whose session ended keeps its partitions when it rejoins."""

    def forget(self: MemberMachine) -> None:
        self.generation = NO_GENERATION

    patch.setattr(MemberMachine, "_lose_all", forget)


def member_reads_without_a_lease(patch: Patch) -> None:
    """Plant a fault: a member reads on although no recent heartbeat was confirmed."""
    always = property(lambda _: float("inf"), lambda *_: None)
    patch.setattr(MemberShell, "lease_until_ms", always, raising=False)


def heartbeat_in_a_rebalance_renews_the_lease(patch: Patch) -> None:
    """Plant a fault: a heartbeat during a rebalance extends the time for which a member may read.

    The extension is wrong, because the rebalance may end without this member.
    """
    confirm = MemberMachine._confirm
    patch.setattr(MemberMachine, "_confirm", lambda self, *, is_calm=True: confirm(self))


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (partition_is_assigned_while_owned, 0),
        (member_rejoins_while_its_reader_reads, 0),
        (lost_partitions_are_kept, 0),
        (member_reads_without_a_lease, 4),
        (heartbeat_in_a_rebalance_renews_the_lease, 2),
    ],
)
def test_kafka_member_simulation_fails_if_any_one_rule_of_the_protocol_is_removed(
    plant: Callable[[Patch], None], first: int, monkeypatch: Patch
) -> None:
    """Run seeds until one fails because ``plant`` has removed a rule.

    Without a rule about leases (until when a member may read), one seed in eight fails.
    """
    plant(monkeypatch)
    with pytest.raises(Violation):
        for seed in range(first, first + PLANT_SEEDS):
            kafka_members.run(seed)
