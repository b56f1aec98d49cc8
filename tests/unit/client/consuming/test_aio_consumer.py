"""Tests of ``AsyncConsumer`` without brokers. Nothing listens on port 1."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from broker_lite.client.consuming.aio_consumer import AsyncConsumer
from broker_lite.client.consuming.reader_core import ReaderCore
from broker_lite.client.consuming.waits import FOREVER_MS, Await, Task, Wait
from broker_lite.client.operations import requests
from broker_lite.errors import NoBrokersError
from broker_lite.model import TopicPartition

PARTITION = TopicPartition("t", 0)


def ends(
    _: ReaderCore, timestamp_ms: int, tps: Sequence[TopicPartition]
) -> Task[dict[TopicPartition, int]]:
    """Stand in for ``ReaderCore.list_offsets``: every log ends at offset 10."""
    yield from ()
    return dict.fromkeys(tps, 10)


def test_async_with_closes_a_consumer_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the consumer's connections stayed open, because Python calls ``__aexit__`` only
    after a successful ``__aenter__``."""
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
    """Regression: the consumer's timers stayed on the event loop. The timers opened new connections
    for metadata requests as long as the loop ran, and kept the consumer in memory."""

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


def test_lag_called_while_the_consumer_starts_waits_for_its_assigned_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: ``lag`` returned {}, as for a consumer without partitions."""
    has_partitions = False

    def start(reader: ReaderCore) -> Task[None]:
        yield Wait(lambda: has_partitions, FOREVER_MS)
        reader.collector.begin({PARTITION: 3})

    monkeypatch.setattr(ReaderCore, "start", start)
    monkeypatch.setattr(ReaderCore, "list_offsets", ends)

    async def main() -> None:
        nonlocal has_partitions
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        starting = asyncio.create_task(consumer.start())
        lag = asyncio.create_task(consumer.lag())
        await asyncio.sleep(0)
        has_partitions = True
        consumer.core.notify()
        async with asyncio.timeout(10):
            await starting
            assert await lag == {PARTITION: 7}
        await consumer.close()

    asyncio.run(main())


def test_lag_starts_the_consumer_if_the_start_by_another_task_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = 0

    def start(reader: ReaderCore) -> Task[None]:
        nonlocal starts
        starts += 1
        if starts == 1:
            yield Wait(lambda: False, reader.shell.now_ms() + 1)
            raise NoBrokersError("no broker answers")
        reader.collector.begin({PARTITION: 3})

    monkeypatch.setattr(ReaderCore, "start", start)
    monkeypatch.setattr(ReaderCore, "list_offsets", ends)

    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        starting = asyncio.create_task(consumer.start())
        lag = asyncio.create_task(consumer.lag())
        async with asyncio.timeout(10):
            with pytest.raises(NoBrokersError):
                await starting
            assert await lag == {PARTITION: 7}
        await consumer.close()

    asyncio.run(main())


def test_callback_on_assign_may_wait_for_a_task_that_calls_the_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lags = []

    def start(reader: ReaderCore) -> Task[None]:
        async def on_assign() -> None:
            lags.append(await asyncio.create_task(reader.consumer.lag()))

        reader.collector.begin({PARTITION: 3})
        yield Await(on_assign())

    monkeypatch.setattr(ReaderCore, "start", start)
    monkeypatch.setattr(ReaderCore, "list_offsets", ends)

    async def main() -> None:
        consumer = AsyncConsumer("127.0.0.1:1", ["t"])
        async with asyncio.timeout(10):
            await consumer.start()
        assert lags == [{PARTITION: 7}]
        await consumer.close()

    asyncio.run(main())
