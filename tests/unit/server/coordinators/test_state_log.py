"""Tests of the log in which transaction coordinators keep their state, on three brokers.

Disk threads are real. A coordinator leads a partition of the log, and loads the last value of each
key when it becomes leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.replica_world import World, run

from broker_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    LogbusError,
    NotCoordinatorError,
    NotEnoughReplicasError,
)
from broker_lite.record.crc32c import crc32c
from broker_lite.server.coordinators.state_log import StateLog
from broker_lite.transactions import keyed_state


class Owner:
    """The state log of one broker, with values and leader epoch of each partition that the broker
    has loaded."""

    def __init__(self, world: World, number: int) -> None:
        self.values: dict[int, Mapping[bytes, bytes]] = {}
        self.flags: dict[int, Mapping[bytes, int]] = {}
        self.epochs: dict[int, int] = {}
        node = world.nodes[number]
        self.log = StateLog(
            "t",
            self,
            replicas=node.manager,
            snapshot=lambda: world.snapshot,
            clock=node.clock,
        )

    def loaded(
        self, partition: int, epoch: int, values: Mapping[bytes, bytes], flags: Mapping[bytes, int]
    ) -> None:
        self.values[partition], self.flags[partition] = values, flags
        self.epochs[partition] = epoch

    def lost(self, partition: int) -> None:
        del self.values[partition], self.flags[partition], self.epochs[partition]


class Owners:
    """An ``Owner`` (a broker's state log) for each simulated broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at = {number: Owner(world, number) for number in world.nodes}

    async def leads(self, number: int, partition: int = 0) -> Owner:
        await self.world.until(lambda: partition in self.at[number].values)
        return self.at[number]


def test_new_leader_of_the_transaction_state_log_loads_every_committed_record() -> None:
    async def test(world: World) -> None:
        owners = Owners(world)
        first = await owners.leads(1)
        appends = [first.log.append(0, b"k%d" % n, b"%d" % n, n % 2) for n in range(20)]
        appends.append(first.log.append(0, b"k3", None))
        await asyncio.gather(*appends)
        world.elect(2)
        second = await owners.leads(2)
        assert 0 not in first.values
        assert first.log.led(0) is None
        assert second.log.led(0) == second.epochs[0] == 1
        assert second.values[0] == {b"k%d" % n: b"%d" % n for n in range(20) if n != 3}
        assert second.flags[0] == {b"k%d" % n: 1 for n in range(1, 20, 2) if n != 3}

    run(test)


def test_appends_to_the_state_log_in_one_event_loop_turn_share_a_batch() -> None:
    async def test(world: World) -> None:
        owner = await Owners(world).leads(1)
        await asyncio.gather(*(owner.log.append(0, b"%d" % n, b"v") for n in range(50)))
        assert world.nodes[1].stored() == [(0, 50, 0)]

    run(test)


def test_append_to_the_state_log_completes_when_the_high_watermark_passes_it() -> None:
    async def test(world: World) -> None:
        owner = await Owners(world).leads(1)
        world.nodes[1].cut_off()
        append = owner.log.append(0, b"k", b"v")
        await world.until(lambda: world.nodes[1].replica().log.log_end_offset == 1)
        assert not append.done()
        assert owner.values[0] == {}
        world.nodes[1].reached = True
        await append
        assert owner.values[0] == {b"k": b"v"}

    run(test)


def test_appends_in_flight_to_the_state_log_fail_when_leadership_is_lost() -> None:
    async def test(world: World) -> None:
        owners = Owners(world)
        first = await owners.leads(1)
        world.nodes[1].cut_off()
        append = first.log.append(0, b"k", b"v")
        await world.until(lambda: world.nodes[1].replica().log.log_end_offset == 1)
        world.elect(2)
        with pytest.raises(NotCoordinatorError):
            await append
        assert (await owners.leads(2)).values[0] == {}

    run(test)


def test_append_to_the_state_log_stays_pending_while_the_isr_is_below_min_insync() -> None:
    async def test(world: World) -> None:
        owner = await Owners(world).leads(1)
        world.config = {"min.insync.replicas": "2"}
        world.publish()
        world.nodes[1].cut_off()
        append = owner.log.append(0, b"k", b"v")
        await world.until(lambda: world.nodes[1].replica().log.log_end_offset == 1)
        world.take_out(2)
        world.take_out(3)
        await asyncio.sleep(0.01)
        assert not append.done()
        with pytest.raises(NotEnoughReplicasError):
            await owner.log.append(0, b"other", b"v")
        world.nodes[1].reached = True
        await append
        assert owner.values[0] == {b"k": b"v"}

    run(test)


def test_new_leader_loads_the_state_log_only_once_its_earlier_records_are_committed() -> None:
    async def test(world: World) -> None:
        owners = Owners(world)
        first = await owners.leads(1)
        await first.log.append(0, b"k", b"1")
        world.nodes[1].cut_off()
        append = first.log.append(0, b"k", b"2")
        await world.until(lambda: world.nodes[1].replica().log.log_end_offset == 2)
        # Broker 1 leads in a new epoch. Its log has k=2, which is not committed.
        world.elect(1)
        with pytest.raises(NotCoordinatorError):
            await append
        with pytest.raises(CoordinatorLoadInProgressError):
            first.log.led(0)
        await asyncio.sleep(0.01)
        assert 0 not in first.values
        world.nodes[1].reached = True
        assert (await owners.leads(1)).values[0] == {b"k": b"2"}

    run(test)


def test_state_log_deletes_records_before_a_full_copy_of_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed_state, "COPY_BYTES_MIN", 2000)
    monkeypatch.setattr(keyed_state, "BATCH_BYTES", 100)

    async def test(world: World) -> None:
        owners = Owners(world)
        first = await owners.leads(1)
        for number in range(120):
            await first.log.append(0, b"k%d" % (number % 10), b"%d" % number)
        log = world.nodes[1].replica().log
        await world.until(lambda: log.log_start_offset > 0)
        world.elect(3)
        third = await owners.leads(3)
        assert third.values[0] == {b"k%d" % (n % 10): b"%d" % n for n in range(110, 120)}

    run(test)


def test_state_log_partition_of_a_key_is_its_crc32c_modulo_the_partition_count() -> None:
    async def test(world: World) -> None:
        log = Owner(world, 1).log
        assert log.partition_of(b"id") == crc32c(b"id") % 4
        world.snapshot = type(world.snapshot)()
        with pytest.raises(CoordinatorNotAvailableError):
            log.partition_of(b"id")

    run(test, partitions=4)


def test_append_to_a_state_log_partition_that_another_broker_leads_fails() -> None:
    async def test(world: World) -> None:
        owners = Owners(world)
        await owners.leads(1)
        with pytest.raises(NotCoordinatorError) as raised:
            await owners.at[2].log.append(0, b"k", b"v")
        assert isinstance(raised.value, LogbusError)

    run(test)


def test_wait_loaded_returns_once_the_leader_has_loaded_the_state() -> None:
    async def test(world: World) -> None:
        owner = Owner(world, 1)
        await owner.log.wait_loaded(0)
        assert owner.log.led(0) == 0
        other = Owner(world, 2)
        await other.log.wait_loaded(0)
        assert other.log.led(0) is None, "broker 2 does not lead, so it loads nothing"

    run(test)
