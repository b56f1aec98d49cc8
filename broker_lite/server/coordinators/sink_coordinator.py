"""The coordinator of Spark's exactly-once sinks: I/O and timers around ``transactions/sinks.py``.

A *sink* is the target of one Spark query. Its state is stored in the partition of
``__transaction_state`` to which a transactional id with the sink's name would belong: one record
(its *head*) with the last committed batch and the commit or abort in progress, and one for each
open task attempt (a *slot*, by producer id). A new leader of the partition recognises these
records by ``FLAG_SINK``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from broker_lite.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionTimeoutError,
    LogbusError,
    NotCoordinatorError,
    ProtocolError,
)
from broker_lite.model import NO_TRANSACTION
from broker_lite.server.clock import Clock
from broker_lite.server.coordinators.alarm import Alarm
from broker_lite.server.coordinators.parked_requests import ParkedRequests
from broker_lite.server.coordinators.transaction_markers import MarkerJob, MarkerSender
from broker_lite.server.metrics import Metrics
from broker_lite.server.task_set import TaskSet
from broker_lite.transactions import sink_events as ev
from broker_lite.transactions.effects import SendMarkers
from broker_lite.transactions.events import (
    Deposed,
    Participating,
    Persisted,
    ProducerIdFailed,
    ProducerIdReady,
    RecordRefused,
    TransactionTick,
)
from broker_lite.transactions.sink import ANSWER_MS
from broker_lite.transactions.sink_records import (
    SinkHead,
    SinkSlot,
    SinkState,
    decode_head,
    decode_slot,
    encode_head,
    encode_slot,
    head_key,
    sink_of,
    slot_key,
    slot_of,
)
from broker_lite.transactions.sinks import SinkPartition
from broker_lite.transactions.transaction import Now

logger = logging.getLogger("logbus.transactions")

FLAG_SINK = 2
"""Flag that marks the records of Spark sinks in ``__transaction_state``."""
PARK_S = 2 * ANSWER_MS / 1000
"""Maximum seconds for which a request waits until the sink's previous change is written.

This is longer than ANSWER_MS, for which the answer to EndBatch (commit or abort of a Spark batch)
may wait for the batch's markers."""
HEAD_DAYS = 365
"""Days after a Spark sink's last use for which its last committed batch is remembered.

If Spark stops after the sink's commit and before it writes its own commit log, it repeats the batch
when it restarts, perhaps weeks later."""
_DAY_MS = 86_400_000


class SinkStore(Protocol):
    """The methods of the transaction coordinator that the sink coordinator calls."""

    def append_state(
        self, partition: int, key: bytes, value: bytes | None, flags: int
    ) -> asyncio.Future[None]:
        """Append a record to a partition of ``__transaction_state``.

        The returned future completes when the record is committed."""

    async def fetch_producer_id(self) -> ProducerIdReady | ProducerIdFailed:
        """Return an unused producer id, or an error if ZooKeeper is unavailable."""


class OpenSlot(NamedTuple):
    """An open attempt of a Spark task. ``slot`` is its record in ``__transaction_state``.

    ``opened_ms`` is the wall time at which the attempt joined the batch, or at which this broker
    loaded ``slot``."""

    slot: SinkSlot
    opened_ms: int


@dataclass(slots=True, eq=False)
class _LedSinks:
    """The state of all Spark sinks in one partition of ``__transaction_state``, which this broker
    leads.

    ``jobs`` has the transaction markers that are being sent, by producer id."""

    partition: int
    epoch: int
    machine: SinkPartition
    parked: ParkedRequests[ev.SinkResult] = field(default_factory=ParkedRequests)
    jobs: dict[int, MarkerJob] = field(default_factory=dict)
    is_lost: bool = False


class SinkCoordinator:
    """Coordinates the Spark sinks (targets of exactly-once queries) whose partition of
    ``__transaction_state`` this broker leads.

    ``timeout_max_ms`` is the broker's setting ``transaction.max.timeout.ms``."""

    def __init__(
        self,
        store: SinkStore,
        *,
        markers: MarkerSender,
        clock: Clock,
        metrics: Metrics,
        timeout_max_ms: int,
    ) -> None:
        self._store = store
        self._markers = markers
        self._clock = clock
        self._metrics = metrics
        self._timeout_max_ms = timeout_max_ms
        self._led: dict[int, _LedSinks] = {}
        self._unreadable: dict[int, ProtocolError] = {}
        """The errors of partitions that this broker leads but whose Spark sinks it could not
        load."""
        self._tasks = TaskSet()
        self._alarm = Alarm(clock, self._tick)
        self._is_closed = False

    # Methods that begin and end the leadership of a partition of the state topic.

    def loaded(
        self, partition: int, epoch: int, values: Mapping[bytes, bytes], flags: Mapping[bytes, int]
    ) -> None:
        """Load the sinks of a partition from its records, and resend the markers of batches whose
        commit or abort is decided.

        If a record cannot be decoded, all requests for the partition's sinks are refused: without
        the record, a committed batch could be unknown, and Spark's replay would write it twice."""
        heads: dict[str, SinkHead] = {}
        slots: dict[int, SinkSlot] = {}
        for key, flag in flags.items():
            if not flag & FLAG_SINK:
                continue
            try:
                if (sink := sink_of(key)) is not None:
                    heads[sink] = decode_head(values[key])
                elif (producer_id := slot_of(key)) is not None:
                    slots[producer_id] = decode_slot(values[key])
            except ProtocolError as error:
                logger.error(
                    "the Spark sinks in partition %d of __transaction_state cannot be loaded, "
                    "because of the record with key %r: %s",
                    partition,
                    key,
                    error.message,
                )
                self._unreadable[partition] = error
                return
        led = self._led[partition] = _LedSinks(partition, epoch, SinkPartition(heads, slots))
        self._step(led, ev.SinksLoaded())

    def lost(self, partition: int) -> None:
        """Drop the Spark sinks of a partition that this broker no longer leads.

        Waiting requests get NOT_COORDINATOR."""
        self._unreadable.pop(partition, None)
        led = self._led.pop(partition, None)
        if led is None:
            return
        led.is_lost = True
        for job in led.jobs.values():
            job.is_cancelled = True
        error = NotCoordinatorError(
            f"this broker no longer leads __transaction_state-{partition}, which has the sink; "
            "find the sink's coordinator again"
        )
        self._step(led, Deposed(error))

    # Methods that handle requests, and that describe the Spark sinks.

    def is_sink(self, partition: int, name: str) -> bool:
        """Return whether a Spark sink of this name is in a partition that this broker leads, even
        if the sink's first record is still being written."""
        led = self._led.get(partition)
        return led is not None and name in led.machine

    def is_loaded(self, partition: int) -> bool:
        """Return whether this broker leads the partition and could load its Spark sinks."""
        return partition in self._led

    def open_slots(self, partition: int) -> dict[int, OpenSlot]:
        """Return the open attempts of Spark tasks in the ``partition`` of ``__transaction_state``,
        by producer id; none if this broker does not lead the partition."""
        led = self._led.get(partition)
        if led is None:
            return {}
        return {
            producer_id: OpenSlot(attempt.slot, attempt.opened.wall_ms)
            for producer_id, attempt in led.machine.attempts().items()
        }

    def opened_ms(self) -> list[int]:
        """Return for each Spark sink with an open batch the wall time (ms) at which the batch
        began."""
        opened: dict[str, int] = {}
        for partition in self._led:
            for slot, opened_ms in self.open_slots(partition).values():
                opened[slot.sink] = min(opened_ms, opened.get(slot.sink, opened_ms))
        return list(opened.values())

    async def ask(self, partition: int, request: ev.SinkRequest) -> ev.SinkResult:
        """Carry out a request about a Spark sink, and return its result.

        The result may be an error. Raises NotCoordinatorError if this broker does not lead the
        partition, ProtocolError if the partition's sinks could not be loaded, and
        ConcurrentTransactionsError if the sink's previous change is not written within ``PARK_S``
        seconds."""
        if partition in self._unreadable:
            raise self._unreadable[partition]
        led = self._led.get(partition)
        if led is None:
            raise NotCoordinatorError(
                f"this broker does not lead __transaction_state-{partition}, which has the state "
                "of the sink; find the sink's coordinator again"
            )
        if isinstance(request, ev.JoinBatch) and request.timeout_ms > self._timeout_max_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction.timeout.ms {request.timeout_ms} of sink {request.sink!r} is above "
                f"the broker's transaction.max.timeout.ms {self._timeout_max_ms}; lower the "
                "option or raise the broker's setting"
            )
        if isinstance(request, ev.EndBatch) and request.is_commit:
            head = led.machine.head(request.sink)
            if head is not None and (head.run, head.batch) == (request.run, request.batch):
                self._metrics.count("spark_sink_batches", "repeated")
        step = partial(self._step, led)
        try:
            async with asyncio.timeout(PARK_S):
                return await led.parked.ask(
                    step, request, lambda token: step(ev.AbandonSinkRequest(token))
                )
        except TimeoutError:
            raise ConcurrentTransactionsError(
                f"the previous change of sink {request.sink!r} is still being written after "
                f"{PARK_S:g} s; try again"
            ) from None

    def expire(self) -> None:
        """Delete Spark sinks unused for ``HEAD_DAYS`` days. The sink of a batch write is deleted
        earlier, because no later run continues it."""
        before_day = self._clock.now_ms() // _DAY_MS - HEAD_DAYS
        before_ms = self._clock.monotonic_ms() - self._timeout_max_ms
        for led in list(self._led.values()):
            self._step(led, ev.ExpireSinks(before_day, before_ms))

    def close(self) -> None:
        """Stop the timer and all tasks, because the broker stops."""
        self._is_closed = True
        self._alarm.close()
        self._tasks.cancel()

    # Methods that pass events to the Spark sinks' state machines, and carry out the operations
    # (effects) that these return.

    def _step(self, led: _LedSinks, event: ev.SinkEvent) -> None:
        now = Now(self._clock.monotonic_ms(), self._clock.now_ms())
        for effect in led.machine.step(now, event):
            match effect:
                case ev.PersistHead():
                    value = None if effect.head is None else encode_head(effect.head)
                    self._append(led, effect.number, head_key(effect.sink), value)
                    self._count(led, effect)
                case ev.PersistSlot():
                    value = None if effect.slot is None else encode_slot(effect.slot)
                    self._append(led, effect.number, slot_key(effect.producer_id), value)
                case ev.SendSinkMarkers():
                    for row in effect.rows:
                        self._send_markers(led, effect.sink, row)
                case ev.FetchSlotId():
                    self._tasks.start(self._fetch_id(led))
                case ev.SinkReply():
                    led.parked.reply(effect.token, effect.result)
        self._alarm.set(led.machine.deadline_ms)

    def _count(self, led: _LedSinks, effect: ev.PersistHead) -> None:
        """Count a Spark batch in the metrics if ``effect`` stores the decision to commit or abort
        the batch."""
        state = SinkState.OPEN if effect.head is None else effect.head.state
        if state is SinkState.PREPARE_COMMIT:
            self._metrics.count("spark_sink_batches", "committed")
        elif state is SinkState.PREPARE_ABORT and led.machine.attempts(effect.sink):
            self._metrics.count("spark_sink_batches", "aborted")

    def _append(self, led: _LedSinks, number: int, key: bytes, value: bytes | None) -> None:
        if led.is_lost:
            return

        def settled(future: asyncio.Future[None]) -> None:
            if led.is_lost or self._is_closed or future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._step(led, Persisted(number))
            else:
                assert isinstance(error, LogbusError), error
                self._step(led, RecordRefused(number, error))

        future = self._store.append_state(led.partition, key, value, FLAG_SINK)
        future.add_done_callback(settled)

    def _send_markers(self, led: _LedSinks, sink: str, row: ev.SlotMarkers) -> None:
        left: set[Participating] = set(row.partitions)

        def done(participant: Participating) -> None:
            left.discard(participant)
            if not left and not job.is_cancelled:
                led.jobs.pop(row.producer_id, None)
                self._step(led, ev.SlotMarked(row.producer_id, row.epoch))

        markers = SendMarkers(
            NO_TRANSACTION,
            row.producer_id,
            row.epoch,
            row.epoch - 1,
            row.is_commit,
            2,
            row.partitions,
            frozenset(),
        )
        job = MarkerJob(sink, markers, led.partition, led.epoch, done)
        led.jobs[row.producer_id] = job
        self._markers.send_soon(job)

    async def _fetch_id(self, led: _LedSinks) -> None:
        event = await self._store.fetch_producer_id()
        if not led.is_lost:
            self._step(led, event)

    def _tick(self) -> None:
        for led in list(self._led.values()):
            if led.machine.deadline_ms <= self._clock.monotonic_ms():
                self._step(led, TransactionTick())
            else:
                self._alarm.set(led.machine.deadline_ms)
