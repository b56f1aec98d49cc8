"""Tests of ``AsyncConsumer`` without brokers. Nothing listens on port 1."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.operations import requests
from broker_lite.errors import NoBrokersError
from broker_lite.model import TopicPartition


def test_consumer_whose_start_fails_in_async_with_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: its connections stayed open, because Python calls ``__aexit__`` only after a
    successful ``__aenter__``."""
    monkeypatch.setattr(requests, "FIRST_CONTACT_MS", 1)

    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        with pytest.raises(NoBrokersError):
            async with consumer:
                raise AssertionError("the consumer cannot start")
        assert not consumer.is_open

    asyncio.run(main())


@pytest.mark.parametrize("name", ["poll", "poll_arrow"])
def test_loop_of_polls_without_a_timeout_lets_other_tasks_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the poll returned at once, without an iteration of the event loop. A loop of such
    polls waited forever for records, because the consumer fetches on this event loop."""

    def started(_: ReaderCore) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(ReaderCore, "start", started)

    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        has_run = asyncio.Event()
        asyncio.get_running_loop().call_soon(has_run.set)
        await getattr(consumer, name)()
        assert has_run.is_set()
        await consumer.close()

    asyncio.run(main())


def test_closed_asyncio_consumer_sends_no_more_requests_and_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: its timers stayed on the event loop. They opened new connections for metadata
    requests as long as the loop ran, and kept the consumer in memory."""

    def started(reader: ReaderCore) -> Iterator[Any]:
        reader.collector.begin({TopicPartition("t", 0): 0})
        yield from ()

    monkeypatch.setattr(ReaderCore, "start", started)

    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        await consumer.start()
        engine = weakref.ref(consumer.core.engine)
        await consumer.close()
        del consumer
        async with asyncio.timeout(10):
            while engine() is not None:
                await asyncio.sleep(0.01)
                gc.collect()

    asyncio.run(main())
