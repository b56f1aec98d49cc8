"""Ask the coordinator whether a transaction includes a partition, before the transaction's first
batch in it is appended (KIP-890).

``transactions/participant.py`` decides whether a verification is needed, for each replica that this
broker leads; this module sends the requests. Verifications for one coordinator that begin in the
same iteration of the event loop share an AddPartitionsToTxn request. After a retriable error, a
verification is repeated for at most a second; then the producer must retry. Answers from a replaced
coordinator are ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from broker_lite.errors import (
    NO_ERROR,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    LogbusError,
    NotEnoughReplicasError,
    NotLeaderError,
    ProducerFencedError,
    TransactionCoordinatorFencedError,
    error_for,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import TRANSACTION_STATE
from broker_lite.server.cluster.peers import BrokerCalls
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.state_log import leader_of
from broker_lite.server.partitions.replica import Replica
from broker_lite.server.task_set import TaskSet
from broker_lite.transactions.participant import Participant, Verification
from broker_lite.wire.calls.verification import (
    AskedTopic,
    AskedTransaction,
    VerifiedTransaction,
    VerifyPartitionsRequest,
)

VERIFY_TIMEOUT_S = 1.0
"""Seconds for which the verification of a transaction (KIP-890) is repeated after retriable errors.

Then the producer gets a retriable error."""
RETRY_S = 0.01
"""Seconds before the verification of a transaction is repeated.

The delay is short, because a coordinator that is writing a change of the transaction answers a
broker at once, with a retriable error."""

Verified = Callable[[LogbusError | None], None]
"""Called once: with an error, or with None if the batch may be appended. The callback appends it
at once, before a marker can end the transaction."""


@dataclass(slots=True)
class _PendingVerification:
    """A verification in progress: does a producer's transaction include a partition?

    With ``adds``, the coordinator adds the partition if it is missing. ``waiting`` has the
    callbacks of the produce requests that wait, in order. ``deadline_s`` is the end of the retries
    by the event loop's clock."""

    replica: Replica
    participant: Participant
    verification: Verification
    transactional_id: str
    adds: bool
    deadline_s: float
    waiting: list[Verified] = field(default_factory=list)


class TransactionVerifier:
    """Sends the verifications of one broker: requests that ask whether a transaction includes a
    partition."""

    def __init__(
        self,
        *,
        calls: BrokerCalls,
        snapshot: Callable[[], MetadataSnapshot],
        epochs: CoordinatorEpochs,
    ) -> None:
        self._calls = calls
        self._snapshot = snapshot
        self._epochs = epochs
        self._pending: dict[tuple[Participant, int], _PendingVerification] = {}
        self._due: list[_PendingVerification] = []
        self._tasks = TaskSet()

    def verify(
        self,
        replica: Replica,
        verification: Verification,
        transactional_id: str,
        *,
        adds: bool,
        done: Verified,
    ) -> None:
        """Ask the coordinator whether the transaction includes the replica's partition, or wait for
        the same verification if it is in flight.

        ``verification`` is the result of ``replica.participant.admit`` for a batch. ``done`` is
        called with the outcome, in the order of the producer's batches. With ``adds``
        (transaction version 2), the coordinator adds the partition to the transaction; otherwise
        the client has added it."""
        participant = replica.participant
        key = participant, verification.token
        pending = self._pending.get(key)
        if pending is None:
            deadline_s = asyncio.get_running_loop().time() + VERIFY_TIMEOUT_S
            pending = self._pending[key] = _PendingVerification(
                replica, participant, verification, transactional_id, adds, deadline_s
            )
            self._send_soon(pending)
        pending.waiting.append(done)

    def close(self) -> None:
        """Cancel the requests that have no answer, because the broker stops."""
        self._tasks.cancel()

    # Methods that send requests to transaction coordinators.

    def _send_soon(self, pending: _PendingVerification) -> None:
        self._due.append(pending)
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._send_due)

    def _send_due(self) -> None:
        due, self._due = self._due, []
        requests: list[tuple[int, dict[str, list[_PendingVerification]]]] = []
        for pending in due:
            key = pending.transactional_id.encode()
            try:
                broker_id = leader_of(self._snapshot(), TRANSACTION_STATE, key).broker_id
            except CoordinatorNotAvailableError as error:
                self._answer(pending, error)
                continue
            for other_id, by_id in requests:
                same = by_id.get(pending.transactional_id)
                if other_id == broker_id and (same is None or _share_row(same[0], pending)):
                    by_id.setdefault(pending.transactional_id, []).append(pending)
                    break
            else:
                requests.append((broker_id, {pending.transactional_id: [pending]}))
        for broker_id, by_id in requests:
            self._tasks.start(self._send(broker_id, by_id))

    async def _send(self, broker_id: int, by_id: dict[str, list[_PendingVerification]]) -> None:
        """Send one request to a coordinator.

        ``by_id`` has the verifications by transactional id. Verifications of one id have the same
        producer id and epoch."""
        rows = []
        for transactional_id, same in by_id.items():
            partitions: dict[tuple[str, str], list[int]] = {}
            for pending in same:
                replica = pending.replica
                topic = replica.topic, replica.key.topic_id
                partitions.setdefault(topic, []).append(replica.partition)
            topics = [
                AskedTopic(topic, tuple(numbers), topic_id)
                for (topic, topic_id), numbers in partitions.items()
            ]
            verification, verify_only = same[0].verification, not same[0].adds
            rows.append(
                AskedTransaction(
                    transactional_id,
                    verification.producer_id,
                    verification.epoch,
                    verify_only,
                    topics,
                )
            )
        try:
            answer = await self._calls.send(
                broker_id, VerifyPartitionsRequest(rows), VERIFY_TIMEOUT_S * 1000
            )
            if answer.error_code != NO_ERROR:
                raise error_for(answer.error_code)
        except LogbusError as error:
            for same in by_id.values():
                for pending in same:
                    self._answer(pending, error)
            return
        results = {row.transactional_id: row for row in answer.results_by_transaction}
        for transactional_id, same in by_id.items():
            for pending in same:
                self._read(pending, results.get(transactional_id))

    def _read(self, pending: _PendingVerification, row: VerifiedTransaction | None) -> None:
        """Handle the coordinator's answer to one verification. ``row`` is None if the response
        lacks the transaction."""
        replica = pending.replica
        codes = {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in (row.topic_results if row else ())
            for part in topic.results_by_partition
        }
        code = codes.get((replica.topic, replica.partition))
        if row is None or code is None:
            self._answer(pending, CoordinatorNotAvailableError())
        elif code != NO_ERROR:
            self._answer(pending, error_for(code))
        else:
            try:
                self._epochs.check(row.state_partition, row.coordinator_epoch)
            except TransactionCoordinatorFencedError:
                # Another broker has become coordinator, so the answer may confirm a transaction
                # that has ended. Ask the new coordinator.
                self._answer(pending, CoordinatorNotAvailableError())
                return
            self._confirm(pending, row.number)

    # Methods that handle the outcomes of verifications.

    def _confirm(self, pending: _PendingVerification, number: int) -> None:
        error: LogbusError | None = None
        if pending.replica.participant is not pending.participant:
            error = NotLeaderError(f"this broker no longer leads {pending.replica}")
        elif not pending.participant.verify(pending.verification, number):
            # The transaction has ended during the verification. Refuse its waiting batches:
            # otherwise they would become part of the producer's next transaction.
            error = (InvalidProducerEpochError if pending.adds else InvalidTxnStateError)(
                f"{pending.replica}: the transaction of producer "
                f"{pending.verification.producer_id} in epoch "
                f"{pending.verification.epoch} has ended"
            )
        self._end(pending, error)

    def _answer(self, pending: _PendingVerification, error: LogbusError) -> None:
        """Repeat the verification of a transaction after a retriable error, until ``deadline_s``.

        After another error, or later, fail the produce requests that wait for the verification."""
        loop = asyncio.get_running_loop()
        if error.retriable and loop.time() < pending.deadline_s:
            loop.call_later(RETRY_S, self._send_soon, pending)
            return
        pending.participant.refuse(pending.verification)
        self._end(pending, _as_produce_error(error, pending))

    def _end(self, pending: _PendingVerification, error: LogbusError | None) -> None:
        del self._pending[pending.participant, pending.verification.token]
        for done in pending.waiting:
            done(error)


def _share_row(one: _PendingVerification, other: _PendingVerification) -> bool:
    """Return whether both verifications, of one transactional id, can share a row of an
    AddPartitionsToTxn request, which has one producer id and epoch."""
    pairs = [
        (each.verification.producer_id, each.verification.epoch, each.adds) for each in (one, other)
    ]
    return pairs[0] == pairs[1]


def _as_produce_error(error: LogbusError, pending: _PendingVerification) -> LogbusError:
    """Return the error that the producer gets if the transaction coordinator answers ``error``."""
    if isinstance(error, ProducerFencedError):
        # PRODUCER_FENCED would be fatal for the client. After INVALID_PRODUCER_EPOCH it can still
        # abort its transaction.
        return InvalidProducerEpochError(error.message)
    if error.retriable and not (pending.adds and isinstance(error, ConcurrentTransactionsError)):
        return NotEnoughReplicasError(
            f"{pending.replica}: the transaction coordinator of {pending.transactional_id!r} did "
            f"not confirm the transaction within {VERIFY_TIMEOUT_S:.0f} s ({error.message}); retry"
        )
    return error
