"""Run one consumer of a native group, which coordinates through ZooKeeper, on an event loop: call
its state machine (``machine``), and carry out the operations (effects) that the machine returns.

``NativeShell`` sends the machine's requests to ZooKeeper (through a ``MetadataStore``), and passes
assignment changes to the readers of the consumer's streams. All methods and callbacks run on the
loop's thread, and callbacks must not block. Other threads may only read ``lease_until_ms`` and
``machine``."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.errors import ClosedError, CoordinationUnavailableError, LogbusError
from broker_lite.metadata import store as ports
from broker_lite.metadata import znodes
from broker_lite.metadata.store import MetadataStore, StoreEvent
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.events import (
    ALL,
    Beat,
    Beaten,
    CommitAnswer,
    Effect,
    Event,
    Get,
    Got,
    List,
    Listed,
    NativeTick,
    PartitionStart,
    RefuseJoin,
    RequestFailed,
    Restart,
    SessionConnected,
    Settled,
    StreamAssign,
    StreamCommit,
    StreamLose,
    StreamRevoke,
    Write,
    WriteDone,
)
from broker_lite.native.machine import ENDED, MEMBER, NativeMachine

logger = logging.getLogger("logbus.groups")

RECONNECT_S = 0.5
"""Seconds after which a failed attempt to open a new ZooKeeper session is retried."""


class Readers(Protocol):
    """The interface through which ``NativeShell`` controls the readers of a consumer's streams.
    ``stream`` is a stream's number."""

    def assign(self, stream: int, tp: TopicPartition, start: PartitionStart) -> None:
        """Begin to read a partition. ``start`` determines the starting offset."""

    def revoke(self, stream: int, tp: TopicPartition) -> None:
        """Stop reading a partition, then report its last position with ``NativeShell.settled``."""

    def lose(self, stream: int, tp: TopicPartition) -> None:
        """Drop a partition that the consumer no longer owns: return no more records of it, and do
        not commit its position."""

    def renewed(self) -> None:
        """Tell the streams' readers to return records again: the consumer's lease, the time in
        which it may return records, had expired and was renewed."""

    def refuse(self, error: LogbusError) -> None:
        """Stop all streams, because the membership has ended with ``error``. Later calls on the
        streams raise this error."""


class NativeShell:
    """Runs one consumer's state machine on an event loop.

    ``make_store`` returns a new, unconnected client of ZooKeeper. ``now_ms`` is a monotonic clock.
    ``on_joined`` is called once, when the consumer has joined the group or cannot join it."""

    def __init__(
        self,
        group: str,
        consumer: str,
        subscription: NativeSubscription,
        readers: Readers,
        *,
        make_store: Callable[[], MetadataStore],
        now_ms: Callable[[], float],
        on_joined: Callable[[], None] | None = None,
    ) -> None:
        self.machine = NativeMachine(group, consumer, subscription)
        self._group = group
        self._readers = readers
        self._make_store = make_store
        self._now_ms = now_ms
        self._on_joined = on_joined
        self._store: MetadataStore | None = None
        self._numbers = itertools.count(1)
        self._commits: dict[int, asyncio.Future[Mapping[TopicPartition, LogbusError]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = ResettableTimer(_later, self._tick)
        self._connection = 0
        """Number of connects, disconnects and session losses so far, to recognise requests of an
        earlier connection."""
        self._is_closed = False

    @property
    def lease_until_ms(self) -> float:
        """The time (ms, on the clock ``now_ms``) until which the consumer may return records: the
        end of its lease."""
        return self.machine.lease_until_ms

    async def start(self) -> None:
        """Connect to ZooKeeper. The consumer joins the group in the background. Raises
        CoordinationUnavailableError."""
        store = self._store = self._make_store()
        try:
            await store.start(lambda event: self._handle_store_event(store, event))
        except BaseException:
            # Close the session, which may be open. The next attempt begins another one.
            if self._store is store:
                self._store = None
            await store.close()
            raise

    async def close(self) -> None:
        """Leave the group. This ends the ZooKeeper session, which removes the consumer's
        registration and its owner znodes."""
        if self._is_closed:
            return
        self._is_closed = True
        self._timer.cancel()
        for number in list(self._commits):
            self._answer(
                CommitAnswer(
                    number, {ALL: ClosedError("the consumer was closed; create another consumer")}
                )
            )
        store, self._store = self._store, None
        if store is not None:
            await store.close()
        for task in list(self._tasks):
            task.cancel()

    async def commit(
        self, rows: Mapping[TopicPartition, CommittedOffset], grants: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, LogbusError]:
        """Commit the offsets in ``rows``. Return the error of each partition that failed.

        ``grants`` has the number of the assignment with which the reader received each
        partition."""
        if self._is_closed:
            raise ClosedError("the consumer was closed; create another consumer")
        number = next(self._numbers)
        future: asyncio.Future[Mapping[TopicPartition, LogbusError]] = (
            asyncio.get_running_loop().create_future()
        )
        self._commits[number] = future
        self._step(StreamCommit(number, rows, grants))
        errors = dict(await future)
        rest = errors.pop(ALL, None)
        if rest is not None:
            errors = {**dict.fromkeys(rows, rest), **errors}
        return errors

    def settled(self, tp: TopicPartition, offset: CommittedOffset | None, grant: int) -> None:
        """Tell the state machine that the reader has stopped reading a revoked partition. ``grant``
        is the number of the assignment with which the reader had received it, and ``offset`` the
        reader's last position, if known."""
        self._step(Settled(tp, offset, grant))

    # Methods that pass events to the machine.

    def _handle_store_event(self, store: MetadataStore, event: StoreEvent) -> None:
        if store is not self._store:
            return
        if isinstance(event, ports.Connected | ports.Suspended | ports.SessionLost):
            self._connection += 1
        if isinstance(event, ports.Connected):
            timeout_ms = store.session_timeout_ms
            self._step(SessionConnected(event.session_id, event.new_session, timeout_ms))
        else:
            self._step(event)

    def _step(self, event: Event) -> None:
        if self._is_closed:
            return
        now_ms, machine = self._now_ms(), self.machine
        was_held_back = machine.lease_until_ms <= now_ms
        for effect in machine.step(int(now_ms), event):
            self._carry_out(effect)
        if was_held_back and machine.lease_until_ms > now_ms:
            self._readers.renewed()
        if self._on_joined is not None and machine.phase in (MEMBER, ENDED):
            on_joined, self._on_joined = self._on_joined, None
            on_joined()
        if not self._is_closed:
            self._timer.set_for(machine.wake_ms, self._now_ms())

    def _tick(self) -> None:
        self._step(NativeTick())

    # Methods that carry out the effects that the state machine returns.

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Get() | List() | Write() | Beat():
                self._spawn(self._send_request(effect, self._connection))
            case StreamAssign(stream, tp, start):
                self._readers.assign(stream, tp, start)
            case StreamRevoke(stream, tp):
                self._readers.revoke(stream, tp)
            case StreamLose(stream, tp):
                self._readers.lose(stream, tp)
            case CommitAnswer():
                self._answer(effect)
            case RefuseJoin(error):
                self._readers.refuse(error)
            case Restart():
                logger.warning(
                    "group %s: another client deleted this consumer's registration; it joins again",
                    self._group,
                )
                self._spawn(self._restart())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_request(self, effect: Get | List | Write | Beat, connection: int) -> None:
        store = self._store
        if store is None or connection != self._connection:
            return  # The request is of an earlier connection: do not send it on this one.
        event: Event
        try:
            match effect:
                case Get(tag, path, watch):
                    event = Got(tag, await store.get(path, watch=watch))
                case List(tag, path, watch):
                    event = Listed(tag, await store.children(path, watch=watch))
                case Write(tag, operations):
                    event = WriteDone(tag, await store.write(operations))
                case Beat(tag):
                    await store.sync(znodes.consumers_path(self._group))
                    event = Beaten(tag)
        except CoordinationUnavailableError:
            event = RequestFailed(effect.tag)
        except LogbusError as error:
            event = RequestFailed(effect.tag, error)
        if store is self._store and connection == self._connection:
            self._step(event)

    async def _restart(self) -> None:
        """Close the ZooKeeper session, and open a new one. Retry until ZooKeeper answers."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()
        while not self._is_closed:
            try:
                await self.start()
                return
            except CoordinationUnavailableError as error:
                logger.warning("group %s: %s", self._group, error)
                await asyncio.sleep(RECONNECT_S)

    def _answer(self, answer: CommitAnswer) -> None:
        future = self._commits.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer.errors)


def _later(delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)
