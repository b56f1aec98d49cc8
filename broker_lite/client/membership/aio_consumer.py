"""``AsyncMemberConsumer``: a group member on the running event loop.

It decides as ``MemberConsumer`` does; its callbacks may be coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.boottime_clock import lease_ms
from broker_lite.client.callbacks import Callbacks, done
from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.consuming.deleted_topics import GoneTopics
from broker_lite.client.consuming.partition_discovery import PartitionDiscovery
from broker_lite.client.membership.beginning import beginnings, commit, first_look
from broker_lite.client.membership.changes import Pulse, Share
from broker_lite.client.membership.consumer import GONE_SLACK_MS, JOIN_WAIT_S, LEAVE_WAIT_S
from broker_lite.client.membership.events import Lose, Take
from broker_lite.client.membership.member import Change, MemberShell
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations import requests
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.errors import LogbusError, NotOwnerError
from broker_lite.model import CommittedOffset, TopicPartition


class AsyncMemberConsumer(AsyncConsumer):
    """``MemberConsumer`` for asyncio. Make it with ``AsyncBus.consumer`` and a group."""

    config: MemberConfig

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        *,
        group: str,
        pattern: str | None,
        config: MemberConfig,
        callbacks: Callbacks,
    ) -> None:
        super().__init__(bootstrap_servers, topics, group=group, partitions=None, config=config)
        self._callbacks = callbacks
        # The member assigns the partitions; the consumer looks up none.
        self._follower = PartitionDiscovery(
            self._shell, self._cluster, config, group=group, topics=(), on_found=lambda _: None
        )
        self._share = Share(self._intake, deque())
        self._pulse = Pulse(self._intake)
        self._member = self._share.member = MemberShell(
            self._shell,
            self._cluster,
            group,
            topics=self._topics,
            pattern=pattern,
            config=config,
            now_ms=lease_ms,
            is_alive=self._pulse.look,
            on_change=self._heard,
            on_news=self._news.set,
        )
        patience_ms = config.metadata_max_age_ms + GONE_SLACK_MS
        self._gone = GoneTopics(self._intake, self._engine, patience_ms, self._member.look)
        self._intake.is_held_back = self._is_held_back

    @property
    def member_id(self) -> str:
        """Return the member id; "" while the consumer is not a member."""
        identity = self._member.identity
        return "" if identity is None else identity.member_id

    async def _start(self) -> None:
        member = self._member
        self._share.look = await self._shell.run(
            first_look(self._cluster, self._group(), self._topics, self.config, self._deadline())
        )
        member.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_WAIT_S):
                while not member.has_joined and member.refused is None:
                    self._news.clear()
                    await self._news.wait()
        self._check_refused()
        if self.config.auto_commit:
            self._commit_due_ms = monotonic_ms() + self.config.auto_commit_interval_ms
        if self._share:
            await self._take_changes()

    # Reports of the member.

    def _heard(self, change: Change) -> None:
        self._share.queue.append(change)

    def _is_held_back(self) -> bool:
        return lease_ms() >= self._member.lease_until_ms

    # The reader's part.

    async def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        pulse = self._pulse
        pulse.calls += 1
        pulse.is_waiting = True
        try:
            if self._member.is_idle:
                self._member.polled()
            return await super()._fill(timeout_s, is_more)
        finally:
            pulse.is_waiting = False

    def _has_changes(self) -> bool:
        return bool(self._share) or self._gone.is_due or self._member.refused is not None

    def _check_refused(self) -> None:
        if self._member.refused is not None and not self._share.queue:
            raise self._member.refused

    async def _take_changes(self) -> None:
        self._gone.release()
        await self._give_up_all()
        while self._share.pending:
            await self._begin()
            if not self._share.queue:
                break  # Partitions that no broker knows yet are tried at the next call.
            # A partition may have been lost during the request: hand out none of its records.
            await self._give_up_all()

    async def _give_up_all(self) -> None:
        while (change := self._share.next()) is not None:
            await self._give_up(change)
        self._check_refused()

    async def _begin(self) -> None:
        share = self._share
        begun = await self._shell.run(
            beginnings(
                self._cluster,
                self._group(),
                share.pending,
                look=share.look,
                config=self.config,
                deadline_ms=self._deadline(),
            )
        )
        new = share.begin(begun.starts)
        if begun.commits and self.config.auto_commit:
            # Without a commit, a later owner would resolve "latest" to another offset.
            await self._try_commit(begun.commits, share.grants(begun.commits))
        await done(self._callbacks.assigned(self, new))

    async def _give_up(self, change: Take | Lose) -> None:
        going, lost = self._share.split(change)
        try:
            await done(self._callbacks.lost(self, lost))
            if self.config.auto_commit and going:
                await self._await_commit()
                settled = self._intake.settled()
                rows = {where: settled[where] for where in going}
                await self._try_commit(rows, self._share.grants(rows))
            await done(self._callbacks.revoked(self, going))
        finally:
            self._share.let_go(change)

    # Commits.

    def _grants(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._share.grants(wheres)

    async def _commit(
        self,
        rows: Mapping[TopicPartition, CommittedOffset],
        grants: Mapping[TopicPartition, int],
    ) -> None:
        if rows:
            operation = commit(
                self._cluster,
                self._group(),
                rows,
                grants=grants,
                seat=self._share,
                deadline_ms=self._deadline(),
            )
            requests.raise_first(await self._shell.run(operation))

    # Closing.

    async def _close(self, *, is_done: bool) -> None:
        if self._end is not None:
            return
        try:
            if self._commit_due_ms != float("inf"):
                with contextlib.suppress(NotOwnerError):
                    await self.commit(None if is_done else self._intake.settled())
            await done(self._callbacks.revoked(self, self._intake.assignment()))
        finally:
            await self._leave()
            # Everything is committed and released.
            self._commit_due_ms = float("inf")
            await super()._close(is_done=is_done)

    async def _leave(self) -> None:
        """Leave the group, so that other members get the partitions at once. A static member
        keeps them for its session."""
        member = self._member
        member.close()
        with contextlib.suppress(TimeoutError, LogbusError):
            async with asyncio.timeout(LEAVE_WAIT_S):
                while not member.is_closed:
                    self._news.clear()
                    await self._news.wait()
