"""How fast Kafka groups become stable, and what their commits cost ZooKeeper, on three brokers.

``python benchmarks/kafka_groups.py [--members N] [--groups N] [--seconds S]``: one JSON object on
standard output. First so many members join one group over three partitions each, all at once, and
are timed until the last one has its assignment. Then so many groups commit once a second, each over
a connection of its own: how long a commit takes, and what of a core ZooKeeper and the brokers use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from typing import Any

import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata

from broker_lite import client
from broker_lite.local.cluster import LocalCluster
from broker_lite.wire.consumer_protocol import encode_subscription

TOPIC = "t"
PARTITIONS_A_MEMBER = 3
MEMBER_ID_REQUIRED = 79
SAID = encode_subscription([TOPIC])
NOT_READY = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""


class Connection:
    """One client's, to a group's coordinator."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        modules = (consumer, metadata)
        kind = next(getattr(m, f"{name}Request") for m in modules if hasattr(m, f"{name}Request"))
        answer = next(getattr(m, f"{name}Response") for m in modules if hasattr(m, kind.__name__))
        request = kind(version=version, **fields)
        request.with_header(correlation_id=1, client_id="benchmark")
        self.writer.write(request.encode(header=True, framed=True))
        size = await self.reader.readexactly(4)
        frame = size + await self.reader.readexactly(int.from_bytes(size, "big"))
        return answer.decode(frame, version=version, header=True, framed=True)


async def coordinator(servers: str, group: str) -> Connection:
    """Connected to the broker that coordinates the group."""
    host, _, port = servers.split(",")[0].rpartition(":")
    asked = Connection(*await asyncio.open_connection(host, int(port)))
    found = await asked.ask("FindCoordinator", 3, key=group, key_type=0)
    asked.writer.close()
    return Connection(*await asyncio.open_connection(found.host, found.port))


async def take_part(connection: Connection, group: str, count: int) -> tuple[int, str]:
    """Until the group has so many members and this one its part; the generation and its id."""
    member = ""
    while True:
        rows = [consumer.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=SAID)]
        joined = await connection.ask(
            "JoinGroup", 7, group_id=group, session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000, member_id=member, group_instance_id=None,
            protocol_type="consumer", protocols=rows,
        )  # fmt: skip
        if joined.error_code == MEMBER_ID_REQUIRED:
            member = joined.member_id
            continue
        parts = [
            consumer.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=row.member_id, assignment=bytes(16 * PARTITIONS_A_MEMBER)
            )
            for row in joined.members or ()
        ]
        if parts and len(parts) < count:
            parts = []  # too early: others come
        synced = await connection.ask(
            "SyncGroup", 3, group_id=group, generation_id=joined.generation_id,
            member_id=member, group_instance_id=None, assignments=parts,
        )  # fmt: skip
        if synced.error_code == 0 and synced.assignment:
            return int(joined.generation_id), member


async def stable(servers: str, count: int) -> dict[str, Any]:
    group = f"of-{count}"
    connections = [await coordinator(servers, group) for _ in range(count)]
    began = time.perf_counter()
    parts = await asyncio.gather(
        *(take_part(connection, group, count) for connection in connections)
    )
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.writer.close()
    return {
        "members": count,
        "partitions": count * PARTITIONS_A_MEMBER,
        "generations": max(generation for generation, _ in parts),
        "stable_ms": round(seconds * 1000),
    }


async def commit_for(connection: Connection, group: str, until: float, took: list[float]) -> None:
    """Once a second, beginning at a moment of its own."""
    await asyncio.sleep(random.random())
    kind = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
    offset = 0
    while time.perf_counter() < until:
        offset += 1
        row = kind.OffsetCommitRequestPartition(
            partition_index=offset % PARTITIONS_A_MEMBER, committed_offset=offset,
            committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        began = time.perf_counter()
        answer = await connection.ask(
            "OffsetCommit", 7, group_id=group, generation_id_or_member_epoch=-1, member_id="",
            group_instance_id=None, topics=[kind(name=TOPIC, partitions=[row])],
        )  # fmt: skip
        now = time.perf_counter()
        code = answer.topics[0].partitions[0].error_code
        assert code == 0 or code in NOT_READY, code
        took.append(now - began)
        await asyncio.sleep(max(0.0, 1 - (now - began)))


async def commits(
    servers: str, zookeeper: int, brokers: list[int], count: int, seconds: float
) -> dict[str, Any]:
    """``zookeeper`` and ``brokers`` are process ids."""
    groups = [f"committing-{number}" for number in range(count)]
    connections = [await coordinator(servers, group) for group in groups]
    warm: list[float] = []
    end = time.perf_counter() + 2
    await asyncio.gather(
        *(commit_for(c, group, end, warm) for c, group in zip(connections, groups))
    )
    took: list[float] = []
    pids = [zookeeper, *brokers]
    end = time.perf_counter() + 1 + seconds
    working = asyncio.gather(
        *(commit_for(c, group, end, took) for c, group in zip(connections, groups))
    )
    # All have begun by then, and none has ended when that is over.
    await asyncio.sleep(1)
    busy, began, before = [processor_s(pid) for pid in pids], time.perf_counter(), len(took)
    await asyncio.sleep(seconds)
    lasted, done = time.perf_counter() - began, len(took) - before
    used = [round(100 * (processor_s(pid) - at) / lasted, 1) for pid, at in zip(pids, busy)]
    await working
    marks = statistics.quantiles(took, n=100)
    return {
        "groups": count,
        "commits_per_s": round(done / lasted),
        "commit_ms": {"p50": round(marks[49] * 1000, 1), "p99": round(marks[98] * 1000, 1)},
        "zookeeper_core_percent": used[0],
        "brokers_core_percent": used[1:],
    }


def processor_s(pid: int) -> float:
    """What a process has used so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(prog="kafka_groups.py", description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with LocalCluster(brokers=3) as cluster:
        with client.connect(cluster.bootstrap_servers) as bus:
            bus.create_topic(TOPIC, partitions=PARTITIONS_A_MEMBER, replication_factor=3)
        assert cluster.zookeeper_server is not None and cluster.zookeeper_server.pid is not None
        servers, zookeeper = cluster.bootstrap_servers, cluster.zookeeper_server.pid
        brokers = [broker.pid for broker in cluster.brokers if broker.pid is not None]
        result = {
            "rebalance": asyncio.run(stable(servers, options.members)),
            "commit": asyncio.run(
                commits(servers, zookeeper, brokers, options.groups, options.seconds)
            ),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
