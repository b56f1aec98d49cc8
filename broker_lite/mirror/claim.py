"""The claim: the exclusive right of one mirror to copy a source to a target cluster.

Two mirrors of a source would write every record twice. To take the claim, a mirror joins a group on
the target as its only member. Four things keep another mirror out:

- A mirror does not join while the group has a member.
- A mirror commits its positions as a member, so the group refuses commits of a former mirror.
- A mirror writes records only within a lease, a limited time that each heartbeat renews.
- If a mirror was suspended during a write, the next mirror's producer epoch fences the write
  (``MirrorTarget``).

Heartbeats have their own thread; the mirror's thread makes all other calls."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from threading import Event, Thread
from typing import Any

from broker_lite.client.administration.admin import Admin
from broker_lite.client.boottime_clock import lease_ms
from broker_lite.client.operations import group_requests
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.steps import CallExchange
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    LogbusError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    RequestTimedOutError,
    UnknownMemberIdError,
)
from broker_lite.model import CommittedOffset, Endpoint, TopicPartition
from broker_lite.wire.calls.groups import DescribedGroupMember
from broker_lite.wire.calls.members import (
    Assigned,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from broker_lite.wire.consumer_protocol import encode_subscription

SESSION_MS = 6_000
"""Session timeout (ms) of a mirror in its group: the minimum that brokers allow by default
(group.min.session.timeout.ms)."""
BEATS_PER_SESSION = 6
"""Number of heartbeats in one session timeout."""
MARGIN_PART = 4
"""The mirror's lease, the time in which it may write, ends earlier than its session in the group,
by the session timeout divided by this number: a margin for clock drift."""
JOIN_MS = 10_000
"""Time limit (ms) of the requests with which a mirror joins its group."""
CHECK_S = 0.2
"""Seconds between two checks whether the member of a former mirror is still in the group."""
COMMIT_MS = 30_000
"""Time limit (ms) of a commit of positions."""
INSTANCE = "mirror"
PROTOCOL = "mirror"
SUBSCRIBED = JoinProtocol(PROTOCOL, encode_subscription(()))
"""The mirror's subscription in JoinGroup. It has no topics, but cannot be left empty, because
brokers refuse a member whose subscription they cannot decode."""
OVER = (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
"""Errors of a commit which show that the group does not know this mirror as its member any more.
The mirror must then acquire its claim (the right to copy the source) again."""


def _lost(why: LogbusError) -> LogbusError:
    return CoordinatorNotAvailableError(
        f"the mirror lost its claim and takes it again: {why.message}"
    )


class MirrorClaim:
    """The claim of one mirror: its exclusive right to copy the source. ``acquire`` takes the claim,
    ``check`` verifies it before each write, and ``release`` gives it up.

    ``member`` is the member id, generation and instance id with which the mirror commits
    positions."""

    def __init__(
        self,
        servers: str,
        client_id: str,
        session_ms: int,
        security: ClientSecurity | None = None,
    ) -> None:
        self.member: tuple[str, int, str | None] = group_requests.NO_MEMBER
        self._session_ms = session_ms
        self._admin = Admin(servers, client_id=client_id, security=security)
        self._group = ""
        self._until_ms = 0.0
        self._error: LogbusError | None = None
        self._stop = Event()
        self._thread: Thread | None = None

    def acquire(self, group: str, stop: Event) -> bool:
        """Take the claim (the right to copy the source) by joining ``group``, and return True.

        If the group has a member, wait up to two session timeouts: a mirror that was killed expires
        within this time. Returns False if ``stop`` is set meanwhile. Raises NonEmptyGroupError if
        the member stays, because another mirror is running."""
        self.release()
        self._group = group
        patience_ms = monotonic_ms() + 2 * self._session_ms
        keepers = {self._coordinator()}
        while others := self._members():
            if monotonic_ms() >= patience_ms:
                other = others[0]
                raise NonEmptyGroupError(
                    f"another mirror of this source runs already: {other.client_id} at "
                    f"{other.client_host.lstrip('/')}. Two mirrors would copy every record twice, "
                    f"so stop it first (logbus groups members {group})"
                )
            if stop.wait(CHECK_S):
                return False
            keepers.add(self._coordinator())
        # The group's coordinator has changed during the wait. Another mirror that the new
        # coordinator does not list yet may still be within its lease. Wait until that lease has
        # expired.
        if len(keepers) > 1 and stop.wait(self._session_ms / 1000):
            return False
        began_ms = lease_ms()
        self._join()
        self._confirm(began_ms)
        self._error = None
        self._stop = Event()
        self._thread = Thread(target=self._beat, name="logbus-mirror-claim", daemon=True)
        self._thread.start()
        return True

    def check(self) -> None:
        """Check before a write that this mirror still has the claim (the right to copy the source).
        Raises FencedInstanceIdError if another mirror has taken it, and a retriable error if this
        mirror must take it again."""
        if self._error is not None:
            raise self._error
        if lease_ms() >= self._until_ms:
            raise _lost(RequestTimedOutError("the coordinator did not answer a heartbeat in time"))

    def commit(
        self, rows: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, LogbusError | None]:
        """Commit positions as a member of the mirror's group. Return an error, or None, for each
        position. If this mirror has lost the claim (the right to copy the source), raises the
        errors of ``check``."""
        done = self._admin.within(COMMIT_MS).run(
            lambda cluster, ms: group_requests.commit_offsets(
                cluster, self._group, rows, ms, self.member
            )
        )
        for error in done.values():
            if isinstance(error, OVER):
                self.check()
                raise _lost(error)
        return done

    def release(self) -> None:
        """Leave the group, so that another mirror may start at once."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        member, self.member = self.member, group_requests.NO_MEMBER
        self._until_ms = 0.0
        if member[0] and not isinstance(self._error, FencedInstanceIdError):
            # If LeaveGroup fails, the claim (the right to copy) ends when the member's session
            # times out.
            with contextlib.suppress(LogbusError):
                self._call(LeaveGroupRequest(self._group, member[0], member[2]), self._session_ms)

    def close(self) -> None:
        """Release the claim (the right to copy the source), and close the connections."""
        self.release()
        self._admin.close()

    def _coordinator(self) -> Endpoint:
        return self._admin.within(JOIN_MS).run(group_requests.find_coordinator, self._group)

    def _members(self) -> tuple[DescribedGroupMember, ...]:
        try:
            described = self._admin.within(JOIN_MS).describe_groups([self._group])
        except GroupIdNotFoundError:
            return ()
        return described[self._group].members

    def _join(self) -> None:
        joined = self._call(
            JoinGroupRequest(self._group, self._session_ms, JOIN_MS, "", INSTANCE, (SUBSCRIBED,)),
            JOIN_MS + self._session_ms,
        )
        member = joined.member_id, joined.generation_id, INSTANCE
        parts = tuple(Assigned(row.member_id, b"") for row in joined.members)
        self._call(
            SyncGroupRequest(self._group, member[1], member[0], INSTANCE, PROTOCOL, parts), JOIN_MS
        )
        self.member = member

    def _confirm(self, asked_ms: float) -> None:
        self._until_ms = asked_ms + self._session_ms - self._session_ms // MARGIN_PART

    def _beat(self) -> None:
        beat = HeartbeatRequest(self._group, self.member[1], self.member[0], INSTANCE)
        while not self._stop.wait(self._session_ms / BEATS_PER_SESSION / 1000):
            asked_ms = lease_ms()
            try:
                self._call(beat, self._session_ms)
            except FencedInstanceIdError:
                self._error = FencedInstanceIdError(
                    "another mirror of this source took over; this mirror stops"
                )
                return
            except LogbusError as error:
                if error.retriable:
                    continue  # Retry with the next heartbeat. If none succeeds, the lease expires.
                self._error = _lost(error)
                return
            self._confirm(asked_ms)

    def _call(self, call: Any, timeout_ms: float) -> Any:
        return self._admin.within(timeout_ms).run(
            group_requests.on_coordinator,
            self._group,
            CallExchange(call),
            group_requests.answer_error,
        )
