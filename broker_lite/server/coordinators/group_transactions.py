"""The offsets that transactions commit in the groups of this group coordinator.

TxnOffsetCommit stores offsets as *pending* until the transaction ends. Before a transaction's first
offsets, the transaction coordinator must add the group to the transaction or confirm that the
transaction includes it; ``transactions/participant.py`` decides when this request is needed. When
the transaction ends, the transaction coordinator sends EndGroupOffsets, which commits or drops the
offsets. If that request never arrives, the group coordinator finds the pending offsets by their
age."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import NamedTuple

from broker_lite.config import BrokerConfig
from broker_lite.coordinator.events import Commit
from broker_lite.errors import (
    ClusterAuthorizationError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    LogbusError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionalIdAuthorizationError,
    TransactionCoordinatorFencedError,
    UnknownServerError,
    error_for,
)
from broker_lite.metadata.group_claims import GroupClaim
from broker_lite.metadata.group_offsets import PendingRow
from broker_lite.metadata.pending_offsets import Offsets
from broker_lite.metadata.znodes import PendingOffsets, TransactionKey
from broker_lite.model import (
    TRANSACTION_STATE,
    UNNUMBERED,
    TopicPartition,
)
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.peers import BrokerCalls
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.coordinators.state_log import leader_of
from broker_lite.transactions.participant import Participant, Verification
from broker_lite.wire.calls.group_transactions import (
    AddGroupRequest,
    AddGroupResponse,
    EndGroupOffsetsRequest,
)

logger = logging.getLogger("logbus.groups")

VERIFY_MS = 1000
"""Milliseconds for which a request to the transaction coordinator is repeated after retriable
errors.

Then the producer gets a retriable error."""
VERIFY_PAUSE_S = 0.01
"""Seconds between a retriable error of the transaction coordinator and the next request to it."""
TIMEOUTS = 2
"""Pending offsets are overdue after ``TIMEOUTS`` times ``transaction.max.timeout.ms``, and so is a
transaction that is open in a log. The broker then checks whether the transaction has ended, as it
should have."""
REFUSALS = (UnknownServerError, ClusterAuthorizationError, TransactionalIdAuthorizationError)
"""Errors of a transaction coordinator after which the transaction may still be open, so its pending
offsets remain."""


class GroupCommit(NamedTuple):
    """A TxnOffsetCommit request.

    ``adds_group`` tells whether the request itself adds the group to the transaction; otherwise the
    producer has added it with AddOffsetsToTxn."""

    group: str
    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds_group: bool
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Offsets

    @property
    def check(self) -> Commit:
        """The event that makes the group's state machine check the member and its generation
        (KIP-447)."""
        return Commit(UNNUMBERED, self.member_id, self.instance_id, self.generation, True)


@dataclass(slots=True, eq=False)
class _ClaimedGroup:
    """The open transactions of one group that this broker coordinates (has claimed)."""

    claim: GroupClaim
    participant: Participant = field(default_factory=Participant)
    asking: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """The tasks that ask a transaction coordinator whether a transaction includes the group, by
    ``Verification.token``."""


class GroupTransactions:
    """The transactions that commit offsets in the groups that this broker coordinates."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        groups: GroupCoordinator,
        *,
        clock: Clock,
        calls: BrokerCalls,
        epochs: CoordinatorEpochs,
    ) -> None:
        self._config = config
        self._registry = registry
        self._groups = groups
        self._clock = clock
        self._calls = calls
        self._epochs = epochs
        self._claimed: dict[str, _ClaimedGroup] = {}

    async def commit(self, request: GroupCommit) -> dict[TopicPartition, LogbusError | None]:
        """Store a transaction's offsets until it ends. Return an error or None for each partition.

        Raises LogbusError if the group refuses the member, or if the transaction coordinator
        refuses the producer."""
        if not self._registry.snapshot.has_transactions:
            raise TransactionalIdAuthorizationError(
                "a broker of the cluster does not support transactions; upgrade it"
            )
        claim = await self._groups.claim_for_commit(request.group, request.check)
        claimed = self._of(claim)
        verification = claimed.participant.admit(request.producer_id, request.producer_epoch)
        if verification is not None:
            await self._verify(claimed, verification, request)
            # The member may have left during the verification, so check it again. From here on, no
            # code awaits until the offsets are queued, so nothing can change in between.
            claim = await self._groups.claim_for_commit(request.group, request.check)
            if claim is not claimed.claim or not claimed.participant.holds(verification):
                raise CoordinatorNotAvailableError(
                    f"the transaction of {request.transactional_id!r} ended, or group "
                    f"{request.group!r} moved, during the verification; send the offsets again"
                )
        number = claimed.participant.number(request.producer_id)
        transaction = TransactionKey(request.producer_id, request.producer_epoch, number)
        value = PendingOffsets(request.transactional_id, request.offsets)
        return await self._registry.groups.add_pending(claim, transaction, value)

    async def end(self, request: EndGroupOffsetsRequest) -> None:
        """Commit or drop a transaction's offsets in a group. A repeated request has no effect."""
        self._epochs.check(request.state_partition, request.coordinator_epoch)
        self._groups.check_coordinator(request.group_id)
        claimed = self._claimed.get(request.group_id)
        if claimed is not None:
            claimed.participant.end(request.producer_id, request.producer_epoch, request.number)
            if not claimed.participant:
                del self._claimed[request.group_id]
        transaction = TransactionKey(request.producer_id, request.producer_epoch, request.number)
        await self._registry.groups.end_pending(
            request.group_id, transaction, is_commit=request.committed
        )

    async def end_overdue(self) -> None:
        """Drop overdue pending offsets (see ``TIMEOUTS``) of transactions that have ended without
        an EndGroupOffsets request."""
        for group in await self._registry.groups.kinds():
            try:
                self._groups.check_coordinator(group)
                await self._end_overdue(group)
            except NotCoordinatorError:
                continue

    async def _end_overdue(self, group: str) -> None:
        overdue_ms = TIMEOUTS * self._config.transaction_max_timeout_ms
        before_ms = self._clock.now_ms() - overdue_ms
        checked: set[TransactionKey] = set()
        for row in await self._registry.groups.pending(group):
            transaction = row.part.transaction
            added_ms = max(offset.commit_ms for offset in row.value.offsets.values())
            if added_ms > before_ms or transaction in checked:
                continue
            checked.add(transaction)
            if await self._is_over(group, row):
                logger.warning(
                    "group %r: transaction %d of %r has ended, but no EndGroupOffsets request "
                    "arrived; the broker drops the transaction's offsets",
                    group,
                    transaction.number,
                    row.value.transactional_id,
                )
                await self._registry.groups.end_pending(group, transaction, is_commit=False)

    async def _is_over(self, group: str, row: PendingRow) -> bool:
        """Return whether a transaction has ended, according to its transaction coordinator."""
        transaction = row.part.transaction
        request = AddGroupRequest(
            row.value.transactional_id, transaction.producer_id, transaction.epoch, group, True
        )
        try:
            answer = await self._add_group(request)
        except LogbusError as error:
            return not (error.retriable or isinstance(error, REFUSALS))
        return answer.number != transaction.number

    # Methods that return the state of a group that this broker coordinates, and verify that a
    # transaction includes it.

    def _of(self, claim: GroupClaim) -> _ClaimedGroup:
        claimed = self._claimed.get(claim.group)
        if claimed is None or claimed.claim is not claim:
            if claimed is not None:
                claimed.participant.clear()
            claimed = self._claimed[claim.group] = _ClaimedGroup(claim)
        return claimed

    async def _verify(
        self, claimed: _ClaimedGroup, verification: Verification, request: GroupCommit
    ) -> None:
        """Wait until the transaction coordinator confirms that the transaction includes the group.

        Concurrent requests of one producer share one request to the coordinator. Raises the
        coordinator's error."""
        task = claimed.asking.get(verification.token)
        if task is None:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._add_group_until_known(claimed, verification, request))
            claimed.asking[verification.token] = task
            task.add_done_callback(lambda _: claimed.asking.pop(verification.token, None))
        await asyncio.shield(task)

    async def _add_group_until_known(
        self, claimed: _ClaimedGroup, verification: Verification, request: GroupCommit
    ) -> None:
        call = AddGroupRequest(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.group,
            not request.adds_group,
        )
        until_ms = self._clock.monotonic_ms() + VERIFY_MS
        while True:
            try:
                answer = await self._add_group(call)
            except LogbusError as error:
                if not error.retriable or self._clock.monotonic_ms() >= until_ms:
                    claimed.participant.refuse(verification)
                    raise _refusal(error, request) from None
                await asyncio.sleep(VERIFY_PAUSE_S)
                continue
            claimed.participant.verify(verification, answer.number)
            return

    async def _add_group(self, request: AddGroupRequest) -> AddGroupResponse:
        """Ask the transaction coordinator to add the group to a transaction, or to verify that the
        transaction includes it.

        Return the answer, or raise its error."""
        key = request.transactional_id.encode()
        leader = leader_of(self._registry.snapshot, TRANSACTION_STATE, key)
        answer = await self._calls.send(leader.broker_id, request)
        if answer.error_code:
            raise error_for(answer.error_code)
        try:
            self._epochs.check(answer.state_partition, answer.coordinator_epoch)
        except TransactionCoordinatorFencedError as error:
            raise NotCoordinatorError(error.message) from None
        return answer


def _refusal(error: LogbusError, request: GroupCommit) -> LogbusError:
    """Return the error that the producer gets if the transaction coordinator answers ``error``."""
    what = f"group {request.group!r} cannot join the transaction of {request.transactional_id!r}"
    if isinstance(error, ConcurrentTransactionsError) and request.adds_group:
        return error
    if error.retriable:
        return CoordinatorNotAvailableError(f"{what} yet: {error.message}")
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError(f"{what}: {error.message}")
    return error
