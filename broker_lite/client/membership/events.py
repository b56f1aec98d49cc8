"""Events and effects of the state machine of a Kafka group's member (``machine``).

An effect that sends a request has a ``tag``, and the event with its answer has the same tag. The
machine ignores answers for which it no longer waits."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.client.consuming.changes import Assign, Lose, Revoke
from broker_lite.errors import LogbusError

LANE_JOIN, LANE_BEAT = "group", "group-beat"
"""The lanes (separate connections) for join requests and for heartbeats.

A join may be answered only after minutes, which must not delay heartbeats."""


class TopicFacts(NamedTuple):
    """An existing topic's id and number of partitions."""

    topic_id: str
    partition_count: int


# The events that ``MemberMachine.step`` receives.


class Start(NamedTuple):
    """The consumer was created, and must join the group."""


class Answered(NamedTuple):
    """A request succeeded.

    ``value`` is None for ``FindCoordinator``, the topics for ``Describe``, and the coordinator's
    response for ``CallCoordinator``."""

    tag: int
    value: Any


class CallFailed(NamedTuple):
    """A request got no response: the connection ended, or no broker was reachable."""

    tag: int
    error: LogbusError


class Stopped(NamedTuple):
    """The consumer committed its positions and stopped reading, in the partitions of the ``Revoke``
    with this number."""

    number: int


class Polled(NamedTuple):
    """The user asks for records again, after the member left because of max.poll.interval.ms."""


class RefreshTopics(NamedTuple):
    """The topic metadata may be outdated and must be refreshed."""


class MemberTick(NamedTuple):
    """The time ``wake_ms`` that the state machine requested has come.

    ``is_alive`` says whether the user waits for records, or has asked for some since the last tick.
    If neither for max.poll.interval.ms, the member leaves the group."""

    is_alive: bool


class Close(NamedTuple):
    """The consumer is closed, and must leave the group.

    A static member sends no LeaveGroup, so it keeps its partitions until its session expires."""


Event = Start | Answered | CallFailed | Stopped | Polled | RefreshTopics | MemberTick | Close


# The effects (requests and other actions) that ``MemberMachine.step`` returns.


class FindCoordinator(NamedTuple):
    """Look up the group's coordinator for later ``CallCoordinator`` requests."""

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
    """The member left the group because the consumer was not polled for max.poll.interval.ms.

    The member joins again at the event ``Polled``."""


class UnreadableMember(NamedTuple):
    """The member, as group leader, could not decode another member's subscription.

    That member gets no partitions."""

    member_id: str
    error: LogbusError


class Refuse(NamedTuple):
    """The membership ended with an error that is not retriable; the consumer's calls raise it."""

    error: LogbusError


class LeftGroup(NamedTuple):
    """The member has left the group, or was not a member."""


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
