"""What happens to a replica: the inputs of ``partition.Partition.step``.

Every event is a tuple of values, made by the shell (``server/replica_manager.py`` or the simulator)
on its one thread, in the order in which things happened. Tokens are the shell's own, never reused.
What the disk answers comes in the order in which it was asked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, OffsetAndEpoch, ReplicaId

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class Limits(NamedTuple):
    """The topic settings that a replica obeys."""

    min_insync_replicas: int = 1
    flush_messages: int = 1
    flush_ms: int = 1000
    replica_lag_ms: int = 10_000
    """A follower that was not at the leader's end for longer than this leaves the ISR."""


class LeaderAndIsrChanged(NamedTuple):
    """The metadata names this state; repeated and older ones do nothing.

    ``broker_epochs``: every registration that this process ever held (``Registry.broker_epochs``).
    A leadership given to an earlier process of this broker is not ours: the controller renews it
    in a higher leader epoch, so no epoch is ever led by two processes. ``replicas``: the brokers
    that the partition is assigned to; others, unless in the ISR, may not fetch as followers.
    """

    state: LeaderAndIsr
    broker_epochs: frozenset[int]
    limits: Limits = Limits()
    replicas: tuple[int, ...] = ()


class LimitsChanged(NamedTuple):
    limits: Limits


class AppendRequested(NamedTuple):
    """A client wants ``payload`` appended; ``record_count`` counts towards the flush threshold."""

    token: int
    acks: int
    payload: Any
    record_count: int = 1


class EpochStarted(NamedTuple):
    """StartEpoch was carried out: the epoch file holds (epoch, log_end_offset) on disk."""

    leader_epoch: int
    log_end_offset: int
    flushed_end: int


class Appended(NamedTuple):
    """Append was carried out. A duplicate carries the original's offsets and moved nothing."""

    token: int
    base_offset: int
    next_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = 0
    duplicate: bool = False


class AppendFailed(NamedTuple):
    """The batch was refused or could not be written; nothing of it is in the log."""

    token: int
    error: LogbusError


class Synced(NamedTuple):
    """Everything below ``flushed_end`` is on disk; only a truncation takes that back."""

    flushed_end: int


class StorageFailed(NamedTuple):
    """The log or its whole directory stopped (an fsync failed, the disk is gone): fatal."""

    error: LogbusError


class FollowerFetched(NamedTuple):
    """A follower asked for ``fetch_offset``: everything below it is on the follower's disk.

    The shell has checked that the broker and its epoch are those of a registration in force. Once
    for each request that arrives, not when one that waits is woken. Exactly one AnswerFollower is
    among the effects.
    """

    replica: ReplicaId
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """The newest epoch of the follower's log; -1 while it holds nothing."""
    epoch_end: OffsetAndEpoch | None
    """Our own ``log.leader_epochs.end_offset_for(last_fetched_epoch, log end)``."""
    log_start_offset: int
    """Our own log's start."""
    follower_start: int
    """The follower's log's start, as its request says."""
    may_join: bool = True
    """False while the follower's broker drains: it is not taken into the ISR."""


class Fetched(NamedTuple):
    """The leader answered a FetchFrom: ``leader_epoch`` and ``fetch_offset`` are the FetchFrom's.

    ``payload`` is passed through to AppendFetched; None where no records came. The other two are
    the leader's. An error answer is not an event: the shell asks again, later, the same.
    """

    leader_epoch: int
    fetch_offset: int
    payload: Any
    high_watermark: int
    log_start_offset: int


class FetchDiverged(NamedTuple):
    """The leader's log parts from ours before ``fetch_offset``.

    The first three are those of the FetchFrom that asked: an answer that comes twice must not cut
    what was fetched since.
    """

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    leader_end: OffsetAndEpoch
    """Where the leader's log leaves our last epoch, or the newest before it that it has."""
    own_end: OffsetAndEpoch | None
    """Our own ``log.leader_epochs.end_offset_for(leader_end.leader_epoch, log end)``."""


class FetchOutOfRange(NamedTuple):
    """The leader answered OFFSET_OUT_OF_RANGE; its log begins at ``leader_log_start``."""

    leader_epoch: int
    fetch_offset: int
    leader_log_start: int


class FetchedAppended(NamedTuple):
    """AppendFetched was carried out. ``last_epoch`` is ``log.leader_epochs.latest``."""

    next_offset: int
    last_epoch: int


class FetchedAppendFailed(NamedTuple):
    """What was fetched is damaged, does not continue the log, or found no room on the disk."""

    error: LogbusError


class Truncated(NamedTuple):
    """Truncate or StartAt was carried out: where the log ends now, all of it on disk."""

    log_end_offset: int
    flushed_end: int
    last_epoch: int


class IsrWritten(NamedTuple):
    """What ProposeIsr asked for is in the znode; ``state`` with its new version."""

    state: LeaderAndIsr


class IsrRefused(NamedTuple):
    """What ProposeIsr asked for was not written; the same ``state`` as in the effect."""

    state: LeaderAndIsr


class CorruptionFound(NamedTuple):
    """The batch at ``offset``, which was flushed, is not what was written.

    This replica leaves the ISR, a leader by handing leadership on, then cuts its log there and
    fetches again. Where nobody else is in sync it stays as it is. May be said repeatedly.
    """

    offset: int


class Closed(NamedTuple):
    """The topic was deleted or the broker stops: what is pending is answered, then silence."""

    error: LogbusError


class Tick(NamedTuple):
    """Time passed: flushes that are due, followers that lag, what is to be tried again.

    To every replica about every second, and about every 100 ms where ``flush_messages`` > 1.
    """


Event = (
    LeaderAndIsrChanged
    | LimitsChanged
    | AppendRequested
    | EpochStarted
    | Appended
    | AppendFailed
    | Synced
    | StorageFailed
    | FollowerFetched
    | Fetched
    | FetchDiverged
    | FetchOutOfRange
    | FetchedAppended
    | FetchedAppendFailed
    | Truncated
    | IsrWritten
    | IsrRefused
    | CorruptionFound
    | Closed
    | Tick
)
