"""Events and effects of the state machine of a Kafka group's member.

Each request has a ``tag``, and the event with its answer has the same tag. The machine ignores the
answer to a request that it no longer waits for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.client.consuming.changes import Assign, Lose, Revoke
from broker_lite.errors import LogbusError

LANE_JOIN, LANE_BEAT = "group", "group-beat"
"""The lanes of joins and of heartbeats. Each lane is a connection of its own, because a join may
take minutes and must not delay heartbeats."""


class TopicFacts(NamedTuple):
    """The id and the number of partitions of a topic that exists."""

    topic_id: str
    partition_count: int


# The events that ``MemberMachine.step`` takes.


class Start(NamedTuple):
    """The consumer starts, and the member must join the group."""


class Answered(NamedTuple):
    """The result of a request: None for ``FindCoordinator``, the topics for ``Describe``, or the
    coordinator's response for ``CallCoordinator``."""

    tag: int
    value: Any


class CallFailed(NamedTuple):
    """A request failed because the connection ended or no broker was reachable."""

    tag: int
    error: LogbusError


class Stopped(NamedTuple):
    """The reader committed and released the partitions of a ``Revoke``."""

    number: int


class Polled(NamedTuple):
    """The reader polls again. The member had left the group because its reader did not poll."""


class RefreshTopics(NamedTuple):
    """The topic metadata may be stale and must be refreshed."""


class MemberTick(NamedTuple):
    """The machine's time ``wake_ms`` has come. ``is_alive`` says whether the reader waits for
    records, or asked for records since the last tick."""

    is_alive: bool


class Close(NamedTuple):
    """The member must leave the group for good. A static member sends no LeaveGroup, so it keeps
    its partitions until its session ends."""


Event = Start | Answered | CallFailed | Stopped | Polled | RefreshTopics | MemberTick | Close


# The effects that ``MemberMachine.step`` returns.


class FindCoordinator(NamedTuple):
    """Find the coordinator, the receiver of later ``CallCoordinator`` effects."""

    tag: int


class CallCoordinator(NamedTuple):
    """Send a request to the coordinator."""

    tag: int
    call: Any
    lane: str
    timeout_ms: int


class Describe(NamedTuple):
    """Request the metadata of these topics. None means all topics."""

    tag: int
    topics: tuple[str, ...] | None


class Idle(NamedTuple):
    """The member left the group because its reader did not poll. After ``Polled`` it joins
    again."""


class UnreadableMember(NamedTuple):
    """The member leads the group and could not decode another member's subscription. That member
    gets no partitions."""

    member_id: str
    error: LogbusError


class Refuse(NamedTuple):
    """The member has ended with an error that is not retriable."""

    error: LogbusError


class LeftGroup(NamedTuple):
    """The member has left the group, or was not in it."""


Effect = (
    FindCoordinator
    | CallCoordinator
    | Describe
    | Assign
    | Revoke
    | Lose
    | Idle
    | UnreadableMember
    | Refuse
    | LeftGroup
)
