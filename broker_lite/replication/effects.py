"""What a replica wants done: the outputs of ``partition.Partition.step``.

The order within one list is fixed and is the order of carrying out: ``ORDER``. Truncate, StartAt,
StartEpoch, Append, AppendFetched and Sync of one partition go through one queue (the disk
thread's), and their answers come back in that order. Each is answered exactly once, however late
(a full disk is tried again), unless StorageFailed comes first; only Syncs may share an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, OffsetAndEpoch
from broker_lite.replication.events import Appended


class StopFetching(NamedTuple):
    """Drop the FetchFrom that is under way, and its answer if it still comes."""


class Truncate(NamedTuple):
    """Cut the log so that it ends at ``offset``, durably; answer with Truncated.

    Below the high watermark only for a damaged batch or after an unclean election: say it loudly.
    """

    offset: int


class StartAt(NamedTuple):
    """Drop everything and begin at ``offset``, durably; answer with Truncated."""

    offset: int


class StartEpoch(NamedTuple):
    """Write (leader_epoch, log end) to the epoch file, durably; answer with EpochStarted."""

    leader_epoch: int


class Append(NamedTuple):
    """Append the payload in this leader epoch; answer with Appended or AppendFailed."""

    token: int
    payload: Any
    leader_epoch: int


class AppendFetched(NamedTuple):
    """Append what the leader of this epoch sent, as it is; FetchedAppended or FetchedAppendFailed.

    Batches of a newer epoch are left out: the answer is a deposed leader's then.
    """

    payload: Any
    leader_epoch: int


class Sync(NamedTuple):
    """Flush the log after the appends before it; answer with Synced or StorageFailed.

    Several that wait are one flush (group commit).
    """


class ProposeIsr(NamedTuple):
    """Write this state to the partition's znode if its version is still ``state.version``.

    Answer with IsrWritten or IsrRefused, however late. A follower with a damaged log takes itself
    out of the ISR so; a leader that does has ``leader`` -1 in the next epoch, and the controller
    elects another of the ISR.
    """

    state: LeaderAndIsr


class HighWatermark(NamedTuple):
    """Everything below ``offset`` is committed and may be read; wake waiting fetches."""

    offset: int


class RaiseStart(NamedTuple):
    """The leader's log begins at ``offset``: delete what is before it here too. Not answered."""

    offset: int


class FetchFrom(NamedTuple):
    """Ask the leader for what follows; answer with Fetched, FetchDiverged or FetchOutOfRange.

    Takes the place of the one before. Errors are the shell's: it asks again with back-off (short
    after UNKNOWN_LEADER_EPOCH: the leader is about to learn of its epoch) until StopFetching.
    """

    leader: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int


class Reply(NamedTuple):
    """Answer a produce (never one with acks=0): exactly one of ``appended`` and ``error``."""

    token: int
    appended: Appended | None = None
    error: LogbusError | None = None


class AnswerFollower(NamedTuple):
    """Answer a FollowerFetched: with the error, or with where the logs part and no records.

    Both None: with records from the fetch offset up to the log's end, flushed or not, as soon as
    there are any; with the high watermark and the log's start in every case.
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
    """The same effects as they are to be carried out."""
    return sorted(effects, key=lambda effect: ORDER[type(effect)])
