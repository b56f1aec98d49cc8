"""In-sync replicas: which there are, which may be, and how far the high watermark goes.

Arithmetic only. The *maximal* ISR is the committed one plus whoever a pending change would add:
it holds the high watermark back at once, while a removal counts only when it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker_lite.model import ReplicaId


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """As the state znode has it."""

    replicas: tuple[ReplicaId, ...]

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return self.replicas


@dataclass(frozen=True, slots=True)
class PendingExpandIsr:
    """A replica's joining is being written: it counts already."""

    replicas: tuple[ReplicaId, ...]
    joining: ReplicaId

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return (*self.replicas, self.joining)


@dataclass(frozen=True, slots=True)
class PendingShrinkIsr:
    """Replicas' leaving is being written: they still count."""

    replicas: tuple[ReplicaId, ...]
    leaving: tuple[ReplicaId, ...]

    @property
    def maximal(self) -> tuple[ReplicaId, ...]:
        return self.replicas


IsrState = CommittedIsr | PendingExpandIsr | PendingShrinkIsr


def is_enough(isr: IsrState, min_insync_replicas: int) -> bool:
    """Whether acks=all may be promised: by the committed ISR, never by one that is proposed."""
    return len(isr.replicas) >= min_insync_replicas


def high_watermark(
    isr: IsrState,
    flushed_ends: Mapping[ReplicaId, int],
    *,
    min_insync_replicas: int,
    current: int,
) -> int:
    """The smallest flushed end over the maximal ISR; never less than ``current``.

    A member whose flushed end is not known in this epoch holds it where it is, and so does an ISR
    smaller than ``min_insync_replicas``.
    """
    if not is_enough(isr, min_insync_replicas):
        return current
    lowest = min(flushed_ends.get(replica, -1) for replica in isr.maximal)
    return max(current, lowest)
