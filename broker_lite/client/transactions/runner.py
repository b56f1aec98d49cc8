"""``TransactionRunner``: runs the state machine of a transactional producer.

It sends the machine's requests, passes the results back as events, and executes the user's calls
(begin, commit, …) one after another. Any thread may use ``call``; all else runs on the thread that
sends the producer's requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from broker_lite.client.operations import transaction_requests as requests
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.group_requests import CachedCoordinator
from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.client.producing.sender import Sender
from broker_lite.client.transactions import events as ev
from broker_lite.client.transactions.machine import (
    TRANSACTIONS_BY_EPOCH,
    Phase,
    TransactionMachine,
)
from broker_lite.client.transport.steps import Operation, Shell, spawn
from broker_lite.config import ProducerConfig
from broker_lite.errors import LogbusError
from broker_lite.model import TopicPartition
from broker_lite.wire.produce import ADDS_NO_PARTITIONS, CLIENT_VERSION


class PendingCall(NamedTuple):
    """A queued or running call of the user, such as ``commit``. ``on_answer`` gets None or an
    error."""

    event: ev.Call
    on_answer: Callable[[LogbusError | None], None]
    timeout_ms: float
    offsets: OffsetsToCommit | None


class TransactionRunner:
    """Runs the transactions of one producer.

    ``on_shut(error)`` must make the producer's ``send`` raise the error from now on, and pass the
    records accepted so far to ``sender``, because they belong to the ending transaction.
    ``on_shut(None)`` must allow ``send`` again."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        config: ProducerConfig,
        sender: Sender,
        *,
        on_shut: Callable[[LogbusError | None], None],
    ) -> None:
        self.machine = TransactionMachine(config.transactional_id, config.transaction_timeout_ms)
        self._shell = shell
        self._cluster = cluster
        self._config = config
        self._sender = sender
        self._on_shut = on_shut
        self._known = CachedCoordinator(config.transactional_id)
        self._calls: deque[PendingCall] = deque()
        self._present: PendingCall | None = None
        self._is_awaiting = False
        self._adding: Operation[None] | None = None
        """The AddPartitionsToTxn request under way, including its retries."""
        self._when_added: Callable[[], None] | None = None
        self._closed: LogbusError | None = None
        sender.on_pumped = self._check_delivery

    def call(
        self,
        event: ev.Call,
        on_answer: Callable[[LogbusError | None], None],
        *,
        timeout_ms: float | None = None,
        offsets: OffsetsToCommit | None = None,
    ) -> None:
        """Execute a user's call after the queued ones. ``on_answer`` receives None or the error.

        ``timeout_ms`` limits each of the call's requests, by default ``max_block_ms``."""
        if timeout_ms is None:
            timeout_ms = self._config.max_block_ms
        pending = PendingCall(event, on_answer, timeout_ms, offsets)
        self._shell.call_soon(partial(self._queue, pending))

    @property
    def is_resting(self) -> bool:
        """Whether a transaction can begin: none is open, and no user's call runs or waits.
        Thread-safe."""
        is_called = self._present is not None or bool(self._calls)
        return not is_called and self.machine.phase is Phase.IDLE

    def lose(self, error: LogbusError) -> None:
        """Fail the open transaction, if any, because the producer refused one of its records.

        Call it on the thread of the network I/O."""
        if self.machine.phase is Phase.OPEN:
            self._sender.delivery.note_failure(error)
            self._check_delivery()

    def close(self, error: LogbusError) -> None:
        """Answer the running call, all queued calls and all later calls with ``error``."""
        self._closed = error
        calls = [self._present, *self._calls]
        self._present = None
        self._calls.clear()
        for call in calls:
            if call is not None:
                call.on_answer(error)

    # Methods that run on the shell's thread, which does the client's I/O.

    def _queue(self, call: PendingCall) -> None:
        if self._closed is not None:
            call.on_answer(self._closed)
            return
        self._calls.append(call)
        self._next()

    def _next(self) -> None:
        while self._present is None and self._calls:
            self._present = self._calls.popleft()
            self._step(self._present.event)

    def _check_delivery(self) -> None:
        """Tell the state machine that a batch failed (``SendFailed``); if none failed, add new
        partitions to the transaction. During a commit, also tell the state machine when all records
        are acknowledged (``Delivered``).

        The sender calls this method at the end of each ``Sender.pump``."""
        delivery = self._sender.delivery
        if delivery.failure is not None:
            self._step(ev.SendFailed(delivery.failure))
        elif delivery.unadded and self._adding is None:
            self._add(delivery.unadded)
        if self._is_awaiting and self._sender.is_idle:
            self._is_awaiting = False
            self._step(ev.Delivered())

    def _step(self, event: ev.Event) -> None:
        if self._closed is not None:
            return
        for effect in self.machine.step(event, has_sent=self._sender.delivery.has_sent):
            self._run(effect)

    def _run(self, effect: ev.Effect) -> None:
        match effect:
            case ev.OpenSends(identity, version):
                self._open(identity, version)
            case ev.ShutSends(error):
                self._on_shut(error)
            case ev.AwaitDelivery():
                self._is_awaiting = True
                self._shell.call_soon(self._sender.pump)
            case ev.DiscardSends(error):
                self._is_awaiting = False
                self._sender.discard(error)
                self._sender.delivery.unadded = set()
            case ev.AnswerCall(error):
                self._answer(error)
            case _:
                self._request(effect)

    def _open(self, identity: ProducerIdentity, version: int) -> None:
        delivery = self._sender.delivery
        is_added_by_brokers = version >= TRANSACTIONS_BY_EPOCH
        self._sender.produce_version = CLIENT_VERSION if is_added_by_brokers else ADDS_NO_PARTITIONS
        delivery.added = None if is_added_by_brokers else set()
        delivery.unadded = set()
        delivery.set_identity(identity)
        self._on_shut(None)

    def _answer(self, error: LogbusError | None) -> None:
        call, self._present = self._present, None
        if call is not None:
            call.on_answer(error)
        self._shell.call_soon(self._next)

    # Methods that send requests and handle the answers.

    def _request(self, effect: ev.Initialize | ev.CommitOffsets | ev.SendEnd) -> None:
        call, config = self._present, self._config
        assert call is not None
        deadline_ms = self._shell.now_ms() + call.timeout_ms
        to = (self._cluster, self._known)
        match effect:
            case ev.Initialize(expected):
                operation = requests.initialize(
                    *to,
                    timeout_ms=config.transaction_timeout_ms,
                    expected=expected,
                    deadline_ms=deadline_ms,
                )
                spawn(self._shell, operation, self._initialized)
            case ev.CommitOffsets(identity, version):
                assert call.offsets is not None
                offsets = requests.commit_offsets(
                    *to, identity, call.offsets, deadline_ms, version=version
                )
                spawn(self._shell, offsets, lambda found: self._step(ev.OffsetsSent(found)))
            case ev.SendEnd(identity, version, committed):
                end = requests.end(*to, identity, deadline_ms, version=version, committed=committed)
                self._stop_adding(lambda: spawn(self._shell, end, self._ended))

    def _initialized(self, result: Any) -> None:
        if isinstance(result, LogbusError):
            self._step(ev.InitFailed(result))
        else:
            producer_id, epoch, version = result
            self._step(ev.Initialized(ProducerIdentity(producer_id, epoch), version))

    def _ended(self, result: Any) -> None:
        if isinstance(result, LogbusError):
            self._step(ev.EndFailed(result))
        else:
            self._step(ev.Ended(None if result is None else ProducerIdentity(*result)))

    def _add(self, tps: set[TopicPartition]) -> None:
        """Send AddPartitionsToTxn, as transaction version 1 demands. Batches wait for its
        response."""
        delivery = self._sender.delivery
        identity, delivery.unadded = delivery.identity, set()
        assert identity is not None
        delivery.has_sent = True

        def added(result: Any) -> None:
            self._adding = None
            if delivery.identity == identity and delivery.added is not None:
                if isinstance(result, LogbusError):
                    delivery.note_failure(result)
                else:
                    delivery.added |= tps
            then, self._when_added = self._when_added, None
            if then is not None:
                then()
            self._sender.pump()

        self._adding = requests.add_partitions(
            self._cluster,
            self._known,
            identity,
            tps,
            self._shell.now_ms() + self._config.max_block_ms,
        )
        spawn(self._shell, self._adding, added)

    def _stop_adding(self, then: Callable[[], None]) -> None:
        """Stop the retries of AddPartitionsToTxn, and call ``then`` when no request is in flight.

        In transaction version 1, a coordinator that receives AddPartitionsToTxn after EndTxn begins
        a transaction with the same epoch. Kafka then fences the producer at InitProducerId."""
        if self._adding is None:
            then()
        else:
            self._adding.close()
            self._when_added = then
