"""The highest known leader epochs of transaction coordinators. Runs on the event-loop thread.

A coordinator's epoch is the leader epoch of its partition of ``__transaction_state``. A deposed
coordinator may still answer from memory. Its answers and requests carry a lower epoch than the
present leader's; brokers that know the higher epoch refuse them.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.errors import TransactionCoordinatorFencedError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NO_EPOCH, NULL_TOPIC_ID, TRANSACTION_STATE


class CoordinatorEpochs:
    """The highest known epoch of each state partition, from the metadata and from messages of
    coordinators.
    """

    def __init__(self, snapshot: Callable[[], MetadataSnapshot]) -> None:
        self._snapshot = snapshot
        self._seen: dict[int, int] = {}

    def check(self, partition: int, epoch: int) -> None:
        """Raise TransactionCoordinatorFencedError if ``epoch`` is lower than the highest known;
        otherwise record it.
        """
        _, known = self._snapshot().leader(TRANSACTION_STATE, NULL_TOPIC_ID, partition)
        known = max(known, self._seen.get(partition, NO_EPOCH))
        if epoch < known:
            raise TransactionCoordinatorFencedError(
                f"{TRANSACTION_STATE}-{partition} is in leader epoch {known}; the coordinator "
                f"of epoch {epoch} is deposed. Find the transactional id's coordinator again"
            )
        if epoch > known:
            self._seen[partition] = epoch
