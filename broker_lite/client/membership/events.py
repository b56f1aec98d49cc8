"""The words of a Kafka group's member: what happens to it, and what it wants done. Pure.

Every request carries a ``tag`` that its answer repeats; the machine drops answers to requests that
it has given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import TopicPartition

LANE_JOIN, LANE_BEAT = "group", "group-beat"
"""A join may wait for minutes on its connection; heartbeats go over another one."""


class TopicFacts(NamedTuple):
    """A topic that exists."""

    topic_id: str
    partition_count: int


class Identity(NamedTuple):
    """As whom a member commits."""

    member_id: str
    generation: int
    instance_id: str | None


# Events.


class Start(NamedTuple):
    """Join the group."""


class Answered(NamedTuple):
    """``value``: of Find None, of Describe the topics, of Ask the broker's answer."""

    tag: int
    value: Any


class Failed(NamedTuple):
    """No answer: the connection ended, or nobody was there."""

    tag: int
    error: LogbusError


class Stopped(NamedTuple):
    """The reader has let go of what a ``Take`` named, and has committed it."""

    number: int


class Polled(NamedTuple):
    """The reader asks for records again, after the member left because it had not."""


class Look(NamedTuple):
    """Somebody doubts what is known of the topics."""


class Tick(NamedTuple):
    """``wake_ms`` has come. ``is_alive``: the reader waits for records, or has asked for some since
    the last tick."""

    is_alive: bool


class Close(NamedTuple):
    """Leave for good. A static member only stops: its place is kept for its session."""


Event = Start | Answered | Failed | Stopped | Polled | Look | Tick | Close


# Effects.


class Find(NamedTuple):
    """Find the coordinator; later asks go there."""

    tag: int


class Ask(NamedTuple):
    """Ask the coordinator."""

    tag: int
    call: Any
    lane: str
    timeout_ms: int


class Describe(NamedTuple):
    """Tell these topics, those of them that exist; None: all topics."""

    tag: int
    topics: tuple[str, ...] | None


class Give(NamedTuple):
    """The reader reads these from now on. Each has the number of its grant, which no other has."""

    grants: Mapping[TopicPartition, int]


class Take(NamedTuple):
    """The reader is to commit and let go of these; ``Stopped`` is awaited."""

    number: int
    wheres: frozenset[TopicPartition]


class Lose(NamedTuple):
    """These are others' by now, most likely: the reader lets go of them and commits nothing."""

    wheres: frozenset[TopicPartition]


class Idle(NamedTuple):
    """The member has left because its reader did not ask for records; ``Polled`` brings it back."""


class Unread(NamedTuple):
    """This member leads, and cannot read what another one said of itself: that one gets nothing."""

    member_id: str
    error: LogbusError


class Refuse(NamedTuple):
    """The member has ended, and trying again will not help."""

    error: LogbusError


class Closed(NamedTuple):
    """The group has heard that the member left, or needs not."""


Effect = Find | Ask | Describe | Give | Take | Lose | Idle | Unread | Refuse | Closed
