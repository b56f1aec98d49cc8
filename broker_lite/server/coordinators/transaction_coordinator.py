"""The transaction coordinator of this broker: I/O and timers around
``transactions/transaction.py``.

The leader of a partition of ``__transaction_state`` coordinates the transactional ids of that
partition. ``StateLog`` keeps their records as bytes; a transactional id has a state machine in
memory only while it has a request or an open transaction. A new leader resends the markers of
transactions whose commit or abort is decided, and restarts the timeouts of open ones. A client's
request waits at most a second; then it is withdrawn, so that it has no effect later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    LogbusError,
    NotCoordinatorError,
    PolicyViolationError,
    ProducerFencedError,
    ProtocolError,
    TransactionalIdAuthorizationError,
    TransactionalIdNotFoundError,
)
from broker_lite.model import NO_PRODUCER, TRANSACTION_STATE, UNNUMBERED, PartitionKey
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.alarm import Alarm
from broker_lite.server.coordinators.parked_requests import ParkedRequests
from broker_lite.server.coordinators.sink_coordinator import OpenSlot, SinkCoordinator
from broker_lite.server.coordinators.state_log import StateLog
from broker_lite.server.coordinators.transaction_markers import MarkerJob, MarkerSender
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.server.task_set import TaskSet
from broker_lite.transactions import effects as fx
from broker_lite.transactions import events as ev
from broker_lite.transactions.records import (
    FLAG_OPEN,
    NO_PRODUCER_EPOCH,
    TransactionRecord,
    TransactionState,
    changed_ms_of,
    decode_transaction,
    encode_transaction,
    transaction_key,
    transactional_id_of,
)
from broker_lite.transactions.sink_events import AddToSlot, JoinBatch, SinkRequest, SinkResult
from broker_lite.transactions.sink_records import SinkSlot, head_key
from broker_lite.transactions.transaction import Now, Request, Transaction

logger = logging.getLogger("logbus.transactions")

PARK_S = 1.0
"""Maximum seconds for which a request waits until the transactional id's previous change is
written."""
CONFIRM_S = 1.0
"""Maximum seconds for which the refusal of a request waits until the broker has confirmed that it
still leads the transactional id's partition."""
ID_BYTES_MAX = 1024
"""Maximum bytes of a transactional id, encoded as UTF-8."""
IDS_MAX = 200_000
"""Maximum number of keys in one partition of ``__transaction_state``: about 60 MB of memory.

Keys are transactional ids, Spark's exactly-once sinks, and the producer ids of their open task
attempts."""
SLICE = 1000
"""Number of keys that a listing or an expiry of transactional ids examines, in about 2 ms, before
it lets the event loop do other work."""
_REFUSALS = (InvalidProducerIdMappingError, InvalidTxnStateError, ProducerFencedError)
"""The final errors of a client's request, which a stale state of the coordinator could cause."""
OUTCOMES = {
    TransactionState.COMPLETE_COMMIT: "committed",
    TransactionState.COMPLETE_ABORT: "aborted",
}
"""The label of the metric ``transactions`` for each state in which a transaction ends."""
EXPIRY_CHECK_MS = 3_600_000
"""Milliseconds between two searches for unused transactional ids; Kafka's default."""


@dataclass(slots=True, eq=False)
class LedState:
    """A partition of ``__transaction_state`` that this broker leads, in leader epoch ``epoch``.

    ``values`` has the committed records by key, ``transactions`` the state machines in memory by
    transactional id."""

    partition: int
    epoch: int
    values: Mapping[bytes, bytes]
    transactions: dict[str, CoordinatedTransaction] = field(default_factory=dict)
    is_lost: bool = False


@dataclass(slots=True, eq=False)
class CoordinatedTransaction:
    """The state machine of one transactional id, with the requests that wait for it.

    ``appends`` counts the transaction's records that are being appended. ``job`` sends the
    transaction's markers; None while there are none to send."""

    machine: Transaction
    led: LedState
    parked: ParkedRequests[fx.TransactionResult] = field(default_factory=ParkedRequests)
    appends: int = 0
    job: MarkerJob | None = None


class TransactionView(NamedTuple):
    """A transactional id as DescribeTransactions and ListTransactions show it."""

    name: str
    record: TransactionRecord
    state: TransactionState


class FoundViews(NamedTuple):
    """The last transactions of producers, and where this broker searched for them: partitions of
    ``__transaction_state`` with their leader epochs."""

    views: list[TransactionView]
    leader_epochs: dict[int, int]


class TransactionCoordinator:
    """The transaction coordinator of one broker. ``markers`` sends the transaction markers."""

    def __init__(
        self,
        config: BrokerConfig,
        registry: Registry,
        *,
        replicas: ReplicaManager,
        markers: MarkerSender,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._registry = registry
        self._markers = markers
        self._clock = clock
        self._led: dict[int, LedState] = {}
        self._tasks = TaskSet()
        self._alarm = Alarm(clock, self._tick)
        self._is_closed = False
        self.sinks = SinkCoordinator(
            self,
            markers=markers,
            clock=clock,
            metrics=metrics,
            timeout_max_ms=config.transaction_max_timeout_ms,
        )
        self._metrics = metrics
        self._durations = metrics.histogram("transaction_duration_seconds")
        metrics.gauge("open_transactions", lambda: len(self._opened_ms()))
        metrics.gauge("oldest_transaction_age_seconds", self._oldest_age_s)
        self._log = StateLog(
            TRANSACTION_STATE,
            self,
            replicas=replicas,
            snapshot=lambda: registry.snapshot,
            clock=clock,
        )

    # Methods that StateLog calls.

    def loaded(
        self, partition: int, epoch: int, values: Mapping[bytes, bytes], flags: Mapping[bytes, int]
    ) -> None:
        """Start to coordinate a loaded partition of ``__transaction_state``, with its open
        transactions."""
        led = self._led[partition] = LedState(partition, epoch, values)
        names = [transactional_id_of(key) for key, flag in flags.items() if flag & FLAG_OPEN]
        opened = [name for name in names if name is not None]
        for name in opened:
            try:
                self._drop_if_idle(self._hold(led, name))
            except ProtocolError as error:
                logger.error(
                    "transactional id %r cannot be loaded: %s",
                    name,
                    error.message,
                    extra=log_event("transactional_id_unreadable"),
                )
        self.sinks.loaded(partition, epoch, values, flags)
        logger.info(
            "%s-%d: this broker coordinates the transactions of this partition in leader epoch %d; "
            "%d are open",
            TRANSACTION_STATE,
            partition,
            epoch,
            len(opened),
            extra=log_event("transaction_coordinator_started"),
        )

    def lost(self, partition: int) -> None:
        """Stop coordinating a partition that this broker no longer leads.

        Waiting requests get NOT_COORDINATOR."""
        led = self._led.pop(partition, None)
        if led is None:
            return
        led.is_lost = True
        self.sinks.lost(partition)
        error = NotCoordinatorError(
            f"this broker no longer leads {TRANSACTION_STATE}-{partition}; find the coordinator"
        )
        for coordinated in list(led.transactions.values()):
            if coordinated.job is not None:
                coordinated.job.is_cancelled = True
            self._step(coordinated, ev.Deposed(error))
        led.transactions.clear()

    # Methods that handle requests.

    async def ask(self, transactional_id: str, request: Request) -> fx.TransactionResult:
        """Carry out a request for a transactional id, and return its result.

        The result may be an error. Raises NotCoordinatorError if this broker does not coordinate
        the transactional id, and ConcurrentTransactionsError if the id's previous change is not
        written within ``PARK_S`` seconds."""
        led = self._led_of(transactional_id)
        if self.sinks.is_sink(led.partition, transactional_id):
            return await self._ask_slot(led, transactional_id, request)
        if isinstance(request, ev.Init):
            self._check_capacity(led, transaction_key(transactional_id))
        coordinated = self._hold(led, transactional_id)
        step = partial(self._step, coordinated)
        try:
            async with asyncio.timeout(PARK_S):
                result = await coordinated.parked.ask(
                    step, request, lambda token: step(ev.Abandon(token))
                )
        except TimeoutError:
            raise ConcurrentTransactionsError(
                f"the previous change of transactional id {transactional_id!r} is still being "
                f"written after {PARK_S:g} s; try again"
            ) from None
        if isinstance(result.error, _REFUSALS) and _may_be_ahead(request, coordinated):
            await self._confirm(led)
        return result

    async def _confirm(self, led: LedState) -> None:
        """Raise an error unless this broker still coordinates the partition. Call this before a
        refusal, or before an answer that an id does not exist.

        A broker whose process was suspended may not know yet that a successor has changed the
        transaction. So it appends a record, which only the current leader can commit. The record
        deletes a key that does not exist."""
        try:
            async with asyncio.timeout(CONFIRM_S):
                await self._log.append(led.partition, b"", None)
        except NotCoordinatorError:
            raise
        except (LogbusError, TimeoutError) as error:
            reason = f"no answer within {CONFIRM_S:g} s"
            if isinstance(error, LogbusError):
                reason = error.message
            raise CoordinatorNotAvailableError(
                f"this broker cannot confirm that it leads {TRANSACTION_STATE}-{led.partition}, so "
                f"try again: {reason}"
            ) from None

    async def wait_loaded(self, transactional_id: str) -> None:
        """Wait up to a second while this broker loads the transactional id's partition."""
        if self._registry.snapshot.has_transactions:
            await self._log.wait_loaded(self._log.partition_of(transactional_id.encode("utf-8")))

    async def ask_sink(self, sink: str, request: SinkRequest) -> SinkResult:
        """Carry out a request for a Spark exactly-once sink, and return its result.

        Raises the result's error if the request is refused, InvalidRequestError if ``sink`` is a
        producer's transactional id, and the errors of ``SinkCoordinator.ask``."""
        await self.wait_loaded(sink)
        led = self._led_of(sink)
        if sink in led.transactions or transaction_key(sink) in led.values:
            raise InvalidRequestError(
                f"{sink!r} is the transactional id of a producer; give the sink another "
                "transactionalId"
            )
        if isinstance(request, JoinBatch) and not self.sinks.is_sink(led.partition, sink):
            self._check_capacity(led, head_key(sink))
        result = await self.sinks.ask(led.partition, request)
        if isinstance(result.error, ProducerFencedError):
            await self._confirm(led)  # The sink's new coordinator may accept this run of the query.
        if result.error is not None:
            raise result.error
        return result

    async def _ask_slot(self, led: LedState, sink: str, request: Request) -> fx.TransactionResult:
        """Verify that a Spark task attempt includes partitions, or add them, for the broker that
        leads them.

        Raises InvalidRequestError for a request of a producer, which must not use the name of a
        Spark sink as its transactional id."""
        if not isinstance(request, ev.Add) or request.connection is not None:
            raise InvalidRequestError(
                f"{sink!r} is the id of a Spark sink; give the producer another transactional.id"
            )
        result = await self.sinks.ask(
            led.partition,
            AddToSlot(
                UNNUMBERED,
                sink,
                request.producer_id,
                request.epoch,
                request.partitions,
                request.verify_only,
            ),
        )
        return fx.TransactionResult(result.error)

    # Methods that SinkCoordinator calls.

    def append_state(
        self, partition: int, key: bytes, value: bytes | None, flags: int
    ) -> asyncio.Future[None]:
        """Append a record of a Spark sink to a partition of ``__transaction_state``.

        The returned future completes when the record is committed."""
        return self._log.append(partition, key, value, flags)

    async def fetch_producer_id(self) -> ev.ProducerIdReady | ev.ProducerIdFailed:
        """Return an unused producer id, or an error if ZooKeeper is unavailable."""
        try:
            return ev.ProducerIdReady(await self._registry.next_producer_id())
        except LogbusError as error:
            return ev.ProducerIdFailed(error)

    # Methods that describe transactional ids and delete expired ones.

    def place_of(self, transactional_id: str) -> tuple[int, int]:
        """Return the transactional id's partition of ``__transaction_state`` and its leader epoch.

        Raises NotCoordinatorError if this broker does not coordinate the id."""
        led = self._led_of(transactional_id)
        return led.partition, led.epoch

    def describe(self, transactional_id: str) -> TransactionView:
        """Describe a transactional id, or all open task attempts of a Spark sink as one
        transaction.

        Raises TransactionalIdNotFoundError for an unknown id."""
        led = self._led_of(transactional_id)
        if self.sinks.is_sink(led.partition, transactional_id):
            slots = self.sinks.open_slots(led.partition).items()
            return _sink_view(
                transactional_id,
                {producer: row for producer, row in slots if row.slot.sink == transactional_id},
            )
        view = self._view(led, transactional_id)
        if view is None:
            raise TransactionalIdNotFoundError(
                f"transactional id {transactional_id!r} does not exist: it expired, or no producer "
                "has used it; list the ids with: logbus transactions list"
            )
        return view

    async def views(self) -> AsyncIterator[TransactionView]:
        """Yield each transactional id of this broker, and each open task attempt of a Spark sink,
        which is listed as a transaction."""
        for led in list(self._led.values()):
            for producer_id, row in self.sinks.open_slots(led.partition).items():
                yield _sink_view(row.slot.sink, {producer_id: row})
            for at, key in enumerate(list(led.values)):
                if at % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                name = transactional_id_of(key)
                view = None if name is None or led.is_lost else self._view(led, name)
                if view is not None:
                    yield view

    async def find(self, producer_ids: frozenset[int]) -> FoundViews:
        """Return the transactional ids whose last transaction has batches of these producer ids.

        Search only partitions for which this broker has confirmed that it leads them, so that an id
        which is not found does not exist."""
        searched = [led for led in self._led.values() if self.sinks.is_loaded(led.partition)]
        confirmed = await asyncio.gather(*map(self._is_confirmed, searched))
        views = [view async for view in self.views() if view.record.written_by[0] in producer_ids]
        epochs = {
            led.partition: led.epoch
            for led, is_confirmed in zip(searched, confirmed)
            if is_confirmed and not led.is_lost
        }
        return FoundViews(views, epochs)

    async def _is_confirmed(self, led: LedState) -> bool:
        try:
            await self._confirm(led)
        except LogbusError:
            return False
        return True

    def check_loaded(self) -> None:
        """Raise CoordinatorLoadInProgressError while this broker loads a partition of
        ``__transaction_state``."""
        view = self._registry.snapshot.topics.get(TRANSACTION_STATE)
        for partition in view.partitions if view is not None else ():
            self._log.led(partition.partition)

    async def expire(self) -> None:
        """Delete expired transactional ids that have no open transaction.

        They last changed more than ``transactional.id.expiration.ms`` ago, in wall time."""
        self.sinks.expire()
        before_ms = self._clock.now_ms() - self._config.transactional_id_expiration_ms
        for led in list(self._led.values()):
            for at, (key, value) in enumerate(list(led.values.items())):
                if at % SLICE == SLICE - 1:
                    await asyncio.sleep(0)
                name = transactional_id_of(key)
                if name is None or led.is_lost or changed_ms_of(value) >= before_ms:
                    continue
                coordinated = self._hold(led, name)
                self._step(coordinated, ev.Expire(before_ms))

    def close(self) -> None:
        """Stop all timers and the sending of markers, because the broker stops."""
        self._is_closed = True
        self._markers.close()
        self.sinks.close()
        self._alarm.close()
        self._tasks.cancel()

    def _led_of(self, transactional_id: str) -> LedState:
        if not self._registry.snapshot.has_transactions:
            raise TransactionalIdAuthorizationError(
                "a broker of the cluster does not support transactions; upgrade it, or use a "
                "producer without transactional.id"
            )
        size = len(transactional_id.encode("utf-8"))
        if not 0 < size <= ID_BYTES_MAX:
            raise InvalidRequestError(
                f"transactional.id has {size} bytes; give 1 to {ID_BYTES_MAX} bytes"
            )
        partition = self._log.partition_of(transactional_id.encode("utf-8"))
        led = self._led.get(partition)
        if self._log.led(partition) is None or led is None:
            raise NotCoordinatorError(
                f"broker {self._config.broker_id} does not coordinate transactional id "
                f"{transactional_id!r}; find its coordinator"
            )
        return led

    def _check_capacity(self, led: LedState, key: bytes) -> None:
        """Raise PolicyViolationError if ``key`` is new and the partition has IDS_MAX keys."""
        if len(led.values) >= IDS_MAX and key not in led.values:
            raise PolicyViolationError(
                f"{TRANSACTION_STATE}-{led.partition} holds {len(led.values)} transactional ids "
                "and Spark sinks, the maximum; reuse transactional ids and Spark checkpoints, or "
                "lower transactional.id.expiration.ms"
            )

    def _view(self, led: LedState, name: str) -> TransactionView | None:
        coordinated = led.transactions.get(name)
        if coordinated is not None:
            record = coordinated.machine.record
            return (
                None if record is None else TransactionView(name, record, coordinated.machine.state)
            )
        value = led.values.get(transaction_key(name))
        if value is None:
            return None
        record = decode_transaction(value)
        return TransactionView(name, record, record.state)

    # Methods that pass events to the transactions' state machines, and carry out the operations
    # (effects) that these return.

    def _hold(self, led: LedState, name: str) -> CoordinatedTransaction:
        """Return the transactional id's state machine. If it is not in memory, create it from the
        committed record."""
        coordinated = led.transactions.get(name)
        if coordinated is not None:
            return coordinated
        value = led.values.get(transaction_key(name))
        record = None if value is None else decode_transaction(value)
        machine = Transaction(name, record, timeout_max_ms=self._config.transaction_max_timeout_ms)
        coordinated = led.transactions[name] = CoordinatedTransaction(machine, led)
        if record is not None and record.is_open:
            self._carry_out(coordinated, ev.Resumed())
        return coordinated

    def _step(self, held: CoordinatedTransaction, event: ev.TransactionEvent) -> None:
        self._carry_out(held, event)
        self._drop_if_idle(held)

    def _carry_out(self, held: CoordinatedTransaction, event: ev.TransactionEvent) -> None:
        now = Now(self._clock.monotonic_ms(), self._clock.now_ms())
        for effect in held.machine.step(now, event):
            match effect:
                case fx.Persist():
                    self._append(held, effect)
                case fx.SendMarkers():
                    self._send_markers(held, effect)
                case fx.FetchProducerId():
                    self._tasks.start(self._fetch_id(held))
                case fx.TransactionReply():
                    held.parked.reply(effect.token, effect.result)
        self._alarm.set(held.machine.deadline_ms)

    def _drop_if_idle(self, held: CoordinatedTransaction) -> None:
        """Drop a state machine from memory if no request waits for it and no transaction is open.

        Its committed record in ``__transaction_state`` has the complete state."""
        name = held.machine.name
        is_idle = held.machine.is_quiet and not held.appends and not held.parked
        if is_idle and held.led.transactions.get(name) is held:
            del held.led.transactions[name]

    def _append(self, held: CoordinatedTransaction, effect: fx.Persist) -> None:
        led, record = held.led, effect.record
        if led.is_lost:
            return
        value = None if record is None else encode_transaction(record)
        flags = FLAG_OPEN if record is not None and record.is_open else 0
        key = transaction_key(held.machine.name)
        held.appends += 1

        def settled(future: asyncio.Future[None]) -> None:
            held.appends -= 1
            if led.is_lost or self._is_closed or future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._measure(record)
                self._step(held, ev.Persisted(effect.number))
                return
            assert isinstance(error, LogbusError), error
            reason = error
            if not isinstance(error, NotCoordinatorError):
                reason = CoordinatorNotAvailableError(
                    f"the record of transactional id {held.machine.name!r} was not appended, so "
                    f"try again: {error.message}"
                )
            self._step(held, ev.RecordRefused(effect.number, reason))

        self._log.append(led.partition, key, value, flags).add_done_callback(settled)

    def _measure(self, record: TransactionRecord | None) -> None:
        """If the committed record ends a transaction, add the outcome and duration to the
        metrics."""
        outcome = None if record is None else OUTCOMES.get(record.state)
        if record is not None and outcome is not None:
            self._metrics.count("transactions", outcome)
            if record.start_ms >= 0:
                self._durations.observe(max(record.changed_ms - record.start_ms, 0) / 1000)

    def _opened_ms(self) -> list[int]:
        """Return the wall times (ms) at which the open transactions and Spark batches began."""
        machines = (
            coordinated.machine
            for led in self._led.values()
            for coordinated in led.transactions.values()
        )
        records = (machine.record for machine in machines)
        opened = [record.start_ms for record in records if record is not None and record.is_open]
        return opened + self.sinks.opened_ms()

    def _oldest_age_s(self) -> float:
        opened = [at_ms for at_ms in self._opened_ms() if at_ms >= 0]
        return max(self._clock.now_ms() - min(opened), 0) / 1000 if opened else 0.0

    def _send_markers(self, held: CoordinatedTransaction, effect: fx.SendMarkers) -> None:
        def done(participant: ev.Participating) -> None:
            if not job.is_cancelled:
                self._step(held, ev.ParticipantDone(effect.transaction, participant))

        led = held.led
        job = MarkerJob(held.machine.name, effect, led.partition, led.epoch, done)
        if held.job is not None:
            held.job.is_cancelled = True
        held.job = job
        self._markers.send_soon(job)

    async def _fetch_id(self, held: CoordinatedTransaction) -> None:
        event = await self.fetch_producer_id()
        if not held.led.is_lost:
            self._step(held, event)

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for led in list(self._led.values()):
            for coordinated in list(led.transactions.values()):
                if coordinated.machine.deadline_ms <= now_ms:
                    if coordinated.machine.state is TransactionState.ONGOING:
                        logger.info(
                            "transactional id %r: the transaction timed out and is aborted",
                            coordinated.machine.name,
                            extra=log_event("transaction_timed_out"),
                        )
                    self._step(coordinated, ev.TransactionTick())
                else:
                    self._alarm.set(coordinated.machine.deadline_ms)


def _may_be_ahead(request: Request, coordinated: CoordinatedTransaction) -> bool:
    """Return whether a successor of this coordinator could accept a request that this one refuses.

    No successor accepts a producer epoch below the known epoch: epochs only rise. Return False for
    EndTxn in transaction version 1, because the producer learns of a successor earlier, when it
    adds partitions, and for another broker's request (``ev.Add``), because it must be answered at
    once."""
    match request:
        case ev.Init():
            producer_id, epoch = request.expected or (NO_PRODUCER, NO_PRODUCER_EPOCH)
        case ev.Add(connection=None) | ev.End(version=1):
            return False
        case _:
            producer_id, epoch = request.producer_id, request.epoch
    record = coordinated.machine.record
    return record is None or producer_id != record.producer_id or epoch >= record.epoch


def _sink_view(sink: str, rows: Mapping[int, OpenSlot]) -> TransactionView:
    """Describe a Spark query's sink as one transaction with all partitions of the open task
    attempts.

    This transaction has the producer id and epoch of the first attempt."""
    nothing = OpenSlot(SinkSlot(NO_PRODUCER_EPOCH), -1)
    producer_id, (first, _) = next(iter(rows.items()), (NO_PRODUCER, nothing))
    record = TransactionRecord(
        producer_id,
        first.epoch,
        first.timeout_ms,
        TransactionState.ONGOING if rows else TransactionState.EMPTY,
        partitions=frozenset[PartitionKey]().union(*(row.slot.partitions for row in rows.values())),
        start_ms=min((row.opened_ms for row in rows.values()), default=-1),
    )
    return TransactionView(sink, record, record.state)
