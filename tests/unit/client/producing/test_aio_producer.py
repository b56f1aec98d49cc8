"""Tests of ``AsyncProducer`` without brokers. In most tests, its buffer is full until the test
frees space."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from broker_lite.client.producing.aio_producer import AsyncProducer
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    BufferFullError,
    ClosedError,
    LogbusError,
    MessageTooLargeError,
    NetworkError,
)

BUFFER_BYTES = 64 << 10
LARGE = bytes(BUFFER_BYTES)


def run_full(
    test: Callable[[AsyncProducer], Coroutine[Any, Any, None]], **options: Any
) -> list[str]:
    """Run ``test`` with a producer whose buffer is full after one record, and whose broker does not
    exist. Return the topics of the calls that sent rows, in order."""
    topics: list[str] = []

    async def main() -> None:
        config = ProducerConfig(
            buffer_bytes=BUFFER_BYTES, batch_bytes=1, has_answered=True, **options
        )
        producer = AsyncProducer("127.0.0.1:1", config)
        core = producer._core
        for name in ("send", "send_piece"):
            setattr(core, name, _noting(getattr(core, name), topics))
        first = producer.send("first", LARGE)
        await test(producer)
        producer._core.end()
        with pytest.raises(ClosedError):
            await first
        producer._shell.close()

    asyncio.run(main())
    return topics


def _noting(call: Callable[..., Any], topics: list[str]) -> Callable[..., Any]:
    def noted(topic: str, *rest: Any) -> Any:
        topics.append(topic)
        return call(topic, *rest)

    return noted


def test_send_arrow_does_not_overtake_records_that_wait_for_buffer_space() -> None:
    """Regression: ``send_arrow`` took space in the buffer before records that ``send`` had received
    earlier, so a partition's records were not in the order of the calls."""

    async def test(producer: AsyncProducer) -> None:
        producer.send("second", b"x")
        rows = pa.record_batch({"value": pa.array([b"x"])})
        arrow = asyncio.create_task(producer.send_arrow("third", rows))
        await asyncio.sleep(0)
        producer.send("fourth", b"x")
        producer._core._released(BUFFER_BYTES)
        await producer._queued()
        arrow.cancel()

    assert run_full(test) == ["first", "second", "third", "fourth"]


def test_send_arrow_fails_if_the_buffer_stays_full_for_max_block_ms() -> None:
    """Regression: ``send_arrow`` of the asyncio producer waited for space without limit."""

    async def test(producer: AsyncProducer) -> None:
        rows = pa.record_batch({"value": pa.array([b"x"])})
        with pytest.raises(BufferFullError):
            await producer.send_arrow("second", rows)

    assert run_full(test, max_block_ms=1) == ["first"]


def test_flush_does_not_wait_for_later_records_that_wait_for_buffer_space() -> None:
    """Regression: ``flush`` also waited for records that were sent later, so it never returned
    while other tasks kept the buffer full."""

    async def test(producer: AsyncProducer) -> None:
        producer.send("second", LARGE)
        queued = asyncio.create_task(producer._queued())
        await asyncio.sleep(0)
        producer.send("third", LARGE)
        producer._core._released(BUFFER_BYTES)
        await queued
        assert len(producer._waiting) == 1

    run_full(test)


def test_headers_iterable_that_raises_fails_only_its_own_record() -> None:
    """Regression: an exception of the iterable ``headers`` kept all waiting records from being
    sent, and their futures never completed."""

    def headers() -> Iterator[tuple[str, bytes]]:
        raise ValueError("planted")
        yield

    async def test(producer: AsyncProducer) -> None:
        wrong = producer.send("second", b"x", headers=headers())
        producer.send("third", b"x")
        producer._core._released(BUFFER_BYTES)
        with pytest.raises(ValueError, match="planted"):
            await wrong
        await producer._queued()

    assert run_full(test) == ["first", "second", "third"]


@pytest.mark.parametrize(("size", "expected"), [(10, NetworkError), (10_000, MessageTooLargeError)])
@pytest.mark.parametrize("is_awaited", [False, True])
def test_flush_raises_only_errors_that_the_caller_has_not_awaited(
    size: int, expected: type[LogbusError], is_awaited: bool
) -> None:
    """Regression: ``flush`` and ``close`` of the asyncio producer never raised errors of ``send``.
    If the caller did not await the future, the record was lost without an error."""

    async def main() -> None:
        config = ProducerConfig(max_request_bytes=5000, has_answered=True)
        producer = AsyncProducer("127.0.0.1:1", config)
        sent = producer.send("t", bytes(size))
        producer._core.start_flush()
        producer._core._sender.discard(NetworkError("planted"))
        if is_awaited:
            with pytest.raises(expected):
                await sent
        else:
            with pytest.raises(expected):
                await producer.flush(10)
        await producer.close(10)

    asyncio.run(main())
