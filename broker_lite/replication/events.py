"""The inputs of ``partition.Partition.step``: requests, metadata and the results of effects (the
operations that ``step`` returns).

The caller, ``server/partitions/replica_manager.py`` or the simulator in tests, carries out the
effects. It creates the events on one thread, in the order in which they occur. The ``token`` of a
request is never used for another request. Results of disk effects arrive in the order in which the
effects were queued."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, OffsetAndEpoch, ReplicaId

ACKS_LEADER, ACKS_ALL = 1, -1


class ReplicaLimits(NamedTuple):
    """The topic settings that a replica obeys."""

    min_insync_replicas: int = 1
    flush_messages: int = 1
    flush_ms: int = 1000
    replica_lag_ms: int = 10_000
    """``replica.lag.time.max.ms``: how long (ms) a follower may lag before it leaves the ISR."""


class LeaderAndIsrChanged(NamedTuple):
    """The metadata has a state for this partition, or the topic settings that the replica obeys
    (``limits``) changed. A repeated or older state has no effect.

    ``broker_epochs`` has all broker epochs of this process. The process gets a new one whenever it
    registers in ZooKeeper, once per ZooKeeper session. If the controller elected an
    earlier process of this broker, this process does not lead: the controller elects again in a
    higher leader epoch, so that each epoch has one leading process. ``replicas`` has the ids of the
    assigned brokers; only they and ISR members may fetch as followers."""

    state: LeaderAndIsr
    broker_epochs: frozenset[int]
    limits: ReplicaLimits = ReplicaLimits()
    replicas: tuple[int, ...] = ()


class AppendRequested(NamedTuple):
    """A client's produce request for this partition.

    ``payload`` is the batch of ``record_count`` records, which the state machine does not read.
    ``acks`` is ACKS_LEADER also for acks=0; the caller then drops the reply."""

    token: int
    acks: int
    payload: Any
    record_count: int = 1


class EpochStarted(NamedTuple):
    """The effect StartEpoch is complete: the leader epoch file on disk lists ``leader_epoch`` with
    its start offset, ``log_end_offset``."""

    leader_epoch: int
    log_end_offset: int
    flushed_end: int


class Appended(NamedTuple):
    """The effect Append is complete.

    For transaction markers, ``errors`` has each marker's error, or None. ``duplicate`` means that
    an idempotent producer sent the batch again; the offsets are then those of the first append, or
    -1 if the producer state no longer remembers it."""

    token: int
    base_offset: int
    next_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = 0
    duplicate: bool = False
    errors: tuple[LogbusError | None, ...] = ()


class AppendFailed(NamedTuple):
    """The effect Append failed: the log refused the batch or could not write it.

    No part of it is in the log."""

    token: int
    error: LogbusError


class Synced(NamedTuple):
    """The effect Sync is complete: all records below ``flushed_end`` are on disk."""

    flushed_end: int


class StorageFailed(NamedTuple):
    """The log or its data directory failed permanently: an fsync failed or the disk is missing."""

    error: LogbusError


class FollowerFetched(NamedTuple):
    """A follower's fetch request. All records below ``fetch_offset`` are on the follower's disk.

    The caller has checked the follower's broker epoch. There is one event for each request, also
    for one that waits for records. ``step`` returns exactly one AnswerFollower for the event."""

    replica: ReplicaId
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """The newest leader epoch of the follower's log; -1 for an empty log."""
    epoch_end: OffsetAndEpoch | None
    """Where ``last_fetched_epoch`` ends in the leader's log; if that log lacks the epoch, where its
    newest earlier epoch ends.

    See ``LeaderEpochs.end_offset_for``."""
    log_start_offset: int
    """The leader's log start offset."""
    follower_start: int
    """The follower's log start offset, from the request."""
    may_join: bool = True
    """Whether the follower may join the ISR; False while its broker is about to stop (drains)."""


class Fetched(NamedTuple):
    """The leader's answer to the effect FetchFrom, with the effect's ``leader_epoch`` and
    ``fetch_offset``.

    ``payload`` holds the fetched batches for AppendFetched, or None. ``high_watermark`` and
    ``log_start_offset`` are the leader's. An error answer causes no event: the caller retries."""

    leader_epoch: int
    fetch_offset: int
    payload: Any
    high_watermark: int
    log_start_offset: int


class FetchDiverged(NamedTuple):
    """The leader answered that its log and the follower's diverge below ``fetch_offset``.

    The first three fields are those of the effect FetchFrom, so that the follower recognises an
    outdated answer, which must not truncate batches fetched since."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    leader_end: OffsetAndEpoch
    """Where the follower's last epoch ends in the leader's log; if that log lacks the epoch, where
    its newest earlier epoch ends."""
    own_end: OffsetAndEpoch | None
    """Where the epoch in ``leader_end`` ends in the follower's log; if the follower lacks the
    epoch, where the newest earlier epoch in its log ends.

    See ``LeaderEpochs.end_offset_for``."""


class FetchOutOfRange(NamedTuple):
    """The leader answered OFFSET_OUT_OF_RANGE; its log begins at ``leader_log_start``."""

    leader_epoch: int
    fetch_offset: int
    leader_log_start: int


class FetchedAppended(NamedTuple):
    """The effect AppendFetched is complete. ``last_epoch`` is the log's newest leader epoch."""

    next_offset: int
    last_epoch: int


class FetchedAppendFailed(NamedTuple):
    """The effect AppendFetched failed: corrupt batches, a gap in the offsets, or a full disk."""

    error: LogbusError


class Truncated(NamedTuple):
    """The effect Truncate or StartAt is complete. The fields describe the remaining log, all of
    which is on disk."""

    log_end_offset: int
    flushed_end: int
    last_epoch: int


class IsrWritten(NamedTuple):
    """The effect ProposeIsr is complete. ``state`` carries the znode's new version."""

    state: LeaderAndIsr


class IsrRefused(NamedTuple):
    """The effect ProposeIsr failed, or its result is unknown. ``state`` is the proposed state."""

    state: LeaderAndIsr


class CorruptionFound(NamedTuple):
    """The broker found that the flushed batch at ``offset`` is corrupt. The event may be repeated.

    The replica leaves the ISR, and gives up the leadership if it leads. Then it truncates its log
    to ``offset`` and fetches from the leader again. A replica that is alone in the ISR keeps its
    log, because perhaps no other replica has the records."""

    offset: int


class Closed(NamedTuple):
    """The topic was deleted or the broker stops.

    The replica answers pending produce requests with ``error`` and ignores later events."""

    error: LogbusError


class Tick(NamedTuple):
    """A periodic event, on which the replica requests a flush that is due, removes lagging
    followers from the ISR, and retries failed operations.

    It comes about once a second, and every 100 ms to a leader with appended records for which it
    has not requested a flush (Sync) yet."""


Event = (
    LeaderAndIsrChanged
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
