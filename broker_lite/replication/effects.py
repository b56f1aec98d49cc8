"""The outputs of ``partition.Partition.step``.

A step returns its effects in the order of ``ORDER``, and the shell carries them out in that order.
The disk effects of a partition are Truncate, StartAt, StartEpoch, Append, AppendFetched and Sync.
They go through one queue of a disk thread, and their answers return in the order of the queue. Each
disk effect gets exactly one answer, unless StorageFailed comes first. Only Syncs may share an
answer. The shell retries a write that finds the disk full.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, OffsetAndEpoch
from broker_lite.replication.events import Appended


class StopFetching(NamedTuple):
    """Cancel the fetch of the last FetchFrom, and ignore its answer."""


class Truncate(NamedTuple):
    """Truncate the log to ``offset`` and sync it. Answer with Truncated.

    ``offset`` lies below the high watermark only for a damaged batch or after an unclean election.
    The shell then logs an error.
    """

    offset: int


class StartAt(NamedTuple):
    """Delete every batch, restart the log at ``offset``, and sync it. Answer with Truncated."""

    offset: int


class StartEpoch(NamedTuple):
    """Write an entry (leader_epoch, log end) to the epoch file, and sync it. Answer with
    EpochStarted."""

    leader_epoch: int


class Append(NamedTuple):
    """Append the payload in this leader epoch. Answer with Appended or AppendFailed."""

    token: int
    payload: Any
    leader_epoch: int


class AppendFetched(NamedTuple):
    """Append the leader's batches unchanged. Answer with FetchedAppended or FetchedAppendFailed.

    Leave out batches of an epoch newer than ``leader_epoch``, because they come from a later
    leader.
    """

    payload: Any
    leader_epoch: int


class Sync(NamedTuple):
    """Flush the log after the appends before this effect. Answer with Synced or StorageFailed.

    One flush serves all queued Syncs (group commit).
    """


class ProposeIsr(NamedTuple):
    """Write ``state`` to the partition's znode if its version is still ``state.version``.

    Answer with IsrWritten or IsrRefused, even if the answer is late. With this write, a follower
    with a damaged log removes itself from the ISR. A leader with a damaged log proposes ``leader``
    -1 in the next epoch, and the controller elects another member of the ISR.
    """

    state: LeaderAndIsr


class HighWatermark(NamedTuple):
    """The high watermark is now ``offset``. Wake fetches that wait for committed records
    below it."""

    offset: int


class RaiseStart(NamedTuple):
    """Delete the records below ``offset``, the start of the leader's log. The shell does not answer
    this effect."""

    offset: int


class FetchFrom(NamedTuple):
    """Fetch from the leader. Answer with Fetched, FetchDiverged or FetchOutOfRange.

    Replaces the previous FetchFrom. The shell retries errors with a backoff until StopFetching. The
    backoff is short after UNKNOWN_LEADER_EPOCH, because the leader will soon receive its epoch.
    """

    leader: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int


class Reply(NamedTuple):
    """Answer a produce request with ``appended`` or ``error``. A request with acks=0 gets
    no Reply."""

    token: int
    appended: Appended | None = None
    error: LogbusError | None = None


class AnswerFollower(NamedTuple):
    """Answer a FollowerFetched with an error, or with ``diverging`` and no records.

    If both are None, answer with the records from the fetch offset to the log's end, flushed or
    not, once records exist. Every answer carries the high watermark and the log's start.
    """

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
    """Return the effects sorted by ``ORDER``."""
    return sorted(effects, key=lambda effect: ORDER[type(effect)])
