"""The asyncio client on real brokers: tasks that are cancelled. Tests of both clients run with the
fixture ``face``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker_lite.bus import aconnect
from broker_lite.client.administration.transactions import open_in_logs
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import TopicPartition


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
