"""The inputs of ``partition.Partition.step``.

The shell is ``server/partitions/replica_manager.py``, or the simulator in tests. It creates the
events on one thread, in the order in which they occur. It chooses the tokens of requests and never
reuses a token. Answers of the disk arrive in the order of the disk's queue.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, OffsetAndEpoch, ReplicaId

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class ReplicaLimits(NamedTuple):
    """The topic settings that a replica uses."""

    min_insync_replicas: int = 1
    flush_messages: int = 1
    flush_ms: int = 1000
    replica_lag_ms: int = 10_000
    """Time in ms after which a follower that has not reached the leader's end leaves the ISR."""


class LeaderAndIsrChanged(NamedTuple):
    """The partition state in the metadata. A repeated or older state has no effect.

    ``broker_epochs`` has the broker epochs of all registrations of this process. An election of an
    earlier process of this broker does not count. The controller then elects again in a higher
    leader epoch, so that no two processes lead in one epoch. ``replicas`` has the assigned brokers.
    Only these brokers and members of the ISR may fetch as followers.
    """

    state: LeaderAndIsr
    broker_epochs: frozenset[int]
    limits: ReplicaLimits = ReplicaLimits()
    replicas: tuple[int, ...] = ()


class LimitsChanged(NamedTuple):
    """The topic settings changed."""

    limits: ReplicaLimits


class AppendRequested(NamedTuple):
    """A client's produce request for this partition.

    ``payload`` is the batch for the log, which the state machine does not read. ``record_count`` is
    its number of records.
    """

    token: int
    acks: int
    payload: Any
    record_count: int = 1


class EpochStarted(NamedTuple):
    """StartEpoch is complete: the epoch file holds (leader_epoch, log_end_offset) on disk."""

    leader_epoch: int
    log_end_offset: int
    flushed_end: int


class Appended(NamedTuple):
    """Append is complete. For a batch of markers, ``errors`` has the error of each marker, or None.

    A duplicate carries the offsets of the first append. Its base offset is -1 if the producer state
    no longer has that append.
    """

    token: int
    base_offset: int
    next_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = 0
    duplicate: bool = False
    errors: tuple[LogbusError | None, ...] = ()


class AppendFailed(NamedTuple):
    """Append failed: the log refused the batch or could not write it. No part of the batch is in
    the log."""

    token: int
    error: LogbusError


class Synced(NamedTuple):
    """Sync is complete: all records below ``flushed_end`` are on disk."""

    flushed_end: int


class StorageFailed(NamedTuple):
    """The log or its data directory failed permanently: an fsync failed or the disk is missing."""

    error: LogbusError


class FollowerFetched(NamedTuple):
    """A follower's fetch. All records below ``fetch_offset`` are on the follower's disk.

    The shell has checked that the request has the follower's current broker epoch. The shell sends
    one event for each request, and none when a waiting fetch wakes. The effects include exactly one
    AnswerFollower.
    """

    replica: ReplicaId
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """The newest leader epoch of the follower's log; -1 for an empty log."""
    epoch_end: OffsetAndEpoch | None
    """The end offset, in the leader's log, of ``last_fetched_epoch`` or of the newest earlier epoch
    (``LeaderEpochs.end_offset_for``)."""
    log_start_offset: int
    """The leader's log start offset."""
    follower_start: int
    """The follower's log start offset, from the request."""
    may_join: bool = True
    """Whether the follower may join the ISR. It may not while its broker is draining."""


class Fetched(NamedTuple):
    """The leader's answer to FetchFrom. ``leader_epoch`` and ``fetch_offset`` repeat the fields of
    FetchFrom.

    ``payload`` goes to AppendFetched unchanged, and is None without records. The other two fields
    are the leader's offsets. Error answers are not events, because the shell retries them.
    """

    leader_epoch: int
    fetch_offset: int
    payload: Any
    high_watermark: int
    log_start_offset: int


class FetchDiverged(NamedTuple):
    """The follower's log diverges from the leader's log before ``fetch_offset``.

    The first three fields repeat those of FetchFrom. They identify a repeated answer, which must
    not truncate batches fetched since.
    """

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    leader_end: OffsetAndEpoch
    """The end offset, in the leader's log, of the follower's last epoch or of the leader's newest
    earlier epoch."""
    own_end: OffsetAndEpoch | None
    """The end offset, in the follower's log, of ``leader_end.leader_epoch`` or of the newest
    earlier epoch (``LeaderEpochs.end_offset_for``)."""


class FetchOutOfRange(NamedTuple):
    """The leader answered OFFSET_OUT_OF_RANGE. Its log begins at ``leader_log_start``."""

    leader_epoch: int
    fetch_offset: int
    leader_log_start: int


class FetchedAppended(NamedTuple):
    """AppendFetched is complete. ``last_epoch`` is the newest epoch of the log
    (``log.leader_epochs.latest``)."""

    next_offset: int
    last_epoch: int


class FetchedAppendFailed(NamedTuple):
    """AppendFetched failed: the batches are damaged, do not continue the log, or found the disk
    full."""

    error: LogbusError


class Truncated(NamedTuple):
    """Truncate or StartAt is complete. The fields describe the truncated log, which is synced."""

    log_end_offset: int
    flushed_end: int
    last_epoch: int


class IsrWritten(NamedTuple):
    """ProposeIsr is complete. ``state`` carries the new znode version."""

    state: LeaderAndIsr


class IsrRefused(NamedTuple):
    """ProposeIsr failed, or its result is unknown. ``state`` is the proposed state."""

    state: LeaderAndIsr


class CorruptionFound(NamedTuple):
    """The flushed batch at ``offset`` is damaged.

    The replica leaves the ISR, and a leader also resigns. The replica then truncates its log to
    ``offset`` and fetches again. A replica that is alone in the ISR does nothing. The shell may
    repeat the event.
    """

    offset: int


class Closed(NamedTuple):
    """The topic was deleted or the broker stops. The replica answers pending requests with
    ``error`` and ignores later events."""

    error: LogbusError


class Tick(NamedTuple):
    """A periodic event, on which the replica checks due flushes, lagging followers and retries.

    The shell sends it to every replica about once a second, and every 100 ms if ``flush_messages``
    is above 1.
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
