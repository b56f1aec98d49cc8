"""``MemberConsumer``: a blocking consumer that shares its topics with the members of its group.

The membership (``member``) runs on the consumer's background thread, which sends heartbeats while
the reader works. Assignments and revocations take effect on the reader's thread, in calls that ask
for records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker_lite.client.boottime_clock import lease_ms
from broker_lite.client.callbacks import NO_CALLBACKS, Callbacks
from broker_lite.client.consuming.consumer import (
    LAST_COMMIT_TIMEOUT_MS,
    OPERATION_TIMEOUT_MS,
    Consumer,
)
from broker_lite.client.consuming.deleted_topics import GoneTopics
from broker_lite.client.consuming.starting import Starts
from broker_lite.client.membership.beginning import beginnings, commit, first_look
from broker_lite.client.membership.changes import Pulse, Share
from broker_lite.client.membership.events import Lose, Take
from broker_lite.client.membership.member import Change, MemberShell
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations.requests import PerPartition
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.client.transport.steps import Operation
from broker_lite.errors import LogbusError, NotOwnerError
from broker_lite.model import CommittedOffset, TopicPartition

JOIN_WAIT_S = 3.0
"""Seconds that the constructor waits for the first assignment. It takes longer only while other
members still work on records."""
LEAVE_WAIT_S = 5.0
GONE_SLACK_MS = 5000


class MemberConsumer(Consumer):
    """A consumer that shares partitions with the other members of its group.

    Make it with ``Bus.consumer`` and a group. Differences from ``Consumer``: assignments change
    only within calls that ask for records. Before a revocation the consumer commits the processed
    records (unless ``auto_commit=False``) and calls ``on_revoke``. A reader that does not ask for
    ``max_poll_interval_ms`` leaves the group, and joins again at its next call. The consumer hands
    out no records once the coordinator has not confirmed the membership for nearly
    ``session_timeout_ms``.

    A commit of a partition that the member lost raises NotOwnerError and changes nothing. To
    process each record at most once, commit before the work and drop the partitions that
    NotOwnerError names. Automatic commits follow the work, so each record is processed at least
    once. Raises FencedInstanceIdError when another consumer joined with the same
    ``group_instance_id``.
    """

    _defers_changes = True
    config: MemberConfig

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        *,
        group: str,
        pattern: str | None = None,
        config: MemberConfig | None = None,
        callbacks: Callbacks = NO_CALLBACKS,
    ) -> None:
        config = config or MemberConfig()
        self._prepare(bootstrap_servers, topics, group, config)
        self._callbacks = callbacks
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        look = self._pool.run(first_look(self._cluster, group, self._topics, config, deadline_ms))
        self._start_reading((), Starts({}, {}), self._is_held_back)
        # The record loop checks this queue after each record.
        self._share = Share(self._intake, self._changes)
        self._share.look = look
        self._pulse = Pulse(self._intake)
        self._member = self._share.member = MemberShell(
            self._reactor,
            self._cluster,
            group,
            topics=self._topics,
            pattern=pattern,
            config=config,
            now_ms=lease_ms,
            is_alive=self._pulse.look,
            on_change=self._heard,
            on_news=self._notify,
        )
        patience_ms = config.metadata_max_age_ms + GONE_SLACK_MS
        self._gone = GoneTopics(self._intake, self._engine, patience_ms, self._member.look)
        self._member.start()
        try:
            self._await_first_part()
        except BaseException:
            self._leave()
            self.stop()
            raise

    @property
    def member_id(self) -> str:
        """Return the member id; "" while the consumer is not a member."""
        identity = self._member.identity
        return "" if identity is None else identity.member_id

    @property
    def is_settled(self) -> bool:
        return self._member.is_settled and not self._has_changes()

    def _await_first_part(self) -> None:
        member = self._member
        with self._condition:
            self._condition.wait_for(
                lambda: member.has_joined or member.refused or self._end, JOIN_WAIT_S
            )
        self._check_refused()
        if self._share:
            self._take_changes()

    # Reports of the member, on the reactor's thread.

    def _heard(self, change: Change) -> None:
        self._share.queue.append(change)

    def _is_held_back(self) -> bool:
        return lease_ms() >= self._member.lease_until_ms

    # The reader's part.

    def _fill(self, timeout_s: float | None, is_more: bool = False) -> bool:
        pulse = self._pulse
        pulse.calls += 1
        pulse.is_waiting = True
        try:
            if self._member.is_idle:
                self._member.polled()
            return super()._fill(timeout_s, is_more)
        finally:
            pulse.is_waiting = False

    def _has_changes(self) -> bool:
        return bool(self._share) or self._gone.is_due or self._member.refused is not None

    def _check_refused(self) -> None:
        if self._member.refused is not None and not self._share.queue:
            raise self._member.refused

    def _take_changes(self) -> None:
        self._gone.release()
        self._give_up_all()
        while self._share.pending:
            self._begin()
            if not self._share.queue:
                break  # Partitions that no broker knows yet are tried at the next call.
            # A partition may have been lost during the request: hand out none of its records.
            self._give_up_all()

    def _give_up_all(self) -> None:
        while (change := self._share.next()) is not None:
            self._give_up(change)
        self._check_refused()

    def _begin(self) -> None:
        share = self._share
        deadline_ms = monotonic_ms() + OPERATION_TIMEOUT_MS
        begun = self._pool.run(
            beginnings(
                self._cluster,
                self._group(),
                share.pending,
                look=share.look,
                config=self.config,
                deadline_ms=deadline_ms,
            )
        )
        new = share.begin(begun.starts)
        if begun.commits and self.config.auto_commit:
            # Without a commit, a later owner would resolve "latest" to another offset.
            self._try_commit(begun.commits)
        self._callbacks.assigned(self, new)

    def _give_up(self, change: Take | Lose) -> None:
        going, lost = self._share.split(change)
        try:
            self._callbacks.lost(self, lost)
            if self.config.auto_commit and going:
                settled = self._intake.settled()
                self._try_commit({where: settled[where] for where in going})
            self._callbacks.revoked(self, going)
        finally:
            self._share.let_go(change)

    # Commits.

    def _commit_operation(
        self, rows: Mapping[TopicPartition, CommittedOffset], deadline_ms: float
    ) -> Operation[PerPartition[None]]:
        share = self._share
        return commit(
            self._cluster,
            self._group(),
            rows,
            grants=share.grants(rows),
            seat=share,
            deadline_ms=deadline_ms,
        )

    def _try_commit(self, rows: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit automatically and wait for it; ignore partitions that the member lost."""
        self._await_commit()
        try:
            self._commit_rows(rows, LAST_COMMIT_TIMEOUT_MS)
            self.commit_error = None
        except NotOwnerError:
            pass
        except LogbusError as error:
            self.commit_error = error

    # Closing.

    def _close(self, *, is_done: bool) -> None:
        if self._end is not None:
            return
        try:
            self._last_commit(is_done=is_done)
            self._callbacks.revoked(self, self._intake.assignment())
        finally:
            self._leave()
            self.stop()

    def _leave(self) -> None:
        """Leave the group, so that other members get the partitions at once. A static member
        keeps them for its session."""
        member = self._member
        member.close()
        with self._condition:
            self._condition.wait_for(lambda: member.is_closed or self._end, LEAVE_WAIT_S)
