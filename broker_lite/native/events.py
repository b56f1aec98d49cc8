"""Events that the state machine of a native group's consumer (``machine``) receives, and operations
(effects) that it returns.

A request to ZooKeeper has a ``tag``, and the event with ZooKeeper's answer has the same tag. If the
connection to ZooKeeper is lost, the requests in flight get no answer. A consumer has one or several
streams, each read by a thread. ``grant`` is the number of one assignment of a partition to a
stream."""

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

# The events that ``NativeMachine.step`` receives.


class SessionConnected(NamedTuple):
    """The consumer is connected to ZooKeeper. With ``new_session``, the ephemeral znodes of the
    consumer's earlier session no longer exist."""

    session_id: int
    new_session: bool
    session_timeout_ms: int


class Got(NamedTuple):
    """The answer to a ``Get``: the znode, or None if it does not exist."""

    tag: int
    znode: Znode | None


class Listed(NamedTuple):
    """The answer to a ``List``: the names of the children, or None if the znode does not exist."""

    tag: int
    names: list[str] | None


class WriteDone(NamedTuple):
    """The answer to a ``Write``. ``refused`` is None if ZooKeeper carried out all operations, else
    the reason why it carried out none."""

    tag: int
    refused: Refused | None


class Beaten(NamedTuple):
    """The answer to a ``Beat``. It comes from ZooKeeper's leader, so the session was alive when the
    heartbeat was sent."""

    tag: int


class RequestFailed(NamedTuple):
    """A request to ZooKeeper failed while the connection stayed open; a write may have taken
    effect. ``error`` is set only if a retry is useless, for example because the consumer may not
    read the znode."""

    tag: int
    error: LogbusError | None = None


class NativeTick(NamedTuple):
    """A timer event: the time ``NativeMachine.wake_ms`` has come."""


class StreamCommit(NamedTuple):
    """The reader of a stream commits offsets. The ``CommitAnswer`` has the same ``number``.

    ``grants`` has the assignment number under which the reader read each partition. If the
    partition was taken away and assigned again since, its number has changed, and the offset is
    refused."""

    number: int
    rows: Mapping[TopicPartition, CommittedOffset]
    grants: Mapping[TopicPartition, int]


class Settled(NamedTuple):
    """The reader of a stream stopped reading a revoked partition, which it had received with the
    assignment number ``grant``. All records before ``offset`` are processed; ``offset`` is None if
    the position is unknown."""

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


# The effects (requests and other actions) that ``NativeMachine.step`` returns.


class Get(NamedTuple):
    """Read a znode. With ``watch``, ZooKeeper reports its next change (``DataChanged``)."""

    tag: int
    path: str
    watch: bool


class List(NamedTuple):
    """Read the names of a znode's children. With ``watch``, ZooKeeper reports their next change
    (``ChildrenChanged``)."""

    tag: int
    path: str
    watch: bool


class Write(NamedTuple):
    """Carry out several operations on znodes as one transaction: all of them or none."""

    tag: int
    operations: tuple[Operation, ...]


class Beat(NamedTuple):
    """Send a heartbeat: a sync request, whose answer comes from ZooKeeper's leader."""

    tag: int


class PartitionStart(NamedTuple):
    """The facts that a stream's reader receives with a partition.

    ``committed`` is the group's committed offset, or None. ``is_added`` says whether the partition
    was created after the group began to read its topic. ``grant`` identifies this assignment: it is
    new each time a reader of this consumer receives a partition."""

    committed: CommittedOffset | None
    is_added: bool
    topic_id: str
    grant: int


class StreamAssign(NamedTuple):
    """Tell the reader of a stream to begin to read a partition, which the stream owns from now
    on."""

    stream: int
    tp: TopicPartition
    start: PartitionStart


class StreamRevoke(NamedTuple):
    """Ask the reader of a stream to stop reading a partition, and to report that it has stopped
    (``Settled``). After ``ownership.GRACE_MS`` the partition is released without the report."""

    stream: int
    tp: TopicPartition


class StreamLose(NamedTuple):
    """Tell the reader of a stream to drop a partition without a commit, because the stream no
    longer owns it."""

    stream: int
    tp: TopicPartition


class CommitAnswer(NamedTuple):
    """Report the result of the commit (``StreamCommit``) that has the same ``number``: the error of
    each partition whose offset was not committed."""

    number: int
    errors: Mapping[TopicPartition, LogbusError]


class RefuseJoin(NamedTuple):
    """Report that the consumer cannot be a member of the group, and that a retry would fail too.
    The state machine has ended."""

    error: LogbusError


class Restart(NamedTuple):
    """Close the ZooKeeper session, and begin a new one to join again."""


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
"""A key in ``CommitAnswer.errors``. The error under this key applies to all partitions of the
commit that have no entry of their own."""
