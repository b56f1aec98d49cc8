"""Request handlers with real registries and controllers on a simulated ZooKeeper, in virtual time.

kafka-python's classes encode the requests and decode the responses. Requests pass through the
broker's dispatch tables. Handlers that need files have tests in tests/cluster.
"""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import kafka.protocol.admin as admin
import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
import kafka.protocol.producer as producer
from sim import scheduler
from sim.disk import SimClock
from sim.zk import SimZk, ZkService

from broker_lite.config import BrokerConfig
from broker_lite.metadata.znodes import Registration
from broker_lite.model import Endpoint, topic_id_text
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.registry import (
    SUPPORTED_FEATURES,
    Registry,
)
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.coordinators.group_transactions import GroupTransactions
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.metrics import Metrics
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.wire import tables
from broker_lite.wire.api import VERSIONS, Call, decode_call, encode_call

T = TypeVar("T")

_MODULES = {18: "api_versions", 33: "replace_configs", 44: "alter_configs"}


class Calls:
    """The ``BrokerCalls`` of a broker: passes encoded requests to the other brokers' handlers."""

    def __init__(self, brokers: dict[int, BrokerContext]) -> None:
        self.brokers = brokers

    async def send(self, broker_id: int, call: Call[T], timeout_ms: float = 0) -> T:
        frame = memoryview(encode_call(call, 3, "logbus-broker-9"))[4:]
        header = received(frame)
        message = tables.decode(header.api_key, call.VERSION, frame, header.body_at)
        answer = await handler(header.api_key)(self.brokers[broker_id], header, message)
        octets = tables.encode(header.api_key, call.VERSION, 3, answer)
        return decode_call(call, memoryview(octets)[4:])


class Answered:
    """Stands for the connection of one request, and records the response to the request."""

    arrived_ms = 0
    connection = None

    def __init__(self, session: Session) -> None:
        self.session = session
        self.data = b""
        self.refusal = ""

    def answer(self, parts: tuple[bytes, ...]) -> None:
        self.data = b"".join(parts)

    def refuse(self, reason: str) -> None:
        self.refusal = reason


async def ask_dispatcher(dispatcher: Dispatcher, session: Session, frame: bytes) -> Answered:
    """Pass the request ``frame`` of a client to a dispatcher; return the recorded response."""
    reply: Any = Answered(session)
    dispatcher.begin(memoryview(frame), reply)
    while not (reply.data or reply.refusal):
        await asyncio.sleep(0.01)
    answered: Answered = reply
    return answered


class World:
    """A cluster of brokers 1, 2, …, registered in this order; broker 1 is the controller."""

    def __init__(self) -> None:
        self.service = ZkService(random.Random(1))
        self.brokers: dict[int, BrokerContext] = {}
        self.stores: dict[int, SimZk] = {}
        self.calls = Calls(self.brokers)

    async def start(
        self, count: int = 1, features: Mapping[str, int] = SUPPORTED_FEATURES, **settings: Any
    ) -> World:
        for broker_id in range(1, count + 1):
            await self.add(broker_id, features, **settings)
        while not all(self._settled(parts, count) for parts in self.brokers.values()):
            await asyncio.sleep(0.01)
        return self

    async def add(
        self, broker_id: int, features: Mapping[str, int] = SUPPORTED_FEATURES, **settings: Any
    ) -> None:
        """Register a broker. The other brokers may not know it yet."""
        store = self.service.client()
        config = BrokerConfig(broker_id=broker_id, **settings)
        clock = SimClock(asyncio.get_running_loop())
        registry = Registry(
            config,
            now_ms=clock.now_ms,
            store=store,
            random_bytes=random.Random(broker_id).randbytes,
        )
        endpoint = Endpoint("127.0.0.1", 9000 + broker_id)
        directory = topic_id_text(bytes([broker_id]) * 16)
        await registry.start(Registration(broker_id, endpoint, directory, 1, features=features))
        nothing = cast(Any, None)
        metrics = Metrics()
        groups = GroupCoordinator(config, registry, clock=clock, metrics=metrics)
        epochs = CoordinatorEpochs(partial(getattr, registry, "snapshot"))
        transactions = GroupTransactions(
            config, registry, groups, clock=clock, calls=self.calls, epochs=epochs
        )
        self.brokers[broker_id] = BrokerContext(
            config, clock, registry, nothing, nothing, nothing, metrics, endpoint, groups,
            self.calls, epochs, transactions, nothing, nothing,
        )  # fmt: skip
        self.stores[broker_id] = store

    def _settled(self, parts: BrokerContext, count: int) -> bool:
        """Return whether a broker knows all other brokers and the finalized features."""
        snapshot = parts.registry.snapshot
        return len(snapshot.brokers) == count and bool(snapshot.features)

    async def ask(self, name: str, version: int, *, broker: int = 1, **fields: Any) -> Any:
        """Send request ``name`` (such as "CreateTopics") in ``version`` and return the response."""
        return await ask(self.brokers[broker], name, version, **fields)

    async def make_topic(self, name: str, partitions: int = 1, **config: str) -> Any:
        row = struct(
            "CreateTopics", "CreatableTopic", name=name, num_partitions=partitions,
            replication_factor=1, assignments=[],
            configs=[
                struct("CreateTopics", "CreatableTopic.CreatableTopicConfig",
                       name=key.replace("_", "."), value=value)
                for key, value in config.items()
            ],
        )  # fmt: skip
        answer = await self.ask("CreateTopics", 7, topics=[row], timeout_ms=5000)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        return answer.topics[0]


async def ask(
    parts: BrokerContext, name: str, version: int, *, software: str = "", **fields: Any
) -> Any:
    """Pass a client's request through the broker's dispatch tables and its handler."""
    request = kind(f"{name}Request")(version=version, **fields)
    request.with_header(correlation_id=3, client_id="c")
    frame = memoryview(request.encode(header=True, framed=True))[4:]
    context = received(frame)
    context.session.software = software
    message = tables.decode(context.api_key, version, frame, context.body_at)
    response = await handler(context.api_key)(parts, context, message)
    octets = tables.encode(context.api_key, version, 3, response)
    return kind(f"{name}Response").decode(octets, version=version, header=True, framed=True)


def kind(name: str) -> Any:
    for module in (admin, consumer, metadata, producer):
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(name)


def struct(api: str, path: str, **fields: Any) -> Any:
    """Return a new object of a class that is nested in a request's class.

    ``path`` is the nested class's dotted name within the request class.
    """
    found = kind(f"{api}Request")
    for part in path.split("."):
        found = getattr(found, part)
    return found(**fields)


def received(frame: memoryview, clock: Clock | None = None) -> RequestContext:
    """Return the context of a request frame from a client on this machine.

    The request arrives at the present time of ``clock``, or without ``clock`` at the start of
    virtual time. A test in real time must pass ``clock``, or the request's deadline is
    over.
    """
    arrived_ms = 0 if clock is None else clock.monotonic_ms()
    return RequestContext.read(frame, Session(1, "127.0.0.1:40000"), arrived_ms)


def context_of(api_key: int, version: int, client_id: str | None = None) -> RequestContext:
    """Return the context of a request that was not encoded, from a client on this machine."""
    session = Session(1, "127.0.0.1:40000")
    return RequestContext(api_key, version, 1, client_id, 0, session, 0)


def handler(api_key: int) -> Callable[..., Coroutine[Any, Any, Any]]:
    words = tables.REQUESTS[api_key].__name__.removesuffix("Request")
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in words).lstrip("_")
    module = _MODULES.get(api_key, snake)
    found = importlib.import_module(f"broker_lite.server.handlers.{module}")
    return cast(Callable[..., Coroutine[Any, Any, Any]], found.handle)


def versions(api_key: int) -> range:
    """Return all versions of an API that the broker serves."""
    first, last = VERSIONS[api_key]
    return range(first, last + 1)


def run(body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run ``body`` with a new simulated cluster (a ``World``), in virtual time. ``body`` starts the
    brokers.
    """
    scheduler.run(body(World()))
