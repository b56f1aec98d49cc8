"""Rules of the protocol taken out one by one: the simulator must notice each.

A simulator that finds nothing may just be blind; this shows that it is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pytest
from sim import scenario

from broker_lite.metadata.group_offsets import GroupOffsets
from broker_lite.model import BrokerView, LeaderAndIsr, ReplicaId
from broker_lite.replication import controller, election
from broker_lite.replication import partition as partition_module
from broker_lite.replication.effects import Effect
from broker_lite.replication.events import Appended
from broker_lite.replication.partition import Partition
from broker_lite.storage.log import Log
from broker_lite.storage.producer_state import ProducerState

SEEDS_MAX = 40
SAFETY_S = 20.0

Plant = Callable[[pytest.MonkeyPatch], None]


def readable_before_flushed(patch: pytest.MonkeyPatch) -> None:
    appended = Partition._appended

    def eager(self: Partition, event: Appended) -> list[Effect]:
        return [*appended(self, event), *self._synced(self.log_end_offset)]

    patch.setattr(Partition, "_appended", eager)


def flush_does_nothing(patch: pytest.MonkeyPatch) -> None:
    def flush(self: Log) -> int:
        self.flushed_end = self.log_end_offset
        return self.flushed_end

    patch.setattr(Log, "flush", flush)


def epoch_of_an_earlier_process(patch: pytest.MonkeyPatch) -> None:
    """A process that starts again goes on in the epoch of the one before."""

    def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
        return state.leader == local.broker_id and local in state.isr

    patch.setattr(partition_module, "leads", leads)


def any_disk_leads(patch: pytest.MonkeyPatch) -> None:
    """A broker leads with whatever directory it has."""

    def leads(state: LeaderAndIsr, local: ReplicaId, broker_epochs: Collection[int]) -> bool:
        return state.leader == local.broker_id and state.leader_broker_epoch in broker_epochs

    def has_live_leader(state: LeaderAndIsr, brokers: Mapping[int, BrokerView]) -> bool:
        broker = brokers.get(state.leader)
        return broker is not None and broker.broker_epoch == state.leader_broker_epoch

    patch.setattr(partition_module, "leads", leads)
    patch.setattr(election, "has_live_leader", has_live_leader)
    patch.setattr(election, "_lives", lambda replica, brokers: replica.broker_id in brokers)


def same_epoch_elected_again(patch: pytest.MonkeyPatch) -> None:
    elect = election.elect

    def lazy(state: LeaderAndIsr, *values: Any) -> LeaderAndIsr | None:
        elected = elect(state, *values)
        if elected is None or elected.leader != state.leader:
            return elected
        return dataclasses.replace(elected, leader_epoch=state.leader_epoch)

    patch.setattr(controller, "elect", lazy)


def duplicates_are_appended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerState, "check", lambda self, header, **options: None)


def commits_are_not_written(patch: pytest.MonkeyPatch) -> None:
    async def write(self: GroupOffsets, group: str, offsets: Any) -> None:
        """Nothing."""

    patch.setattr(GroupOffsets, "_write", write)


PLANTS: tuple[Plant, ...] = (
    readable_before_flushed,
    flush_does_nothing,
    epoch_of_an_earlier_process,
    any_disk_leads,
    same_epoch_elected_again,
    duplicates_are_appended,
    commits_are_not_written,
)


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
