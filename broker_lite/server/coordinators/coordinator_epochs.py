"""Refuse the messages of a transaction coordinator that another broker has replaced.

A coordinator's epoch is the leader epoch of its partition of ``__transaction_state``. A coordinator
that lost the leadership without knowing it sends a lower epoch than the current leader. A broker
that knows the higher epoch refuses such messages."""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.errors import TransactionCoordinatorFencedError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NO_EPOCH, NULL_TOPIC_ID, TRANSACTION_STATE


class CoordinatorEpochs:
    """The highest known leader epoch of each partition of ``__transaction_state``.

    The epochs come from the metadata and from messages of coordinators."""

    def __init__(self, snapshot: Callable[[], MetadataSnapshot]) -> None:
        self._snapshot = snapshot
        self._seen: dict[int, int] = {}

    def check(self, partition: int, epoch: int) -> None:
        """Check the epoch with which the coordinator of ``partition`` sent a message, and remember
        it.

        Raises TransactionCoordinatorFencedError if a higher epoch of this partition is known."""
        _, known = self._snapshot().leader(TRANSACTION_STATE, NULL_TOPIC_ID, partition)
        known = max(known, self._seen.get(partition, NO_EPOCH))
        if epoch < known:
            raise TransactionCoordinatorFencedError(
                f"{TRANSACTION_STATE}-{partition} is in leader epoch {known}; the coordinator "
                f"of epoch {epoch} was replaced. Find the transactional id's coordinator again"
            )
        if epoch > known:
            self._seen[partition] = epoch
