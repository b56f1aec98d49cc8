"""A store of values by key in an internal topic, for the partitions that this broker leads.

A new leader waits until all records of former leaders are committed, and reads its partition on a
read thread; all else runs on the event loop's thread. Appends in one iteration of the event loop
form one batch. ``transactions/keyed_state.py`` decides what to append, and when to compact the log:
then a copy of all values is appended, and the log before it is deleted.

An append needs ``min.insync.replicas``, as with acks=all. It completes when the high watermark
passes it, when the log refuses it, or when this broker loses the leadership. The result of a
produce request does not tell the outcome: after NOT_ENOUGH_REPLICAS_AFTER_APPEND or a timeout, the
batch can still be committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from broker_lite.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptMessageError,
    LogbusError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OffsetNotAvailableError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NULL_TOPIC_ID, BrokerView
from broker_lite.record import format as fmt
from broker_lite.record.batch import read_header
from broker_lite.record.crc32c import crc32c
from broker_lite.record.walker import BadBatch, BatchWalker, WalkPolicy
from broker_lite.replication.events import ACKS_LEADER, Appended
from broker_lite.replication.leader import Leader
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event
from broker_lite.server.partitions.disk import AppendBatch
from broker_lite.server.partitions.replica import Replica
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.storage.reader import LogReader
from broker_lite.transactions.keyed_state import (
    AppendState,
    DeleteBefore,
    Effect,
    KeyedState,
    Replay,
    UpsertsSettled,
)

logger = logging.getLogger("logbus.state")

READ_BYTES = 4 << 20
"""Maximum bytes of one read of the log while a partition is being loaded."""
RETRY_S = 1.0
"""Seconds between a failed load of a partition and the next attempt."""
WAIT_S = 1.0
"""Maximum seconds for which a request waits until the partition of its key is loaded."""


class StateOwner(Protocol):
    """The coordinator that keeps its state in a ``StateLog``.

    Its methods are called on the event loop's thread."""

    def loaded(
        self, partition: int, epoch: int, values: Mapping[bytes, bytes], flags: Mapping[bytes, int]
    ) -> None:
        """Start to coordinate a partition that is loaded now and that this broker leads in
        ``epoch``.

        ``values`` has the values of all keys, and is updated after each committed append. ``flags``
        has the byte that ``StateLog.append`` stored with each key, unless it is 0."""

    def lost(self, partition: int) -> None:
        """Stop coordinating a partition that this broker no longer leads.

        Its incomplete appends fail with NotCoordinatorError."""


class StateLog:
    """The keys and values in those partitions of the internal topic ``topic`` that this broker
    leads."""

    def __init__(
        self,
        topic: str,
        owner: StateOwner,
        *,
        replicas: ReplicaManager,
        snapshot: Callable[[], MetadataSnapshot],
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.owner = owner
        self.replicas = replicas
        self.clock = clock
        self._snapshot = snapshot
        self._led: dict[int, _LedPartition] = {}
        self._changed = asyncio.Event()
        replicas.on_role_change(topic, self._role_changed)

    def partition_of(self, key: bytes) -> int:
        """Return the partition of the internal topic in which a key is stored.

        Raises CoordinatorNotAvailableError if the topic does not exist yet."""
        view = self._snapshot().topics.get(self.topic)
        if view is None:
            raise CoordinatorNotAvailableError(f"topic {self.topic!r} does not exist yet; retry")
        return state_partition(key, len(view.partitions))

    def led(self, partition: int) -> int | None:
        """Return the leader epoch of a partition; None if this broker does not lead it.

        Raises CoordinatorLoadInProgressError while the partition is being loaded."""
        led = self._led.get(partition)
        if led is None:
            return None
        if led.state is None:
            raise CoordinatorLoadInProgressError(
                f"this broker is still loading {led.replica}; retry"
            )
        return led.epoch

    async def wait_loaded(self, partition: int) -> None:
        """Wait ``WAIT_S`` seconds at most until a partition that this broker is to lead is loaded,
        that is, its records are read.

        A new topic's log may not exist yet. To wait for it is faster than to refuse the request,
        because the client would then back off for longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while self._is_load_due(partition):
                    await self._changed.wait()

    def _is_load_due(self, partition: int) -> bool:
        led = self._led.get(partition)
        if led is not None:
            return led.state is None
        leader, _ = self._snapshot().leader(self.topic, NULL_TOPIC_ID, partition)
        return leader == self.replicas.local.broker_id

    def changed(self) -> None:
        """Wake the requests that wait for a partition to be loaded."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def append(
        self, partition: int, key: bytes, value: bytes | None, flags: int = 0
    ) -> asyncio.Future[None]:
        """Set the value of a key; None deletes the key. The future completes when the append is
        committed.

        The future raises LogbusError if the append will certainly not be committed. After
        NotCoordinatorError the outcome is unknown: the append is committed if the next leader has
        it. The byte ``flags`` is stored with the key, and passed to ``StateOwner.loaded`` when a
        leader loads the partition."""
        future = asyncio.get_running_loop().create_future()
        led = self._led.get(partition)
        if led is None or led.state is None:
            future.set_exception(_not_coordinator(self.topic, partition))
            return future
        led.append(future, key, value, flags)
        return future

    def _role_changed(self, replica: Replica) -> None:
        partition, role = replica.partition, replica.role.role
        led = self._led.get(partition)
        if led is not None and (led.role is not role or led.replica is not replica):
            if led.replica is not replica and not isinstance(role, Leader):
                return
            del self._led[partition]
            was_loaded = led.state is not None
            led.close()
            if was_loaded:
                self.owner.lost(partition)
            led = None
        if led is None and isinstance(role, Leader):
            self._led[partition] = _LedPartition(self, replica, role)
        self.changed()


class _LedPartition:
    """A partition of an internal topic, led by this broker in one leader epoch."""

    def __init__(self, owner: StateLog, replica: Replica, role: Leader) -> None:
        self.replica = replica
        self.role = role
        self.epoch = role.state.leader_epoch
        self.state: KeyedState | None = None
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._token = 0
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._is_turn_due = False
        self._moved = asyncio.Event()
        self._deletion: asyncio.Task[None] | None = None
        replica.waiters.add(self._advanced)
        self._load: asyncio.Task[None] = self._loop.create_task(self._load_all())

    @property
    def _is_current(self) -> bool:
        return self.replica.role.role is self.role

    def close(self) -> None:
        """Stop loading and appending. Incomplete appends fail with NotCoordinatorError."""
        self.replica.waiters.discard(self._advanced)
        self._load.cancel()
        if self._deletion is not None:
            self._deletion.cancel()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(_not_coordinator(self.replica.topic, self.replica.partition))
                # Keep asyncio from logging the exception: the caller of ``append`` may ignore it.
                future.exception()

    # Methods that load the state.

    async def _load_all(self) -> None:
        replica, owner = self.replica, self._owner
        high_watermark = await self._committed_end()
        began_ms = owner.clock.monotonic_ms()
        while True:
            try:
                replay = await owner.replicas.disk.run_read(
                    lambda: _replay(replica.log.reader, high_watermark)
                )
                break
            except Exception as error:
                is_known = isinstance(error, LogbusError)
                logger.error(
                    "%s: cannot load the state; retrying: %s",
                    replica,
                    error,
                    exc_info=not is_known,
                    extra=log_event("state_load_failed", tp=replica),
                )
                if isinstance(error, CorruptMessageError):
                    replica.report_corruption(replica.log.log_start_offset, error)
                await asyncio.sleep(RETRY_S)
        state = self.state = replay.state()
        logger.info(
            "%s: %d keys loaded in %d ms",
            replica,
            len(state.values),
            owner.clock.monotonic_ms() - began_ms,
            extra=log_event("state_loaded", tp=replica),
        )
        if replay.delete_before is not None:
            self._delete_before(replay.delete_before)
        owner.owner.loaded(replica.partition, self.epoch, state.values, state.flags)
        owner.changed()

    async def _committed_end(self) -> int:
        """Wait until all records of former leaders are committed, then return the high
        watermark."""
        while True:
            self._moved.clear()
            try:
                return self.replica.role.latest_offset()
            except OffsetNotAvailableError:
                await self._moved.wait()

    # Methods that append to the log and handle the results.

    def append(
        self, future: asyncio.Future[None], key: bytes, value: bytes | None, flags: int
    ) -> None:
        assert self.state is not None
        self._token += 1
        try:
            self.state.put(self._token, key, value, flags)
        except LogbusError as error:
            future.set_exception(error)
            return
        self._futures[self._token] = future
        self._end_turn_soon()

    def _end_turn_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_turn_due = False
        if self.state is None or not self._is_current:
            return
        for write in self.state.turn(self._owner.clock.now_ms()):
            self._write(write)

    def _write(self, write: AppendState) -> None:
        done = partial(self._written, write.number)
        if not self.role.is_enough:
            # The append below uses acks=1, which reports the offsets at once. It does not check the
            # number of in-sync replicas as acks=all would, so check that here.
            count = len(self.role.isr.replicas)
            reason = f"{self.replica}: only {count} replicas are in sync; start the other brokers"
            done(None, NotEnoughReplicasError(reason))
            return
        batch = AppendBatch(memoryview(write.batch), read_header(write.batch), fmt.BATCH_BYTES_MAX)
        self._owner.replicas.append(self.replica, ACKS_LEADER, batch, sys.maxsize, done)

    def _written(self, number: int, appended: Appended | None, error: LogbusError | None) -> None:
        """Handle the result of the append with this number.

        After a loss of the leadership the result is ignored: ``close`` has made the append fail."""
        if self.state is None or not self._is_current:
            return
        if appended is not None:
            self.state.appended(number, appended.base_offset, appended.next_offset)
            self._advanced()
        elif error is not None:
            self._carry_out(self.state.refused(number, error))

    def _advanced(self) -> None:
        """Complete the appends that the new high watermark commits.

        The replica calls this after a change of the high watermark or of the leader."""
        self._moved.set()
        if self.state is not None and self._is_current:
            self._carry_out(self.state.advanced(self.replica.high_watermark))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case UpsertsSettled(tokens, error):
                    for token in tokens:
                        self._settle(self._futures.pop(token), error)
                case DeleteBefore(offset):
                    self._delete_before(offset)
        if self.state is not None and self.state.is_copy_due:
            self._end_turn_soon()

    def _settle(self, future: asyncio.Future[None], error: LogbusError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _delete_before(self, offset: int) -> None:
        self._deletion = self._loop.create_task(self._delete(offset))

    async def _delete(self, offset: int) -> None:
        replica = self.replica
        with contextlib.suppress(LogbusError):
            # A failed deletion does no harm: the next copy of the state, or the next load, deletes
            # the records before ``offset``, too.
            await self._owner.replicas.delete_records(replica.topic, replica.partition, offset)
            logger.info(
                "%s: the state was copied to the end of the log; the log now starts at offset %d",
                replica,
                offset,
            )


def _replay(reader: LogReader, end_offset: int) -> Replay:
    """Read all records before ``end_offset``, on a read thread.

    Raises CorruptMessageError for a corrupt batch."""
    offset = reader.log_start_offset
    replay = Replay(offset)
    walker = BatchWalker(WalkPolicy(checks_crc=True), offset)
    while walker.offset < end_offset:
        log_slice = reader.read(walker.offset, READ_BYTES, end_offset)
        walker.position, offset = log_slice.position, walker.offset
        try:
            for batch in walker.walk(log_slice.read()):
                replay.batch(batch.buffer, batch.header)
        except (BadBatch, CorruptMessageError) as bad:
            reason = bad.message if isinstance(bad, CorruptMessageError) else bad
            raise CorruptMessageError(f"{reader.key}: {reason}") from None
        if walker.offset == offset:
            raise CorruptMessageError(f"{reader.key}: nothing can be read at offset {offset}")
    return replay


def state_partition(key: bytes, count: int) -> int:
    """Return the partition of a key in an internal topic with ``count`` partitions."""
    return crc32c(key) % count


def leader_of(snapshot: MetadataSnapshot, topic: str, key: bytes) -> BrokerView:
    """Return the broker that leads the partition of a key in an internal topic.

    Raises CoordinatorNotAvailableError if the topic does not exist yet, or no live broker leads the
    partition."""
    view = snapshot.topics.get(topic)
    if view is None:
        raise CoordinatorNotAvailableError(f"topic {topic!r} does not exist yet; retry")
    partition = view.partitions[state_partition(key, len(view.partitions))]
    leader = snapshot.brokers.get(partition.state.leader)
    if leader is None:
        raise CoordinatorNotAvailableError(
            f"{topic}-{partition.partition} has no leader at present; retry"
        )
    return leader


def _not_coordinator(topic: str, partition: int) -> NotCoordinatorError:
    return NotCoordinatorError(
        f"this broker does not lead {topic}-{partition}; find the coordinator again"
    )
