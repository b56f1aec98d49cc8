"""The in-sync replicas (ISR) of a leader, and the high watermark that follows from them.

While a change of the ISR is being written, the leader cannot know which ISR is in effect, so it
uses the *maximal* ISR: the committed one plus a replica that is being added. A replica limits the
high watermark from the start of the write that adds it to the end of the write that removes it
(KIP-497)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker_lite.model import ReplicaId


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """The ISR as the partition's znode holds it, with no change in flight."""

    replicas: tuple[ReplicaId, ...]

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return self.replicas


@dataclass(frozen=True, slots=True)
class PendingExpandIsr:
    """The ISR while the write that adds ``joining`` is in flight. The high watermark already waits
    for ``joining``."""

    replicas: tuple[ReplicaId, ...]
    joining: ReplicaId

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return (*self.replicas, self.joining)


@dataclass(frozen=True, slots=True)
class PendingShrinkIsr:
    """The ISR while the write that removes ``leaving`` is in flight. The high watermark still waits
    for ``leaving``."""

    replicas: tuple[ReplicaId, ...]
    leaving: tuple[ReplicaId, ...]

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return self.replicas


IsrState = CommittedIsr | PendingExpandIsr | PendingShrinkIsr


def is_enough(isr: IsrState, min_insync_replicas: int) -> bool:
    """Return whether the ISR in the znode (the committed one) has enough members for acks=all.

    A replica whose addition is being written does not count."""
    return len(isr.replicas) >= min_insync_replicas


def high_watermark(
    isr: IsrState,
    flushed_ends: Mapping[ReplicaId, int],
    *,
    min_insync_replicas: int,
    current: int,
) -> int:
    """Return the smallest flushed end offset of the maximal ISR, but at least ``current``.

    The maximal ISR is the committed one plus a replica that is being added. Return ``current`` if
    the ISR is smaller than ``min_insync_replicas``, or a member has not fetched in this leader
    epoch."""
    if not is_enough(isr, min_insync_replicas):
        return current
    lowest = min(flushed_ends.get(replica, -1) for replica in isr.maximal)
    return max(current, lowest)
