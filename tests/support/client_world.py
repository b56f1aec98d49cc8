"""A client shell without network and real time: the test moves the clock and answers requests.

A *shell* sends the requests that the client decides on, and has its clock and timers. Here,
requests and responses are encoded and decoded, so that tests cover the codecs too.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker_lite.client.operations.cluster import ClusterView, PartitionMetadata, TopicMetadata
from broker_lite.client.transport.steps import Send
from broker_lite.errors import LogbusError, RequestTimedOutError
from broker_lite.model import Endpoint
from broker_lite.wire import fetch, produce
from broker_lite.wire.api import ApiKey, parse_header

ONE, TWO = Endpoint("one", 1), Endpoint("two", 2)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"


def view(
    partitions: int = 2,
    leaders: tuple[int, ...] = (1,),
    topic_id: str = TOPIC_ID,
    leader_epoch: int = 5,
    isr: tuple[int, ...] = (1,),
) -> ClusterView:
    """Return metadata of two brokers and topic ``t``; ``leaders`` lead
    its partitions in turn."""
    rows = tuple(
        PartitionMetadata(each, leaders[each % len(leaders)], leader_epoch, (1, 2), isr)
        for each in range(partitions)
    )
    return ClusterView(
        "cluster", 1, {1: ONE, 2: TWO}, {"t": TopicMetadata("t", topic_id, None, rows)}
    )


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


@dataclass
class Asked:
    """A request that the client sent and the test has not answered yet."""

    world: World
    endpoint: Endpoint
    lane: str
    exchange: Any
    on_answer: Callable[[Any], None]
    correlation_id: int
    api_key: int
    message: Any

    def answer(self, frame: bytes | bytearray) -> None:
        """Answer with a frame, including its length prefix."""
        self.world.asked.remove(self)
        self.on_answer(self.exchange.answer(memoryview(bytearray(frame))[4:]))

    def fail(self, error: LogbusError) -> None:
        """Close the connection with this error."""
        self.world.asked.remove(self)
        self.on_answer(error)

    def produced(self, **rows: Any) -> None:
        """Answer a produce request. ``p0=(error code, base offset)`` is partition 0's result."""
        assert self.api_key == ApiKey.PRODUCE
        answers = [
            produce.ProducedPartition(int(name[1:]), error, base)
            for name, (error, base) in rows.items()
        ]
        topic_id = self.message.topics[0].topic_id
        topics = [produce.ProducedTopic("", topic_id, answers)]
        self.answer(
            produce.encode_response(produce.ProduceResponse(topics), 13, self.correlation_id)
        )

    def fetched(
        self,
        rows: list[fetch.PartitionAnswer],
        topic_id: str = TOPIC_ID,
        throttle_time_ms: int = 0,
    ) -> None:
        """Answer a fetch request."""
        parts = fetch.encode_response(
            [fetch.TopicAnswer("", topic_id, rows)],
            17,
            self.correlation_id,
            throttle_time_ms=throttle_time_ms,
        )
        self.answer(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]


class World:
    """The simulated clock and network of a client. ``run`` advances the time; ``asked`` holds the
    requests that the test has not answered.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[Asked] = []
        self.automatic: dict[int, Callable[[Asked], None]] = {}
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self._calls: list[Callable[[], None]] = []

    def now_ms(self) -> float:
        return self.now

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        endpoint, lane = send.endpoint, send.lane
        exchange: Any = send.exchange
        correlation_id = next(self._ids)
        raw = b"".join(bytes(part) for part in exchange.frame(correlation_id, "test"))
        frame = memoryview(bytearray(raw))[4:]
        header = parse_header(frame)
        message: Any = exchange
        if header.api_key == ApiKey.PRODUCE:
            message = produce.decode_request(frame, header.api_version, header.body_at)
        elif header.api_key == ApiKey.FETCH:
            message = fetch.decode_request(frame, header.api_version, header.body_at)
        elif hasattr(exchange, "call"):
            message = exchange.call
        asked = Asked(
            self, endpoint, lane, exchange, on_answer, correlation_id, header.api_key, message
        )
        self.asked.append(asked)
        self.later(
            send.timeout_ms,
            lambda: asked.fail(RequestTimedOutError("late")) if asked in self.asked else None,
        )
        if header.api_key in self.automatic:
            self.automatic[header.api_key](asked)

    def later(self, delay_ms: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.now + delay_ms, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._calls.append(callback)

    @property
    def is_called(self) -> bool:
        """Return whether a function that the client wants to run in its network thread is still
        pending.
        """
        return bool(self._calls)

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        for asked in list(self.asked):
            if (asked.endpoint, asked.lane) == (endpoint, lane):
                asked.fail(RequestTimedOutError("given up"))

    def run(self, passing_ms: float = 0.0) -> None:
        """Run pending calls and timers while ``passing_ms`` milliseconds pass."""
        until = self.now + passing_ms
        while True:
            while self._calls:
                self._calls.pop(0)()
            if not self._timers or self._timers[0][0] > until:
                break
            due, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            if timer.callback is not None:
                timer.callback()
        self.now = until

    def the(self, api_key: int) -> Asked:
        """Return the only unanswered request of an API."""
        found = [asked for asked in self.asked if asked.api_key == api_key]
        assert len(found) == 1, found
        return found[0]
