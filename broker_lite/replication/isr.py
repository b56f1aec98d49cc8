"""The in-sync replicas of a leader, and the high watermark that follows from them.

The *maximal* ISR is the committed ISR plus a replica whose addition is being written. It determines
the high watermark: a joining replica limits the high watermark at once, and a leaving replica until
its removal is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker_lite.model import ReplicaId


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """The ISR in the state znode, while no change is pending."""

    replicas: tuple[ReplicaId, ...]

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return self.replicas


@dataclass(frozen=True, slots=True)
class PendingExpandIsr:
    """The ISR while a write that adds ``joining`` is in flight. ``joining`` already counts for the
    high watermark."""

    replicas: tuple[ReplicaId, ...]
    joining: ReplicaId

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return (*self.replicas, self.joining)


@dataclass(frozen=True, slots=True)
class PendingShrinkIsr:
    """The ISR while a write that removes ``leaving`` is in flight. ``leaving`` still counts for the
    high watermark."""

    replicas: tuple[ReplicaId, ...]
    leaving: tuple[ReplicaId, ...]

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return self.replicas


IsrState = CommittedIsr | PendingExpandIsr | PendingShrinkIsr


def is_enough(isr: IsrState, min_insync_replicas: int) -> bool:
    """Return whether the committed ISR is large enough for acks=all. A proposed ISR does
    not count."""
    return len(isr.replicas) >= min_insync_replicas


def high_watermark(
    isr: IsrState,
    flushed_ends: Mapping[ReplicaId, int],
    *,
    min_insync_replicas: int,
    current: int,
) -> int:
    """Return the smallest flushed end offset of the maximal ISR, but at least ``current``.

    Return ``current`` if the ISR is smaller than ``min_insync_replicas``, or if a member has not
    fetched in this epoch.
    """
    if not is_enough(isr, min_insync_replicas):
        return current
    lowest = min(flushed_ends.get(replica, -1) for replica in isr.maximal)
    return max(current, lowest)
