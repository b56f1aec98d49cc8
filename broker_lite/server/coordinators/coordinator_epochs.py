"""The epochs of transaction coordinators that this broker knows. Loop thread.

A coordinator's epoch is the leader epoch of its partition of ``__transaction_state``. A deposed
coordinator still answers from memory. Its answers and its messages name a lower epoch than the
present leader's, and are refused by every broker that knows of that leader.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.errors import TransactionCoordinatorFencedError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NO_EPOCH, NULL_TOPIC_ID, TRANSACTION_STATE


class CoordinatorEpochs:
    """The highest epoch of each state partition, from metadata and from messages."""

    def __init__(self, snapshot: Callable[[], MetadataSnapshot]) -> None:
        self._snapshot = snapshot
        self._seen: dict[int, int] = {}

    def check(self, partition: int, epoch: int) -> None:
        """Raise TransactionCoordinatorFencedError for an epoch that is over; else note it."""
        _, known = self._snapshot().leader(TRANSACTION_STATE, NULL_TOPIC_ID, partition)
        known = max(known, self._seen.get(partition, NO_EPOCH))
        if epoch < known:
            raise TransactionCoordinatorFencedError(
                f"{TRANSACTION_STATE}-{partition} is in leader epoch {known}; a coordinator of "
                f"epoch {epoch} no longer decides. Find the transactional id's coordinator again"
            )
        if epoch > known:
            self._seen[partition] = epoch
