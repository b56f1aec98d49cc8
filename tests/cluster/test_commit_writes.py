"""Count the ZooKeeper writes that frequent offset commits cause."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import AsyncExitStack

from broker_lite.bus import Bus, aconnect
from broker_lite.config import BrokerConfig
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import four_letters
from broker_lite.model import TopicPartition

GROUPS, COMMITS = 60, 20
OTHERS_MAX = 10
"""Maximum number of writes without a commit, such as those of sessions and connections."""


def written(cluster: LocalCluster) -> int:
    """Return ZooKeeper's last transaction id (zxid), which grows by one with each write."""
    host, port = cluster.zookeeper.partition("/")[0].split(":")
    found = re.search(r"Zxid: 0x([0-9a-f]+)", four_letters(host, int(port), "srvr"))
    assert found is not None
    return int(found[1], 16)


def test_offset_commits_write_to_zookeeper_at_most_once_per_commit_interval(
    cluster: LocalCluster, bus: Bus, topic: str
) -> None:
    """The number of allowed writes grows with the elapsed time, so a slow machine passes too."""
    tp = TopicPartition(topic, 0)
    groups = [f"{topic}-{number}" for number in range(GROUPS)]

    async def main() -> tuple[int, float]:
        async with await aconnect(bus.bootstrap_servers) as other, AsyncExitStack() as stack:
            consumers = [
                await stack.enter_async_context(
                    other.consumer(topic, group=group, partitions=[0], auto_commit=False)
                )
                for group in groups
            ]

            async def commit(first: int, end: int) -> None:
                for offset in range(first, end):
                    await asyncio.gather(*(one.commit({tp: offset}) for one in consumers))

            # The first commit claims the group and creates its znodes.
            await commit(0, 1)
            before, began = written(cluster), time.monotonic()
            await commit(1, 1 + COMMITS)
            return written(cluster) - before, time.monotonic() - began

    writes, seconds = asyncio.run(main())
    commits = GROUPS * COMMITS
    interval_s = BrokerConfig().offset_commit_interval_ms / 1000
    allowed = len(cluster.brokers) * (1 + seconds / interval_s) + OTHERS_MAX
    assert writes <= allowed, f"{writes} writes for {commits} commits in {seconds:.3f} s"
    assert writes >= COMMITS, "a commit was answered before its write"
    for group in groups:
        assert bus.admin.committed(group)[tp].offset == COMMITS
