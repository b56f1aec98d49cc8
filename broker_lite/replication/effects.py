"""The outputs of ``partition.Partition.step``, which the shell carries out.

The shell is the caller that does the I/O: ``server/partitions/replica_manager.py``, or the
simulator in tests. It carries out effects in the order of ``ORDER``, and reports each result as an
event, for example Appended for Append.

A partition's disk effects, Truncate, StartAt, StartEpoch, Append, AppendFetched and Sync, go
through one disk thread's queue. Each has exactly one result, in order, unless StorageFailed comes
first; several queued Syncs may share one result. An Append or AppendFetched that finds the disk
full is retried."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, OffsetAndEpoch
from broker_lite.replication.events import Appended


class StopFetching(NamedTuple):
    """Cancel the fetch that the last FetchFrom began, and ignore its answer."""


class Truncate(NamedTuple):
    """Truncate the log to ``offset`` and fsync it. The result is Truncated.

    Only after damage or an unclean election does ``offset`` lie below the high watermark; the
    caller then logs an error, because committed records are deleted."""

    offset: int


class StartAt(NamedTuple):
    """Delete every batch, restart the empty log at ``offset``, and fsync it. The result is
    Truncated."""

    offset: int


class StartEpoch(NamedTuple):
    """Write the leader epoch with the log end offset to the leader epoch file, and sync the file.
    The result is EpochStarted."""

    leader_epoch: int


class Append(NamedTuple):
    """Append the batch ``payload`` with ``leader_epoch`` in its header.

    The result is Appended or AppendFailed, with the same ``token``."""

    token: int
    payload: Any
    leader_epoch: int


class AppendFetched(NamedTuple):
    """Append unchanged the batches that were fetched from the leader.

    The result is FetchedAppended or FetchedAppendFailed. Batches of a leader epoch newer than
    ``leader_epoch`` are left out: they come from a later leader."""

    payload: Any
    leader_epoch: int


class Sync(NamedTuple):
    """Flush (fsync) the log, after the appends queued before. The result is Synced or
    StorageFailed.

    One flush serves all queued Syncs (group commit)."""


class ProposeIsr(NamedTuple):
    """Write ``state`` to the partition's znode if the znode's version is still ``state.version``.

    The result is IsrWritten or IsrRefused, even if newer metadata have arrived meanwhile. A leader
    proposes changes of its ISR, and a follower with a corrupt log removes itself. A leader with a
    corrupt log proposes ``leader`` -1 in the next epoch, and the controller elects another member
    of the ISR."""

    state: LeaderAndIsr


class HighWatermark(NamedTuple):
    """The high watermark is now ``offset``: wake the consumers' fetches that wait for records below
    it."""

    offset: int


class RaiseStart(NamedTuple):
    """Delete the records below ``offset``, as the leader has done. No result event."""

    offset: int


class FetchFrom(NamedTuple):
    """Fetch from the leader. The result is Fetched, FetchDiverged or FetchOutOfRange.

    Replaces the previous FetchFrom. The caller retries after errors, with a backoff, until
    StopFetching. The backoff is short after UNKNOWN_LEADER_EPOCH: the new leader will soon learn of
    its own epoch."""

    leader: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int


class Reply(NamedTuple):
    """Answer a produce request: with the offsets of its batch (``appended``), or with ``error``."""

    token: int
    appended: Appended | None = None
    error: LogbusError | None = None


class AnswerFollower(NamedTuple):
    """Answer a follower's fetch with ``error``, or with ``diverging`` and no records.

    ``diverging`` is where a leader epoch ends in the leader's log; the follower must truncate to
    this offset or below. If both are None, answer with the records from the fetch offset on,
    flushed or not, as soon as there are any. Every answer carries the high watermark and the log
    start offset."""

    error: LogbusError | None = None
    diverging: OffsetAndEpoch | None = None


Effect = (
    StopFetching
    | Truncate
    | StartAt
    | StartEpoch
    | Append
    | AppendFetched
    | Sync
    | ProposeIsr
    | HighWatermark
    | RaiseStart
    | FetchFrom
    | Reply
    | AnswerFollower
)

ORDER: dict[type, int] = {
    StopFetching: 0,
    Truncate: 1,
    StartAt: 1,
    StartEpoch: 2,
    Append: 2,
    AppendFetched: 2,
    Sync: 3,
    ProposeIsr: 4,
    HighWatermark: 5,
    RaiseStart: 6,
    FetchFrom: 7,
    Reply: 8,
    AnswerFollower: 9,
}


def in_order(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects sorted by ``ORDER``, in which the caller must carry them out."""
    return sorted(effects, key=lambda effect: ORDER[type(effect)])
