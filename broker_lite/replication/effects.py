"""What a replica wants done: the outputs of ``partition.Partition.step``.

The order within one list is fixed and is the order of carrying out: Truncate, StartEpoch or Append,
Sync, ProposeIsr, HighWatermark, Reply. Truncate, StartEpoch, Append and Sync of one partition go
through one queue (the disk thread's), so an epoch starts after the appends of the epoch before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr
from broker_lite.replication.events import Appended


class Truncate(NamedTuple):
    """Cut the log so that it ends at ``offset``."""

    offset: int


class StartEpoch(NamedTuple):
    """Write (leader_epoch, log end) to the epoch file, durably; answer with EpochStarted."""

    leader_epoch: int


class Append(NamedTuple):
    """Append the payload in this leader epoch; answer with Appended or AppendFailed."""

    token: int
    payload: Any
    leader_epoch: int


class Sync(NamedTuple):
    """Flush the log after the appends before it; answer with Synced or StorageFailed.

    Several that wait are one flush (group commit).
    """


class ProposeIsr(NamedTuple):
    """Write this state to the partition's znode if its version is still ``state.version``."""

    state: LeaderAndIsr


class HighWatermark(NamedTuple):
    """Everything below ``offset`` is committed and may be read; wake waiting fetches."""

    offset: int


class Reply(NamedTuple):
    """Answer a produce (never one with acks=0): exactly one of ``appended`` and ``error``."""

    token: int
    appended: Appended | None = None
    error: LogbusError | None = None


Effect = Truncate | StartEpoch | Append | Sync | ProposeIsr | HighWatermark | Reply

ORDER: dict[type, int] = {
    Truncate: 0,
    StartEpoch: 1,
    Append: 1,
    Sync: 2,
    ProposeIsr: 3,
    HighWatermark: 4,
    Reply: 5,
}
