"""Refuse the messages of a transaction coordinator that another broker has replaced.

A coordinator's epoch is the leader epoch of its partition of ``__transaction_state``. A coordinator
that has lost the leadership may not know so and still send requests and answers. Such messages
carry a lower epoch than those of the current leader. A broker that knows the higher epoch refuses
them.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_lite.errors import TransactionCoordinatorFencedError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import NO_EPOCH, NULL_TOPIC_ID, TRANSACTION_STATE


class CoordinatorEpochs:
    """The highest leader epoch that is known for each partition of ``__transaction_state``, from
    the metadata and from messages of coordinators.
    """

    def __init__(self, snapshot: Callable[[], MetadataSnapshot]) -> None:
        self._snapshot = snapshot
        self._seen: dict[int, int] = {}

    def check(self, partition: int, epoch: int) -> None:
        """Record ``epoch``, the epoch in the message of a coordinator. Raises
        TransactionCoordinatorFencedError if a higher epoch of the partition is known.
        """
        _, known = self._snapshot().leader(TRANSACTION_STATE, NULL_TOPIC_ID, partition)
        known = max(known, self._seen.get(partition, NO_EPOCH))
        if epoch < known:
            raise TransactionCoordinatorFencedError(
                f"{TRANSACTION_STATE}-{partition} is in leader epoch {known}; the coordinator "
                f"of epoch {epoch} was replaced. Find the transactional id's coordinator again"
            )
        if epoch > known:
            self._seen[partition] = epoch
