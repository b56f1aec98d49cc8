"""A group's commits when the store does what no code expected."""

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
    """Takes the claim, and every write after it but the first, which ends in an error that nobody
    plans for."""

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
        """At once."""

    return GroupOffsets(
        store,
        find_topic={"t": topic}.get,
        now_ms=lambda: 1000,
        interval_ms=1,
        identity=lambda: (1, 7),
        wait_connected=connected,
    )


def test_an_error_that_nobody_expects_ends_one_commit_and_not_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The batch was never settled: this commit, and every later one of the group, hung."""
    store: Any = FaultyStore()
    commit = {TopicPartition("t", 0): CommittedOffset(5)}

    async def main() -> None:
        groups = offsets(store)
        with pytest.raises(UnknownServerError, match="could not be written"):
            await asyncio.wait_for(groups.commit("g", commit), 10)
        done = await asyncio.wait_for(groups.commit("g", commit), 10)
        assert done == {TopicPartition("t", 0): None}
        groups.close()

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text, "with its traceback"


def test_of_too_many_claims_the_one_is_forgotten_that_was_not_used_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All were, and then each group's next write claimed it anew."""
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
