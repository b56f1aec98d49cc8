"""The network in virtual time: ordered connections over links that delay or lose messages.

A ``Channel`` is one TCP connection from a client or a broker to a broker; its requests and its
responses keep their order. Each direction of a link can be cut. A message on a cut link arrives
when the link is healed, even if its connection was closed. An old request may therefore arrive
after requests of the next connection. A lost message breaks its connection, and the outcome of the
request is unknown. All clients share the node CLIENTS, so a cut link affects all of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, Protocol

from sim.scheduler import OUTSIDE, SimLoop

from broker_lite.errors import LogbusError, NetworkError, RequestTimedOutError

CLIENTS = 0
"""The node of all test clients; the node of a broker is its broker id."""
_STEP_S = 1e-6

Answered = Callable[[Any], None]
"""A callback that receives the response, or the LogbusError of a failed request."""


class Server(Protocol):
    """A simulated process to which other processes send requests."""

    broker_id: int
    serving: bool

    @property
    def context(self) -> Context: ...


Serve = Callable[[Any, Answered], None]
"""A function that handles a request: called with the server's process and a callback."""


class SimNet:
    """The links between all nodes.

    Most messages take at most ``delay_s``. A fraction ``spike_rate`` of the messages, and all
    messages on the links of ``slow``, take up to a second longer.
    """

    def __init__(
        self, loop: SimLoop, rng: random.Random, find: Callable[[int], Server | None]
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.find = find
        self.delay_s = 0.002
        self.spike_rate = 0.0
        self.slow: set[tuple[int, int]] = set()
        self.loss_rate = 0.0
        self.late_rate = 0.5
        """Fraction of the messages of a closed connection that still arrive."""
        self._cuts: dict[tuple[int, int], int] = {}
        self._stuck: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._free_at: dict[tuple[int, int], float] = {}
        """When the last delayed message of a healed link arrives; later messages follow it."""
        self._channels: dict[int, dict[Channel, None]] = {}
        self.numbers = count(1)

    def channel(self, source: int, target: int, context: Context) -> Channel:
        return Channel(self, source, target, context)

    # The methods below change links and send messages.

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cuts

    def cut(self, source: int, target: int) -> None:
        """Hold back messages from source to target until ``heal`` has undone every ``cut``."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: int, target: int) -> None:
        left = self._cuts.get((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
            return
        self._cuts.pop((source, target), None)
        # Messages that an earlier heal released may still be on their way.
        at = max(self.loop.now, self._free_at.get((source, target), 0.0))
        for arrive in self._stuck.pop((source, target), ()):
            at += _STEP_S + self.rng.random() * 0.02
            self.loop.call_at(at, self._arrive, source, target, arrive, True, context=OUTSIDE)
        self._free_at[source, target] = at

    def heal_all(self) -> None:
        self.loss_rate = self.spike_rate = 0.0
        self.slow.clear()
        self.delay_s = 0.002
        for link in list(self._cuts):
            self._cuts[link] = 1
            self.heal(*link)

    def send(self, source: int, target: int, after: float, arrive: Callable[[], None]) -> float:
        """Deliver a message: call ``arrive`` at the time at which it arrives, which is later than
        ``after``. Return that time.
        """
        rng = self.rng
        delay = 0.0001 + rng.random() * self.delay_s
        is_slow = (source, target) in self.slow
        if is_slow or (self.spike_rate and rng.random() < self.spike_rate):
            delay += rng.random()
        at = max(after + _STEP_S, self.loop.now + delay)
        self.loop.call_at(at, self._arrive, source, target, arrive, context=OUTSIDE)
        return at

    def _arrive(
        self, source: int, target: int, arrive: Callable[[], None], was_stuck: bool = False
    ) -> None:
        link = (source, target)
        if link in self._cuts:
            self._stuck.setdefault(link, []).append(arrive)
        elif not was_stuck and self._free_at.get(link, 0.0) >= self.loop.now:
            at = self._free_at[link] = self._free_at[link] + _STEP_S
            self.loop.call_at(at, self._arrive, source, target, arrive, True, context=OUTSIDE)
        else:
            arrive()

    def is_lost(self) -> bool:
        return self.loss_rate > 0 and self.rng.random() < self.loss_rate

    # The methods below open and break connections.

    def opened(self, channel: Channel) -> None:
        self._channels.setdefault(channel.target, {})[channel] = None

    def closed(self, channel: Channel) -> None:
        self._channels.get(channel.target, {}).pop(channel, None)

    def died(self, server: Server, *, silently: bool) -> None:
        """Remove a dead process.

        With ``silently``, its machine loses power; otherwise its peers see their connections close.
        The network drops responses to the process's own requests.
        """
        for channels in list(self._channels.values()):
            for channel in list(channels):
                if channel.context is server.context:
                    channel.abandon()
                elif channel.server is server and not silently:
                    self.send(
                        server.broker_id,
                        channel.source,
                        self.loop.now,
                        partial(channel.fail, NetworkError("the connection was reset")),
                    )


class _Call:
    __slots__ = ("answer", "answered", "deadline", "is_answered")

    def __init__(self, answered: Answered, deadline: float) -> None:
        self.answered = answered
        self.deadline = deadline
        self.answer: Any = None
        self.is_answered = False


class Channel:
    """One connection; later connections have higher numbers.

    A caller must open a new connection once ``is_open`` is False.
    """

    def __init__(self, net: SimNet, source: int, target: int, context: Context) -> None:
        self.net = net
        self.number = next(net.numbers)
        self.source = source
        self.target = target
        self.context = context
        self.server: Server | None = None
        self.is_open = True
        self._calls: deque[_Call] = deque()
        self._serving: deque[_Call] = deque()
        self._sent_until = self._answered_until = 0.0
        self._timer: Any = None
        net.opened(self)

    def request(self, serve: Serve, answered: Answered, timeout_s: float) -> None:
        """Send a request; later call the callback ``answered`` once, in the simulated process that
        opened this connection (``context``)."""
        net = self.net
        call = _Call(answered, net.loop.now + timeout_s)
        self._calls.append(call)
        if self._timer is None:
            self._timer = net.loop.call_at(call.deadline, self._overdue, context=self.context)
        lost = net.is_lost()
        arrive = partial(self._lost if lost else self._arrive, call, serve)
        self._sent_until = net.send(self.source, self.target, self._sent_until, arrive)

    def _lost(self, call: _Call, serve: Serve) -> None:
        self.fail(NetworkError("the connection broke"))

    def _arrive(self, call: _Call, serve: Serve) -> None:
        net = self.net
        if not self.is_open and net.rng.random() >= net.late_rate:
            return
        server = net.find(self.target)
        if self.server is None:
            self.server = server
        if server is None or server is not self.server:
            self.fail(NetworkError(f"broker {self.target} refuses the connection"))
            return
        self._serving.append(call)
        net.loop.call_soon(
            serve, server, partial(self._served, server, call), context=server.context
        )

    def _served(self, server: Server, call: _Call, answer: Any) -> None:
        assert not call.is_answered, "answered twice"
        call.is_answered = True
        call.answer = answer
        net = self.net
        while self._serving and self._serving[0].is_answered:
            done = self._serving.popleft()
            if not self.is_open:
                continue
            way_back = partial(self._lost_answer if net.is_lost() else self._answer, done)
            self._answered_until = net.send(
                server.broker_id, self.source, self._answered_until, way_back
            )

    def _lost_answer(self, call: _Call) -> None:
        self.fail(NetworkError("the connection broke before the answer"))

    def _answer(self, call: _Call) -> None:
        if not self.is_open:
            return
        assert self._calls[0] is call, "answers out of order"
        self._calls.popleft()
        if self.context is OUTSIDE:
            call.answered(call.answer)
        else:
            self.net.loop.call_soon(call.answered, call.answer, context=self.context)

    def _overdue(self) -> None:
        self._timer = None
        if not self._calls or not self.is_open:
            return
        oldest = self._calls[0].deadline
        if oldest > self.net.loop.now:
            self._timer = self.net.loop.call_at(oldest, self._overdue, context=self.context)
        else:
            self.fail(RequestTimedOutError("no answer in time"))

    def fail(self, error: LogbusError) -> None:
        """Break the connection: every request in flight later fails with ``error``."""
        if not self.is_open:
            return
        calls = self._calls
        self.abandon()
        for call in calls:
            self.net.loop.call_soon(call.answered, error, context=self.context)

    def close(self, error: LogbusError) -> None:
        """Close the connection locally: every request in flight fails with ``error`` at once."""
        calls = self._calls
        self.abandon()
        for call in calls:
            call.answered(error)

    def abandon(self) -> None:
        """Break the connection without answering the requests in flight."""
        self.is_open = False
        self._calls = deque()
        self.net.closed(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def ask(channel: Channel, function: Callable[[Any], Awaitable[Any]], timeout_s: float) -> Any:
    """Run a coroutine in the server's process and return its result. Raises LogbusError."""
    loop = channel.net.loop
    result: asyncio.Future[Any] = loop.create_future()

    def serve(server: Any, answered: Answered) -> None:
        loop.create_task(_carry_out(server, function, answered))

    def done(answer: Any) -> None:
        if result.done():
            return
        if isinstance(answer, LogbusError):
            result.set_exception(answer)
        else:
            result.set_result(answer)

    channel.request(serve, done, timeout_s)
    return await result


async def _carry_out(
    server: Any, function: Callable[[Any], Awaitable[Any]], answered: Answered
) -> None:
    try:
        answer = await function(server)
    except LogbusError as error:
        answer = error
    except Exception as error:
        server.unexpected(error)
        answer = NetworkError(repr(error))
    answered(answer)
