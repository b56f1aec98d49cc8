"""``AttemptProducer``: writes the records of Spark task attempts to an exactly-once sink.

A sink is a Spark query's output; a broker coordinates it. Spark may run a task several times, and
each attempt writes in a transaction of its own, under a producer id and epoch from the coordinator.
At the end of the micro-batch the driver names one successful attempt of each task; the coordinator
commits their transactions and aborts the others.

One producer serves all attempts that run one after another in a worker process, on its main
thread."""

from __future__ import annotations

import queue
from functools import partial

from broker_lite.client.operations.group_requests import CachedCoordinator
from broker_lite.client.operations.sink_requests import ask_sink
from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.client.producing.producer import Producer
from broker_lite.client.transport.steps import Timer, spawn
from broker_lite.config import ProducerConfig
from broker_lite.errors import InvalidTxnStateError, LogbusError, ProducerFencedError
from broker_lite.model import NO_PRODUCER
from broker_lite.wire.calls.sinks import JoinBatchRequest, KeepBatchRequest, SinkResponse
from broker_lite.wire.produce import CLIENT_VERSION

KEEPS_PER_TIMEOUT = 3


class AttemptProducer(Producer):
    """Sends the records of one Spark task attempt at a time, under the attempt's producer id and
    epoch.

    ``config.transactional_id`` is the name of the sink (the output of a Spark query)."""

    def __init__(self, bootstrap_servers: str, config: ProducerConfig) -> None:
        super().__init__(bootstrap_servers, config)
        self._shut = InvalidTxnStateError(
            f"no attempt of sink {config.transactional_id!r} is open; call join() before send()"
        )
        self._known = CachedCoordinator(config.transactional_id)
        self._timer: Timer | None = None
        self._keep_alive: KeepBatchRequest | None = None
        """The request that tells the sink's coordinator that the Spark task is still running."""
        self._sender.on_pumped = self._check_delivery

    def keep(self, run: str, batch: int, timeout_ms: int) -> None:
        """Tell the coordinator regularly that the task is running, until ``finish`` or ``leave``.

        Without such requests for ``timeout_ms``, it aborts all attempts of the micro-batch."""
        request = KeepBatchRequest(self.config.transactional_id, run, batch)
        interval_ms = timeout_ms / KEEPS_PER_TIMEOUT
        self._shell.call_soon(partial(self._keep_later, request, interval_ms))

    def join(self, request: JoinBatchRequest) -> ProducerIdentity | None:
        """Begin an attempt of a Spark task. Return its producer id and epoch, or None if the
        micro-batch is committed already.

        Raises ProducerFencedError if another run of the query writes to the sink now, and
        SinkAheadOfCheckpointError if the sink has committed a later micro-batch."""
        deadline_ms = self._cluster.now_ms() + request.timeout_ms
        answer = self.run(ask_sink(self._cluster, self._known, request, deadline_ms))
        if answer.producer_id == NO_PRODUCER:
            return None
        identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        opened: queue.SimpleQueue[None] = queue.SimpleQueue()

        def open_sends() -> None:
            delivery = self._sender.delivery
            self._sender.produce_version = CLIENT_VERSION
            delivery.added, delivery.unadded = None, set()
            delivery.set_identity(identity)
            opened.put(None)

        self._shell.call_soon(open_sends)
        self.wait_answer(opened)
        with self._lock:
            self._shut = None
        return identity

    def finish(self) -> None:
        """Wait until every record of the attempt is acknowledged.

        If a record failed, raises the first error: Spark then repeats the task, because this
        attempt cannot be committed."""
        self.flush()
        failure = self._sender.delivery.failure
        if failure is not None:
            raise failure
        self.leave()

    def leave(self) -> None:
        """End the task attempt: send no more keep-alive requests, and refuse ``send`` until the
        next ``join``."""
        with self._lock:
            self._shut = InvalidTxnStateError("the attempt has ended; call join() before send()")
        self._shell.call_soon(self._stop_keeping)

    # Methods that run on the shell's thread, which does the client's I/O.

    def _check_delivery(self) -> None:
        """After the first failed batch, fail all unacknowledged records, because the attempt cannot
        be committed any more."""
        failure = self._sender.delivery.failure
        if failure is not None and not self._sender.is_idle:
            self._sender.discard(failure)

    def _keep_later(self, request: KeepBatchRequest, interval_ms: float) -> None:
        self._stop_keeping()
        self._keep_alive = request
        self._timer = self._shell.later(interval_ms, partial(self._keep, request, interval_ms))

    def _keep(self, request: KeepBatchRequest, interval_ms: float) -> None:
        self._keep_later(request, interval_ms)
        deadline_ms = self._shell.now_ms() + interval_ms
        operation = ask_sink(self._cluster, self._known, request, deadline_ms)
        spawn(self._shell, operation, partial(self._answered, request))

    def _answered(self, request: KeepBatchRequest, answer: SinkResponse | LogbusError) -> None:
        """If the answer to a keep-alive request says that the attempt is fenced, fail the attempt
        at once.

        Ignore other errors: the next keep-alive request is sent anyway. Ignore answers to requests
        of an earlier attempt, and answers after the task's end."""
        is_present = request is self._keep_alive and self._shut is None
        if isinstance(answer, ProducerFencedError) and is_present:
            self._sender.delivery.note_failure(answer)
            self._sender.pump()

    def _stop_keeping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._keep_alive = None
