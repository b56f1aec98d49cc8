"""Tests of group commits when the store raises an unexpected error, and of evicted claims."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from broker_lite.errors import UnknownServerError
from broker_lite.metadata import group_offsets
from broker_lite.metadata.group_offsets import GroupOffsets
from broker_lite.metadata.store import Operation
from broker_lite.model import (
    CommittedOffset,
    LeaderAndIsr,
    PartitionView,
    TopicPartition,
    TopicView,
)


class FaultyStore:
    """A store whose third write raises ZeroDivisionError.

    The first two writes are a claim of the group and the parent znodes of an offset.
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


def offsets(store: Any) -> GroupOffsets:
    state = LeaderAndIsr(1, 0, (), 1, 0)
    topic = TopicView("t", "abcdefghijklmnopqrstuQ", (PartitionView(0, (1,), state),), {})

    async def connected() -> None:
        """Return at once, because the store is always connected."""

    return GroupOffsets(
        store,
        find_topic={"t": topic}.get,
        now_ms=lambda: 1000,
        interval_ms=1,
        identity=lambda: (1, 7),
        wait_connected=connected,
    )


def test_unexpected_store_error_fails_one_commit_and_later_commits_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: the failed batch was never completed, so all commits of the group hung."""
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


def test_least_recently_used_group_claim_is_evicted_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: at the limit all claims were evicted, so each group had to claim again."""
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
