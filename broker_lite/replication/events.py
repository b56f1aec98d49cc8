"""What happens to a replica: the inputs of ``partition.Partition.step``.

Every event is a tuple of values, made by the shell (``server/replica_manager.py`` or the simulator)
on its one thread, in the order in which things happened. Tokens are the shell's own, never reused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, ReplicaId

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class Limits(NamedTuple):
    """The topic settings that a replica obeys."""

    min_insync_replicas: int = 1
    flush_messages: int = 1
    flush_ms: int = 1000


class LeaderAndIsrChanged(NamedTuple):
    """The metadata names this state; repeated and older ones do nothing.

    ``broker_epochs``: every registration that this process ever held (``Registry.broker_epochs``).
    A leadership given to an earlier process of this broker is not ours: the controller renews it
    in a higher leader epoch, so no epoch is ever led by two processes.
    """

    state: LeaderAndIsr
    broker_epochs: frozenset[int]
    limits: Limits = Limits()


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
    """Everything below ``flushed_end`` is on disk. Never goes back."""

    flushed_end: int


class StorageFailed(NamedTuple):
    """The log or its whole directory stopped (an fsync failed, the disk is gone): fatal."""

    error: LogbusError


class FollowerFetched(NamedTuple):
    """A follower asked for ``fetch_offset``: everything below it is on the follower's disk."""

    replica: ReplicaId
    leader_epoch: int
    fetch_offset: int


class Closed(NamedTuple):
    """The topic was deleted or the broker stops: what is pending is answered, then silence."""

    error: LogbusError


class Tick(NamedTuple):
    """Time passed: flushes that are due by time. Sent about every 100 ms at most."""


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
    | Closed
    | Tick
)
