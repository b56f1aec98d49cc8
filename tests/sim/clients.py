"""Run the production producer on the simulator's clock and network.

``Sender`` (batches, sequences, retries, metadata, deadlines) runs unchanged over ``SimShell``,
which gives it the clock, timers and connections.

Produce and fetch requests are sent as bytes, and the broker's production handlers answer them.
Metadata and producer ids are passed as Python values, because replication does not depend on their
bytes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from sim.broker_requests import SimReply, read_request, serve_call
from sim.checker import Violation
from sim.cluster import SimCluster
from sim.history import ACKS_ALL, History, Sent
from sim.net import CLIENTS, Answered, Channel
from sim.process import Process
from sim.scheduler import OUTSIDE, Handle, stream

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.producing.accumulator import Chunk
from broker_lite.client.producing.sender import Sender
from broker_lite.client.transport.steps import (
    CallExchange,
    Exchange,
    FetchExchange,
    ProduceExchange,
    Send,
)
from broker_lite.config import ProducerConfig
from broker_lite.errors import ClosedError, DeliveryTimedOutError, LogbusError
from broker_lite.model import NO_BROKER, NULL_TOPIC_ID, Endpoint, PartitionKey, TopicView
from broker_lite.record.arrow import Columns
from broker_lite.server.handlers import fetch, produce
from broker_lite.wire.calls import cluster as calls
from broker_lite.wire.calls.producers import InitProducerIdRequest, InitProducerIdResponse

UNKNOWN_TOPIC_CODE = 3
LEADER_NOT_AVAILABLE_CODE = 5


class SimShell:
    """The simulated clock, timers and connections for the production code of a client."""

    def __init__(self, cluster: SimCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._channels: dict[tuple[Endpoint, str], Channel] = {}
        self._correlation = 0

    def now_ms(self) -> float:
        return self._cluster.loop.now * 1000

    def later(self, delay_ms: float, callback: Callable[[], None]) -> Handle:
        return self._cluster.loop.call_later(delay_ms / 1000, callback, context=OUTSIDE)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._cluster.loop.call_soon(callback, context=OUTSIDE)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        channel = self._channels.pop((endpoint, lane), None)
        if channel is not None:
            channel.close(ClosedError("disconnected"))

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        endpoint, exchange, timeout_ms, lane = send
        channel = self._channels.get((endpoint, lane))
        if channel is None or not channel.is_open:
            channel = self._cluster.net.channel(CLIENTS, endpoint.port, OUTSIDE)
            self._channels[endpoint, lane] = channel
        if isinstance(exchange, ProduceExchange | FetchExchange):
            frame = self._frame(exchange)
            handle = produce.handle if isinstance(exchange, ProduceExchange) else fetch.handle
            channel.request(
                partial(_serve, handle, frame, channel),
                lambda answer: on_answer(_decoded(exchange, answer)),
                timeout_ms / 1000,
            )
            return
        assert isinstance(exchange, CallExchange)
        if _is_by_value(exchange.call):
            channel.request(partial(_call, exchange.call), on_answer, timeout_ms / 1000)
            return
        channel.request(
            partial(serve_call, self._frame(exchange), channel),
            lambda answer: on_answer(_decoded(exchange, answer)),
            timeout_ms / 1000,
        )

    def _frame(self, exchange: Exchange[Any]) -> bytes:
        self._correlation += 1
        return b"".join(exchange.frame(self._correlation, self._name))[4:]


def _is_by_value(call: Any) -> bool:
    is_plain = isinstance(call, InitProducerIdRequest) and call.transactional_id is None
    return is_plain or isinstance(call, calls.MetadataRequest)


def _decoded(exchange: Exchange[Any], answer: Any) -> Any:
    return answer if isinstance(answer, LogbusError) else exchange.answer(memoryview(answer)[4:])


def _serve(
    handle: Callable[..., None], frame: bytes, channel: Channel, process: Process, answer: Answered
) -> None:
    request, view = read_request(frame, channel, process)
    handle(process.parts, request, view, SimReply(answer, channel))


def _call(call: Any, process: Process, answered: Answered) -> None:
    if isinstance(call, calls.MetadataRequest):
        answered(_metadata(process, call))
        return
    assert isinstance(call, InitProducerIdRequest)

    async def identify() -> None:
        try:
            number = await process.registry.next_producer_id()
        except LogbusError as error:
            answered(InitProducerIdResponse(0, error.code, -1, -1))
        else:
            answered(InitProducerIdResponse(0, 0, number, 0))

    asyncio.get_running_loop().create_task(identify())


def _metadata(process: Process, call: calls.MetadataRequest) -> calls.MetadataResponse:
    snapshot = process.registry.snapshot
    brokers = tuple(
        calls.MetadataBroker(broker.broker_id, broker.endpoint.host, broker.endpoint.port, None)
        for broker in snapshot.brokers.values()
    )
    names = snapshot.topics if call.topics is None else call.topics
    topics = tuple(_topic(name, snapshot.topics.get(name), set(snapshot.brokers)) for name in names)
    return calls.MetadataResponse(0, brokers, snapshot.cluster_id, snapshot.controller_id, topics)


def _topic(name: str, view: TopicView | None, live: set[int]) -> calls.MetadataTopic:
    if view is None:
        return calls.MetadataTopic(UNKNOWN_TOPIC_CODE, name, NULL_TOPIC_ID, False, ())
    rows = []
    for partition in view.partitions:
        state = partition.state
        is_led = state.leader in live
        rows.append(
            calls.MetadataPartition(
                0 if is_led else LEADER_NOT_AVAILABLE_CODE,
                partition.partition,
                state.leader if is_led else NO_BROKER,
                state.leader_epoch,
                partition.replicas,
                tuple(replica.broker_id for replica in state.isr),
                (),
            )
        )
    return calls.MetadataTopic(0, view.name, view.topic_id, False, tuple(rows))


class Producer:
    """A client that sends bursts of small batches to one partition with acks=all."""

    def __init__(
        self, cluster: SimCluster, history: History, name: str, topic: str, key: PartitionKey
    ) -> None:
        self.cluster = cluster
        self.history = history
        self.name = name
        self.topic = topic
        self.key = key
        self.rng = stream(cluster.seed, name)
        self.number = 0
        self.is_stopping = False
        self._waking = threading.Condition()
        shell = SimShell(cluster, name)
        endpoints = tuple(Endpoint("sim", broker_id) for broker_id in cluster.disks)
        self.sender = Sender(
            shell,
            Cluster(endpoints, shell.now_ms),
            ProducerConfig(delivery_timeout_ms=600_000, request_timeout_ms=8_000),
            on_released=lambda size: None,
            on_finished=lambda outcome: None,
        )
        self._open: set[int] = set()
        self._progress = asyncio.Event()

    async def run(self) -> None:
        """Send until ``is_stopping``, then wait for the outcome of every batch."""
        options, rng = self.cluster.options, self.rng
        while not self.is_stopping:
            for _ in range(rng.randint(1, options.burst)):
                self._send()
            await asyncio.sleep(rng.random() * 2 * options.think_s)
            while len(self._open) > 4 * options.burst and not self.is_stopping:
                await self._news()
        while self._open:
            await self._news()

    async def _news(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _send(self) -> None:
        count = self.rng.randint(1, 4)
        size = self.rng.choice((0, 0, 60, 2000))
        values = [f"{self.name}/{self.number + n}".encode() + b"." * size for n in range(count)]
        self.number += count
        sent = self.history.send(self.name, self.key, values, ACKS_ALL)
        columns = Columns(count, None, pa.array(values, pa.binary()), None, None)
        chunk = Chunk(
            self.topic,
            self._waking,
            lambda outcome: None,
            columns=columns,
            requested=self.key.partition,
            size_bytes=sum(map(len, values)),
            timestamp_ms=int(1_735_689_600_000 + self.cluster.loop.now * 1000),
        )
        self._open.add(id(sent))
        chunk.add_done_callback(partial(self._done, sent), chunk)
        self.sender.inbox.append(chunk)
        self.sender.wake()

    def _done(self, sent: Sent, chunk: Chunk) -> None:
        try:
            self._decided(sent, chunk)
        except Violation as violation:
            # The loop drops exceptions of callbacks, so store the violation in the cluster.
            self.cluster.failure = self.cluster.failure or violation

    def _decided(self, sent: Sent, chunk: Chunk) -> None:
        self._open.discard(id(sent))
        self._progress.set()
        cluster = self.cluster
        sent.done = True
        if chunk.error is not None:
            cluster.trace(self.name, "failed", type(chunk.error).__name__)
            cluster.count("failed")
            if not isinstance(chunk.error, DeliveryTimedOutError):
                raise Violation(f"{self.name}: the producer reported {chunk.error!r}")
            return
        (batch,) = chunk.batches
        cluster.trace(self.name, "acked", batch.base_offset)
        cluster.count("acked")
        self.history.acked(sent, batch.base_offset)
