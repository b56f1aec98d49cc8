"""Test offsets and generations of groups in ZooKeeper, through the registries of several brokers.

A group's coordinator *claims* the group: it writes its name and the generation to the group's
znodes. Each later write of the coordinator fails if another broker has claimed the group.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from brokers import Broker, Cluster, create, run
from worlds import SimWorld, World, until

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    NotCoordinatorError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.metadata import group_deletion, znodes
from broker_lite.metadata.group_deletion import GroupAge
from broker_lite.metadata.group_offsets import GroupOffsets
from broker_lite.metadata.loader import READS_AT_ONCE_MAX
from broker_lite.metadata.store import Create, Delete
from broker_lite.model import (
    CommittedOffset,
    TopicPartition,
)
from broker_lite.server.clock import Clock
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.metrics import Metrics


def test_offsets_are_stored_by_group_and_topic(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        topic_id = await create(cluster.controller(), "t", 3)
        await until(lambda: all("t" in b.registry.snapshot.topics for b in (one, two)))
        t0, t1, bad = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 3)
        for group in ("g", "with/slash and ünicode%", "..", "."):
            result = await one.registry.groups.commit(
                group, {t0: CommittedOffset(5, 2, "note"), bad: CommittedOffset(1)}
            )
            assert result[t0] is None
            assert isinstance(result[bad], UnknownTopicOrPartitionError)
            await two.registry.groups.commit(group, {t1: CommittedOffset(7)})
            found = await two.registry.groups.fetch(group)
            assert found == {
                t0: CommittedOffset(5, 2, "note", topic_id, 1234),
                t1: CommittedOffset(7, -1, "", topic_id, 1234),
            }
            assert list(await one.registry.groups.fetch(group, [t1, bad])) == [t1]
            assert await one.registry.groups.kind(group) == "kafka"
        listed = await one.registry.groups.kinds()
        assert listed == dict.fromkeys(("g", "with/slash and ünicode%", "..", "."), "kafka")
        assert await one.registry.groups.fetch("nobody") == {}
        assert await one.registry.groups.kind("nobody") is None
        for name in ("", "x" * 1000):
            with pytest.raises(InvalidGroupIdError):
                await one.registry.groups.commit(name, {t0: CommittedOffset(1)})
        result = await one.registry.groups.commit("g", {t0: CommittedOffset(1, topic_id="B" * 22)})
        assert isinstance(result[t0], UnknownTopicIdError)

        await one.registry.group_deletion.delete_offsets("g", [t0])
        assert list(await two.registry.groups.fetch("g")) == [t1]
        await two.registry.group_deletion.delete("g")
        assert await one.registry.groups.kind("g") is None
        with pytest.raises(GroupIdNotFoundError):
            await one.registry.group_deletion.delete("g")
        # Broker one still caches the deleted znodes as existing. Its commit must recreate them.
        await one.registry.groups.commit("g", {t1: CommittedOffset(8)})
        assert (await two.registry.groups.fetch("g"))[t1].offset == 8

    run(world, body)


def test_deletion_of_a_group_reads_many_znodes_at_once() -> None:
    """Regression: the broker read the znodes one by one. A group with 32,000 offsets could never
    be deleted, because the deletion took longer than its time limit."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t", 300)
        offsets = {TopicPartition("t", number): CommittedOffset(5) for number in range(300)}
        await broker.registry.groups.commit("g", offsets)
        store: Any = broker.store
        read, counts = store.children, [0, 0]

        async def counted(path: str, *, watch: bool = False) -> list[str] | None:
            counts[0] += 1
            counts[1] = max(counts)
            try:
                found: list[str] | None = await read(path, watch=watch)
                return found
            finally:
                counts[0] -= 1

        store.children = counted
        await broker.registry.group_deletion.delete("g")
        assert counts == [0, READS_AT_ONCE_MAX]
        assert await broker.registry.groups.kind("g") is None

    run(SimWorld(), body)


def test_recreated_topic_does_not_inherit_committed_offsets(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        t0 = TopicPartition("t", 0)
        await create(broker, "t")
        await broker.registry.groups.commit("g", {t0: CommittedOffset(5)})
        await broker.registry.administration.delete_topics(["t"])
        assert await broker.registry.groups.fetch("g") == {}
        await create(broker, "t")
        assert await broker.registry.groups.fetch("g", [t0]) == {}
        await broker.registry.groups.commit("g", {t0: CommittedOffset(1)})
        assert (await broker.registry.groups.fetch("g", [t0]))[t0].offset == 1

    run(world, body)


def test_old_offsets_of_deleted_topics_expire_in_a_group_with_members(world: World) -> None:
    """Offsets of existing topics and recent offsets of deleted topics do not expire."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        registry, store = broker.registry, broker.store
        tps = {name: TopicPartition(name, 0) for name in ("stays", "gone", "again")}
        for name, tp in tps.items():
            await create(broker, name)
            await registry.groups.commit("g", {tp: CommittedOffset(5, commit_ms=1000)})
        assert await registry.group_deletion.expire_former("g", 2000) == 0
        await registry.administration.delete_topics(["gone", "again"])
        await create(broker, "again")
        deletion = registry.group_deletion
        assert await deletion.expire_former("g", 1000) == 0, "a recent offset expired"
        assert await deletion.expire_former("g", 2000) == 2
        assert await store.children(znodes.offsets_path("g")) == ["again", "stays"]
        assert list(await registry.groups.fetch("g")) == [tps["stays"]]
        # The deletion must also drop the znodes from the broker's cache.
        await create(broker, "gone")
        for name in ("gone", "again"):
            result = await registry.groups.commit("g", {tps[name]: CommittedOffset(1)})
            assert result == {tps[name]: None}
        assert set(await registry.groups.fetch("g")) == set(tps.values())

    run(world, body)


def test_offset_expiry_keeps_an_offset_committed_after_the_topic_was_recreated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit arrives after the expiry has found the old offset and before it deletes that
    offset."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        registry, tp = broker.registry, TopicPartition("t", 0)
        await create(broker, "t")
        await registry.groups.commit("g", {tp: CommittedOffset(5)})
        await registry.administration.delete_topics(["t"])
        claim = GroupOffsets.claim

        async def slow(offsets: GroupOffsets, group: str) -> Any:
            monkeypatch.undo()
            await create(broker, "t")
            await registry.groups.commit("g", {tp: CommittedOffset(1)})
            return await claim(offsets, group)

        monkeypatch.setattr(GroupOffsets, "claim", slow)
        assert await registry.group_deletion.expire_former("g", 1 << 60) == 0
        assert (await registry.groups.fetch("g"))[tp].offset == 1

    run(world, body)


def test_simultaneous_offset_commits_share_one_metadata_write(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t", 10)
        writes: list[int] = []
        write = broker.store.write

        async def counted(operations: Any) -> Any:
            writes.append(len(operations))
            return await write(operations)

        broker.store.write = counted  # type: ignore[method-assign]
        await broker.registry.groups.commit("g", {TopicPartition("t", 0): CommittedOffset(1)})
        writes.clear()
        commits = [
            broker.registry.groups.commit(
                "g", {TopicPartition("t", number % 10): CommittedOffset(number)}
            )
            for number in range(100)
        ]
        await asyncio.gather(*commits)
        assert len(writes) <= 2 and max(writes) <= 12, (
            "a write has more than ten offsets and two checks"
        )
        found = await broker.registry.groups.fetch("g")
        assert [found[TopicPartition("t", n)].offset for n in range(10)] == list(range(90, 100))

    run(world, body)


def test_refused_commit_of_a_former_coordinator_fails_no_other_group_in_its_zookeeper_write(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 1)
        await until(lambda: all("t" in b.registry.snapshot.topics for b in (one, two)))
        t0 = TopicPartition("t", 0)
        groups = [f"g{number}" for number in range(20)]
        claims = [await one.registry.groups.claim(group) for group in groups]
        for group, claim in zip(groups, claims):
            await one.registry.groups.commit(group, {t0: CommittedOffset(1)}, claim)
        taken = await two.registry.groups.claim("g7")
        assert (taken.value.epoch, taken.value.broker_id) == (2, 2)
        writes: list[int] = []
        write = one.store.write

        async def counted(operations: Any) -> Any:
            writes.append(len(operations))
            return await write(operations)

        one.store.write = counted  # type: ignore[method-assign]
        results = await asyncio.gather(
            *(
                one.registry.groups.commit(group, {t0: CommittedOffset(2)}, claim)
                for group, claim in zip(groups, claims)
            ),
            return_exceptions=True,
        )
        assert len(writes) <= 5, "more writes than one and its retry without the lost group"
        assert isinstance(results.pop(7), NotCoordinatorError)
        assert results == [{t0: None}] * 19
        assert [(await two.registry.groups.fetch(group))[t0].offset for group in ("g7", "g8")] == [
            1,
            2,
        ]

    run(world, body)


def test_commits_for_many_moved_groups_do_not_fail_the_commits_for_other_groups(
    world: World,
) -> None:
    """Regression: one write has the commits of many groups, and ZooKeeper refuses it if a group has
    a new coordinator. Each of 20 attempts left out only one more such group.

    With more than 20 such groups, the commits of all groups failed.
    """

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 1)
        await until(lambda: all("t" in b.registry.snapshot.topics for b in (one, two)))
        t0 = TopicPartition("t", 0)
        offset = {t0: CommittedOffset(1)}
        groups = [f"g{number}" for number in range(32)]
        claims = [await one.registry.groups.claim(group) for group in groups]
        for group in groups[1:-1]:
            await two.registry.groups.claim(group)
        writes: list[int] = []
        write = one.store.write

        async def counted(operations: Any) -> Any:
            if any(row.path == znodes.coordinator_path("g0") for row in operations):
                writes.append(len(operations))
            return await write(operations)

        one.store.write = counted  # type: ignore[method-assign]
        results = await asyncio.gather(
            *(
                one.registry.groups.commit(group, offset, claim)
                for group, claim in zip(groups, claims)
            ),
            return_exceptions=True,
        )
        assert [type(row) for row in results[1:-1]] == [NotCoordinatorError] * 30
        assert (results[0], results[-1]) == ({t0: None}, {t0: None})
        for group in (groups[0], groups[-1]):
            assert t0 in await two.registry.groups.fetch(group)
        assert writes == [96, 6], "not one refused write and one retry without the lost groups"
        # A commit without a claim makes the broker claim the group again.
        again = [one.registry.groups.commit(group, offset) for group in groups]
        assert await asyncio.gather(*again) == [{t0: None}] * len(groups)

    run(world, body)


def test_former_coordinator_is_fenced_once_the_next_coordinator_has_stored_a_generation(
    world: World,
) -> None:
    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 1)
        await until(lambda: all("t" in b.registry.snapshot.topics for b in (one, two)))
        t0 = TopicPartition("t", 0)
        claim = await one.registry.groups.claim("g")
        assert claim.value.generation == 0 and claim.value.empty_since_ms is not None
        commit = asyncio.ensure_future(
            one.registry.groups.commit("g", {t0: CommittedOffset(5)}, claim)
        )
        await asyncio.sleep(0)
        await one.registry.groups.begin_generation(claim, 1, is_empty=False)
        assert commit.done(), "the generation was written before an earlier commit"
        await one.registry.groups.commit("g", {t0: CommittedOffset(6)}, claim)
        other = await two.registry.groups.claim("g")
        assert (other.value.generation, other.value.epoch) == (1, 2)
        assert other.value.empty_since_ms is not None, (
            "a new claim does not count the group as empty"
        )
        with pytest.raises(NotCoordinatorError):
            await one.registry.groups.begin_generation(claim, 2, is_empty=False)
        with pytest.raises(NotCoordinatorError):
            await one.registry.groups.commit("g", {t0: CommittedOffset(7)}, claim)
        await two.registry.groups.begin_generation(other, 2, is_empty=False)
        ages: list[GroupAge] = []
        assert not await two.registry.group_deletion.expire("g", lambda age: bool(ages.append(age)))
        assert [age.empty_since_ms for age in ages] == [None]
        assert (await one.registry.groups.fetch("g"))[t0].offset == 6

    run(world, body)


def test_generation_is_written_once_although_zookeepers_response_is_lost(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        claim = await broker.registry.groups.claim("g")
        for number in range(1, 8):
            written = asyncio.ensure_future(
                broker.registry.groups.begin_generation(claim, number, is_empty=False)
            )
            await asyncio.sleep(0.001 * number if isinstance(world, SimWorld) else 0.0003 * number)
            world.drop_connection(broker.store)
            await written
            assert claim.value.generation == number
            await until(lambda: broker.registry.connected)

    run(world, body)


def test_zk_based_group_with_members_does_not_expire_despite_old_commits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member may also join when the broker has just begun to delete a large group in several
    writes.

    ZooKeeper then refuses the first write, so that no offset is deleted.
    """
    monkeypatch.setattr(group_deletion, "DELETES_PER_WRITE_MAX", 1)

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        topic_id = await create(broker, "t", 3)
        store, tps = broker.store, [TopicPartition("t", n) for n in range(3)]
        rows = dict.fromkeys(tps, CommittedOffset(1, topic_id=topic_id, commit_ms=1))
        native, first = znodes.encode_group(znodes.KIND_NATIVE), znodes.consumer_path("g", "a")
        second = znodes.consumer_path("g", "b")
        place = Create(znodes.consumers_path("g"))
        await store.write([Create(znodes.group_path("g"), native), place])
        assert set((await broker.registry.groups.commit("g", rows)).values()) == {None}
        await store.write([Create(first, b"{}", ephemeral=True)])
        ages: list[Any] = []

        def judge(age: Any) -> bool:
            ages.append(age)
            return True

        assert not await broker.registry.group_deletion.expire("g", judge)
        assert ages == [], "the age of a group with native members was read"
        assert set(await broker.registry.groups.fetch("g")) == set(tps)
        await store.write([Delete(first)])

        joining: list[asyncio.Task[Any]] = []

        def joins_as_it_is_over(age: Any) -> bool:
            ages.append(age)
            if len(ages) == 2:
                write = store.write([Create(second, b"{}", ephemeral=True)])
                joining.append(asyncio.ensure_future(write))
            return True

        assert not await broker.registry.group_deletion.expire("g", joins_as_it_is_over)
        assert await joining[0] is None
        assert set(await broker.registry.groups.fetch("g")) == set(tps)
        await store.write([Delete(second)])
        assert await broker.registry.group_deletion.expire("g", lambda age: True)
        assert await broker.registry.groups.kind("g") is None

    run(world, body)


def test_deletion_of_a_zk_based_group_with_members_is_refused(world: World) -> None:
    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t", 1)
        native = znodes.encode_group(znodes.KIND_NATIVE)
        member = znodes.consumer_path("g", "c")
        await broker.store.write(
            [
                Create(znodes.group_path("g"), native),
                Create(znodes.consumers_path("g")),
                Create(member, b"{}", ephemeral=True),
            ]
        )
        await broker.registry.groups.commit("g", {TopicPartition("t", 0): CommittedOffset(1)})
        assert await broker.registry.groups.kind("g") == "native"
        with pytest.raises(NonEmptyGroupError):
            await broker.registry.group_deletion.delete("g")
        await broker.store.write([Delete(member)])
        await broker.registry.group_deletion.delete("g")
        assert await broker.registry.groups.kind("g") is None

    run(world, body)


def test_deletion_of_a_group_with_long_znode_paths_is_split_into_several_writes(
    world: World,
) -> None:
    """Regression: one write of 1,000 deletions with paths of 1 KB exceeded ZooKeeper's limit."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        group, topic = "群" * 83, "t" * 249
        await create(broker, topic, 600)
        offsets = {TopicPartition(topic, n): CommittedOffset(1) for n in range(600)}
        assert set((await broker.registry.groups.commit(group, offsets)).values()) == {None}
        sizes: list[int] = []
        write = broker.store.write

        async def measured(operations: Any) -> Any:
            sizes.append(sum(len(row.path) for row in operations))
            return await write(operations)

        broker.store.write = measured  # type: ignore[method-assign]
        await broker.registry.group_deletion.delete(group)
        assert sum(sizes) > 600_000 > max(sizes)
        assert await broker.registry.groups.kind(group) is None

    run(world, body)


def test_offset_fetch_ignores_invalid_topic_names(world: World) -> None:
    """Regression: an invalid name became an invalid znode path, and the whole fetch failed."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t", 1)
        t0 = TopicPartition("t", 0)
        await broker.registry.groups.commit("g", {t0: CommittedOffset(5)})
        names = ("", ".", "..", "a/../b", "\0", "\x07", "x" * 300)
        keys = [t0, *(TopicPartition(name, 0) for name in names)]
        assert list(await broker.registry.groups.fetch("g", keys)) == [t0]

    run(world, body)


def hold_back(broker: Broker) -> asyncio.Event:
    """Keep a broker's metadata snapshot stale: delay its change notices until the returned event
    is set."""
    go_on = asyncio.Event()
    get = broker.store.get

    async def late(path: str, *, watch: bool = False) -> Any:
        if path == znodes.CHANGES:
            await go_on.wait()
        return await get(path, watch=watch)

    broker.store.get = late  # type: ignore[method-assign]
    return go_on


def test_broker_with_stale_topic_metadata_returns_committed_offsets(world: World) -> None:
    """Regression: the broker's metadata snapshot lacked the topic, or had a deleted topic of the
    same name.

    The broker then returned no offset, and the group started at the log's start or end.
    """

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        ahead = cluster.controller()
        behind = two if ahead is one else one
        t0, u0 = TopicPartition("t", 0), TopicPartition("u", 0)
        await create(ahead, "t", 1)
        await until(lambda: "t" in behind.registry.snapshot.topics)
        await ahead.registry.groups.commit("g", {t0: CommittedOffset(5)})
        go_on = hold_back(behind)
        await ahead.registry.administration.delete_topics(["t"])
        new = await create(ahead, "t", 2)
        await create(ahead, "u", 1)
        stale = behind.registry.snapshot.topics
        assert "u" not in stale and stale["t"].topic_id != new, "the snapshot is not stale"
        assert await behind.registry.groups.fetch("g", [t0]) == {}, (
            "an offset of the former topic was returned"
        )
        t1 = TopicPartition("t", 1)
        commits = {t1: CommittedOffset(6), u0: CommittedOffset(7)}
        await ahead.registry.groups.commit("g", commits)
        for asked in (None, [t0, t1, u0]):
            found = await behind.registry.groups.fetch("g", asked)
            assert {key: row.offset for key, row in found.items()} == {t1: 6, u0: 7}
        assert behind.registry.snapshot.topics is stale
        go_on.set()

    run(world, body)


def test_coordinator_no_longer_owns_a_group_that_was_deleted_and_recreated(world: World) -> None:
    """The recreated coordinator znode has the same version, so the version does not reveal the
    recreation."""

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        claim = await one.registry.groups.claim("g")
        await two.registry.group_deletion.delete("g")
        again = await two.registry.groups.claim("g")
        assert (again.version, again.value.epoch) == (claim.version, claim.value.epoch)
        await one.store.sync(znodes.coordinator_path("g"))
        assert await two.registry.groups.is_held(again)
        assert not await one.registry.groups.is_held(claim)

    run(world, body)


def test_writes_by_the_coordinator_of_a_deleted_group_do_not_reach_the_recreated_group(
    world: World,
) -> None:
    """Regression: the znodes of both groups have equal versions.

    Commits, generations and the coordinator's claim (its ownership) of the deleted group were
    therefore written into the recreated group.
    """

    async def body(cluster: Cluster) -> None:
        one, two = await cluster.start(1), await cluster.start(2)
        await create(cluster.controller(), "t", 1)
        await until(lambda: all("t" in b.registry.snapshot.topics for b in (one, two)))
        t0 = TopicPartition("t", 0)
        groups = ("commits", "begins", "deletes")
        claims = [await one.registry.groups.claim(group) for group in groups]
        reads, deleted = asyncio.Event(), asyncio.Event()
        get = one.store.get

        async def late(path: str, *, watch: bool = False) -> Any:
            found = await get(path, watch=watch)
            if path == znodes.coordinator_path("claims") and not reads.is_set():
                reads.set()
                await deleted.wait()
            return found

        await two.registry.groups.claim("claims")
        one.store.get = late  # type: ignore[method-assign]
        claiming = asyncio.ensure_future(one.registry.groups.claim("claims"))
        await reads.wait()
        made = {}
        for group in (*groups, "claims"):
            await two.registry.group_deletion.delete(group)
            made[group] = await two.registry.groups.claim(group)
        deleted.set()
        for claim in claims:
            assert made[claim.group].version == claim.version
        with pytest.raises(NotCoordinatorError):
            await one.registry.groups.commit("commits", {t0: CommittedOffset(7)}, claims[0])
        with pytest.raises(NotCoordinatorError):
            await one.registry.groups.begin_generation(claims[1], 1, is_empty=False)
        await two.registry.groups.commit("deletes", {t0: CommittedOffset(1)})
        await one.store.sync(znodes.group_path("deletes"))
        await one.registry.group_deletion.delete_offsets("deletes", [t0])
        assert not claims[2].held, "the former claim is still held"
        assert (await claiming).value.epoch == 2, (
            "the new group did not have exactly one earlier claim"
        )
        assert await two.registry.groups.fetch("commits") == {}
        assert await two.registry.groups.is_held(made["commits"])
        assert await two.registry.groups.is_held(made["begins"])
        assert not await two.registry.groups.is_held(made["claims"])

    run(world, body)


def test_member_that_joins_during_the_deletion_of_a_group_prevents_the_deletion(
    world: World,
) -> None:
    """Regression: the group was deleted although a member had joined and begun a generation."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        registry, store = broker.registry, broker.store
        await create(broker, "t", 1)
        t0 = TopicPartition("t", 0)
        await registry.groups.commit("g", {t0: CommittedOffset(5)})
        looks, go_on = asyncio.Event(), asyncio.Event()
        children = store.children

        async def late(path: str, *, watch: bool = False) -> Any:
            if path == znodes.group_path("g") and not looks.is_set():
                looks.set()
                await go_on.wait()
            return await children(path, watch=watch)

        store.children = late  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(registry.group_deletion.delete("g"))
        await looks.wait()
        claim = await registry.groups.claim("g")
        await registry.groups.begin_generation(claim, 1, is_empty=False, members=1)
        go_on.set()
        with pytest.raises(NonEmptyGroupError):
            await deleting
        assert await registry.groups.is_held(claim)
        assert (await registry.groups.fetch("g"))[t0].offset == 5

    run(world, body)


def test_coordinator_znode_in_the_format_of_an_older_broker_is_replaced(world: World) -> None:
    """An older broker neither named its claim (its right to write the group's offsets) in its
    coordinator znode nor created a znode for the claim."""

    async def body(cluster: Cluster) -> None:
        broker = await cluster.start(1)
        await create(broker, "t", 1)
        value = znodes.CoordinatorZnode(2, 1, 3, 7, 5)
        data = znodes.encode_coordinator(value).replace(b',"claim":""', b"")
        group = znodes.encode_group(znodes.KIND_KAFKA)
        await broker.store.write(
            [
                Create(znodes.group_path("g"), group),
                Create(znodes.coordinator_path("g"), data),
                Create(znodes.offsets_path("g")),
            ]
        )
        offset = {TopicPartition("t", 0): CommittedOffset(1)}
        await broker.registry.groups.commit("g", offset)
        claim = await broker.registry.groups.claim("g")
        assert (claim.value.epoch, claim.value.generation) == (4, 7)
        assert await broker.registry.groups.is_held(claim)
        await broker.registry.group_deletion.delete("g")
        assert await broker.registry.groups.kind("g") is None

    run(world, body)


def test_broker_releases_a_group_once_another_broker_coordinates_it(
    world: World,
) -> None:
    """Regression: a broker kept its claims (ownership) of empty groups. Such a claim was valid
    again after its group was deleted and recreated.
    """

    async def body(cluster: Cluster) -> None:
        one = await cluster.start(1)
        coordinator = GroupCoordinator(
            BrokerConfig(broker_id=1), one.registry, clock=Clock(), metrics=Metrics()
        )
        groups = [f"g{number}" for number in range(20)]
        claims = [await one.registry.groups.claim(group) for group in groups]
        two = await cluster.start(2)
        await until(lambda: len(one.registry.snapshot.brokers) == 2)
        chosen = [coordinator.coordinator_of(group) for group in groups]
        ours = [view is not None and view.broker_id == 1 for view in chosen]
        assert set(ours) == {True, False}
        assert [claim.held for claim in claims] == ours
        assert two.registry.connected
        coordinator.close()

    run(world, body)
