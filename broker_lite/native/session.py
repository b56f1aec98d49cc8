"""The membership of one consumer in a native group (coordinated by ZooKeeper). All streams of the
consumer share it; one thread reads each stream.

``GroupSession`` runs a ``NativeShell``, the I/O of a member, on an event loop, and passes each
change of the assignment to the reader of its stream. An asyncio consumer uses its own loop. For
a blocking consumer, ``ThreadSession`` has a background thread with a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from broker_lite.client.boottime_clock import lease_ms
from broker_lite.client.consuming.changes import Assign, Change, Lose, Revoke, StartBasis
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.errors import ClosedError, CoordinationUnavailableError, LogbusError
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.metadata.zookeeper.store import ZooKeeperStore
from broker_lite.model import NO_TIMESTAMP, CommittedOffset, TopicPartition
from broker_lite.native.events import PartitionStart
from broker_lite.native.member import NativeShell

JOIN_TIMEOUT_S = 30.0
"""Seconds after which an attempt to join the group fails."""
CLOSE_TIMEOUT_S = 10.0
"""Seconds for which ``leave`` waits for the end of the background thread."""
NAME_LENGTH_MAX = 200
"""Maximum length of a consumer's name, without the random characters at its end."""

Errors = dict[TopicPartition, LogbusError]


def consumer_name(client_id: str, host: str) -> str:
    """Return a new, unique name for a consumer, under which it is registered in its group.

    Characters that a znode's path cannot contain are replaced by "-". These include characters
    beyond U+FFFF, which Java encodes as surrogate pairs."""
    words = "-".join(word for word in (client_id, host) if word)
    safe = "".join(c if c in "-._" or (c.isalnum() and c <= "\uffff") else "-" for c in words)
    return f"{safe[:NAME_LENGTH_MAX]}-{uuid.uuid4().hex[:12]}"


def stamped(
    rows: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets to commit, with the current time where the commit time is missing."""
    now_ms = int(time.time() * 1000)
    return {
        tp: row._replace(commit_ms=now_ms) if row.commit_ms == NO_TIMESTAMP else row
        for tp, row in rows.items()
    }


class SessionDispatcher:
    """Passes each assigned, revoked or lost partition to the reader of the partition's stream. Runs
    on the session's event loop."""

    def __init__(self, readers: Sequence[ReaderCore]) -> None:
        self._readers = readers
        self.refused: LogbusError | None = None

    def assign(self, stream: int, tp: TopicPartition, start: PartitionStart) -> None:
        basis = StartBasis(start.committed, start.is_added, start.topic_id)
        self._add(stream, Assign({tp: start.grant}, {tp: basis}))

    def revoke(self, stream: int, tp: TopicPartition) -> None:
        self._add(stream, Revoke(0, frozenset((tp,))))

    def lose(self, stream: int, tp: TopicPartition) -> None:
        self._add(stream, Lose(frozenset((tp,))))

    def _add(self, stream: int, change: Change) -> None:
        self._readers[stream].assignment.queue.append(change)
        self._readers[stream].notify()

    def renewed(self) -> None:
        for reader in self._readers:
            reader.notify()

    def refuse(self, error: LogbusError) -> None:
        self.refused = error
        for reader in self._readers:
            reader.stop(error)


class GroupSession:
    """The membership that all streams of one consumer share, on an event loop.

    ``find_address`` returns ZooKeeper's address, and may block. ``name`` is the consumer's name in
    the group. Any thread may call methods that are not coroutines."""

    def __init__(
        self,
        find_address: Callable[[], str],
        group: str,
        name: str,
        subscription: NativeSubscription,
        session_timeout_ms: int,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.name = name
        self.group = group
        self._find_address = find_address
        self.subscription = subscription
        self._session_timeout_ms = session_timeout_ms
        self._readers: list[ReaderCore] = []
        self._member: NativeShell | None = None
        self._loop = loop or asyncio.get_running_loop()
        self._is_closed = False

    def add(self, reader: ReaderCore) -> None:
        """Add the reader of one more stream. Call it before the session joins the group."""
        self._readers.append(reader)

    def enter(self) -> Awaitable[None] | None:
        """Return an awaitable that completes once the consumer has joined the group, or None if it
        has joined already. Its first assignment arrives afterwards. Raises
        CoordinationUnavailableError, InconsistentGroupProtocolError, or another error for which the
        consumer cannot join."""
        return self._enter()

    async def _enter(self) -> None:
        await self._join(await asyncio.to_thread(self._find_address))

    async def _join(self, address: str) -> None:
        joined = asyncio.Event()
        dispatcher = SessionDispatcher(self._readers)
        member = self._member = NativeShell(
            self.group,
            self.name,
            self.subscription,
            dispatcher,
            make_store=lambda: ZooKeeperStore(address, session_timeout_ms=self._session_timeout_ms),
            now_ms=lease_ms,
            on_joined=joined.set,
        )
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await member.start()
                await joined.wait()
            if dispatcher.refused is not None:
                raise dispatcher.refused
        except TimeoutError:
            await member.close()
            raise CoordinationUnavailableError(
                f"this consumer could not join group {self.group!r} within {JOIN_TIMEOUT_S:g} s; "
                f"check that ZooKeeper at {address} answers"
            ) from None
        except BaseException:
            await member.close()
            raise

    @property
    def is_held_back(self) -> bool:
        """Whether the consumer must return no records, because its lease (the time for which its
        partitions are surely its own) has expired."""
        member = self._member
        return member is None or lease_ms() >= member.lease_until_ms

    def settled(self, tp: TopicPartition, offset: CommittedOffset | None, grant: int) -> None:
        """Receive a reader's report that it stopped reading a revoked partition. Release the
        partition, and commit ``offset``, the reader's position, unless it is None. ``grant`` is the
        assignment number with which the reader received the partition."""
        rows = {} if offset is None else stamped({tp: offset})
        if self._member is not None and not self._is_closed:
            settled = partial(self._member.settled, tp, rows.get(tp), grant)
            self._loop.call_soon_threadsafe(settled)

    def commit_soon(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        on_done: Callable[[Errors | LogbusError], None],
    ) -> None:
        """Begin to commit the offsets in ``rows``. ``grants`` has the number of the assignment with
        which the reader received each partition. The commit is refused if the partition was
        assigned anew since. ``on_done`` is called on the session's event loop, with the error of
        each partition that failed."""
        member = self._member
        if self._is_closed or member is None:
            on_done(ClosedError("the consumer was closed; create another consumer"))
            return

        async def run() -> None:
            try:
                on_done(await member.commit(stamped(rows), grants))
            except LogbusError as error:
                on_done(error)

        asyncio.run_coroutine_threadsafe(run(), self._loop)

    def leave(self) -> Awaitable[None] | None:
        """Return an awaitable that leaves the group, or None if this call has left it. Other
        consumers can then take the partitions at once, before the ZooKeeper session expires."""
        return self._leave()

    async def _leave(self) -> None:
        self._is_closed = True
        if self._member is not None:
            await self._member.close()


class ThreadSession(GroupSession):
    """A ``GroupSession`` on a background thread, for the streams of a blocking consumer."""

    def __init__(
        self,
        find_address: Callable[[], str],
        group: str,
        name: str,
        subscription: NativeSubscription,
        session_timeout_ms: int,
    ) -> None:
        loop = asyncio.new_event_loop()
        super().__init__(find_address, group, name, subscription, session_timeout_ms, loop=loop)
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"logbus-group-{group}", daemon=True)

    def enter(self) -> None:
        """Do nothing: ``start`` has already joined the group, for all streams."""

    def start(self) -> None:
        """Start the thread and join the group. Call it after ``add`` for all readers. Raises the
        errors of ``GroupSession.enter``."""
        try:
            address = self._find_address()
            self._thread.start()
            asyncio.run_coroutine_threadsafe(self._join(address), self._loop).result()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Leave the group and stop all streams. Do nothing in a forked child process, because its
        parent remains the member."""
        if self._is_closed or os.getpid() != self._process_id:
            return
        self._is_closed = True
        for reader in self._readers:
            reader.stop(ClosedError("the consumer was closed; create another consumer"))
        if self._thread.is_alive():
            leaving = asyncio.run_coroutine_threadsafe(self._leave(), self._loop)
            concurrent.futures.wait([leaving], CLOSE_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_TIMEOUT_S)
        else:
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
