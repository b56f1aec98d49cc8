"""Find the hanging transactions of led partitions, and decide how to end them.

A transaction *hangs* in a partition if it is open in the log, but no coordinator will write its
marker there. A leader that was elected uncleanly may lack the marker, and the last stable offset
then never passes the transaction. The leader asks all coordinators about each transaction that is
*silent*: it has had neither a batch nor a marker for a long time.

| answers of the coordinators | verdict |
|---|---|
| one has committed the transaction | commit |
| one has aborted the transaction | abort |
| one will still end the transaction | leave open |
| none knows the transaction; an answer is missing | leave open |
| none knows the transaction; all have answered | abort |

The leader of each partition of ``__transaction_state`` has to answer. An error counts as a missing
answer. A coordinator knows only the last transaction of each producer, so it does not know an
earlier one. In transaction version 1, all transactions of a producer have the same epoch: the
outcome of the last one then stands for an earlier one."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from broker_lite.model import PartitionKey, TopicPartition
from broker_lite.record.control import OpenTransaction
from broker_lite.transactions.records import TransactionState


class LedTransaction(NamedTuple):
    """A transaction that is open in the log of partition ``tp``, which the broker leads in
    ``leader_epoch``."""

    key: PartitionKey
    tp: TopicPartition
    leader_epoch: int
    transaction: OpenTransaction

    def __str__(self) -> str:
        one = self.transaction
        return (
            f"{self.tp}: the transaction of producer {one.producer_id} in epoch "
            f"{one.producer_epoch}, open from offset {one.first_offset}"
        )


class KnownTransaction(NamedTuple):
    """A producer's last transaction, as its coordinator knows it. ``state`` is a
    ``TransactionState.label``. ``producer_epoch`` is the epoch in the transaction's batches."""

    producer_id: int
    producer_epoch: int
    state: str


class Verdict(Enum):
    """What to do with a silent transaction. The value is text for a log line."""

    COMMIT = "committed, as its coordinator has decided"
    ABORT = "aborted, as its coordinator has decided"
    FORGOTTEN = "aborted, because no coordinator knows its outcome"
    OPEN = "left open, because its coordinator will end it"
    UNANSWERED = "left open, because not all coordinators have answered"


_OUTCOMES = {
    TransactionState.COMPLETE_COMMIT.label: Verdict.COMMIT,
    TransactionState.COMPLETE_ABORT.label: Verdict.ABORT,
}


class SilentTransactions:
    """The open transactions of the partitions that a broker leads, each with the time since which
    it is silent.

    A new batch, or a new leader epoch of this broker, starts the time anew."""

    def __init__(self, silent_ms: int) -> None:
        self._silent_ms = silent_ms
        self._since: dict[LedTransaction, int] = {}

    def observe(self, now_ms: int, rows: Iterable[LedTransaction]) -> list[LedTransaction]:
        """Return those of the transactions that have been silent for ``silent_ms``.

        ``rows`` has all open transactions at the monotonic time ``now_ms``. The time of a
        transaction begins when this method receives it first."""
        self._since = {row: self._since.get(row, now_ms) for row in rows}
        return [row for row, since in self._since.items() if now_ms - since >= self._silent_ms]


class CoordinatorAnswers:
    """The answers of the coordinators: the transactions that they know, and the partitions of
    ``__transaction_state`` that have not answered (``missing``). At first, none of ``partitions``
    has answered."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self.missing = set(partitions)
        self._states: dict[tuple[int, int], str] = {}

    def add(self, partition: int, known: Iterable[KnownTransaction]) -> None:
        """Add the answer of the coordinator that leads ``partition``."""
        self.missing.discard(partition)
        self._states |= {(one.producer_id, one.producer_epoch): one.state for one in known}

    def judge(self, transaction: OpenTransaction) -> Verdict:
        """Decide how to end a silent transaction."""
        state = self._states.get((transaction.producer_id, transaction.producer_epoch))
        if state is None:
            return Verdict.UNANSWERED if self.missing else Verdict.FORGOTTEN
        return _OUTCOMES.get(state, Verdict.OPEN)
