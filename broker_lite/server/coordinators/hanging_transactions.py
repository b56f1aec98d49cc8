"""End the hanging transactions of the partitions that this broker leads.

``transactions/hanging.py`` decides which transactions to ask about, and how to end them. This
module reads the open transactions from the logs, asks the leaders of all partitions of
``__transaction_state``, and appends the markers. The log refuses a marker if the producer has
written since, so an answer never ends a later transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError, TransactionCoordinatorFencedError
from broker_lite.model import (
    NO_BROKER,
    TRANSACTION_STATE,
    PartitionKey,
    TopicPartition,
    TopicView,
)
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.peers import BrokerCalls
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.group_transactions import TIMEOUTS
from broker_lite.server.coordinators.state_log import state_partition
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.transactions.hanging import (
    CoordinatorAnswers,
    KnownTransaction,
    LedTransaction,
    SilentTransactions,
    Verdict,
)
from broker_lite.wire.calls.transaction_search import FindTransactionsRequest, FoundTransactions

logger = logging.getLogger("logbus.transactions")

APPEND_MS = 30_000
"""Milliseconds after which the append of a marker without confirmation by the ISR fails; the next
search repeats it."""


class HangingTransactions:
    """Searches the partitions that this broker leads for hanging transactions, and ends them."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        calls: BrokerCalls,
        epochs: CoordinatorEpochs,
        metrics: Metrics,
    ) -> None:
        self._registry = registry
        self._replicas = replicas
        self._clock = clock
        self._calls = calls
        self._epochs = epochs
        self._metrics = metrics
        self._silent = SilentTransactions(TIMEOUTS * config.transaction_max_timeout_ms)

    async def end(self) -> None:
        """End the transactions that have hung for ``TIMEOUTS`` times
        ``transaction.max.timeout.ms``.

        Call this periodically: a transaction counts as silent from the first call that finds it
        unchanged."""
        rows = await self._open()
        due = self._silent.observe(self._clock.monotonic_ms(), rows)
        state = self._registry.snapshot.topics.get(TRANSACTION_STATE)
        if not due or state is None:
            return
        answers = await self._ask(state, {row.transaction.producer_id for row in due})
        unanswered: list[LedTransaction] = []
        ends: dict[PartitionKey, list[tuple[LedTransaction, Verdict]]] = {}
        for row in due:
            verdict = answers.judge(row.transaction)
            if verdict is Verdict.UNANSWERED:
                unanswered.append(row)
            elif verdict is not Verdict.OPEN:
                ends.setdefault(row.key, []).append((row, verdict))
        if unanswered:
            logger.warning(
                "%s, is unknown to the coordinators that have answered (and so are %d others); it "
                "stays open until these partitions of %s answer, too: %s",
                unanswered[0],
                len(unanswered) - 1,
                TRANSACTION_STATE,
                sorted(answers.missing),
                extra=log_event("hanging_transaction_unanswered", tp=unanswered[0].tp),
            )
        await asyncio.gather(*map(self._end, ends.values()))

    async def _open(self) -> list[LedTransaction]:
        """Return the open transactions of all partitions that this broker leads."""
        rows = []
        for replica in self._replicas.replicas:
            # Without this condition, each search would wake the append thread of every partition.
            if replica.role.is_leader and replica.log.reader.unstable is not None:
                epoch, log = replica.leader_epoch, replica.log
                found = await self._replicas.disk.run_on(log.key, log.open_transactions)
                tp = TopicPartition(replica.topic, replica.partition)
                rows += [LedTransaction(log.key, tp, epoch, each) for each in found]
        return rows

    # Methods that ask the coordinators.

    async def _ask(self, state: TopicView, producer_ids: Iterable[int]) -> CoordinatorAnswers:
        """Ask the leaders of all partitions of ``__transaction_state`` about the producers."""
        answers = CoordinatorAnswers(each.partition for each in state.partitions)
        request = FindTransactionsRequest(producer_id_filters=tuple(sorted(producer_ids)))
        leaders = {each.state.leader for each in state.partitions} - {NO_BROKER}
        asked = [self._calls.send(broker_id, request) for broker_id in sorted(leaders)]
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, LogbusError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            self._add(answers, answer, len(state.partitions))
        return answers

    def _add(self, answers: CoordinatorAnswers, found: FoundTransactions, count: int) -> None:
        """Add a broker's answer. ``count`` is the number of partitions of
        ``__transaction_state``."""
        by_partition: dict[int, list[KnownTransaction]] = {}
        for row in found.transaction_states:
            known = KnownTransaction(row.producer_id, row.producer_epoch, row.transaction_state)
            home = state_partition(row.transactional_id.encode(), count)
            by_partition.setdefault(home, []).append(known)
        for partition, epoch in found.searched:
            try:
                self._epochs.check(partition, epoch)
            except TransactionCoordinatorFencedError:
                continue
            answers.add(partition, by_partition.get(partition, ()))

    async def _end(self, verdicts: Sequence[tuple[LedTransaction, Verdict]]) -> None:
        """Append the markers that end transactions of one partition, and log the results."""
        first, _ = verdicts[0]
        deadline_ms = self._clock.monotonic_ms() + APPEND_MS
        markers = [row.transaction.marker(verdict is Verdict.COMMIT) for row, verdict in verdicts]
        errors: Sequence[LogbusError | None]
        try:
            replica = self._replicas.find_by_id(*first.key)
            replica.check_leader(first.leader_epoch)
            errors = await self._replicas.append_markers(replica, markers, deadline_ms)
        except LogbusError as error:
            errors = [error] * len(markers)
        for (row, verdict), refusal in zip(verdicts, errors):
            if refusal is not None:
                logger.warning(
                    "%s, could not be ended; the next search looks at it again: %s",
                    row,
                    refusal.message,
                )
                continue
            self._metrics.count("transactions", "hanging")
            logger.warning(
                "%s, hung and is now %s",
                row,
                verdict.value,
                extra=log_event("hanging_transaction_ended", tp=row.tp),
            )
