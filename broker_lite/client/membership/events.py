"""Events and effects of the state machine of a Kafka group's member. Pure.

Each request carries a ``tag`` that its answer repeats. The machine drops answers to requests that
it has given up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.client.consuming.changes import Give, Lose, Take
from broker_lite.errors import LogbusError

LANE_JOIN, LANE_BEAT = "group", "group-beat"
"""Lanes are separate connections: a join may wait for minutes, heartbeats must not."""


class TopicFacts(NamedTuple):
    """An existing topic."""

    topic_id: str
    partition_count: int


# Events.


class Start(NamedTuple):
    """Join the group."""


class Answered(NamedTuple):
    """The result of a request: None for Find, the topics for Describe, the coordinator's response
    for Ask."""

    tag: int
    value: Any


class CallFailed(NamedTuple):
    """A request failed: the connection ended or no broker was reachable."""

    tag: int
    error: LogbusError


class Stopped(NamedTuple):
    """The reader committed and released the partitions of a ``Take``."""

    number: int


class Polled(NamedTuple):
    """The reader polls again after the member left because the reader did not poll."""


class Look(NamedTuple):
    """Refresh the topic metadata; it may be stale."""


class MemberTick(NamedTuple):
    """``wake_ms`` has passed. ``is_alive``: the reader waits for records, or asked since the
    last tick."""

    is_alive: bool


class Close(NamedTuple):
    """Leave for good. A static member sends no LeaveGroup, so it keeps its partitions until its
    session ends."""


Event = Start | Answered | CallFailed | Stopped | Polled | Look | MemberTick | Close


# Effects.


class Find(NamedTuple):
    """Find the coordinator; later Asks go to it."""

    tag: int


class Ask(NamedTuple):
    """Send a request to the coordinator."""

    tag: int
    call: Any
    lane: str
    timeout_ms: int


class Describe(NamedTuple):
    """Request the metadata of these topics, if they exist; None: all topics."""

    tag: int
    topics: tuple[str, ...] | None


class Idle(NamedTuple):
    """The member left because its reader did not poll; after ``Polled`` it joins again."""


class Unread(NamedTuple):
    """The member leads the group and could not decode another member's subscription. That member
    gets no partitions."""

    member_id: str
    error: LogbusError


class Refuse(NamedTuple):
    """The member ended, and a retry will not help."""

    error: LogbusError


class LeftGroup(NamedTuple):
    """The member has left the group, or was not in it."""


Effect = Find | Ask | Describe | Give | Take | Lose | Idle | Unread | Refuse | LeftGroup
