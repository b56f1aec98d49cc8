"""Tests of a replica's state machine under random events, and after a failed disk."""

from __future__ import annotations

import random
import traceback

import pytest

from broker_lite.errors import LogbusError, NotLeaderError, StorageError
from broker_lite.model import LeaderAndIsr, PartitionKey, ReplicaId
from broker_lite.replication.effects import (
    ORDER,
    Append,
    Effect,
    HighWatermark,
    Reply,
    StartEpoch,
    StopFetching,
    Sync,
)
from broker_lite.replication.events import (
    Appended,
    AppendFailed,
    AppendRequested,
    Closed,
    EpochStarted,
    Event,
    LeaderAndIsrChanged,
    ReplicaLimits,
    StorageFailed,
    Synced,
    Tick,
)
from broker_lite.replication.partition import Partition

LOCAL = ReplicaId(1, "A")
KEY = PartitionKey("T", 0)


class Disk:
    """A log that queues the disk operations that a replica decides on; ``next_event`` executes
    the oldest."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.queue: list[Effect] = []
        self.end = 0
        self.flushed = 0

    def next_event(self) -> Event:
        effect = self.queue.pop(0)
        match effect:
            case StartEpoch(epoch):
                return EpochStarted(epoch, self.end, self.flushed)
            case Append(token):
                if self.rng.random() < 0.1:
                    return AppendFailed(token, LogbusError("refused"))
                count = self.rng.randint(1, 5)
                self.end += count
                return Appended(token, self.end - count, self.end)
            case Sync():
                self.flushed = self.end
                return Synced(self.flushed)
        raise AssertionError(effect)


@pytest.mark.parametrize("seed", range(40))
def test_leader_and_follower_keep_their_invariants_under_random_events(seed: int) -> None:
    rng = random.Random(seed)
    disk = Disk(rng)
    partition = Partition(KEY, LOCAL, log_end_offset=0, flushed_end=0, high_watermark=0)
    asked: dict[int, int] = {}
    answered: set[int] = set()
    epoch, watermark, now_ms = 0, 0, 0
    for token in range(400):
        now_ms += rng.randint(0, 50)
        event: Event
        match rng.choices(
            ("append", "disk", "tick", "lead", "follow", "stale"), (40, 40, 10, 3, 3, 2)
        )[0]:
            case "append":
                event = AppendRequested(token, rng.choice((-1, 1)), b"", rng.randint(1, 5))
                asked[token] = event.acks
            case "disk" if disk.queue:
                event = disk.next_event()
            case "lead":
                epoch += 1
                limits = ReplicaLimits(1, rng.choice((1, 20)), 100)
                event = LeaderAndIsrChanged(
                    LeaderAndIsr(1, epoch, (LOCAL,), 1, leader_broker_epoch=7),
                    frozenset((7,)),
                    limits,
                )
            case "follow":
                epoch += 1
                state = LeaderAndIsr(2, epoch, (ReplicaId(2, "B"),), 1, leader_broker_epoch=9)
                event = LeaderAndIsrChanged(state, frozenset((7,)))
            case "stale":
                state = LeaderAndIsr(1, max(epoch - 1, 0), (LOCAL,), 1, leader_broker_epoch=7)
                before = partition.role
                event = LeaderAndIsrChanged(state, frozenset((7,)))
                if epoch > 0:
                    assert partition.step(now_ms, event) == []
                    assert partition.role is before
                continue
            case _:
                event = Tick()
        effects = partition.step(now_ms, event)
        ranks = [ORDER[type(effect)] for effect in effects]
        assert ranks == sorted(ranks)
        for effect in effects:
            match effect:
                case StartEpoch() | Append() | Sync():
                    disk.queue.append(effect)
                case HighWatermark(offset):
                    assert watermark < offset <= disk.flushed
                    watermark = offset
                case Reply(answer, appended, error):
                    assert answer not in answered
                    assert (appended is None) != (error is None)
                    answered.add(answer)
                    if appended is not None and asked[answer] == -1:
                        assert appended.next_offset <= disk.flushed
    while disk.queue:
        for effect in partition.step(now_ms, disk.next_event()):
            if isinstance(effect, Reply):
                answered.add(effect.token)
    for effect in partition.step(now_ms, Closed(NotLeaderError())):
        assert isinstance(effect, Reply | StopFetching)
        if isinstance(effect, Reply):
            answered.add(effect.token)
    assert answered == asked.keys()
    assert partition.in_flight_count == 0


def test_replica_stays_offline_after_a_storage_failure() -> None:
    partition = Partition(KEY, LOCAL, log_end_offset=0, flushed_end=0, high_watermark=0)
    state = LeaderAndIsr(1, 1, (LOCAL,), 1, leader_broker_epoch=7)
    partition.step(0, LeaderAndIsrChanged(state, frozenset((7,))))
    assert partition.is_leader
    partition.step(0, StorageFailed(StorageError("fsync failed")))
    again = LeaderAndIsr(1, 2, (LOCAL,), 1, version=1, leader_broker_epoch=7)
    assert partition.step(0, LeaderAndIsrChanged(again, frozenset((7,)))) == []
    with pytest.raises(StorageError):
        partition.check_leader()


def test_repeated_errors_of_an_offline_replica_do_not_accumulate_tracebacks() -> None:
    """Clients may retry endlessly against a failed disk, so the size of an error must not grow."""
    partition = Partition(KEY, LOCAL, log_end_offset=0, flushed_end=0, high_watermark=0)
    partition.step(0, StorageFailed(StorageError("the disk is gone")))
    depths = []
    for _ in range(3):
        with pytest.raises(StorageError) as caught:
            partition.check_leader()
        depths.append(len(list(traceback.walk_tb(caught.value.__traceback__))))
    assert depths[0] == depths[2]
