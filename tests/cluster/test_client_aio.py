"""The asyncio client on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from broker_lite.bus import aconnect
from broker_lite.client.administration.transactions import open_in_logs
from broker_lite.errors import (
    BufferFullError,
    ClosedError,
    InvalidPartitionsError,
    MessageTooLargeError,
    UnknownTopicOrPartitionError,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition


def test_asyncio_consumer_reads_what_the_asyncio_producer_sent(
    cluster: LocalCluster, topic: str
) -> None:
    async def main() -> None:
        async with await aconnect(cluster.bootstrap_servers) as bus:
            assert topic in await bus.topics()
            async with bus.producer() as producer:
                sent = await producer.send(topic, b"v", key=b"k", headers=[("h", b"x")])
                assert (sent.topic, sent.offset) == (topic, 0)
                many = await asyncio.gather(
                    *[producer.send(topic, b"%d" % n, partition=2) for n in range(1000)]
                )
                offsets = [row.offset for row in many]
                assert offsets == list(range(offsets[0], offsets[0] + 1000))
                rows = await producer.send_arrow(topic, pa.table({"value": ["a", "b"]}))
                assert sum(row.row_count for row in rows) == 2
                await producer.flush(30)
            async with bus.consumer(topic, group="aio", start="earliest") as consumer:
                count = 0
                async for record in consumer:
                    count += 1
                    if record.key == b"k":
                        assert record.headers == [("h", b"x")]
                    if count == 900:
                        break
                count += (await consumer.poll_arrow(10.0, max_rows=50)).num_rows
                while count < 1003:
                    count += len(await consumer.poll(10.0))
                assert await consumer.poll(0.1) == []
                assert set((await consumer.lag()).values()) == {0}
            with pytest.raises(ClosedError):
                await consumer.poll()

    asyncio.run(main())


def test_asyncio_client_raises_broker_errors(cluster: LocalCluster, topic: str) -> None:
    async def main() -> None:
        async with await aconnect(cluster.bootstrap_servers) as bus:
            with pytest.raises(UnknownTopicOrPartitionError):
                async with bus.consumer("nowhere"):
                    pass
            producer = bus.producer(max_request_bytes=5000)
            with pytest.raises(MessageTooLargeError):
                await producer.send(topic, b"x" * 5000)
            with pytest.raises(InvalidPartitionsError):
                await producer.send(topic, b"x", partition=9)
            await producer.close()
            with pytest.raises(ClosedError):
                await producer.send(topic, b"x")

    asyncio.run(main())


def test_memory_of_the_asyncio_producer_is_limited(cluster: LocalCluster, topic: str) -> None:
    async def main() -> None:
        async with await aconnect(cluster.bootstrap_servers) as bus:
            async with bus.producer(buffer_bytes=70_000, batch_bytes=10_000) as producer:
                sent = await asyncio.gather(
                    *[producer.send(topic, b"x" * 1000, partition=0) for _ in range(1000)]
                )
                assert [row.offset for row in sent] == list(range(1000))
            async with bus.producer(
                buffer_bytes=70_000, batch_bytes=10_000, max_block_ms=0
            ) as producer:
                found = await asyncio.gather(
                    *[producer.send(topic, b"x" * 1000) for _ in range(1000)],
                    return_exceptions=True,
                )
                assert any(isinstance(row, BufferFullError) for row in found)

    asyncio.run(main())


def test_transaction_is_ended_although_the_asyncio_task_that_commits_it_is_cancelled(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    """Regression: the producer was closed before it had ended the transaction, which then held back
    read_committed readers until its timeout."""
    [broker] = make_cluster().brokers

    async def main() -> None:
        async with await aconnect(f"{broker.endpoint}") as bus:
            await bus.create_topic("t", partitions=1)
            tp = TopicPartition("t", 0)

            def opened() -> list[Any]:
                return bus.admin.run(lambda cluster, ms: open_in_logs(cluster, [tp], ms))

            txn = await bus.transaction("copier").__aenter__()
            await txn.send("t", b"acknowledged")
            broker.pause()
            txn.send("t", b"in flight")
            commit = asyncio.create_task(txn.commit())
            for _ in range(10):
                await asyncio.sleep(0)
            commit.cancel()
            broker.resume()
            with pytest.raises(asyncio.CancelledError):
                await commit
            assert await asyncio.to_thread(opened) == []

    asyncio.run(main())
