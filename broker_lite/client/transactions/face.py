"""``TransactionFace``: what ``BusTransaction`` and ``AsyncBusTransaction`` have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from broker_lite.errors import InvalidTxnStateError

ProducerT = TypeVar("ProducerT")


class TransactionFace(Generic[ProducerT]):
    """One transaction of a producer. ``release`` takes the producer when the transaction has
    ended."""

    def __init__(self, producer: ProducerT, release: Callable[[ProducerT], Any]) -> None:
        self._producer = producer
        self._release = release
        self._is_open = True

    def _live(self) -> ProducerT:
        """Return the producer. Raises InvalidTxnStateError if the transaction has ended."""
        if not self._is_open:
            raise InvalidTxnStateError(
                "this transaction has ended; begin another one with bus.transaction(…)"
            )
        return self._producer
