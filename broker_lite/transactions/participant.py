"""The transactional producers that write to one partition, on its leader, or that commit offsets in
one group, on its coordinator.

Such a partition or group is a *participant*. Before a producer's first write in a transaction, the
participant asks the transaction coordinator whether the transaction contains the participant
(KIP-890). Each such verification has a *token*. A marker, a higher producer epoch or the loss of
leadership makes the token void, so that a late answer never admits a write to the next transaction.

The caller creates one ``Participant`` for each leader epoch of a replica, or each time this broker
becomes coordinator of a group. The writes and markers of a participant enter one queue: that of the
partition's log or of the group's commits. The caller calls this module when a write or marker
enters the queue, on the event loop's thread.

| state of a producer and epoch | event | next state |
|---|---|---|
| unknown | first write | asking, with a new token: ask the coordinator |
| asking | yes, under the same token | verified: the write continues |
| asking | any other answer | unknown: the write is refused |
| asking, verified | marker, higher epoch, leadership lost | unknown: the token is void |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from broker_lite.errors import InvalidProducerEpochError
from broker_lite.model import NO_TRANSACTION


class Verification(NamedTuple):
    """A question to the transaction coordinator: may this producer write in its open transaction?
    Writes that wait for the same answer have the same ``token``."""

    producer_id: int
    epoch: int
    token: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    token: int
    number: int | None = None
    """Number of the verified transaction, as its coordinator counts transactions; None while the
    verification is in flight."""


class Participant:
    """The transactional producers of one replica or group, each verified by its coordinator."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._last_token = 0

    def __len__(self) -> int:
        """Return the number of producers whose verification succeeded or is in flight."""
        return len(self._producers)

    def admit(self, producer_id: int, epoch: int) -> Verification | None:
        """Return None if the producer is verified, so that its write may continue; otherwise the
        verification for which the write must wait.

        For each ``Verification.token``, the caller asks the transaction coordinator only once.
        Raises InvalidProducerEpochError if the producer has written with a higher epoch."""
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            raise InvalidProducerEpochError(
                f"producer {producer_id} wrote with epoch {known.epoch}; epoch {epoch} is fenced: "
                "create a new producer"
            )
        if known is None or epoch > known.epoch:
            self._last_token += 1
            known = self._producers[producer_id] = _Producer(epoch, self._last_token)
        elif known.number is not None:
            return None
        return Verification(producer_id, epoch, known.token)

    def verify(self, verification: Verification, number: int = NO_TRANSACTION) -> bool:
        """Record that the transaction coordinator confirmed transaction ``number`` for the
        producer.

        Return whether the write that waits for this verification may continue. The write must not
        continue if a marker or a newer epoch of the producer came meanwhile."""
        known = self._holder(verification)
        if known is not None:
            known.number = number
        return known is not None

    def refuse(self, verification: Verification) -> None:
        """Record that the transaction coordinator refused the producer or did not answer. The
        producer's next write starts a new verification."""
        known = self._holder(verification)
        if known is not None and known.number is None:
            del self._producers[verification.producer_id]

    def holds(self, verification: Verification) -> bool:
        """Return whether a write that waited for this verification may enter the queue of writes
        now: the coordinator has confirmed the transaction, and no marker or newer epoch of the
        producer came since."""
        known = self._holder(verification)
        return known is not None and known.number is not None

    def number(self, producer_id: int) -> int:
        """Return the number of the producer's transaction that the coordinator has confirmed
        (``verify``); -1 without one. The coordinator numbers a producer's transactions."""
        known = self._producers.get(producer_id)
        return NO_TRANSACTION if known is None or known.number is None else known.number

    def end(self, producer_id: int, epoch: int, number: int = NO_TRANSACTION) -> bool:
        """End a producer's transaction. Call this when the transaction's marker enters the queue of
        writes. In a group, call it when the commit or removal of the transaction's offsets enters
        the queue.

        Return False if the coordinator has repeated the marker of an earlier transaction, and the
        producer's present transaction is verified. The caller then reports success and writes
        nothing."""
        known = self._producers.get(producer_id)
        if known is None or epoch < known.epoch:
            return True
        if NO_TRANSACTION < number < (NO_TRANSACTION if known.number is None else known.number):
            return False
        del self._producers[producer_id]
        return True

    def clear(self) -> None:
        """Forget all verified producers and make pending verifications void, because this broker no
        longer leads the partition or coordinates the group."""
        self._producers.clear()

    def _holder(self, verification: Verification) -> _Producer | None:
        known = self._producers.get(verification.producer_id)
        return known if known is not None and known.token == verification.token else None
