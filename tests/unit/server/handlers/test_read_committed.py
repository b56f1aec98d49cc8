"""Tests of read_committed fetches and of offset lookups, over replicas with logs in memory."""

from __future__ import annotations

import pytest
from support.marker_client import BIG, MarkerClient, marker, write, write_history
from support.replica_world import World, run

from broker_lite.server.partitions.crc_cache import CrcCache
from broker_lite.wire import fetch as wire


def test_read_committed_stops_at_the_last_stable_offset_and_skips_aborted_records() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        client = MarkerClient(leader)
        assert await client.read() == [0, 3, 6]
        got = await client.fetch(0)
        assert (got.high_watermark, got.last_stable_offset) == (9, 7)
        assert got.aborted_transactions == [(1, 1)]
        assert (await client.fetch(6)).aborted_transactions == []
        every = await client.fetch(7, committed=False)
        assert len(every.records) > 0 and every.aborted_transactions is None
        assert (await client.mark(marker(3)))[3, "t", 0] == 0
        assert await client.read() == [0, 3, 6, 7, 8]

    run(body, brokers=2)


@pytest.mark.parametrize("cold", [False, True])
def test_read_committed_returns_the_same_records_with_and_without_a_crc_check(cold: bool) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        replica = leader.replica()
        if cold:
            replica.crc_cache = CrcCache(replica.log.log_end_offset)
        for size in (1, 100, 200, BIG):
            assert await MarkerClient(leader).read(size=size) == [0, 3, 6]

    run(body, brokers=1)


def test_new_leader_knows_the_transactions_that_it_copied_as_a_follower() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        await world.agree()
        follower = world.nodes[2]
        world.elect(2)
        await world.serves(2)
        client = MarkerClient(follower)
        assert await client.read() == [0, 3, 6]
        assert (await client.mark(marker(3, commit=False)))[3, "t", 0] == 0
        assert await client.read() == [0, 3, 6, 8]

    run(body, brokers=2)


def test_marker_lost_in_an_unclean_election_leaves_the_transaction_open() -> None:
    """The former leader truncates the marker.

    A later marker then ends the transaction on both replicas.
    """

    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write(leader)
        await leader.append([b"plain"])
        await world.agree()
        leader.cut_off()
        world.config["min.insync.replicas"] = "1"
        world.take_out(2)
        assert (await MarkerClient(leader).mark(marker()))[7, "t", 0] == 0
        assert await MarkerClient(leader).read() == [0, 1]
        world.elect(2, isr=[2])
        client = MarkerClient(await world.serves(2))
        assert await client.read() == []
        leader.reached = True
        await world.agree()
        assert leader.replica().log.reader.last_stable_offset(BIG) == 0
        # `logbus transactions abort` sends this marker.
        assert (await client.mark(marker(commit=False, coordinator=0)))[7, "t", 0] == 0
        assert await client.read() == [1]
        await world.agree()
        world.elect(1)
        assert await MarkerClient(await world.serves(1)).read() == [1]

    run(body, brokers=2)


def test_restarted_replica_serves_the_same_committed_records() -> None:
    async def body(world: World) -> None:
        await write_history(await world.serves(1))
        await world.agree()
        world.elect(2)
        await world.serves(2)
        world.restart(1)
        await world.agree()
        world.elect(1)
        leader = await world.serves(1)
        assert await MarkerClient(leader).read() == [0, 3, 6]

    run(body, brokers=2)


def test_list_offsets_with_read_committed_ends_at_the_last_stable_offset() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        client = MarkerClient(leader)
        assert [await client.listed(-1, committed=c) for c in (True, False)] == [7, 9]
        assert [await client.listed(-3, committed=c) for c in (True, False)] == [2, 2]
        assert await client.listed(1001) == 2
        assert await client.listed(1 << 40) == -1

    run(body, brokers=1)


def test_fetch_that_requests_only_end_offsets_also_returns_the_first_transactional_offset() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"plain"])
        client, ends = MarkerClient(leader), wire.FLAG_ENDS_ONLY
        assert (await client.fetch(0, flags=ends)).transactions_from == -1
        await write(leader)
        got = await client.fetch(0, flags=ends)
        assert (got.last_stable_offset, got.transactions_from) == (1, 1)
        assert (await client.fetch(0)).transactions_from == -1

    run(body, brokers=1)
