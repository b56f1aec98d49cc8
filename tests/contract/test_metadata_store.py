"""Test the interface MetadataStore on the simulated ZooKeeper and on a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from worlds import Events, World

from broker_lite.errors import CoordinationUnavailableError, InvalidRequestError
from broker_lite.metadata.store import (
    REQUEST_BYTES_MAX,
    Check,
    ChildrenChanged,
    Connected,
    Create,
    DataChanged,
    Delete,
    MetadataStore,
    Refused,
    SessionLost,
    Set,
    Suspended,
    was_written,
    write_surely,
)
from broker_lite.metadata.zookeeper.multi_read import MultiRead
from broker_lite.metadata.zookeeper.store import ZooKeeperStore


@asynccontextmanager
async def started(world: World) -> AsyncIterator[tuple[MetadataStore, Events]]:
    store, events = world.store(), Events()
    await store.start(events)
    try:
        yield store, events
    finally:
        await store.close()


def test_reads_return_written_znodes(world: World) -> None:
    async def body() -> None:
        async with started(world) as (store, _):
            assert await store.get("/a") is None
            assert await store.children("/a") is None
            assert await store.write([Create("/a", b"1"), Create("/a/b"), Create("/a/c")]) is None
            znode = await store.get("/a")
            assert znode is not None
            assert (znode.data, znode.version, znode.session_id) == (b"1", 0, 0)
            assert await store.children("/a") == ["b", "c"]
            assert await store.write([Set("/a", b"2", 0)]) is None
            again = await store.get("/a")
            assert again is not None
            assert (again.data, again.version) == (b"2", 1)
            assert again.created_zxid == znode.created_zxid > 0

    world.run(body())


async def read_at_once(store: MetadataStore) -> None:
    """Read 150 znodes, a missing znode and lists of children in one iteration of the event
    loop."""
    await store.write([Create("/a", b"1"), Create("/a/b"), Create("/a/c")])
    await store.write([Create(f"/a/c/{n}", b"%d" % n) for n in range(150)])
    found = await asyncio.gather(
        *(store.get(f"/a/c/{n}") for n in range(150)),
        store.get("/none"),
        store.children("/a"),
        store.children("/none"),
        store.write([Set("/a", b"2", 0)]),
        store.get("/a"),
    )
    assert [row.data for row in found[:150] if row is not None] == [b"%d" % n for n in range(150)]
    assert found[150:154] == [None, ["b", "c"], None, None]
    # Requests keep their order, so the last read returns the written value.
    assert (found[154].data, found[154].version) == (b"2", 1)


def test_each_of_many_znode_reads_in_one_turn_of_the_event_loop_gets_its_own_result(
    world: World,
) -> None:
    async def body() -> None:
        async with started(world) as (store, _):
            await read_at_once(store)

    world.run(body())


def test_concurrent_sync_calls_of_the_metadata_store_share_one_request(world: World) -> None:
    async def body() -> None:
        async with started(world) as (writer, _), started(world) as (reader, _):
            sent: list[str] = []
            if isinstance(reader, ZooKeeperStore):
                reader.on_answer = lambda name, _: sent.append(name)
            for value in (b"1", b"2"):
                await writer.write([Create("/a", value) if value == b"1" else Set("/a", value)])
                await asyncio.gather(*(reader.sync("/a") for _ in range(20)))
                found = await reader.get("/a")
                assert found is not None and found.data == value
            if isinstance(reader, ZooKeeperStore):
                assert sent.count("sync") == 2

    world.run(body())


def test_znode_reads_are_sent_one_by_one_to_a_server_without_multi_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper before 3.6 does not know multi-reads, and closes the connection.

    The reads in flight may fail. From then on, the store sends reads one by one.
    """
    monkeypatch.setattr(MultiRead, "type", 9999)

    async def body() -> None:
        async with started(world) as (store, _):
            try:
                await asyncio.gather(store.get("/a"), store.get("/b"))
            except CoordinationUnavailableError:
                while not store.connected:
                    await asyncio.sleep(0.01)
            await read_at_once(store)

    world.run(body())


def test_metadata_write_beyond_the_size_limit_is_refused_without_sending_it(world: World) -> None:
    """ZooKeeper would close the connection at each attempt to send the write."""

    async def body() -> None:
        async with started(world) as (store, events):
            await store.write([Create("/a")])
            with pytest.raises(InvalidRequestError, match="Split the request"):
                await store.write([Create("/a/b"), Set("/a", bytes(REQUEST_BYTES_MAX))])
            assert await store.children("/a") == []
            assert store.connected and Suspended() not in events.seen

    world.run(body())


def test_refused_metadata_write_has_no_effect_and_returns_the_reason(world: World) -> None:
    async def body() -> None:
        async with started(world) as (store, _):
            await store.write([Create("/a", b"1"), Create("/a/b")])
            for operations, position, reason in (
                ([Create("/new"), Create("/a")], 1, "exists"),
                ([Create("/new"), Create("/no/parent")], 1, "missing"),
                ([Create("/new"), Set("/none", b"")], 1, "missing"),
                ([Create("/new"), Set("/a", b"", 7)], 1, "version"),
                ([Check("/a", 1), Create("/new")], 0, "version"),
                ([Check("/none", 0), Create("/new")], 0, "missing"),
                ([Create("/new"), Delete("/a")], 1, "not_empty"),
                ([Create("/new"), Delete("/a/b", 3)], 1, "version"),
                ([Create("/new"), Delete("/none")], 1, "missing"),
            ):
                refused = await store.write(operations)
                assert refused is not None
                assert (refused.position, refused.reason) == (position, reason), operations
                assert refused.operation == operations[position]
                assert await store.get("/new") is None
            inside = [
                Create("/x"),
                Create("/x/y"),
                Set("/x", b"1", 0),
                Delete("/x/y"),
                Check("/x", 1),
            ]
            assert await store.write(inside) is None

    world.run(body())


def test_watch_of_a_znodes_data_fires_once(world: World) -> None:
    async def body() -> None:
        async with started(world) as (reader, events), started(world) as (writer, _):
            assert await reader.get("/w", watch=True) is None
            await writer.write([Create("/w", b"1")])
            await events.until(DataChanged("/w"))
            await writer.write([Set("/w", b"2")])
            await reader.sync("/w")
            znode = await reader.get("/w", watch=True)
            assert znode is not None and znode.data == b"2"
            assert DataChanged("/w") not in events.seen
            await writer.write([Delete("/w")])
            await events.until(DataChanged("/w"))
            await reader.sync("/w")
            assert await reader.get("/w") is None

    world.run(body())


def test_watch_of_a_znodes_children_fires_once(world: World) -> None:
    async def body() -> None:
        async with started(world) as (reader, events), started(world) as (writer, _):
            await writer.write([Create("/p")])
            assert await reader.children("/p", watch=True) == []
            await writer.write([Create("/p/1", ephemeral=True)])
            await events.until(ChildrenChanged("/p"))
            assert await reader.children("/p", watch=True) == ["1"]
            await writer.write([Set("/p/1", b"x")])
            await writer.close()
            await events.until(ChildrenChanged("/p"))
            assert await reader.children("/p") == []

    world.run(body())


def test_ephemeral_znodes_end_with_their_session(world: World) -> None:
    short_ms, world.session_timeout_ms = world.session_timeout_ms, 20_000

    async def body() -> None:
        # A watch ends with its session, and on a busy machine a session of 2 s may end early.
        async with started(world) as (watcher, events):
            world.session_timeout_ms = short_ms
            store = world.store()
            await store.start(Events())
            await store.write([Create("/e", b"1", ephemeral=True)])
            znode = await watcher.get("/e", watch=True)
            assert znode is not None and znode.session_id == store.session_id != 0
            await world.vanish(store)
            # Nobody closed the session, so ZooKeeper deletes the znode after the session timeout.
            await events.until(DataChanged("/e"))
            assert await watcher.get("/e") is None

    world.run(body())


def test_session_and_ephemeral_znodes_survive_a_dropped_connection(world: World) -> None:
    async def body() -> None:
        async with started(world) as (store, events):
            first = await events.until(Connected)
            await store.write([Create("/e", b"1", ephemeral=True)])
            world.drop_connection(store)
            await events.until(Suspended)
            again = await events.until(Connected)
            assert again == Connected(store.session_id, False)
            assert first == Connected(store.session_id, True)
            znode = await store.get("/e")
            assert znode is not None and znode.session_id == store.session_id

    world.run(body())


def test_expired_session_is_reported_and_replaced(world: World) -> None:
    async def body() -> None:
        async with started(world) as (store, events):
            await events.until(Connected)
            before = store.session_id
            await store.write([Create("/e", b"1", ephemeral=True)])
            await world.expire(store)
            await events.until(SessionLost)
            assert await events.until(Connected) == Connected(store.session_id, True)
            assert store.session_id != before
            assert await store.get("/e") is None
            assert await store.write([Create("/e", b"2", ephemeral=True)]) is None

    world.run(body())


def test_metadata_store_calls_without_a_connection_fail_at_once(world: World) -> None:
    async def body() -> None:
        async with started(world) as (store, events):
            await events.until(Connected)
            world.drop_connection(store)
            await events.until(Suspended)
            assert not store.connected
            with pytest.raises(CoordinationUnavailableError):
                await store.write([Create("/late")])
            with pytest.raises(CoordinationUnavailableError):
                await store.get("/late")
            await events.until(Connected)
            assert await store.get("/late") is None

    world.run(body())


def test_metadata_write_is_applied_exactly_once_although_connections_drop(
    world: World,
) -> None:
    """The test increments a counter.

    After a dropped connection, ``write_surely`` reads back whether the write was applied.
    """

    async def body() -> None:
        async with started(world) as (store, events):

            async def wait_connected() -> None:
                while not store.connected:
                    await events.until(Connected)

            await store.write([Create("/n", b"0")])
            for number in range(1, 21):
                write = asyncio.ensure_future(
                    write_surely(store, [Set("/n", b"%d" % number, number - 1)], wait_connected)
                )
                if number % 4 == 0:
                    await asyncio.sleep(0)
                    world.drop_connection(store)
                assert await write is None
                events.seen.clear()
            znode = await store.get("/n")
            assert znode is not None
            assert (znode.data, znode.version) == (b"20", 20)

    world.run(body())


def test_lost_write_is_not_applied_although_another_client_wrote_the_same_value(
    world: World,
) -> None:
    """Regression: a controller believed that a lost write of several partition states had been
    applied, because the leader of the first partition had written the same state. The other
    partitions then had no leader for ever (simulation with transactions, seed 32004510).
    """

    async def body() -> None:
        async with started(world) as (one, _), started(world) as (other, _):
            await one.write([Create("/first", b"0"), Create("/second", b"0")])
            write = [Set("/first", b"same", 0), Set("/second", b"mine", 0)]
            assert await was_written(one, write) is False
            assert await other.write([Set("/first", b"same", 0)]) is None
            await one.sync("/first")
            assert await was_written(one, write) == Refused(0, write[0], "version")
            assert await other.write([Set("/second", b"other", 0)]) is None
            await one.sync("/second")
            assert await was_written(one, write) == Refused(0, write[0], "version")
            again = [Set("/first", b"1", 1), Set("/second", b"1", 1)]
            assert await one.write(again) is None
            assert await other.write([Set("/second", b"2", 2)]) is None
            await one.sync("/second")
            assert await was_written(one, again) is True

    world.run(body())


def test_only_one_of_two_writes_of_the_same_version_succeeds(world: World) -> None:
    async def body() -> None:
        async with started(world) as (one, _), started(world) as (other, _):
            await one.write([Create("/n", b"0")])
            for version in range(10):
                results = await asyncio.gather(
                    one.write([Set("/n", b"1", version)]), other.write([Set("/n", b"2", version)])
                )
                assert sorted(result is None for result in results) == [False, True]

    world.run(body())


def test_metadata_write_accepts_large_values_and_thousands_of_operations(world: World) -> None:
    world.session_timeout_ms = 20_000  # On a busy machine the write outlasts a session of 2 s.

    async def body() -> None:
        async with started(world) as (store, _):
            await store.write([Create("/big", b"x" * 500_000)])
            znode = await store.get("/big")
            assert znode is not None and len(znode.data) == 500_000
            operations = [Create(f"/big/{number:05}", b"y" * 100) for number in range(2000)]
            assert await store.write(operations) is None
            assert len(await store.children("/big") or ()) == 2000

    world.run(body())
