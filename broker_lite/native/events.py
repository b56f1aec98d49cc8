"""The words of a native group's member: what happens to it, and what it wants done. Pure.

Every request carries a ``tag`` that its answer repeats. A request whose connection was lost is
never answered; the machine has forgotten its tag by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.metadata.store import (
    ChildrenChanged,
    DataChanged,
    Operation,
    Refused,
    SessionLost,
    Suspended,
    Znode,
)
from broker_lite.model import CommittedOffset, TopicPartition

# Events.


class Connected(NamedTuple):
    """A connection is there; ``new_session``: everything ephemeral of before is gone."""

    session_id: int
    new_session: bool
    session_timeout_ms: int


class Got(NamedTuple):
    tag: int
    znode: Znode | None


class Listed(NamedTuple):
    tag: int
    names: list[str] | None


class Written(NamedTuple):
    """``refused``: nothing was written, and why."""

    tag: int
    refused: Refused | None


class Beaten(NamedTuple):
    """ZooKeeper's leader answered: the session lived when the heartbeat was sent, or later."""

    tag: int


class Failed(NamedTuple):
    """No answer, for no fault of the connection's; a write may have happened."""

    tag: int


class Tick(NamedTuple):
    """``wake_ms`` has come."""


class Commit(NamedTuple):
    """A reader commits; answered by ``Answer`` with its number. ``grants``: under which it read
    these, by ``Start``; what it read under another one than is owned now is not committed."""

    number: int
    rows: Mapping[TopicPartition, CommittedOffset]
    grants: Mapping[TopicPartition, int]


class Settled(NamedTuple):
    """The reader has stopped reading a partition that was taken from it, which it had by this
    grant, and is done with all below this offset; None: it says nothing about how far it came."""

    where: TopicPartition
    offset: CommittedOffset | None
    grant: int


Event = (
    Connected
    | Suspended
    | SessionLost
    | DataChanged
    | ChildrenChanged
    | Got
    | Listed
    | Written
    | Beaten
    | Failed
    | Tick
    | Commit
    | Settled
)


# Effects.


class Get(NamedTuple):
    tag: int
    path: str
    watch: bool


class List(NamedTuple):
    tag: int
    path: str
    watch: bool


class Write(NamedTuple):
    tag: int
    operations: tuple[Operation, ...]


class Beat(NamedTuple):
    """Ask ZooKeeper's leader for a sign of life."""

    tag: int


class Start(NamedTuple):
    """Where a partition stands as it is claimed. ``committed`` is None where the group has
    committed nothing; ``is_added``: the partition was made after the group began to read;
    ``grant``: a number that no other claim of this consumer has."""

    committed: CommittedOffset | None
    is_added: bool
    topic_id: str
    grant: int


class Give(NamedTuple):
    """A stream owns a partition from now on."""

    stream: int
    where: TopicPartition
    start: Start


class Take(NamedTuple):
    """A stream is to stop reading a partition; ``Settled`` is awaited for a little while."""

    stream: int
    where: TopicPartition


class Lose(NamedTuple):
    """A stream does not own a partition any more."""

    stream: int
    where: TopicPartition


class Answer(NamedTuple):
    """What became of a commit; partitions without an error are committed."""

    number: int
    errors: Mapping[TopicPartition, LogbusError]


class Refuse(NamedTuple):
    """The group cannot be joined, and trying again will not help; the member has ended."""

    error: LogbusError


class Restart(NamedTuple):
    """End the session and begin another one."""


Effect = Get | List | Write | Beat | Give | Take | Lose | Answer | Refuse | Restart

ALL = TopicPartition("", -1)
"""In an answer: every row that has no error of its own."""
