"""``NativeAsyncConsumer``: a native group's consumer with one stream, on the running event loop.

It decides as ``NativeConsumer`` does; the ``Member`` runs on the reader's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.administration.admin import Admin
from broker_lite.client.boottime_clock import lease_ms
from broker_lite.client.callbacks import Callbacks, done
from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.consuming.partition_discovery import PartitionDiscovery
from broker_lite.client.operations import requests
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.config import ConsumerConfig
from broker_lite.errors import CoordinationUnavailableError, LogbusError, NotOwnerError
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.model import CommittedOffset, TopicPartition
from broker_lite.native.beginning import beginnings
from broker_lite.native.changes import Change, Changes
from broker_lite.native.member import NativeShell
from broker_lite.native.session import (
    JOIN_TIMEOUT_S,
    SessionDispatcher,
    consumer_name,
    raise_worst,
    stamped,
)
from broker_lite.native.streams import subscribe, zookeeper_address


class NativeAsyncConsumer(AsyncConsumer):
    """``NativeConsumer`` for asyncio. Make it with ``AsyncBus.consumer``."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        *,
        pattern: str | None,
        group: str | None,
        admin: Admin,
        zookeeper: str | None,
        session_timeout_ms: int,
        config: ConsumerConfig,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(bootstrap_servers, topics, group=group, partitions=None, config=config)
        self._subscription = subscribe(
            topics,
            pattern,
            streams=1,
            group=group,
            session_timeout_ms=session_timeout_ms,
            config=config,
        )
        self._admin = admin
        self._callbacks = callbacks
        self._zookeeper = zookeeper
        self._session_timeout_ms = session_timeout_ms
        self.member_id = consumer_name(config.client_id, self._subscription.host)
        """The consumer's name in the group's registry."""
        self._member: NativeShell | None = None
        self.queue: deque[Change] = deque()
        self._intake.is_held_back = self._is_held_back
        self._owned = Changes(
            self.queue,
            self._intake,
            self._engine,
            self._settled_where,
            says_how_far=config.auto_commit,
        )
        # The member assigns the partitions; the consumer looks up none.
        self._follower = PartitionDiscovery(
            self._shell, self._cluster, config, group=group, topics=(), on_found=lambda _: None
        )

    async def _start(self) -> None:
        if self._topics:
            await self._shell.run(
                requests.known_topics(self._cluster, self._topics, self._deadline())
            )
        address = await asyncio.to_thread(zookeeper_address, self._admin, self._zookeeper)
        joined = asyncio.Event()
        readers = SessionDispatcher([self])
        member = self._member = NativeShell(
            self._group(),
            self.member_id,
            self._subscription,
            readers,
            make_store=lambda: ZooKeeperStore(address, session_timeout_ms=self._session_timeout_ms),
            now_ms=lease_ms,
            on_joined=joined.set,
        )
        try:
            await member.start()
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await joined.wait()
        except TimeoutError:
            await member.close()
            raise CoordinationUnavailableError(
                f"group {self.group!r} could not be joined within {JOIN_TIMEOUT_S:g} s; does "
                f"ZooKeeper at {address} answer?"
            ) from None
        except BaseException:
            await member.close()
            raise
        if readers.refused is not None:
            await member.close()
            raise readers.refused
        if self.config.auto_commit:
            self._commit_due_ms = monotonic_ms() + self.config.auto_commit_interval_ms

    # Reports of the member.

    def wake(self) -> None:
        self._news.set()

    def end(self, error: LogbusError) -> None:
        self._end = error
        self._news.set()

    def _is_held_back(self) -> bool:
        return self._member is None or lease_ms() >= self._member.lease_until_ms

    # The reader's part.

    def _has_changes(self) -> bool:
        return bool(self._owned)

    async def _take_changes(self) -> None:
        await self._let_go()
        while self._owned.pending:
            await self._begin()
            if not self.queue:
                break  # Partitions that no broker knows yet are tried at the next call.
            # A partition may have been lost during the request: hand out none of its records.
            await self._let_go()

    async def _let_go(self) -> None:
        owned = self._owned
        while (going := owned.next()) is not None:
            reads = owned.read_of(going)
            callback = self._callbacks.lost if going.is_lost else self._callbacks.revoked
            try:
                await done(callback(self, reads))
            finally:
                owned.let_go(going)

    async def _begin(self) -> None:
        owned = self._owned
        begun = await self._shell.run(
            beginnings(
                self._cluster, self._group(), dict(owned.pending), self.config, self._deadline()
            )
        )
        owned.begin(*begun.starts)
        if begun.commits and self.config.auto_commit:
            # Without a commit, a later owner would resolve "latest" to another offset.
            await self._try_commit(begun.commits, owned.grants(begun.commits))
        await done(self._callbacks.assigned(self, begun.starts.offsets))

    def _settled_where(
        self, where: TopicPartition, offset: CommittedOffset | None, grant: int
    ) -> None:
        if self._member is not None:
            rows = {} if offset is None else stamped({where: offset})
            self._member.settled(where, rows.get(where), grant)

    # Commits.

    def _grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._owned.grants(wheres)

    async def _commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
    ) -> None:
        if rows and self._member is not None:
            raise_worst(await self._member.commit(stamped(rows), grants))

    async def _close(self, *, is_done: bool) -> None:
        try:
            if self._end is None:
                await done(self._callbacks.revoked(self, self._intake.assignment()))
            with contextlib.suppress(NotOwnerError):
                await super()._close(is_done=is_done)
        finally:
            if self._member is not None:
                await self._member.close()
