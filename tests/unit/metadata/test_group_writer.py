"""Tests of the group writer, which limits the rate of ZooKeeper writes for groups' offset commits.

The tests measure the intervals of writes and the latency of commits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim import scheduler

from broker_lite.errors import CoordinationUnavailableError
from broker_lite.metadata import group_writer, znodes
from broker_lite.metadata.group_claims import GroupClaim
from broker_lite.metadata.group_writer import GroupWriter
from broker_lite.metadata.store import Check, Create, Operation, Set, check_size
from broker_lite.model import CommittedOffset, TopicPartition

PARTITIONS = 3
ROUNDING_S = 1e-9


class Multi(NamedTuple):
    """One ZooKeeper write: its start and end in seconds, and the values that it set, by path."""

    began_s: float
    ended_s: float
    offsets: dict[str, bytes]


class Store:
    """A metadata store whose writes take ``write_s`` seconds.

    Writes without values, which create the parents of offset znodes, take no time and are not
    recorded.
    """

    connected = True

    def __init__(self, write_s: float) -> None:
        self._write_s = write_s
        self.multis: list[Multi] = []
        self.held: dict[str, bytes] = {}
        """Values of offset and coordinator znodes, by path."""

    async def write(self, operations: Sequence[Operation]) -> None:
        valued = [row for row in operations if isinstance(row, (Create, Set)) and row.data]
        loop = asyncio.get_running_loop()
        began = loop.time()
        if not valued:
            return
        await asyncio.sleep(self._write_s)
        values = {row.path: row.data for row in valued}
        self.held |= values
        self.multis.append(Multi(began, loop.time(), values))

    async def children(self, path: str) -> list[str]:
        return []


class Commit(NamedTuple):
    after_ms: int
    """Milliseconds after the previous commit."""
    group: int
    partition: int


def writer(store: Store, interval_ms: int) -> GroupWriter:
    async def connected() -> None:
        """Return at once, because this stand-in for ZooKeeper is always connected."""

    made: Any = store
    return GroupWriter(made, interval_ms=interval_ms, wait_connected=connected)


def claim_of(group: str) -> GroupClaim:
    return GroupClaim(group, znodes.KIND_KAFKA, znodes.CoordinatorZnode(1, 7, 1, 0, None, "c"), 0)


commits = st.lists(
    st.builds(Commit, st.integers(0, 60), st.integers(0, 4), st.integers(0, PARTITIONS - 1)),
    min_size=1,
    max_size=60,
)


@given(rows=commits, interval_ms=st.integers(0, 50), write_ms=st.integers(0, 40))
def test_group_offsets_are_written_at_most_once_per_commit_interval(
    rows: list[Commit], interval_ms: int, write_ms: int
) -> None:
    """Two writes start at least offset.commit.interval.ms apart.

    A commit waits for the interval or for the write in flight, and then for its own write.
    """
    store = Store(write_ms / 1000)
    claims = [claim_of(f"g{number}") for number in range(5)]
    waits: list[float] = []

    async def commit(writer: GroupWriter, row: Commit, number: int) -> None:
        loop = asyncio.get_running_loop()
        began, claim = loop.time(), claims[row.group]
        tp = TopicPartition("t", row.partition)
        await writer.commit(claim, {tp: CommittedOffset(number)})
        path = znodes.offset_path(claim.group, *tp)
        assert path in store.held, "the commit was answered before its write"
        assert znodes.decode_offset(path, store.held[path]).offset >= number
        waits.append(loop.time() - began)

    async def main() -> None:
        groups = writer(store, interval_ms)
        tasks = []
        for number, row in enumerate(rows):
            await asyncio.sleep(row.after_ms / 1000)
            tasks.append(asyncio.ensure_future(commit(groups, row, number)))
        await asyncio.gather(*tasks)
        groups.close()

    scheduler.run(main())
    begins = [multi.began_s for multi in store.multis]
    gaps = [after - before for before, after in itertools.pairwise(begins)]
    assert min(gaps, default=1) >= interval_ms / 1000 - ROUNDING_S
    span_ms = sum(row.after_ms for row in rows) + max(interval_ms, write_ms)
    if interval_ms:
        assert len(begins) <= 1 + span_ms / interval_ms + ROUNDING_S
    longest_ms = max(interval_ms, write_ms) + write_ms
    assert len(waits) == len(rows) and max(waits) <= longest_ms / 1000 + ROUNDING_S


@pytest.mark.parametrize("interval_ms", [20, 500])
def test_a_thousand_commits_a_second_share_one_write_per_interval(
    interval_ms: int,
) -> None:
    store = Store(0.002)
    claims = [claim_of(f"g{number}") for number in range(100)]

    async def main() -> None:
        groups = writer(store, interval_ms)
        futures = []
        for number in range(1000):
            offsets = {TopicPartition("t", 0): CommittedOffset(number)}
            futures.append(groups.commit(claims[number % 100], offsets))
            await asyncio.sleep(0.001)
        await asyncio.gather(*futures)
        groups.close()

    scheduler.run(main())
    assert len(store.multis) == 1000 // interval_ms + 1
    for number in range(100):
        path = znodes.offset_path(f"g{number}", "t", 0)
        assert znodes.decode_offset(path, store.held[path]).offset == 900 + number


def test_new_group_generation_is_written_to_zookeeper_at_once_with_pending_commits() -> None:
    store = Store(0.002)
    claims = [claim_of("commits"), claim_of("begins")]
    offsets = {TopicPartition("t", 0): CommittedOffset(1)}

    async def main() -> None:
        loop, groups = asyncio.get_running_loop(), writer(store, 60_000)
        await groups.commit(claims[0], offsets)
        waiting = groups.commit(claims[0], {TopicPartition("t", 0): CommittedOffset(2)})
        began = loop.time()
        await groups.begin_generation(claims[1], claims[1].value._replace(generation=1))
        assert loop.time() - began < 1 and waiting.done()
        groups.close()

    scheduler.run(main())
    assert [len(multi.offsets) for multi in store.multis] == [1, 2]


class Strict(Store):
    """Stands for ZooKeeper with its size limit, and asserts that every write checks the
    coordinator's claim (ownership) of the group.

    The write with the index ``fails_at`` fails with a lost connection.
    """

    fails_at = -1

    async def write(self, operations: Sequence[Operation]) -> None:
        if any(getattr(row, "data", b"") for row in operations):
            check_size(operations)
            guarded = {row.path for row in operations if isinstance(row, Check) or row.path == MINE}
            assert guarded == {MINE, MARK}, "every write checks its claim"
            if len(self.multis) == self.fails_at:
                raise CoordinationUnavailableError("the connection is lost")
        await super().write(operations)


def large_commit() -> dict[TopicPartition, CommittedOffset]:
    """Return offsets whose commit is so large that it needs three ZooKeeper writes."""
    note = "\N{SNOWMAN}" * 1300
    return {TopicPartition("t", n): CommittedOffset(5, metadata=note) for n in range(200)}


MINE, MARK = znodes.coordinator_path("large"), znodes.claim_path("large", "c")


def test_commit_split_into_several_metadata_writes_completes_after_the_last_write() -> None:
    store = Strict(0.002)
    claim, rows = claim_of("large"), large_commit()

    async def main() -> None:
        groups = writer(store, 20)
        done = groups.commit(claim, rows)
        begun = groups.begin_generation(claim, claim.value._replace(generation=1))
        while not done.done():
            assert len(store.held) < len(rows) + 1, (
                "the commit is answered once all its offsets are written"
            )
            assert MINE not in store.held, "the generation is written after the last offsets"
            await asyncio.sleep(0.001)
        await asyncio.gather(done, begun)
        groups.close()

    scheduler.run(main())
    assert len(store.multis) >= 3
    assert store.held.keys() == {MINE, *(znodes.offset_path("large", *key) for key in rows)}
    assert [MINE in multi.offsets for multi in store.multis].index(True) == len(store.multis) - 1


def test_commit_fails_if_its_second_write_fails_and_a_retry_writes_all_offsets() -> None:
    """After the second write failed, the third write is not sent.

    The retry repeats the first write too.
    """
    store = Strict(0.002)
    store.fails_at = 1
    claim, rows = claim_of("large"), large_commit()

    async def main() -> None:
        groups = writer(store, 20)
        failing = groups.commit(claim, rows)
        with pytest.raises(CoordinationUnavailableError):
            await failing
        assert len(store.multis) == 1 and 0 < len(store.held) < len(rows)
        store.fails_at = -1
        await groups.commit(claim, rows)
        groups.close()

    scheduler.run(main())
    assert len(store.held) == len(rows)


def test_closing_the_writer_fails_commits_whose_writes_have_not_begun() -> None:
    """Regression: a commit whose write had not begun got no response until its timeout."""
    store = Strict(0.002)

    async def main() -> None:
        groups = writer(store, 20)
        commits = [groups.commit(claim_of(name), large_commit()) for name in ("large", "next")]
        await asyncio.sleep(0.001)
        groups.close()
        for commit in commits:
            with pytest.raises(CoordinationUnavailableError, match="stopping"):
                await commit

    scheduler.run(main())
    assert store.multis == []


def test_group_writer_evicts_only_the_least_recently_used_group_from_its_znode_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: at the limit the whole cache was cleared, so each write looked for the znodes
    again."""
    monkeypatch.setattr(group_writer, "KNOWN_MAX", 2)
    read_groups: list[str] = []

    class Counted(Store):
        async def children(self, path: str) -> list[str]:
            read_groups.append(path.split("/")[2])
            return []

    async def main() -> None:
        groups = writer(Counted(0.0), 0)
        claims = {name: claim_of(name) for name in "abc"}
        for name in "abacaba":
            await groups.commit(claims[name], {TopicPartition("t", 0): CommittedOffset(1)})
        groups.close()

    scheduler.run(main())
    assert read_groups == list("abcb")
