"""``Sender``: the engine of a producer, which turns collected rows into acknowledged batches.

It has no thread and no socket of its own but runs on a *shell*, which does the I/O: a background
thread for ``Producer``, the event loop for ``AsyncProducer``. Other threads only append rows to
``inbox`` and wake the shell. ``accumulator`` splits rows into batches, and ``delivery`` decides
which to send; this module does the rest: metadata, producer ids, timers and requests."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import Cluster, ClusterView, backoff_ms
from broker_lite.client.operations.overdue import OverdueRequests
from broker_lite.client.producing.accumulator import TopicShape, Waiting, split
from broker_lite.client.producing.batches import Outgoing, ProducerIdentity
from broker_lite.client.producing.delivery import Delivery
from broker_lite.client.producing.futures import Outcome
from broker_lite.client.producing.partitioner import Sticky
from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.client.transport.steps import ProduceExchange, Send, Shell, spawn
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    ClosedError,
    LogbusError,
    NetworkError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import TopicPartition
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.security.denials import named
from broker_lite.wire.produce import (
    CLIENT_VERSION,
    PartitionRecords,
    ProduceResponse,
    TopicRecords,
)

logger = logging.getLogger("logbus.producer")

LANE = "produce"
"""The lane (name of a purpose) of produce requests, which have their own connection to each
broker."""
REFRESH_MS = 25
"""Initial pause (ms) between metadata requests while a partition has no leader."""
STEADY_REFRESHES = 8
"""Number of metadata requests in a row after which the pause between them begins to grow."""
REFRESH_GROWTH = 1.125
"""Factor by which the pause between metadata requests grows while a partition has no leader.

With this factor, the pause is about an eighth of the time since the leader failed. The producer
therefore learns of a new leader late by at most an eighth of the outage."""
GROWING_REFRESHES = 32
"""Number of times that the pause between metadata requests grows; it then stays at about a
second."""
UNREPORTED_REFRESHES = 28
"""Number of metadata requests in a row, in about 2 s, after which a missing leader is logged."""
SWEEP_MS = 5_000
"""Milliseconds between two sweeps, which free pool buffers unused since the last sweep."""
_ACKS = {"0": 0, "1": 1, "all": -1}


class Sender:
    """Sends the rows that the producer appends to ``inbox``.

    Call all methods except ``wake`` and ``batch_bytes`` on the I/O thread. ``on_released(bytes)``
    reports freed buffer space, and ``on_finished(outcome)`` reports rows that are acknowledged or
    have failed."""

    def __init__(
        self,
        shell: Shell,
        cluster: Cluster,
        config: ProducerConfig,
        *,
        on_released: Callable[[int], None],
        on_finished: Callable[[Outcome], None],
    ) -> None:
        self.inbox: deque[Waiting] = deque()
        self.delivery = Delivery(
            idempotent=config.idempotence and config.acks == "all",
            max_in_flight=config.max_in_flight,
            retry_backoff_ms=config.retry_backoff_ms,
            compression=config.compression,  # type: ignore[arg-type]
            delivery_timeout_ms=config.delivery_timeout_ms,
            memory_bytes=config.buffer_bytes,
            transactional=bool(config.transactional_id),
            user=cluster.user,
        )
        self.produce_version = CLIENT_VERSION
        self.on_pumped: Callable[[], None] = _nothing
        """Called at the end of each ``pump``, which sends batches. A transaction checks here
        whether a batch failed."""
        self._shell = shell
        self._cluster = cluster
        self._config = config
        self._acks = _ACKS[config.acks]
        self._on_released = on_released
        self._on_finished = on_finished
        self._unplaced: dict[str, list[Waiting]] = {}
        self._sticky: dict[str, Sticky] = {}
        self._shapes: dict[str, TopicShape] = {}
        """Cache of each topic's shape (partition count and leaders), computed from the metadata in
        ``_shapes_view``."""
        self._shapes_view = cluster.view
        self._kicked = False
        self._is_renewing = False
        self._is_identifying = False
        self._renewals = 0
        self._identity_failures = 0
        self._overdue: OverdueRequests[int] = OverdueRequests(shell, cluster, self._look_up_leaders)
        self._sent = 0
        self._timer = ResettableTimer(shell.later, self._tick)
        self._timer_due_ms = float("inf")
        self._sweep_timer = ResettableTimer(shell.later, self._sweep)
        self._closed = False

    # Methods that any thread may call.

    def wake(self) -> None:
        """Make the I/O thread take the rows in ``inbox``. Any thread may call it."""
        if not self._kicked:
            self._kicked = True
            self._shell.call_soon(self._take)

    def batch_bytes(self, topic: str) -> int:
        """Return the maximum bytes of the topic's batches, which falls when a broker refuses a
        batch as too large."""
        limit_bytes = self.delivery.limits_bytes.get(topic, self._config.batch_bytes)
        return min(limit_bytes, self._config.batch_bytes)

    # Methods that run on the shell's thread, which does the client's I/O.

    def _take(self) -> None:
        self._kicked = False
        while self.inbox:
            rows = self.inbox.popleft()
            rows.deadline_ms = self._shell.now_ms() + self._config.delivery_timeout_ms
            if self._closed:
                self._give_up(rows, ClosedError("the producer was closed; create another producer"))
            else:
                self._place(rows)
        self.pump()

    def _place(self, rows: Waiting) -> None:
        """Split rows into batches and queue these. If the topic's metadata is unknown, keep the
        rows until it arrives."""
        waiting = self._unplaced.get(rows.topic)
        if waiting is not None:
            waiting.append(rows)
            return
        shape = self._shape(rows.topic)
        if shape is None:
            self._unplaced[rows.topic] = [rows]
            self._learn(rows.topic, rows.deadline_ms)
            return
        try:
            batches = split(rows, shape, self.batch_bytes(rows.topic))
        except LogbusError as error:
            self._give_up(rows, error)
            return
        self.delivery.add(batches)

    def _shape(self, topic: str) -> TopicShape | None:
        view = self._cluster.view
        if self._shell.now_ms() - self._cluster.view_ms > self._config.metadata_max_age_ms:
            self.delivery.stale.add(topic)
        if self._shapes_view is not view:
            self._shapes_view = view
            self._shapes.clear()
        known = self._shapes.get(topic)
        if known is not None:
            return known
        metadata = view.topics.get(topic)
        if metadata is None or metadata.error is not None or not metadata.partitions:
            return None
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = Sticky(random.randrange(1 << 16))
        available = [row.partition for row in metadata.partitions if row.leader in view.brokers]
        shape = self._shapes[topic] = TopicShape(len(metadata.partitions), available, sticky)
        return shape

    def _learn(self, topic: str, deadline_ms: float) -> None:
        spawn(
            self._shell,
            requests.known_topics(self._cluster, (topic,), deadline_ms),
            lambda found: self._learned(topic, found),
        )

    def _learned(self, topic: str, result: ClusterView | LogbusError) -> None:
        waiting = self._unplaced.pop(topic, [])
        for rows in waiting:
            if isinstance(result, LogbusError):
                self._give_up(rows, result)
            else:
                self._place(rows)
        self.pump()

    def _give_up(self, rows: Waiting, error: LogbusError) -> None:
        self.delivery.note_failure(error)
        rows.finish(error)
        self._on_released(rows.size_bytes)
        self._on_finished(rows)

    def pump(self) -> None:
        """Send all batches that may be sent, and report finished batches.

        Request the metadata or the producer id for which batches wait."""
        delivery, shell = self.delivery, self._shell
        now_ms = shell.now_ms()
        delivery.expire(now_ms)
        if delivery.wants_identity and not self._is_identifying:
            self._identify()
        while True:
            outgoing = delivery.requests(now_ms, self._cluster.view)
            for sent in outgoing:
                self._send(sent, now_ms)
            if not outgoing:
                break
        if delivery.done:
            self._report()
        if delivery.failing:
            self._warn(delivery.failing)
            delivery.failing.clear()
        self.on_pumped()
        if delivery.stale and not self._is_renewing:
            self._renew()
        if delivery.memory.kept_bytes and not self._sweep_timer.is_set:
            self._sweep_timer.set(SWEEP_MS)
        self._set_timer(now_ms)

    def _send(self, sent: Outgoing, now_ms: float) -> None:
        by_topic: dict[str, list[PartitionRecords]] = {}
        deadline_ms = now_ms + self._config.request_timeout_ms
        for batch in sent.batches:
            assert batch.encoded is not None
            by_topic.setdefault(batch.topic, []).append(
                PartitionRecords(batch.partition, batch.encoded)
            )
            deadline_ms = min(deadline_ms, max(batch.deadline_ms, now_ms + 1))
        timeout_ms = deadline_ms - now_ms
        self._sent += 1
        number = self._sent
        self._overdue.sent(sent.endpoint, number, [batch.tp for batch in sent.batches])
        exchange = ProduceExchange(
            [TopicRecords(name, sent.topic_ids[name], rows) for name, rows in by_topic.items()],
            acks=self._acks,
            timeout_ms=max(1, int(timeout_ms)),
            transactional_id=self._config.transactional_id or None,
            version=self.produce_version,
        )
        self._shell.request(
            Send(sent.endpoint, exchange, timeout_ms, LANE),
            lambda answer: self._answered(number, sent, answer),
        )

    def _answered(
        self, number: int, sent: Outgoing, answer: ProduceResponse | LogbusError | None
    ) -> None:
        now_ms = self._shell.now_ms()
        self._overdue.answered(sent.endpoint, number)
        if isinstance(answer, ClosedError) and not self._closed:
            answer = NetworkError(answer.message)
        if isinstance(answer, LogbusError):
            self.delivery.failed(sent, answer, now_ms)
        else:
            wrote_rows = self.delivery.writes_rows
            self.delivery.answered(sent, answer, now_ms)
            if self.delivery.writes_rows and not wrote_rows:
                logger.warning(
                    "the broker at %s does not accept logbus's columns (Apache Kafka does not); "
                    "the producer sends rows from now on",
                    sent.endpoint,
                )
        self.pump()

    def _report(self) -> None:
        done, self.delivery.done = self.delivery.done, []
        released = 0
        for batch in done:
            released += batch.size_bytes
            outcome = batch.outcome
            if outcome.batch_done(batch.error):
                self._on_finished(outcome)
        self._on_released(released)

    def _warn(self, failing: Mapping[TopicPartition, LogbusError]) -> None:
        for tp, error in failing.items():
            logger.warning(
                "%s: records are not acknowledged yet; retrying for delivery.timeout.ms=%d: %s",
                tp,
                self._config.delivery_timeout_ms,
                error,
            )

    def _look_up_leaders(self, tps: set[TopicPartition]) -> None:
        """Refresh the metadata of partitions with overdue produce requests."""
        self.delivery.stale.update(tp.topic for tp in tps)
        self.pump()

    def _give_up_deposed(self) -> None:
        """Close connections to former leaders whose responses are overdue.

        The requests on these connections fail, and their batches are sent to the new leaders."""
        for leader in {leader for leader, _ in self._overdue.deposed()}:
            self._shell.disconnect(leader, LANE)

    # Methods that refresh the metadata and request a producer id.

    def _renew(self) -> None:
        self._is_renewing = True
        names = tuple(self.delivery.stale)
        self.delivery.stale.clear()
        began_ms = self._shell.now_ms()
        spawn(
            self._shell,
            requests.refresh_once(self._cluster, names),
            lambda found: self._renewed(names, began_ms, found),
        )

    def _renewed(
        self, names: tuple[str, ...], began_ms: float, result: ClusterView | LogbusError
    ) -> None:
        """Handle the result of a metadata refresh: call ``pump`` at once if all leaders are known,
        else after a pause that spares the brokers.

        A topic that the metadata lack is looked up again before its batches fail."""
        grown = min(max(0, self._renewals - STEADY_REFRESHES), GROWING_REFRESHES)
        pause_ms = REFRESH_MS * REFRESH_GROWTH**grown
        # Pause at least three times as long as the refresh took. The metadata of thousands of
        # partitions is then requested less often, which limits the brokers' load.
        pause_ms = max(pause_ms, 3 * (self._shell.now_ms() - began_ms))
        self._renewals += 1
        if self._renewals == UNREPORTED_REFRESHES:
            self._warn(self.delivery.unreported())

        def go_on() -> None:
            self._is_renewing = False
            now_ms = self._shell.now_ms()
            self.delivery.stale |= self.delivery.without_leader(now_ms, self._cluster.view)
            self.pump()

        self.delivery.problem = result if isinstance(result, LogbusError) else None
        if isinstance(result, LogbusError):
            self.delivery.stale.update(self.delivery.topics())
        else:
            self._give_up_deposed()
            self._fail_removed_partitions(names)
            gone = [name for name in names if self._is_gone(name)]
            if gone:
                for name in gone:
                    self._confirm_gone(name)
            elif self.delivery.without_leader(self._shell.now_ms(), result):
                self._cluster.ask_another()
            elif all(
                result.leader(tp) is not None for name in names for tp in result.partitions_of(name)
            ):
                self._renewals = 0
                pause_ms = 0
        self._shell.later(pause_ms, go_on)

    def _fail_removed_partitions(self, topics: Iterable[str]) -> None:
        """Fail the batches for partitions that a topic lost when it was recreated with fewer
        partitions."""
        for topic in topics:
            count = len(self._cluster.view.partitions_of(topic))
            if count:
                error = UnknownTopicOrPartitionError(
                    f"topic {topic!r} was recreated with fewer partitions, numbered from 0 to "
                    f"{count - 1}; send the records again"
                )
                self.delivery.fail_topic(topic, error, first=count)

    def _is_gone(self, topic: str) -> bool:
        known = self._cluster.view.topics.get(topic)
        return known is None or isinstance(known.error, UnknownTopicOrPartitionError)

    def _confirm_gone(self, topic: str) -> None:
        """Request the metadata of a missing topic again, because a new topic may not be known to
        every broker yet. If the topic stays missing, fail its batches."""

        def confirmed(result: ClusterView | LogbusError) -> None:
            if isinstance(result, UnknownTopicOrPartitionError):
                self.delivery.fail_topic(topic, result)
            self.pump()

        deadline_ms = self._shell.now_ms() + self._config.request_timeout_ms
        spawn(
            self._shell,
            requests.known_topics(self._cluster, (topic,), deadline_ms),
            confirmed,
        )

    def _identify(self) -> None:
        self._is_identifying = True
        deadline_ms = self._shell.now_ms() + self._config.request_timeout_ms
        spawn(
            self._shell,
            requests.init_producer_id(self._cluster, deadline_ms),
            self._identified,
        )

    def _identified(self, result: Any) -> None:
        if isinstance(result, LogbusError):
            pause_ms = backoff_ms(self._identity_failures)
            self._identity_failures += 1
            self.delivery.problem = result
            if not result.retriable:
                # Fail the batches. For example, a user who may write to no topic gets no producer
                # id.
                write, kind, user = Operation.WRITE, ResourceKind.TOPIC, self._cluster.user
                for topic in self.delivery.topics():
                    self.delivery.fail_topic(topic, named(result, user, write, kind, topic))

            def go_on() -> None:
                self._is_identifying = False
                self.pump()

            self._shell.later(pause_ms, go_on)
            return
        self._is_identifying = False
        self._identity_failures = 0
        self.delivery.problem = None
        self.delivery.set_identity(ProducerIdentity(*result))
        self.pump()

    # Methods that set the timers and run when they expire.

    def _set_timer(self, now_ms: float) -> None:
        due_ms = self.delivery.next_due_ms(now_ms)
        if due_ms == self._timer_due_ms or (
            self._timer.is_set and now_ms < self._timer_due_ms < due_ms
        ):
            return
        self._timer_due_ms = due_ms
        if due_ms == float("inf"):
            self._timer.cancel()
        else:
            self._timer.set(due_ms - now_ms)

    def _tick(self) -> None:
        self._timer_due_ms = float("inf")
        self.pump()

    def _sweep(self) -> None:
        """Free the pool's buffers that no batch has used since the last sweep."""
        memory = self.delivery.memory
        memory.sweep()
        if memory.kept_bytes and not self._closed:
            self._sweep_timer.set(SWEEP_MS)

    # Methods that shut the sender down.

    @property
    def is_idle(self) -> bool:
        """Whether all rows received so far are acknowledged or have failed."""
        return not self.inbox and not self._unplaced and self.delivery.is_idle

    def close(self, error: LogbusError) -> None:
        """Fail all remaining rows and batches, and stop."""
        self._closed = True
        self._overdue.close()
        self._sweep_timer.cancel()
        self.discard(error)

    def discard(self, error: LogbusError) -> None:
        """Fail all remaining rows and batches."""
        for waiting in list(self._unplaced.values()):
            for rows in waiting:
                self._give_up(rows, error)
        self._unplaced.clear()
        while self.inbox:
            self._give_up(self.inbox.popleft(), error)
        self.delivery.fail_all(error)
        self._report()


def _nothing() -> None:
    """Do nothing: the default of ``on_pumped``, for producers without transactions."""
