"""Events that the state machine of a Kafka group's member (``machine``) receives, and effects that
it returns.

A request effect has a ``tag``, and the event with its answer has the same tag. The machine ignores
answers to requests for which it no longer waits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.client.consuming.changes import Assign, Lose, Revoke
from broker_lite.errors import LogbusError

LANE_JOIN, LANE_BEAT = "group", "group-beat"
"""The lanes (separate connections) for join requests and for heartbeats. The coordinator may answer
a join only after minutes, which must not delay heartbeats."""


class TopicFacts(NamedTuple):
    """What the machine needs to know about an existing topic: its id and its number of
    partitions."""

    topic_id: str
    partition_count: int


# The events that ``MemberMachine.step`` receives.


class Start(NamedTuple):
    """The consumer was created, and must join the group."""


class Answered(NamedTuple):
    """A request succeeded. ``value`` is None for ``FindCoordinator``, the topics for ``Describe``,
    and the coordinator's response for ``CallCoordinator``."""

    tag: int
    value: Any


class CallFailed(NamedTuple):
    """A request got no response, for example because the connection ended or no broker was
    reachable."""

    tag: int
    error: LogbusError


class Stopped(NamedTuple):
    """The consumer committed and stopped reading the partitions of the ``Revoke`` with this
    number."""

    number: int


class Polled(NamedTuple):
    """The user asks for records again, after the member left the group because it was not polled
    (``Idle``)."""


class RefreshTopics(NamedTuple):
    """The topic metadata may be outdated and must be refreshed."""


class MemberTick(NamedTuple):
    """The time for which the machine asked (``wake_ms``) has come. ``is_alive`` says whether the
    consumer waits for records, or was polled since the last tick (max.poll.interval.ms)."""

    is_alive: bool


class Close(NamedTuple):
    """The consumer is closed, and must leave the group. A static member sends no LeaveGroup, so it
    keeps its partitions until its session expires."""


Event = Start | Answered | CallFailed | Stopped | Polled | RefreshTopics | MemberTick | Close


# The effects that ``MemberMachine.step`` returns.


class FindCoordinator(NamedTuple):
    """Look up the group's coordinator, to which later ``CallCoordinator`` requests are sent."""

    tag: int


class CallCoordinator(NamedTuple):
    """Send a request to the group's coordinator."""

    tag: int
    call: Any
    lane: str
    timeout_ms: int


class Describe(NamedTuple):
    """Request the metadata of these topics, or of all topics if ``topics`` is None."""

    tag: int
    topics: tuple[str, ...] | None


class Idle(NamedTuple):
    """Report that the member left the group because the consumer was not polled for
    max.poll.interval.ms. It joins again at the event ``Polled``."""


class UnreadableMember(NamedTuple):
    """Report that this member, as group leader, could not decode the subscription of the member
    ``member_id``, which therefore receives no partitions."""

    member_id: str
    error: LogbusError


class Refuse(NamedTuple):
    """Report that the membership has ended with an error that is not retriable. The consumer's
    calls then raise it."""

    error: LogbusError


class LeftGroup(NamedTuple):
    """Report that the member has left the group, or was not a member."""


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
