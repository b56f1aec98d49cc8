"""Tests of RecordTimes, logbus's API for the time of a record, over logs with transactions."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest
from support.handler_world import context_of
from support.marker_client import MarkerClient, marker, write, write_history
from support.memory_files import MemFile
from support.replica_world import TOPIC_ID, Node, World, run

from broker_lite.server.handlers import record_times
from broker_lite.server.partitions import disk
from broker_lite.storage import lookups
from broker_lite.wire.api import ApiKey


async def times_at(node: Node, *offsets: int) -> list[int]:
    """Send RecordTimes (an API of logbus) for ``offsets``. Return, for each of them, the
    response's offset of the first record at or after it, or -1.
    """
    rows = [SimpleNamespace(topic_id=TOPIC_ID, partition=0, offset=at) for at in offsets]
    message = SimpleNamespace(partitions=rows)
    answer = await record_times.handle(
        MarkerClient(node).parts, context_of(ApiKey.RECORD_TIMES, 0), message
    )
    return [row.offset for row in answer.answers]


def test_lookup_of_record_timestamps_skips_markers_and_aborted_records() -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        # Offsets 1 and 2 are aborted, 4 and 5 are markers, and 7 is in an open transaction.
        assert await times_at(leader, *range(9)) == [0, 3, 3, 3, 6, 6, 6, -1, -1]
        await MarkerClient(leader).mark(marker(3, commit=False))
        assert await times_at(leader, 7, 8, 9) == [8, 8, -1]

    run(body, brokers=1)


def test_lookup_of_many_record_timestamps_is_split_into_several_disk_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        await write_history(leader)
        monkeypatch.setattr(disk, "READS_MS", 0)
        assert await times_at(leader, 7, *range(7)) == [-1, 0, 3, 3, 3, 6, 6, 6]

    run(body, brokers=1)


def test_lookup_of_a_record_timestamp_stops_after_many_aborted_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        leader = await world.serves(1)
        for sequence in range(4):
            await write(leader, sequence=sequence)
        await MarkerClient(leader).mark(marker(commit=False))
        assert await times_at(leader, 0) == [-1]
        monkeypatch.setattr(lookups, "SKIPPED_BATCHES_MAX", 3)
        assert await times_at(leader, 0) == [3]

    run(body, brokers=1)


def test_unreadable_transaction_index_does_not_make_a_replica_delete_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failed read of an index names no offset. Regression: RecordTimes reported offset -1 as
    corrupt, so the replica left the in-sync replicas and deleted its whole log."""

    async def body(world: World) -> None:
        world.config["segment.bytes"] = "4096"
        world.publish()
        leader = await world.serves(1)
        await write_history(leader)
        await leader.append([b"v" * 4096])
        closed, _ = leader.replica().log.reader.chain[1]
        await world.until(lambda: closed.transactions.is_saved)
        closed.release()
        pread = MemFile.pread

        def failing(file: MemFile, position: int, length: int) -> bytes:
            if file.path.endswith(".txnindex"):
                raise OSError(errno.EIO, "a bad sector")
            return pread(file, position, length)

        with monkeypatch.context() as patch:
            patch.setattr(MemFile, "pread", failing)
            assert await times_at(leader, 1) == [-1]
        assert leader.replica().role.log.damaged_from is None

    run(body, brokers=1)
