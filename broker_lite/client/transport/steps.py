"""The steps that an operation yields, and ``Shell``, the interface of the objects that carry them
out.

An operation is a generator: client logic that needs answers from brokers, written without I/O. It
yields a step and receives its result. The result is the decoded answer for ``Send`` (or the error,
raised in the generator), an answer or error for each request for ``SendAll``, and None for
``Pause``. The shells are ``pool`` and ``reactor`` on threads, and ``loop`` with asyncio."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker_lite.errors import InvalidRequestError, LogbusError, RequestTimedOutError
from broker_lite.model import Endpoint
from broker_lite.wire import fetch, produce
from broker_lite.wire.api import Call, decode_call, encode_call
from broker_lite.wire.primitives import Buffer

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

REQUEST_TIMEOUT_MS = 30_000
"""Time limit (ms) of a request, by default."""


class Exchange(Protocol[T_co]):
    """A request together with the decoding of its response."""

    @property
    def name(self) -> str:
        """The API's name in messages, for example "OffsetCommit"."""

    @property
    def has_answer(self) -> bool:
        """Whether the broker sends a response. It sends none to a produce request with acks=0."""

    def frame(self, correlation_id: int, client_id: str) -> Sequence[Buffer]:
        """Return the encoded request with its length prefix, as buffers to send in order.

        Raises InvalidRequestError for values that the protocol cannot encode."""

    def answer(self, frame: memoryview) -> T_co:
        """Decode a received response. Raises ProtocolError if it is malformed."""


class CallExchange(Generic[T]):
    """An ``Exchange`` (request and response) of one of the many APIs whose classes are in
    ``wire.calls``."""

    __slots__ = ("call",)
    has_answer = True

    def __init__(self, call: Call[T]) -> None:
        self.call = call

    @property
    def name(self) -> str:
        return type(self.call).__name__.removesuffix("Request")

    def frame(self, correlation_id: int, client_id: str) -> Sequence[Buffer]:
        try:
            return (encode_call(self.call, correlation_id, client_id),)
        except (struct.error, ArithmeticError, AttributeError, TypeError, ValueError) as error:
            name = type(self.call).__name__
            raise InvalidRequestError(f"{name} cannot be sent: {error}") from error

    def answer(self, frame: memoryview) -> T:
        return decode_call(self.call, frame)


class ProduceExchange:
    """A produce request: batches for the partitions of one leader."""

    __slots__ = ("acks", "timeout_ms", "topics", "transactional_id", "version")
    name = "Produce"

    def __init__(
        self,
        topics: Sequence[produce.TopicRecords],
        *,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
        version: int = produce.CLIENT_VERSION,
    ) -> None:
        self.topics = topics
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.transactional_id = transactional_id
        self.version = version

    @property
    def has_answer(self) -> bool:
        return self.acks != produce.ACKS_NONE

    def frame(self, correlation_id: int, client_id: str) -> Sequence[Buffer]:
        return produce.encode_request(
            self.topics,
            acks=self.acks,
            timeout_ms=self.timeout_ms,
            correlation_id=correlation_id,
            client_id=client_id,
            transactional_id=self.transactional_id,
            version=self.version,
        )

    def answer(self, frame: memoryview) -> produce.ProduceResponse:
        return produce.decode_response(frame, self.version)


class FetchExchange:
    """A fetch request to one broker. The response's records refer to the received bytes, without a
    copy."""

    __slots__ = ("request", "version")
    name = "Fetch"
    has_answer = True

    def __init__(self, request: fetch.FetchRequest, version: int = fetch.CLIENT_VERSION) -> None:
        self.request = request
        self.version = version

    def frame(self, correlation_id: int, client_id: str) -> Sequence[Buffer]:
        return (
            fetch.encode_request(
                self.request,
                correlation_id=correlation_id,
                client_id=client_id,
                version=self.version,
            ),
        )

    def answer(self, frame: memoryview) -> fetch.FetchResponse:
        return fetch.decode_response(frame, self.version)


def overdue(endpoint: Endpoint, exchange: Exchange[Any]) -> RequestTimedOutError:
    """Return the error of a request whose response is overdue."""
    return RequestTimedOutError(
        f"{endpoint} did not answer the {exchange.name} request in time; `logbus health` shows "
        "the state of the brokers"
    )


class Send(NamedTuple):
    """A step of an operation: send one request. Its result is the decoded response.

    A connection delivers responses in order, so a long poll would delay an urgent request behind
    it. So ``lane`` names the request's purpose, and each lane has its own connection to a broker.
    A ``Pool`` ignores ``lane``, because each request borrows a connection."""

    endpoint: Endpoint
    exchange: Exchange[Any]
    timeout_ms: float = REQUEST_TIMEOUT_MS
    lane: str = ""


class SendAll(NamedTuple):
    """A step of an operation: send requests to several brokers in parallel.

    Its result has a response or an error for each request, in order."""

    sends: Sequence[Send]


class Pause(NamedTuple):
    """A step of an operation: wait for ``delay_ms`` milliseconds."""

    delay_ms: float


Step = Send | SendAll | Pause
Operation = Generator[Step, Any, T]


class Shell(Protocol):
    """Sends requests and runs timers for producers and consumers, whose own logic does no I/O.

    Call all methods except ``call_soon`` on the one thread that does the shell's I/O."""

    def now_ms(self) -> float:
        """Return the time of a monotonic clock, in milliseconds."""

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        """Send a request. Later, call ``on_answer`` exactly once with the response or an error.

        Raises InvalidRequestError for a request that cannot be encoded."""

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        """Close the connection to ``endpoint`` for the purpose ``lane``. Its requests in flight
        fail with ClosedError."""

    def later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` once after ``delay_ms`` milliseconds, unless the timer is cancelled."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the thread of the network I/O. Any thread may call this."""


class Timer(Protocol):
    """A pending callback that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the callback. This has no effect after the callback ran."""


def spawn(
    shell: Shell, operation: Operation[T], on_done: Callable[[T | LogbusError], None]
) -> None:
    """Start an operation (a generator of requests) on a shell, which sends the requests.
    ``on_done`` receives its result or error."""
    _StepTask(shell, operation, on_done).advance(None)


class _StepTask:
    """A running operation. Each response advances the operation to its next step."""

    __slots__ = ("on_done", "operation", "shell")

    def __init__(
        self, shell: Shell, operation: Operation[Any], on_done: Callable[[Any], None]
    ) -> None:
        self.shell = shell
        self.operation = operation
        self.on_done = on_done

    def advance(self, result: Any) -> None:
        try:
            if isinstance(result, LogbusError):
                step = self.operation.throw(result)
            else:
                step = self.operation.send(result)
        except StopIteration as stop:
            self.on_done(stop.value)
            return
        except LogbusError as error:
            self.on_done(error)
            return
        match step:
            case Send():
                self._request(step, self.advance)
            case SendAll(sends):
                self._gather(sends)
            case Pause(delay_ms):
                self.shell.later(delay_ms, lambda: self.advance(None))

    def _request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        """Send a request. If it cannot be encoded, pass the error to the operation in place of a
        response."""
        try:
            self.shell.request(send, on_answer)
        except LogbusError as error:
            self.shell.call_soon(partial(on_answer, error))

    def _gather(self, sends: Sequence[Send]) -> None:
        answers: list[Any] = [None] * len(sends)
        left = len(sends)
        if not sends:
            self.shell.later(0, lambda: self.advance(answers))

        def take(index: int, answer: Any) -> None:
            nonlocal left
            answers[index] = answer
            left -= 1
            if left == 0:
                self.advance(answers)

        for index, send in enumerate(sends):
            self._request(send, partial(take, index))
