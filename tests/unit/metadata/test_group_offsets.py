"""Tests of offset commits of groups when ZooKeeper writes fail, and of the limit of cached claims.

A broker *claims* a group in ZooKeeper when it becomes the group's coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from broker_lite.errors import UnknownServerError
from broker_lite.metadata import group_offsets, znodes
from broker_lite.metadata.group_offsets import GroupOffsets
from broker_lite.metadata.store import Operation, Znode
from broker_lite.model import (
    CommittedOffset,
    LeaderAndIsr,
    PartitionView,
    TopicPartition,
    TopicView,
)


class FaultyStore:
    """A metadata store whose third write raises ZeroDivisionError.

    The first two writes name the group's coordinator, and create parents of offset znodes.
    """

    connected = True

    def __init__(self) -> None:
        self.writes = 0

    async def write(self, operations: Sequence[Operation]) -> None:
        self.writes += 1
        if self.writes == 3:
            raise ZeroDivisionError

    async def get(self, path: str) -> None:
        return None

    async def children(self, path: str) -> None:
        return None


class ReadStore:
    """A metadata store of fixed znodes that records the path of each read."""

    connected = True

    def __init__(self, data: Mapping[str, bytes]) -> None:
        self.data = data
        self.reads: list[str] = []

    async def sync(self, path: str) -> None:
        await asyncio.sleep(0)

    async def get(self, path: str) -> Znode | None:
        self.reads.append(path)
        await asyncio.sleep(0)
        return Znode(self.data[path], 0, 1, 0) if path in self.data else None

    async def children(self, path: str) -> list[str]:
        await asyncio.sleep(0)
        below = [each.removeprefix(f"{path}/") for each in self.data if each.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in below})


def offsets(store: Any) -> GroupOffsets:
    state = LeaderAndIsr(1, 0, (), 1, 0)
    topic = TopicView("t", "abcdefghijklmnopqrstuQ", (PartitionView(0, (1,), state),), {})

    async def connected() -> None:
        """Return at once, because this stand-in for ZooKeeper is always connected."""

    return GroupOffsets(
        store,
        find_topic={"t": topic}.get,
        now_ms=lambda: 1000,
        interval_ms=1,
        identity=lambda: (1, 7),
        wait_connected=connected,
    )


def test_unexpected_metadata_store_error_fails_one_commit_and_later_commits_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: the failed commit was never completed, so all later commits of the group hung."""
    store: Any = FaultyStore()
    commit = {TopicPartition("t", 0): CommittedOffset(5)}

    async def main() -> None:
        groups = offsets(store)
        with pytest.raises(UnknownServerError, match="writing the offsets to ZooKeeper failed"):
            await asyncio.wait_for(groups.commit("g", commit), 10)
        done = await asyncio.wait_for(groups.commit("g", commit), 10)
        assert done == {TopicPartition("t", 0): None}
        groups.close()

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text, "the traceback is logged"


def test_full_cache_of_coordinated_groups_evicts_only_the_least_recently_used_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: at the limit the whole cache was cleared, and the broker wrote to ZooKeeper again
    that it coordinates each group."""
    monkeypatch.setattr(group_offsets, "KNOWN_MAX", 2)
    store: Any = FaultyStore()
    store.writes = 3

    async def main() -> None:
        groups = offsets(store)
        claims = {name: await groups.claim(name) for name in "ab"}
        await groups.commit("a", {TopicPartition("t", 0): CommittedOffset(5)}, claims["a"])
        await groups.claim("c")
        assert await groups.claim("a") is claims["a"]
        assert await groups.claim("b") is not claims["b"]
        groups.close()

    asyncio.run(main())


def test_concurrent_offset_fetches_of_several_groups_read_the_znode_of_a_topic_once() -> None:
    """The znode of a topic with many partitions is long, and a request may name 100 groups."""
    topic_id, names = "abcdefghijklmnopqrstuQ", [f"g{number}" for number in range(10)]
    committed = CommittedOffset(5, 0, "", topic_id, 1000)
    path = znodes.topic_path("t")
    data = {znodes.offset_path(name, "t", 0): znodes.encode_offset(committed) for name in names}
    data[path] = znodes.encode_assignment(znodes.Assignment(topic_id, ((1,),)))
    store: Any = ReadStore(data)

    async def main() -> None:
        groups = offsets(store)
        for reads in (1, 2):
            found = await asyncio.gather(*(groups.fetch(name) for name in names))
            assert found == [{TopicPartition("t", 0): committed}] * len(names)
            assert store.reads.count(path) == reads
        groups.close()

    asyncio.run(main())
