"""Events and effects of the state machine of a native group's member.

Each request has a ``tag``, and the event with its answer has the same tag. Once a connection is
lost, its requests get no answer.
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

# The events that ``NativeMachine.step`` takes.


class SessionConnected(NamedTuple):
    """A connection to ZooKeeper is established. With ``new_session``, the ephemeral znodes of the
    earlier session no longer exist."""

    session_id: int
    new_session: bool
    session_timeout_ms: int


class Got(NamedTuple):
    tag: int
    znode: Znode | None


class Listed(NamedTuple):
    tag: int
    names: list[str] | None


class WriteDone(NamedTuple):
    """The result of a write: None, or the reason why nothing was written."""

    tag: int
    refused: Refused | None


class Beaten(NamedTuple):
    """ZooKeeper's leader answered a heartbeat, so the session was alive when the heartbeat was
    sent."""

    tag: int


class RequestFailed(NamedTuple):
    """A request failed while the connection stayed open. A write may have taken effect."""

    tag: int


class NativeTick(NamedTuple):
    """The time ``NativeMachine.wake_ms`` has come."""


class StreamCommit(NamedTuple):
    """A reader commits offsets. The ``CommitAnswer`` has the same ``number``.

    ``grants`` has the number that the reader received with each partition. If a reader has received
    the partition again since then, the machine refuses its rows.
    """

    number: int
    rows: Mapping[TopicPartition, CommittedOffset]
    grants: Mapping[TopicPartition, int]


class Settled(NamedTuple):
    """The reader stopped reading a revoked partition, which it received with the number ``grant``.
    The reader has processed all records below ``offset``; None means that its position is unknown.
    """

    tp: TopicPartition
    offset: CommittedOffset | None
    grant: int


Event = (
    SessionConnected
    | Suspended
    | SessionLost
    | DataChanged
    | ChildrenChanged
    | Got
    | Listed
    | WriteDone
    | Beaten
    | RequestFailed
    | NativeTick
    | StreamCommit
    | Settled
)


# The effects that ``NativeMachine.step`` returns.


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
    """Send a heartbeat to ZooKeeper's leader."""

    tag: int


class PartitionStart(NamedTuple):
    """The starting point of a claimed partition.

    ``committed`` is the committed offset, or None. ``is_added`` says whether the partition was
    created after the group began. ``grant`` is a number that is new each time a reader of this
    consumer receives a partition.
    """

    committed: CommittedOffset | None
    is_added: bool
    topic_id: str
    grant: int


class StreamAssign(NamedTuple):
    """A stream owns a partition from now on."""

    stream: int
    tp: TopicPartition
    start: PartitionStart


class StreamRevoke(NamedTuple):
    """Ask a stream to stop reading a partition. The machine waits a short time for ``Settled``."""

    stream: int
    tp: TopicPartition


class StreamLose(NamedTuple):
    """A stream no longer owns a partition."""

    stream: int
    tp: TopicPartition


class CommitAnswer(NamedTuple):
    """The result of a commit: the error of each partition whose offset was not committed."""

    number: int
    errors: Mapping[TopicPartition, LogbusError]


class RefuseJoin(NamedTuple):
    """The consumer cannot join the group, and a retry would fail too. The member has ended."""

    error: LogbusError


class Restart(NamedTuple):
    """End the ZooKeeper session and begin another one."""


Effect = (
    Get
    | List
    | Write
    | Beat
    | StreamAssign
    | StreamRevoke
    | StreamLose
    | CommitAnswer
    | RefuseJoin
    | Restart
)

ALL = TopicPartition("", -1)
"""The key, in a ``CommitAnswer``, of the error of all partitions that are not keys themselves."""
