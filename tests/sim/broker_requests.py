"""Handle the requests of a simulated broker, and send its requests to other brokers, as bytes.

The handlers are production code. An unexpected exception of a handler fails the run. The production
dispatcher would answer UNKNOWN_SERVER_ERROR instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from sim.net import Answered, Channel

from broker_lite.client.transport.steps import CallExchange
from broker_lite.errors import LogbusError, NetworkError, wire_code
from broker_lite.server.dispatch import HANDLERS
from broker_lite.server.network.access import broker_client_id
from broker_lite.server.network.context import RequestContext, Session
from broker_lite.wire import refusals, tables
from broker_lite.wire.api import Call
from broker_lite.wire.fetch import FileRange, Part

if TYPE_CHECKING:
    from sim.process import Process

T = TypeVar("T")


class SimReply:
    """The reply to one request; ``answer`` or ``refuse`` completes it."""

    def __init__(self, answered: Answered, channel: Channel) -> None:
        self._answered = answered
        self._channel = channel

    @property
    def is_open(self) -> bool:
        return self._channel.is_open

    def build(self, size: int, start: Callable[[], None]) -> None:
        start()

    def answer(self, parts: Sequence[Part]) -> None:
        """Send the response, with the bytes that its file ranges have now, as sendfile does."""
        data = bytearray()
        for part in parts:
            if isinstance(part, FileRange):
                file: Any = part.file
                found = file.pread(part.position, part.length)
                if len(found) < part.length:
                    self.refuse("the file ends before the answer")
                    return
                data += found
            else:
                data += part
        self._answered(data)

    def refuse(self, reason: str) -> None:
        self._answered(NetworkError(reason))


def read_request(
    frame: bytes, channel: Channel, process: Process
) -> tuple[RequestContext, memoryview]:
    """Return the RequestContext of a received request, and a new copy of its frame."""
    view = memoryview(bytearray(frame))
    session = Session(channel.number, "sim:1")
    return RequestContext.read(view, session, process.clock.monotonic_ms()), view


def serve_call(frame: bytes, channel: Channel, process: Process, answered: Answered) -> None:
    """Answer a request of any API except Produce and Fetch."""
    request, view = read_request(frame, channel, process)
    message = tables.decode(request.api_key, request.api_version, view, request.body_at)
    reply = SimReply(answered, channel)
    process.cluster.loop.create_task(_answer(process, request, message, view, reply))


async def _answer(
    process: Process, request: RequestContext, message: Any, frame: memoryview, reply: SimReply
) -> None:
    try:
        response = await HANDLERS[request.api_key](process.parts, request, message)
        data = tables.encode(request.api_key, request.api_version, request.correlation_id, response)
    except LogbusError as error:
        data = refusals.refused(request.header, frame, wire_code(error), error.message)
    except Exception as error:
        process.unexpected(error)
        return
    reply.answer((data,))


class SimBrokerCalls:
    """The ``BrokerCalls`` of one process, with one connection for each broker and API."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = count(1)
        self._channels: dict[tuple[int, int], tuple[int, Channel]] = {}

    async def send(self, broker_id: int, call: Call[T], timeout_ms: float = 5000) -> T:
        """Send a request to another broker, as ``BrokerCalls.send`` does."""
        process = self._process
        broker = process.registry.snapshot.brokers.get(broker_id)
        if broker is None:
            raise NetworkError(f"broker {broker_id} is no longer registered")
        lane = broker_id, call.API_KEY
        epoch, channel = self._channels.get(lane, (-1, None))
        if channel is None or not channel.is_open or epoch != broker.broker_epoch:
            if channel is not None:
                channel.fail(NetworkError("another process of the broker is asked now"))
            net = process.cluster.net
            channel = net.channel(process.broker_id, broker_id, process.context)
            self._channels[lane] = broker.broker_epoch, channel
        exchange = CallExchange(call)
        parts = exchange.frame(next(self._numbers), broker_client_id(process.broker_id))
        answered: asyncio.Future[T] = process.cluster.loop.create_future()

        def settle(answer: Any) -> None:
            if answered.done():
                return
            if isinstance(answer, LogbusError):
                answered.set_exception(answer)
            else:
                answered.set_result(exchange.answer(memoryview(answer)[4:]))

        frame = b"".join(parts)[4:]
        channel.request(partial(serve_call, frame, channel), settle, min(timeout_ms, 60_000) / 1000)
        return await answered
