"""Membership of one consumer for the blocking face: a thread with an event loop and a
``Member``.

Each stream is a consumer on a thread of its own. Reports of the member go into the stream's queue;
calls of a stream run on the loop. Methods are called from the streams' threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from broker_lite.client.boottime_clock import lease_ms
from broker_lite.errors import (
    ClosedError,
    CoordinationUnavailableError,
    LogbusError,
    NotOwnerError,
    RequestTimedOutError,
)
from broker_lite.metadata.znodes import NativeSubscription
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.model import NO_TIMESTAMP, CommittedOffset, TopicPartition
from broker_lite.native.changes import Change
from broker_lite.native.events import PartitionStart, StreamGive, StreamLose, StreamTake
from broker_lite.native.member import NativeShell

JOIN_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 10.0
NAME_LENGTH_MAX = 200

Errors = dict[TopicPartition, LogbusError]


class Stream(Protocol):
    """A reader of some of the consumer's partitions."""

    queue: deque[Change]

    def wake(self) -> None:
        """Notice a longer queue or a renewed lease. Runs on the member's thread."""

    def end(self, error: LogbusError) -> None:
        """End the stream with an error. Runs on the member's thread."""


def consumer_name(client_id: str, host: str) -> str:
    """Return a unique consumer name for the registry.

    Characters that a znode path cannot hold are dropped. ZooKeeper refuses characters beyond
    U+FFFF, since it sees them as two halves of a surrogate pair.
    """
    words = "-".join(word for word in (client_id, host) if word)
    safe = "".join(c if c in "-._" or (c.isalnum() and c <= "\uffff") else "-" for c in words)
    return f"{safe[:NAME_LENGTH_MAX]}-{uuid.uuid4().hex[:12]}"


def stamped(
    rows: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    """Return the rows with the present time as their commit time."""
    now_ms = int(time.time() * 1000)
    return {
        where: row._replace(commit_ms=now_ms) if row.commit_ms == NO_TIMESTAMP else row
        for where, row in rows.items()
    }


def raise_worst(errors: Mapping[TopicPartition, LogbusError]) -> None:
    """Raise the most important error of a commit.

    NotOwnerError is raised only if no other error occurred: the next owner resumes from the
    committed offset, while any other error means that an owned partition is not committed.
    """
    for error in sorted(errors.values(), key=lambda error: isinstance(error, NotOwnerError)):
        raise error


class SessionDispatcher:
    """Puts the member's reports into the streams' queues. Runs on the member's loop."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams
        self.refused: LogbusError | None = None

    def give(self, stream: int, where: TopicPartition, start: PartitionStart) -> None:
        self._tell(stream, StreamGive(stream, where, start))

    def take(self, stream: int, where: TopicPartition) -> None:
        self._tell(stream, StreamTake(stream, where))

    def lose(self, stream: int, where: TopicPartition) -> None:
        self._tell(stream, StreamLose(stream, where))

    def _tell(self, stream: int, change: Change) -> None:
        self._streams[stream].queue.append(change)
        self._streams[stream].wake()

    def renewed(self) -> None:
        for stream in self._streams:
            stream.wake()

    def refuse(self, error: LogbusError) -> None:
        self.refused = error
        for stream in self._streams:
            stream.end(error)


class GroupSession:
    """The membership that the streams of a consumer share. The constructor and ``start`` raise
    CoordinationUnavailableError, InconsistentGroupProtocolError or another reason why the
    consumer cannot join."""

    def __init__(
        self,
        address: str,
        group: str,
        name: str,
        subscription: NativeSubscription,
        session_timeout_ms: int,
    ) -> None:
        self.name = name
        self.group = group
        self._address = address
        self._subscription = subscription
        self._session_timeout_ms = session_timeout_ms
        self._streams: list[Stream] = []
        self._member: NativeShell | None = None
        self._loop = asyncio.new_event_loop()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"logbus-group-{group}", daemon=True)

    def add(self, stream: Stream) -> None:
        """Add a stream before ``start``, in the order of stream numbers."""
        self._streams.append(stream)

    def start(self) -> None:
        """Join the group; assignments reach the streams later."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._join(), self._loop).result(JOIN_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            self.close()
            raise CoordinationUnavailableError(
                f"group {self.group!r} could not be joined within {JOIN_TIMEOUT_S:g} s; does "
                f"ZooKeeper at {self._address} answer?"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def is_held_back(self) -> bool:
        """Return whether the lease has expired, so that no record may be handed out."""
        member = self._member
        return member is None or lease_ms() >= member.lease_until_ms

    def settled(self, where: TopicPartition, offset: CommittedOffset | None, grant: int) -> None:
        """Report that a stream stopped reading a revoked partition."""
        rows = {} if offset is None else stamped({where: offset})
        if self._member is not None and not self._is_closed:
            settled = partial(self._member.settled, where, rows.get(where), grant)
            self._loop.call_soon_threadsafe(settled)

    def commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        timeout_s: float,
    ) -> Errors:
        """Commit rows and return the partitions that failed. ``grants`` has the stream's grants."""
        if self._is_closed or self._member is None:
            raise ClosedError("the consumer was closed")
        commit = self._member.commit(stamped(rows), grants)
        future = asyncio.run_coroutine_threadsafe(commit, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise RequestTimedOutError(
                f"group {self.group!r}: no answer to a commit in {timeout_s:g} s"
            ) from None

    def commit_soon(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
        on_done: Callable[[Errors | LogbusError], None],
    ) -> None:
        """Commit in the background; ``on_done`` runs on the member's thread."""

        member = self._member
        if self._is_closed or member is None:
            on_done(ClosedError("the consumer was closed"))
            return

        async def run() -> None:
            try:
                on_done(await member.commit(stamped(rows), grants))
            except LogbusError as error:
                on_done(error)

        asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self) -> None:
        """Leave the group and end all streams; other members may claim the partitions at once."""
        if self._is_closed:
            return
        self._is_closed = True
        for stream in self._streams:
            stream.end(ClosedError("the consumer was closed"))
        if self._member is not None:
            closing = asyncio.run_coroutine_threadsafe(self._member.close(), self._loop)
            concurrent.futures.wait([closing], CLOSE_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)

    def forget(self) -> None:
        """Forget the session in a forked child: the parent stays the member."""
        self._is_closed = True

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _join(self) -> None:
        joined = asyncio.Event()
        readers = SessionDispatcher(self._streams)
        member = self._member = NativeShell(
            self.group,
            self.name,
            self._subscription,
            readers,
            make_store=lambda: ZooKeeperStore(
                self._address, session_timeout_ms=self._session_timeout_ms
            ),
            now_ms=lease_ms,
            on_joined=joined.set,
        )
        await member.start()
        await joined.wait()
        if readers.refused is not None:
            raise readers.refused
