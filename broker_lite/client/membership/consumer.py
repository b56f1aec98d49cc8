"""``MemberConsumer``: a consumer that shares its topics with its group's other members; blocking.

A ``Consumer`` whose partitions come and go by a coordinator's word (``member``, on the consumer's
own background thread, which beats while the reader is at its work). What the group says is done on
the reader's thread, in the calls that ask for records.
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
from broker_lite.client.membership.member import Change, Member
from broker_lite.client.membership.settings import MemberConfig
from broker_lite.client.operations.requests import PerPartition
from broker_lite.client.transport.blocking import monotonic_ms
from broker_lite.client.transport.steps import Operation
from broker_lite.errors import LogbusError, NotOwnerError
from broker_lite.model import CommittedOffset, TopicPartition

JOIN_WAIT_S = 3.0
"""How long making a consumer waits for its first part: longer only where others are at their work,
who give partitions up when they ask for more."""
LEAVE_WAIT_S = 5.0
GONE_SLACK_MS = 5000


class MemberConsumer(Consumer):
    """Reads what its group's other members leave to it. Make it with ``Bus.consumer`` and a group.

    As ``Consumer``, with these differences. Partitions come and go, always within a call that asks
    for records; before one goes to another member, what is done with is committed (unless
    ``auto_commit=False``) and ``on_revoke`` is called. A reader that does not ask for
    ``max_poll_interval_ms`` leaves the group, and joins again when it asks. Nothing is handed out
    while the coordinator has not confirmed for nearly ``session_timeout_ms`` that this member is
    there: its partitions may be others' by then. A commit of what is not this member's any more
    raises NotOwnerError and changes nothing. So: commit before the work and drop what NotOwnerError
    names, and each record is worked on at most once; work before the commit (automatic commits do)
    and it is at least once. Raises FencedInstanceIdError when another consumer has joined under
    the same ``group_instance_id``.
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
        # The loop over records looks at this queue after each of them.
        self._share = Share(self._intake, self._changes)
        self._share.look = look
        self._pulse = Pulse(self._intake)
        self._member = self._share.member = Member(
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
        """The consumer's name in the group; "" while it is no member."""
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

    # What the member tells; on the reactor's thread.

    def _heard(self, change: Change) -> None:
        self._share.queue.append(change)

    def _is_held_back(self) -> bool:
        return lease_ms() >= self._member.lease_until_ms

    # What the reader does about it.

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
                break  # What no broker knows yet is asked for at the next call.
            # While brokers were asked something may have gone: nothing of that is handed out.
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
            # Else the end would be somewhere else for whoever takes over after a crash.
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
        """An automatic commit that is waited for; what is another's by now is no trouble."""
        self._await_commit()
        try:
            self._commit_rows(rows, LAST_COMMIT_TIMEOUT_MS)
            self.commit_error = None
        except NotOwnerError:
            pass
        except LogbusError as error:
            self.commit_error = error

    # The end.

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
        """Others may have the partitions at once; a static member's are kept for it."""
        member = self._member
        member.close()
        with self._condition:
            self._condition.wait_for(lambda: member.is_closed or self._end, LEAVE_WAIT_S)
