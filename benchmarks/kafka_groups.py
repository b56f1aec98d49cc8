"""Measure the cost of offset commits of Kafka groups, on three brokers.

    python benchmarks/kafka_groups.py [--groups N] [--seconds S]

The script prints one JSON object. ``--groups`` groups of one member each send heartbeats and commit
once a second for ``--seconds``. The figures are the duration of a commit, and the share of a core
that ZooKeeper and the brokers use. The benchmark growth-members measures how fast a group becomes
stable.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from peers import figures
from peers.group_member import HEARTBEAT_SECONDS, TOPIC, GroupMember
from peers.meter import CpuUse
from peers.servers import LogbusServers

from broker_lite.local.zookeeper import four_letters

PARTITIONS = 3
WARM_SECONDS = 3


async def joined(servers: str, group: str) -> GroupMember:
    """Return a member that is alone in its group."""
    member = GroupMember(group)
    await member.connect(servers)
    await member.join(1, PARTITIONS)
    return member


async def work(member: GroupMember, until: float, took: list[float]) -> None:
    """Commit once a second until ``until``; add the duration of each to ``took``.

    After a slow commit, the next commits catch up with this schedule.
    """
    first, offset = time.perf_counter() + random.random(), 0
    while (due := first + offset) < until:
        await asyncio.sleep(due - time.perf_counter())
        if offset % HEARTBEAT_SECONDS == 0:
            await member.heartbeat()
        began = time.perf_counter()
        offset += 1
        await member.commit(offset % PARTITIONS, offset)
        took.append(time.perf_counter() - began)


async def commits(servers: LogbusServers, count: int, seconds: float) -> dict[str, Any]:
    """Measure rate, latency and cost of offset commits of ``count`` groups. No commit may fail."""
    at, names = servers.bootstrap_servers, map("committing-{}".format, range(count))
    members = await asyncio.gather(*(joined(at, name) for name in names))
    took: list[float] = []
    end = time.perf_counter() + WARM_SECONDS + seconds
    working = asyncio.gather(*(work(member, end, took) for member in members))
    await asyncio.sleep(WARM_SECONDS)
    before, wrote = len(took), writes(servers)
    with CpuUse({pid: [pid] for pids in servers.processes().values() for pid in pids}) as use:
        await asyncio.sleep(seconds)
    done, wrote = len(took) - before, writes(servers) - wrote
    await working
    *brokers, zookeeper = (round(each, 1) for each in use.percent.values())
    return {
        "groups": count,
        "commits_per_s": round(done / use.wall_s),
        "commit_ms": {
            f"p{each}": round(figures.percentile(took[before:], each) * 1000, 1)
            for each in (50, 99)
        },
        "zookeeper_writes_per_s": round(wrote / use.wall_s),
        "zookeeper_core_percent": zookeeper,
        "brokers_core_percent": brokers,
    }


def writes(servers: LogbusServers) -> int:
    """Return the number of writes to ZooKeeper so far: the lower half of its last transaction id
    (zxid)."""
    zookeeper = servers.cluster.zookeeper_server
    said = four_letters("127.0.0.1", zookeeper.port, "srvr")
    return int(said.partition("Zxid: ")[2].split()[0], 16) & 0xFFFFFFFF


def measure(groups: int = 500, seconds: float = 20.0) -> dict[str, Any]:
    with LogbusServers(3) as servers:
        servers.bus.create_topic(TOPIC, PARTITIONS, 3)
        return {"commit": asyncio.run(commits(servers, groups, seconds))}


if __name__ == "__main__":
    figures.main(measure)
