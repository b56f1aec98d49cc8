"""Test offsets that transactions add to a group, on a simulated and on a real ZooKeeper.

They are *pending* until the transaction ends. A *part* is the znode with the pending offsets of one
TxnOffsetCommit request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from brokers import Broker, Cluster, create, run
from worlds import World, until

from broker_lite.errors import (
    CoordinationUnavailableError,
    NonEmptyGroupError,
    NotCoordinatorError,
    TransactionAbortableError,
)
from broker_lite.metadata import group_offsets, pending_offsets, znodes
from broker_lite.metadata.pending_offsets import WRITE_BYTES_MAX
from broker_lite.metadata.store import Delete
from broker_lite.metadata.znodes import PendingOffsets, TransactionKey
from broker_lite.model import CommittedOffset, TopicPartition

FIRST, NEXT = TransactionKey(1000, 0, 1), TransactionKey(1000, 1, 2)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def add(
    broker: Broker, offsets: dict[TopicPartition, int], transaction: TransactionKey = FIRST
) -> None:
    claim = await broker.registry.groups.claim("g")
    rows = {key: CommittedOffset(offset) for key, offset in offsets.items()}
    value = PendingOffsets("copier", rows)
    results = await broker.registry.groups.add_pending(claim, transaction, value)
    assert results == dict.fromkeys(offsets)


async def end(
    broker: Broker, transaction: TransactionKey = FIRST, *, is_commit: bool = True
) -> None:
    await broker.registry.groups.end_pending("g", transaction, is_commit=is_commit)


async def committed(broker: Broker) -> dict[TopicPartition, int]:
    found = await broker.registry.groups.fetch("g")
    return {key: row.offset for key, row in found.items()}


async def parts(broker: Broker) -> list[str]:
    return await broker.store.children(znodes.pending_path("g")) or []


async def topic(cluster: Cluster, partitions: int = 2) -> None:
    await create(cluster.controller(), "t", partitions)
    await until(lambda: all("t" in b.registry.snapshot.topics for b in cluster.running))


def test_offsets_of_a_transaction_are_pending_until_it_commits(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await topic(cluster)
        await one.registry.groups.commit("g", {T0: CommittedOffset(1), T1: CommittedOffset(1)})
        await add(one, {T0: 5})
        await add(one, {T0: 6})
        assert await parts(one) == ["1000-0-1-0", "1000-0-1-1"]
        stable = await two.registry.groups.fetch_stable("g")
        assert {key: row.offset for key, row in stable.offsets.items()} == {T1: 1}
        assert stable.unstable == {T0}
        assert await committed(two) == {T0: 1, T1: 1}
        await end(one)
        assert await parts(one) == []
        # Of two parts of one transaction, the later part takes precedence.
        assert await committed(two) == {T0: 6, T1: 1}
        assert (await two.registry.groups.fetch_stable("g")).unstable == frozenset()
        found = await two.registry.groups.fetch("g", [T0])
        topic_id = one.registry.snapshot.topics["t"].topic_id
        assert found[T0] == CommittedOffset(6, topic_id=topic_id, commit_ms=1234)

    run(world, body)


def test_abort_of_a_transaction_drops_its_pending_offsets(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5})
        await end(broker, is_commit=False)
        assert await parts(broker) == [] and await committed(broker) == {}
        await end(broker)
        assert await committed(broker) == {}, "a commit after the abort had an effect"

    run(world, body)


def test_end_of_a_transaction_keeps_the_pending_offsets_of_another_transaction(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5})
        await add(broker, {T1: 7}, NEXT)
        await end(broker)
        assert await parts(broker) == ["1000-1-2-0"]
        assert await committed(broker) == {T0: 5}

    run(world, body)


def test_repeated_end_request_of_a_transaction_keeps_newer_offsets(world: World) -> None:
    """The request that ends the transaction arrives twice. Between the two, another transaction
    commits a higher offset.
    """

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5})
        await end(broker)
        await add(broker, {T0: 9}, NEXT)
        await end(broker, NEXT)
        await end(broker)
        assert await committed(broker) == {T0: 9}

    run(world, body)


def test_simultaneous_ends_of_a_transaction_apply_its_pending_offsets_once(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5, T1: 6})
        await asyncio.gather(*(end(broker) for _ in range(3)))
        assert await parts(broker) == [] and await committed(broker) == {T0: 5, T1: 6}

    run(world, body)


def test_offset_committed_later_wins_over_a_pending_transactional_offset(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await broker.registry.groups.commit("g", {T0: CommittedOffset(1)})
        await add(broker, {T0: 5, T1: 5})
        await broker.registry.groups.commit("g", {T0: CommittedOffset(3)})
        await end(broker)
        assert await committed(broker) == {T0: 3, T1: 5}

    run(world, body)


def test_end_of_a_transaction_keeps_an_offset_committed_in_the_same_zookeeper_write(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5, T1: 5})
        writes: list[list[type]] = []
        write = broker.store.write

        held, released = asyncio.Event(), asyncio.Event()

        async def seen(operations: Any) -> Any:
            held.set()
            await released.wait()
            kinds = [type(row) for row in operations]
            if Delete in kinds:
                writes.append(kinds)
            return await write(operations)

        groups = broker.registry.groups
        rows = await groups.pending("g")
        claim, other = await groups.claim("g"), await groups.claim("other")
        broker.store.write = seen  # type: ignore[method-assign]
        # Hold back this write, so that the end and the commit queue behind it.
        before = asyncio.create_task(groups.commit("other", {T0: CommittedOffset(1)}, other))
        await held.wait()
        end = asyncio.create_task(groups._end_parts(claim, rows, is_commit=True))
        commit = asyncio.create_task(groups.commit("g", {T0: CommittedOffset(3)}, claim))

        def both_wait() -> bool:
            waiting = groups._writer._waiting.get(claim)
            return waiting is not None and bool(waiting.parts and waiting.offsets)

        await until(both_wait)
        released.set()
        await asyncio.gather(before, end, commit)
        assert len(writes) == 1 and len(writes[0]) == 5, "the end and the commit took two writes"
        assert await committed(broker) == {T0: 3, T1: 5}

    run(world, body)


def test_offset_of_the_later_transaction_wins_whichever_transaction_ends_first(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        other = TransactionKey(2000, 0, 1)
        for first, second, offset in ((FIRST, other, 5), (other, FIRST, 15)):
            await add(broker, {T0: offset})
            await add(broker, {T0: offset + 1}, other)
            await end(broker, first)
            await end(broker, second)
            assert await committed(broker) == {T0: offset + 1}

    run(world, body)


def test_next_group_coordinator_applies_the_pending_offsets_of_the_former_one(world: World) -> None:
    """The former group coordinator is killed after TxnOffsetCommit, before EndGroupOffsets, the
    request that applies or drops the offsets."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await topic(cluster)
        await add(one, {T0: 5})
        await cluster.kill(one)
        await end(two)
        assert await parts(two) == [] and await committed(two) == {T0: 5}

    run(world, body)


def test_pending_offsets_survive_the_end_of_the_brokers_session(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5})
        former = broker.registry.broker_epoch
        await world.expire(broker.store)
        await until(
            lambda: broker.registry.connected and broker.registry.broker_epoch not in (former, -1)
        )
        await add(broker, {T1: 6})
        assert await parts(broker) == ["1000-0-1-0", "1000-0-1-1"]
        await end(broker)
        assert await parts(broker) == [] and await committed(broker) == {T0: 5, T1: 6}

    run(world, body)


def test_former_coordinator_cannot_add_pending_offsets(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await topic(cluster)
        claim = await one.registry.groups.claim("g")
        await end(two)
        value = PendingOffsets("copier", {T0: CommittedOffset(5)})
        with pytest.raises(NotCoordinatorError):
            await one.registry.groups.add_pending(claim, FIRST, value)
        assert await parts(two) == []

    run(world, body)


def test_transaction_end_finds_a_new_group_although_zookeeper_reads_are_stale(
    world: World,
) -> None:
    """Until it syncs, the ZooKeeper server of the next coordinator does not know the new group."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await topic(cluster)
        await add(one, {T0: 5})
        get, sync, is_behind = two.store.get, two.store.sync, [True]

        async def lagging(path: str, *, watch: bool = False) -> Any:
            return None if is_behind and path.startswith("/consumers/g") else await get(path)

        async def caught_up(path: str) -> None:
            await sync(path)
            is_behind.clear()

        two.store.get, two.store.sync = lagging, caught_up  # type: ignore[method-assign]
        await end(two)
        assert await parts(one) == [] and await committed(one) == {T0: 5}

    run(world, body)


def test_abort_of_a_transaction_drops_offsets_that_were_added_just_before(world: World) -> None:
    """The client times out in TxnOffsetCommit, and its transaction is aborted."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await broker.registry.groups.commit("g", {T0: CommittedOffset(1)})
        adding = asyncio.ensure_future(add(broker, {T0: 5}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await end(broker, is_commit=False)
        await adding
        assert await parts(broker) == [] and await committed(broker) == {T0: 1}

    run(world, body)


def test_end_of_a_transaction_waits_until_zookeeper_has_confirmed_its_pending_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the end of the transaction ignored unconfirmed offsets, they would stay pending for
    ever."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await broker.registry.groups.commit("g", {T0: CommittedOffset(1)})
        write, goes_on = broker.store.write, asyncio.Event()

        async def held(operations: Any) -> Any:
            if any("/pending/" in row.path for row in operations):
                await goes_on.wait()
            return await write(operations)

        broker.store.write = held  # type: ignore[method-assign]
        monkeypatch.setattr(group_offsets, "COMMIT_WAIT_S", 0.01)
        for call in (add(broker, {T0: 5}), end(broker)):
            with pytest.raises(CoordinationUnavailableError):
                await call
        monkeypatch.undo()
        goes_on.set()
        await end(broker)
        assert await parts(broker) == [] and await committed(broker) == {T0: 5}

    run(world, body)


def test_pending_offset_requests_repeated_after_lost_responses_take_effect_once(
    world: World,
) -> None:
    """ZooKeeper applies every write, but each response is lost, so the senders repeat their
    requests."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await broker.registry.groups.commit("g", {T1: CommittedOffset(1)})
        write, losing = broker.store.write, [True]

        async def unsure(operations: Any) -> Any:
            refused = await write(operations)
            if losing and any("/pending/" in row.path for row in operations):
                losing.pop()
                raise CoordinationUnavailableError("the answer was lost")
            return refused

        broker.store.write = unsure  # type: ignore[method-assign]
        with pytest.raises(CoordinationUnavailableError):
            await add(broker, {T0: 5})
        await add(broker, {T0: 5})
        assert await parts(broker) == ["1000-0-1-0", "1000-0-1-1"]
        losing.append(True)
        with pytest.raises(CoordinationUnavailableError):
            await end(broker)
        await end(broker)
        assert await parts(broker) == [] and await committed(broker) == {T0: 5, T1: 1}

    run(world, body)


def test_pending_offsets_of_a_topic_that_was_deleted_and_recreated_are_not_committed(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await create(broker, "u")
        u0 = TopicPartition("u", 0)
        await add(broker, {T0: 5, u0: 6})
        await broker.registry.administration.delete_topics(["t"])
        await create(broker, "t", 2)
        stable = await broker.registry.groups.fetch_stable("g")
        assert stable.unstable == {u0}
        await end(broker)
        assert await committed(broker) == {u0: 6}
        assert await broker.store.children(znodes.topic_offsets_path("g", "t")) is None

    run(world, body)


def test_group_with_pending_offsets_is_neither_deleted_nor_expired(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await add(broker, {T0: 5})
        with pytest.raises(NonEmptyGroupError):
            await broker.registry.group_deletion.delete("g")
        assert not await broker.registry.group_deletion.expire("g", lambda age: True)
        assert await parts(broker) == ["1000-0-1-0"]
        await end(broker)
        assert await committed(broker) == {T0: 5}
        await broker.registry.group_deletion.delete("g")
        assert await broker.registry.groups.kind("g") is None

    run(world, body)


def test_pending_offsets_added_while_their_group_is_deleted_are_kept(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await topic(cluster)
        await add(one, {T0: 5})
        await end(one)
        deletion = one.registry.group_deletion
        delete = deletion._delete_group

        async def late(claim: Any) -> Any:
            await add(two, {T0: 6}, NEXT)
            return await delete(claim)

        deletion._delete_group = late  # type: ignore[method-assign]
        assert not await deletion.expire("g", lambda age: True)
        await end(two, NEXT)
        assert await committed(two) == {T0: 6}

    run(world, body)


def test_large_transactional_offset_commit_is_split_into_several_metadata_writes(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        count = 300
        await topic(cluster, count)
        claim = await broker.registry.groups.claim("g")
        rows = {
            TopicPartition("t", n): CommittedOffset(n, metadata='"' * 4000) for n in range(count)
        }
        sizes: list[int] = []
        write = broker.store.write

        async def measured(operations: Any) -> Any:
            sizes.append(sum(len(o.path) + len(getattr(o, "data", b"")) for o in operations))
            return await write(operations)

        broker.store.write = measured  # type: ignore[method-assign]
        value = PendingOffsets("copier", rows)
        await broker.registry.groups.add_pending(claim, FIRST, value)
        assert len(await parts(broker)) == 15
        await end(broker)
        assert max(sizes) <= WRITE_BYTES_MAX
        assert await committed(broker) == {TopicPartition("t", n): n for n in range(count)}

    run(world, body)


def test_too_many_pending_offset_commits_of_a_group_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        monkeypatch.setattr(pending_offsets, "PARTS_MAX", 3)
        results = await asyncio.gather(
            *(add(broker, {T0: n}) for n in range(5)), return_exceptions=True
        )
        assert [type(row) for row in results].count(TransactionAbortableError) == 2
        assert len(await parts(broker)) == 3
        await end(broker, is_commit=False)
        await add(broker, {T0: 1}, NEXT)

    run(world, body)


def test_offset_fetch_with_require_stable_returns_no_outdated_offset(
    world: World,
) -> None:
    """The transaction commits after one of the fetch's reads of ZooKeeper. The test tries each
    read."""

    async def fetch(broker: Broker, number: int) -> None:
        store, transaction = broker.store, TransactionKey(1000, 0, number)
        await add(broker, {T0: 10 + number}, transaction)
        originals = {name: getattr(store, name) for name in ("get", "children", "sync")}
        reads = 0

        def restore() -> None:
            for name, original in originals.items():
                setattr(store, name, original)

        def interrupted(original: Any) -> Any:
            async def read(path: str, **options: Any) -> Any:
                nonlocal reads
                found = await original(path, **options)
                reads += 1
                if reads == number:
                    restore()
                    await end(broker, transaction)
                return found

            return read

        for name, original in originals.items():
            setattr(store, name, interrupted(original))
        stable = await broker.registry.groups.fetch_stable("g", [T0])
        restore()
        assert T0 in stable.unstable or stable.offsets[T0].offset == 10 + number
        await end(broker, transaction)

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await topic(cluster)
        await broker.registry.groups.commit("g", {T0: CommittedOffset(1)})
        for number in range(1, 9):
            await fetch(broker, number)

    run(world, body)
