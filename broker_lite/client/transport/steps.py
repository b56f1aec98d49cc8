"""What an operation may ask of whoever runs it, and how a request becomes bytes and back.

An operation is a generator that yields steps and is sent their results: ``Send`` gives the decoded
answer or raises, ``SendAll`` gives one answer or error each, ``Pause`` gives nothing. A shell
(``blocking`` or ``aio``) carries the steps out; operations do no I/O and hold no lock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.model import Endpoint
from broker_lite.wire import fetch, produce
from broker_lite.wire.api import Call, decode_call, encode_call
from broker_lite.wire.primitives import Buffer

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

REQUEST_TIMEOUT_MS = 30_000


class Exchange(Protocol[T_co]):
    """A request that knows its bytes and how to read its answer."""

    @property
    def has_answer(self) -> bool:
        """False for acks=0 alone."""

    def frame(self, correlation_id: int, client_id: str) -> Sequence[Buffer]:
        """The whole frame, its length included, as buffers to send in this order; raises
        InvalidRequestError for what the protocol has no room for."""

    def answer(self, frame: memoryview) -> T_co:
        """The decoded answer; raises ProtocolError."""


class CallExchange(Generic[T]):
    """A request out of ``wire.calls``."""

    __slots__ = ("call",)
    has_answer = True

    def __init__(self, call: Call[T]) -> None:
        self.call = call

    def frame(self, correlation_id: int, client_id: str) -> Sequence[Buffer]:
        try:
            return (encode_call(self.call, correlation_id, client_id),)
        except (struct.error, OverflowError, TypeError, ValueError) as error:
            name = type(self.call).__name__
            raise InvalidRequestError(f"{name} cannot be sent: {error}") from error

    def answer(self, frame: memoryview) -> T:
        return decode_call(self.call, frame)


class ProduceExchange:
    """Batches for the partitions of one leader."""

    __slots__ = ("acks", "timeout_ms", "topics")

    def __init__(
        self, topics: Sequence[produce.TopicRecords], *, acks: int, timeout_ms: int
    ) -> None:
        self.topics = topics
        self.acks = acks
        self.timeout_ms = timeout_ms

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
        )

    def answer(self, frame: memoryview) -> produce.ProduceResponse:
        return produce.decode_response(frame)


class FetchExchange:
    """A fetch from one broker; the answer's records are slices of the received frame."""

    __slots__ = ("request", "version")
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


class Send(NamedTuple):
    """Ask one broker; the step's result is the answer. Answers come in the order of the requests
    over one connection, so what waits long, or must not wait, has one of its own: a ``lane``
    (of a shell; a pool's borrower has a connection to itself)."""

    endpoint: Endpoint
    exchange: Exchange[Any]
    timeout_ms: float = REQUEST_TIMEOUT_MS
    lane: str = ""


class SendAll(NamedTuple):
    """Ask several brokers at once; the step's result is a list of answers or errors, in order."""

    sends: Sequence[Send]


class Pause(NamedTuple):
    """Wait."""

    delay_ms: float


Step = Send | SendAll | Pause
Operation = Generator[Step, Any, T]


class Shell(Protocol):
    """What producers' and consumers' engines need of the world; all of it on one thread."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""

    def request(self, send: Send, on_answer: Callable[[Any], None]) -> None:
        """Send; ``on_answer`` gets the answer or an error, later and exactly once. Raises
        InvalidRequestError for what cannot be sent."""

    def disconnect(self, endpoint: Endpoint, lane: str = "") -> None:
        """End a connection; what is under way on it fails with ClosedError."""

    def later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call back once, in so many milliseconds."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the shell's thread; may be used from any thread."""


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Forget the callback; harmless once it ran."""


def spawn(
    shell: Shell, operation: Operation[T], on_done: Callable[[T | LogbusError], None]
) -> None:
    """Run an operation on a shell; ``on_done`` gets its result or the error that ended it."""
    _Task(shell, operation, on_done).advance(None)


class _Task:
    """One running operation: every answer moves it to its next step."""

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
        """What cannot be sent is this operation's error, and no end of the shell's thread."""
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
