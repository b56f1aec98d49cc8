"""Tests of replication between three brokers: fetches, flushes, truncation and errors."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import weakref
from collections.abc import Mapping, Sequence

import pytest
from support.memory_files import MemFile, MemFiles
from support.replica_world import Node, World, run
from support.stored import verify

from broker_lite.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import LeaderAndIsr, StateChange
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions import replica_manager, ticks
from broker_lite.wire import fetch as wire


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let leaders check for lagging followers ten times as often as in production."""
    monkeypatch.setattr(ticks, "SLOW_TICK_MS", 100)


def test_acknowledged_records_are_on_every_replica() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        first, second = leader.begin([b"a", b"b"]), leader.begin([b"c"])
        assert ((await first).base_offset, (await second).base_offset) == (0, 2)
        for node in world.nodes.values():
            assert node.replica().log.flushed_end == 3
        assert leader.replica().high_watermark == 3
        assert await world.agree() == [(0, 2, 0), (2, 3, 0)]

    run(test)


def test_delete_records_waits_for_all_in_sync_replicas() -> None:
    """A replica that still had the deleted records would bring them back when it became leader."""

    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.begin([b"a", b"b", b"c"])
        await asyncio.sleep(0.05)  # Both followers wait at the leader now, for up to five seconds.
        async with asyncio.timeout(4):
            assert await leader.manager.delete_records("t", 0, 2) == 2
        assert [n.replica().log.log_start_offset for n in world.nodes.values()] == [2, 2, 2]
        leader.cut_off()
        for ending in ("nobody else is in sync", "another leads"):
            deleting = asyncio.ensure_future(leader.manager.delete_records("t", 0, 3))
            await world.until(lambda: leader.replica().log.log_start_offset == 3)
            await asyncio.sleep(0.05)
            assert not deleting.done()
            if ending == "another leads":
                world.elect(2)
                with pytest.raises(NotLeaderError):
                    await deleting
            else:
                before = world.states[0].isr
                world.take_out(2)
                world.take_out(3)
                assert await deleting == 3
                world.elect(1, isr=[one.broker_id for one in before])
                await world.serves(1)

    run(test)


def test_follower_fetches_all_partitions_of_a_leader_in_one_request() -> None:
    async def test(world: World) -> None:
        for partition in range(8):
            leader = await world.serves(1, partition)
        world.requests.clear()
        for _ in range(20):
            await asyncio.gather(*(leader.begin([b"a"], partition=p) for p in range(8)))
        # Two followers send two fetches each round: one gets records, the next acknowledges them.
        # The limit is twice that number.
        assert len(world.requests) <= 20 * 2 * 4
        assert any(len(r.topics[0].partitions) == 8 for _, _, r in world.requests)

    run(test, partitions=8)


def test_new_leadership_of_a_broker_ends_the_waiting_fetches_of_its_followers() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1, 1)
        await leader.begin([b"a"], partition=1)
        await asyncio.sleep(0.05)  # Both followers wait at the leader now, for up to five seconds.
        async with asyncio.timeout(4):
            world.elect(2, partition=0)
            await world.serves(2, 0)
            await world.nodes[2].begin([b"b"], partition=0)
            world.elect(1, partition=0)
            await world.serves(1, 0)
            await leader.begin([b"c"], partition=0)

    run(test, partitions=2)


def test_new_leader_continues_at_the_log_end_of_the_old_leader() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a", b"b"])
        world.elect(2)
        leader = await world.serves(2)
        assert (await leader.append([b"c"])).base_offset == 2
        assert await world.agree() == [(0, 2, 0), (2, 3, 1)]
        with pytest.raises(NotLeaderError):
            await world.nodes[1].append([b"d"])

    run(test)


def test_deposed_leader_truncates_records_that_no_other_replica_has() -> None:
    async def test(world: World) -> None:
        old = await world.serves(1)
        await old.append([b"a"])
        old.cut_off()
        lost = old.begin([b"b", b"b", b"b"])
        await world.until(lambda: old.replica().role.flushed_end == 4)
        world.elect(2)
        with pytest.raises(NotLeaderError):
            await lost
        old.reached = True
        new = await world.serves(2)
        await new.append([b"c"])
        assert await world.agree() == [(0, 1, 0), (1, 2, 1)]

    run(test)


def test_truncation_delayed_by_a_full_disk_precedes_later_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: a full disk delayed a follower's truncation until the follower had become leader.

    The retry then removed acknowledged records, and the followers truncated their logs, too.
    """
    monkeypatch.setattr(replica_manager, "RETRY_S", 0.3)

    async def test(world: World) -> None:
        old = await world.serves(1)
        await old.append([b"a"])
        old.logs.checkpoint()
        old.cut_off()
        lost = old.begin([b"b", b"b", b"b"])
        await world.until(lambda: old.replica().role.flushed_end == 4)
        old.logs.checkpoint()
        old.files.fail_next("create", errno.ENOSPC, path="recovery-point")
        world.elect(2)
        with pytest.raises(NotLeaderError):
            await lost
        old.reached = True
        await world.until(lambda: not old.files._faults)
        world.elect(1)
        await world.serves(1)
        appended = await old.append([b"c"])
        await asyncio.sleep(0.4)
        stored = await world.agree()
        assert stored[-1][:2] == (appended.base_offset, appended.next_offset)
        assert old.replica().high_watermark == appended.next_offset

    run(test)


def test_stopped_follower_leaves_the_isr_and_rejoins() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        gone = world.nodes[3]
        gone.manager.close(NotLeaderError())
        waiting = leader.begin([b"a"])
        await world.until(lambda: world.isr() == {1, 2})
        assert (await waiting).base_offset == 0
        world.restart(3)
        await leader.append([b"b"])
        await world.until(lambda: world.isr() == {1, 2, 3})
        assert await world.agree() == [(0, 1, 0), (1, 2, 0)]
        # On a busy machine a follower may be late and leave the ISR once more.
        assert all(leader.metrics.value("isr_changes", each) >= 1 for each in ("shrink", "expand"))

    run(test, replica_lag_ms=1000)


def test_isr_write_is_retried_after_an_unexpected_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: after an unexpected error, the leader proposed no ISR change until the next
    leader epoch."""
    write_states = Node.write_states

    async def fails(self: Node, changes: Sequence[StateChange]) -> list[LeaderAndIsr | None]:
        monkeypatch.setattr(Node, "write_states", write_states)
        raise RuntimeError("nobody expects this")

    async def test(world: World) -> None:
        leader = await world.serves(1)
        world.nodes[3].manager.close(NotLeaderError())
        monkeypatch.setattr(Node, "write_states", fails)
        waiting = leader.begin([b"a"])
        await world.until(lambda: world.isr() == {1, 2})
        assert (await waiting).base_offset == 0

    run(test, replica_lag_ms=200)


def test_replica_with_an_empty_disk_catches_up_and_joins_the_isr() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        for _ in range(50):
            await leader.append([b"x" * 100] * 10)
        world.take_out(3)
        world.restart(3, MemFiles())
        assert leader.replica().high_watermark == 500
        await world.until(lambda: world.nodes[3].id in world.states[0].isr)
        assert len(await world.agree()) == 50

    run(test)


def test_produce_with_acks_all_fails_if_the_isr_is_below_min_insync_replicas() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        for number in (2, 3):
            world.nodes[number].manager.close(NotLeaderError())
        waiting = leader.begin([b"a"])
        with pytest.raises(NotEnoughReplicasAfterAppendError):
            await waiting
        assert world.isr() == {1}
        with pytest.raises(NotEnoughReplicasError):
            await leader.append([b"b"])
        assert (await leader.append([b"c"], acks=1)).base_offset == 1
        assert leader.replica().high_watermark == 0

    run(test, replica_lag_ms=1000)


def test_follower_fetch_with_a_wrong_broker_epoch_or_leader_epoch_is_refused() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])

        async def fetch(broker_epoch: int, leader_epoch: int) -> int:
            answered: asyncio.Future[list[wire.TopicAnswer]] = world.loop.create_future()
            row = wire.FetchPartition(0, 1, 1000, leader_epoch, 0)
            request = wire.FetchRequest(
                [wire.FetchTopic("", leader.replica().key.topic_id, [row])],
                0,
                replica_id=2,
                replica_epoch=broker_epoch,
            )
            leader.manager.follower_fetches.begin(request, answered.set_result, lambda: True)
            return (await answered)[0].partitions[0].error_code

        present = world.nodes[2].broker_epoch
        assert await fetch(present, 0) == 0
        assert await fetch(present - 1, 0) == 77
        assert await fetch(present + 1, 0) == 77
        world.elect(1)
        await world.serves(1)
        assert await fetch(present, 0) == 74
        assert await fetch(present, 5) == 75

    run(test)


def test_deposed_leader_does_not_send_records_that_it_read_as_leader() -> None:
    """With these records, the response would have the high watermark of the new leader but the
    former leader epoch."""

    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        answered: asyncio.Future[list[wire.TopicAnswer]] = world.loop.create_future()
        row = wire.FetchPartition(0, 0, 1000, 0, -1, 0)
        request = wire.FetchRequest(
            [wire.FetchTopic("", leader.replica().key.topic_id, [row])],
            0,
            replica_id=2,
            replica_epoch=world.nodes[2].broker_epoch,
            flags=wire.FLAG_REPAIR,
        )
        leader.manager.follower_fetches.begin(request, answered.set_result, lambda: True)
        world.elect(3)
        (answer,) = (await answered)[0].partitions
        assert (answer.error_code, list(answer.records)) == (74, [])

    run(test)


def test_follower_knows_that_its_log_has_no_arrow_batches() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        assert world.nodes[2].replica().crc_cache.rows_from == 0

    run(test)


def test_corrupt_batch_is_repaired_from_another_replica() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        for value in (b"a", b"b", b"c"):
            await leader.append([value])
        before = await world.agree()
        replica = world.nodes[2].replica()
        world.flip(2, offset=1)
        replica.report_corruption(1, NotLeaderError("the test flipped a byte"))
        await world.until(lambda: world.states[0].leader_epoch == 1)
        await world.until(lambda: world.isr() == {1, 2, 3})
        assert await world.agree() == before
        assert verify(replica.log, 0, 3) == []

    run(test, replica_fetch_wait_ms=100)


def test_leader_checks_its_disk_after_a_follower_fetched_a_corrupt_batch() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        for value in (b"a", b"b", b"c"):
            await leader.append([value])
        before = await world.agree()
        world.flip(1, offset=1)
        world.take_out(3)
        world.restart(3, MemFiles())
        # The follower finds the batch corrupt and fetches it with a repair flag. The leader then
        # checks its disk and gives up leadership.
        await world.until(lambda: world.states[0].leader == -1)
        assert world.nodes[1].metrics.value("corrupt_batches", "read") >= 1
        assert world.nodes[3].metrics.value("corrupt_batches", "replica_fetch") >= 1
        assert world.isr() == {2}
        world.elect(2)
        await world.until(lambda: world.isr() == {1, 2, 3})
        assert await world.agree() == before
        for node in world.nodes.values():
            assert verify(node.replica().log, 0, 3) == []

    # With short waits, each follower soon sends the fetch with which it joins the ISR.
    run(test, replica_fetch_wait_ms=100)


def test_corrupt_batch_that_recovery_finds_is_counted_once() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        for value in (b"a", b"b", b"c"):
            await leader.append([value])
        before = await world.agree()
        world.nodes[2].logs.checkpoint()
        world.flip(2, offset=1)
        world.take_out(2)
        found = gauges(world.restart(2).metrics)["corrupt_batches"]
        assert found == {("read",): 0, ("recovery",): 1, ("replica_fetch",): 0}
        await world.until(lambda: world.isr() == {1, 2, 3})
        assert await world.agree() == before
        assert gauges(world.nodes[2].metrics)["corrupt_batches"] == found

    run(test, replica_fetch_wait_ms=100)


def test_leader_with_an_unreadable_batch_steps_down_and_copies_it_from_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        for value in (b"a", b"b", b"c"):
            await leader.append([value])
        before = await world.agree()
        files, pread = world.nodes[1].files, MemFile.pread

        def failing(file: MemFile, position: int, length: int) -> bytes:
            if file._files is files and file.path.endswith(".log") and file.size:
                raise OSError(errno.EIO, "a bad sector")
            return pread(file, position, length)

        with monkeypatch.context() as patch:
            patch.setattr(MemFile, "pread", failing)
            world.take_out(3)
            world.restart(3, MemFiles())
            await world.until(lambda: world.states[0].leader == -1)
            world.elect(2)
            await world.until(lambda: world.isr() == {1, 2, 3})
        assert await world.agree() == before

    run(test, replica_fetch_wait_ms=100)


def test_broker_deletes_a_reassigned_replica_and_can_host_it_again() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        world.take_out(3)
        world.assigned[0] = (1, 2)
        world.publish()
        gone = world.nodes[3]
        with pytest.raises(NotLeaderError):
            gone.replica()
        world.assigned.clear()
        world.publish()  # The broker is still deleting the log.
        await world.until(lambda: world.isr() == {1, 2, 3})
        assert await world.agree() == [(0, 1, 0)]

    run(test)


def test_replica_that_was_reassigned_while_its_broker_was_down_is_deleted() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        world.take_out(3)
        world.assigned[0] = (1, 2)
        node = world.restart(3)
        await world.until(lambda: not node.logs.logs)
        assert node.manager.replicas == []

    run(test)


def gauges(metrics: Metrics) -> dict[str, Mapping[tuple[str, ...], float]]:
    return {one.metric.name: one.values for one in metrics.samples()}


def test_metrics_count_lag_and_under_replicated_partitions() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        world.take_out(3)
        world.nodes[3].manager.close(NotLeaderError())
        found = gauges(leader.metrics)
        assert found["under_replicated_partitions"] == {(): 1}
        assert found["under_min_isr_partitions"] == {(): 0}
        assert found["partitions"] == {("leader",): 1, ("follower",): 0}
        assert found["last_stable_offset_lag_records_max"] == {(): 0}
        assert leader.metrics.value("leader_elections", "preferred") == 1
        world.take_out(2)
        assert gauges(leader.metrics)["under_min_isr_partitions"] == {(): 1}

    run(test)


def test_replica_lag_metrics_measure_records_and_seconds() -> None:
    async def test(world: World) -> None:
        leader = await world.serves(1)
        await leader.append([b"a"])
        leader.reached = False
        appending = asyncio.create_task(leader.append([b"b"]))
        await world.until(lambda: leader.replica().log.log_end_offset == 2)
        await world.until(lambda: gauges(leader.metrics)["replica_lag_seconds_max"][()] > 0)
        assert gauges(leader.metrics)["replica_lag_records_max"] == {(): 1}
        leader.reached = True
        await appending
        await world.until(lambda: gauges(leader.metrics)["replica_lag_seconds_max"][()] == 0)

    run(test)


def test_replicas_of_a_deleted_topic_are_freed_without_garbage_collection() -> None:
    """A follower's waiting fetch must not keep the leader's deleted replica, and its open files,
    in memory."""

    async def test(world: World) -> None:
        await world.serves(1)
        await world.until(lambda: len(world.nodes[1].manager.follower_fetches.waiting) == 2)
        gc.collect()
        gc.disable()
        try:
            logs = [weakref.ref(node.replica().log) for node in world.nodes.values()]
            gone = MetadataSnapshot(version=world.snapshot.version + 1)
            world.snapshot = dataclasses.replace(gone, brokers=world.snapshot.brokers)
            for node in world.nodes.values():
                node.manager.apply(world.snapshot)
            await world.until(lambda: not any(log() for log in logs))
        finally:
            gc.enable()

    run(test)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_follower_outside_the_isr_catches_up_within_the_rate(side: str) -> None:
    rate = 40_000

    async def test(world: World) -> None:
        leader, follower = world.nodes[1], world.nodes[2]
        leader.cut_off()
        world.config = {
            "min.insync.replicas": "1",
            f"{side}.replication.throttled.replicas": f"0:{1 if side == 'leader' else 2}",
        }
        broker = 1 if side == "leader" else 2
        world.broker_configs = {broker: {f"{side}.replication.throttled.rate": "0"}}
        world.elect(1, isr=[1])
        await world.serves(1)
        for _ in range(10):
            await leader.append([b"x" * 1000])
        leader.reached = True
        world.requests.clear()
        # With rate 0 the leader answers without records, and the follower sends no request.
        if side == "leader":
            await world.until(lambda: len(world.requests) > 2)
        else:
            await asyncio.sleep(0.25)
            assert len(world.requests) <= 1
        assert follower.replica().log.log_end_offset == 0
        began_s = world.loop.time()
        world.broker_configs = {broker: {f"{side}.replication.throttled.rate": str(rate)}}
        world.publish()
        log = follower.replica().log
        while log.log_end_offset < 10:
            await asyncio.sleep(0.01)
            moved = log.reader.size_bytes
            assert moved <= rate * (world.loop.time() - began_s) + 1200
        await world.until(lambda: len(world.states[0].isr) == 2)
        # A follower in the ISR is not throttled, even with rate 0.
        world.broker_configs = {broker: {f"{side}.replication.throttled.rate": "0"}}
        world.publish()
        await leader.append([b"y"])
        await world.until(lambda: log.log_end_offset == 11)

    run(test, brokers=2, replica_fetch_wait_ms=20)
