"""``AsyncProducer``: a ``Producer`` that sends on an event loop instead of a background thread.

Use it only on the loop that created it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from broker_lite.client.closing import ClosedByAsyncWith
from broker_lite.client.discovery import security_for
from broker_lite.client.producing.futures import (
    BatchFuture,
    BatchMetadata,
    Outcome,
    RecordFuture,
    RecordMetadata,
)
from broker_lite.client.producing.producer import FAILURES_KEPT, Producer
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.loop import LoopShell, resolve_with
from broker_lite.config import ProducerConfig
from broker_lite.errors import BufferFullError, LogbusError, RequestTimedOutError


class Sent(asyncio.Future[RecordMetadata]):
    """The future that ``AsyncProducer.send`` returns for a record.

    ``await sent`` sends the record's batch at once, without waiting for ``linger_ms``.
    ``asyncio.gather`` of several futures does not, so the records can fill a batch."""

    outcome: Outcome | None = None
    is_seen = False
    """Whether the caller has received the record's error, so that ``flush`` need not raise it."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if self.outcome is not None and not self.outcome.done:
            self.outcome.wake(self.outcome)
        try:
            return (yield from super().__await__())
        except LogbusError:
            self.is_seen = True
            raise

    __iter__ = __await__

    def exception(self) -> BaseException | None:
        error = super().exception()
        self.is_seen = error is not None
        return error

    def result(self) -> RecordMetadata:
        self.exception()
        return super().result()


def _nothing() -> None:
    """Return None, as the result of a future that only signals completion."""


class AsyncProducer(ClosedByAsyncWith):
    """``Producer`` for asyncio: ``await producer.send(…)`` returns the acknowledgement."""

    _kind: type[Producer] = Producer

    def __init__(self, bootstrap_servers: str, config: ProducerConfig) -> None:
        self.config = config
        security = security_for(bootstrap_servers, config.security)
        self._shell = LoopShell(config.client_id, security)
        self._core = self._kind(bootstrap_servers, config, shell=self._shell)
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[], None], float]] = deque()
        """Calls that wait for space in the buffer, in order: future, function that sends, deadline
        (ms)."""
        self._waited_count = 0
        """Number of calls ever added to ``_waiting``. The method ``_queued`` waits until all calls
        added so far have left ``_waiting``."""
        self._is_watching = False
        self._failed: list[tuple[Sent, LogbusError]] = []
        """Failed records since the last flush, with their errors."""

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Sent:
        """Send a record. ``await`` of the result returns the record's metadata.

        Records are sent in the order of the calls. While the producer's buffer is full, a record
        waits for ``max_block_ms`` at most, then fails with BufferFullError. ``send`` itself
        raises no LogbusError, not even where ``Producer.send`` does: the ``await`` raises it, or,
        without an ``await``, ``flush`` and ``close``."""
        sent = Sent(loop=self._shell.loop)
        arguments = (topic, value, key, headers, partition, timestamp_ms)
        self._start_in_turn(sent, partial(self._start, sent, arguments))
        return sent

    def _start_in_turn(self, future: asyncio.Future[Any], start: Callable[[], None]) -> None:
        """Call ``start``, which sends, once the buffer has space and all earlier sends have begun.

        After ``max_block_ms``, ``future`` fails with BufferFullError."""
        if self._waiting or self._core.is_full:
            deadline_ms = monotonic_ms() + self.config.max_block_ms
            self._waiting.append((future, start, deadline_ms))
            self._waited_count += 1
            self._watch_space()
        else:
            start()

    def _start(self, sent: Sent, arguments: tuple[Any, ...]) -> None:
        try:
            future = self._core.send(*arguments)
        except LogbusError as error:
            self._refuse(sent, error)
            return
        sent.outcome = future.outcome
        future.add_done_callback(partial(self._settle, sent))

    def _settle(self, sent: Sent, done: RecordFuture) -> None:
        try:
            metadata = done.result(0)
        except LogbusError as error:
            self._fail(sent, error)
        else:
            if not sent.done():
                sent.set_result(metadata)

    def _fail(self, sent: Sent, error: LogbusError) -> None:
        """Fail a record's future. If the caller never receives the error, the next flush raises
        it."""
        if not sent.done():
            sent.set_exception(error)
        if len(self._failed) >= FAILURES_KEPT:
            self._failed = [row for row in self._failed if not row[0].is_seen]
        if len(self._failed) < FAILURES_KEPT:
            self._failed.append((sent, error))

    def _watch_space(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._shell.later(1, self._retry)

    def _retry(self) -> None:
        self._is_watching = False
        now_ms = monotonic_ms()
        while self._waiting:
            future, start, deadline_ms = self._waiting[0]
            if self._core.is_full and deadline_ms > now_ms:
                self._watch_space()
                return
            self._waiting.popleft()
            if future.done():
                continue
            if self._core.is_full:
                problem = (
                    f"buffer.memory={self.config.buffer_bytes} stayed full for max.block.ms="
                    f"{self.config.max_block_ms}; see whether the brokers are up: logbus status"
                )
                self._refuse(future, BufferFullError(problem))
                continue
            try:
                start()
            except Exception as error:  # The user's iterator of headers may raise in ``start``.
                future.set_exception(error)

    def _refuse(self, future: asyncio.Future[Any], error: LogbusError) -> None:
        if isinstance(future, Sent):
            self._fail(future, error)
        else:
            future.set_exception(error)

    async def send_arrow(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        value: str | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> list[BatchMetadata]:
        """Send Arrow rows and wait for the acknowledgements; see ``Producer.send_arrow``."""
        futures: list[BatchFuture] = []
        for piece in self._core.arrow_pieces(topic, data, key, value, partition):
            turn: asyncio.Future[BatchFuture] = self._shell.loop.create_future()
            send = partial(self._core.send_piece, topic, piece, timestamp_ms)
            self._start_in_turn(turn, partial(resolve_with, turn, send))
            futures.append(await turn)
        return [row for future in futures for row in await self._await(future)]

    async def _await(self, future: BatchFuture) -> list[BatchMetadata]:
        await self._all_done(future.outcomes)
        return future.result(0)

    async def _all_done(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            done: asyncio.Future[None] = self._shell.loop.create_future()
            outcome.add_done_callback(lambda each: resolve_with(each, _nothing), done)
            await done

    async def _queued(self) -> None:
        count = self._waited_count
        while self._waited_count - len(self._waiting) < count:
            await asyncio.sleep(0.001)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all records that were sent before this call are acknowledged. Raises the
        errors of ``Producer.flush``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._queued()
                waiting = self._core.start_flush()
                await self._all_done(waiting)
        except TimeoutError:
            raise RequestTimedOutError(
                f"some records are not acknowledged after {timeout_s} s; they are still in flight"
            ) from None
        failed, self._failed = self._failed, []
        self._core.end_flush(waiting)
        for sent, error in failed:
            if not sent.is_seen:
                raise error.with_traceback(None)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then close the connections. Records unacknowledged after ``timeout_s`` seconds
        fail."""
        try:
            await self.flush(timeout_s)
        finally:
            self._core.end()
            self._shell.close()
