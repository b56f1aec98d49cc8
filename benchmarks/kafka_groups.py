"""Measure the cost of offset commits of Kafka groups, on three brokers.

    python benchmarks/kafka_groups.py [--groups N] [--seconds S]

The script prints one JSON object. ``--groups`` groups of one member each send heartbeats and commit
once a second for ``--seconds``. The figures are the duration of a commit, and the share of a core
that ZooKeeper and the brokers use. The row growth-members measures how fast a group becomes stable.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import time
from typing import Any

import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
from peers.meter import fine_cpu_seconds

from broker_lite.bus import connect
from broker_lite.client.membership.assignors import assign, candidate
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.zookeeper import four_letters
from broker_lite.model import TopicPartition
from broker_lite.wire.calls.members import JoinedMember
from broker_lite.wire.consumer_protocol import (
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

TOPIC = "t"
PARTITIONS_A_MEMBER = 3
PARTITIONS_A_GROUP = 3
MEMBER_ID_REQUIRED = 79
SAID = encode_subscription([TOPIC])
HEARTBEAT_SECONDS = 3
"""Kafka's ``heartbeat.interval.ms``."""
WARM_SECONDS = 3


class Connection:
    """A connection to the coordinator of a group."""

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
    """Connect to the broker that coordinates the group; return the connection."""
    host, _, port = servers.split(",")[0].rpartition(":")
    asked = Connection(*await asyncio.open_connection(host, int(port)))
    found = await asked.ask("FindCoordinator", 3, key=group, key_type=0)
    asked.writer.close()
    return Connection(*await asyncio.open_connection(found.host, found.port))


async def take_part(
    connection: Connection, group: str, count: int, partitions: int
) -> tuple[int, str, tuple[TopicPartition, ...]]:
    """Join the group and sync until it has ``count`` members and this member has its partitions.

    Returns the generation, the member id and the assignment. The group's leader assigns by
    ``range``.
    """
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
        members = [candidate("range", JoinedMember(row.member_id, None, row.metadata))
                   for row in joined.members or ()]  # fmt: skip
        shares = assign("range", members, {TOPIC: partitions})
        if len(members) < count:
            # Assign no partitions until all members have joined. A member without partitions joins
            # again.
            shares = {}
        parts = [
            consumer.SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=each, assignment=encode_assignment(share)
            )
            for each, share in shares.items()
        ]
        synced = await connection.ask(
            "SyncGroup", 3, group_id=group, generation_id=joined.generation_id,
            member_id=member, group_instance_id=None, assignments=parts,
        )  # fmt: skip
        if synced.error_code == 0 and synced.assignment:
            return int(joined.generation_id), member, decode_assignment(synced.assignment)


class Committing:
    """A member alone in its group, which sends heartbeats and commits once a second."""

    def __init__(self, connection: Connection, group: str, generation: int, member: str) -> None:
        self.connection = connection
        self._named = {"group_id": group, "member_id": member, "group_instance_id": None}
        self._generation = generation
        self._first = time.perf_counter() + random.random()
        self._offset = 0

    @classmethod
    async def join(cls, servers: str, group: str) -> Committing:
        connection = await coordinator(servers, group)
        generation, member, _ = await take_part(connection, group, 1, PARTITIONS_A_GROUP)
        return cls(connection, group, generation, member)

    async def run(self, until: float, took: list[float]) -> None:
        """Commit at fixed intervals until ``until``; add the seconds of each commit to ``took``.

        A slow commit does not delay the later commits.
        """
        while (due := self._first + self._offset) < until:
            await asyncio.sleep(due - time.perf_counter())
            if self._offset % HEARTBEAT_SECONDS == 0:
                answer = await self.connection.ask(
                    "Heartbeat", 3, generation_id=self._generation, **self._named
                )
                assert answer.error_code == 0, answer.error_code
            began = time.perf_counter()
            await self._commit()
            took.append(time.perf_counter() - began)

    async def _commit(self) -> None:
        self._offset += 1
        kind = consumer.OffsetCommitRequest.OffsetCommitRequestTopic
        row = kind.OffsetCommitRequestPartition(
            partition_index=self._offset % PARTITIONS_A_GROUP, committed_offset=self._offset,
            committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        answer = await self.connection.ask(
            "OffsetCommit", 7, generation_id_or_member_epoch=self._generation,
            topics=[kind(name=TOPIC, partitions=[row])], **self._named,
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == 0, answer


async def commits(
    servers: str, zookeeper_at: tuple[str, int], pids: list[int], count: int, seconds: float
) -> dict[str, Any]:
    """Measure commits of ``count`` groups. Raises an error if a commit fails.

    ``pids`` are the processes of ZooKeeper and the brokers.
    """
    groups = await asyncio.gather(
        *(Committing.join(servers, f"committing-{number}") for number in range(count))
    )
    took: list[float] = []
    end = time.perf_counter() + WARM_SECONDS + seconds
    working = asyncio.gather(*(group.run(end, took) for group in groups))
    await asyncio.sleep(WARM_SECONDS)
    busy, began, before = [fine_cpu_seconds(pid) for pid in pids], time.perf_counter(), len(took)
    wrote = writes(*zookeeper_at)
    await asyncio.sleep(seconds)
    lasted, done = time.perf_counter() - began, len(took) - before
    wrote = writes(*zookeeper_at) - wrote
    used = [round(100 * (fine_cpu_seconds(pid) - at) / lasted, 1) for pid, at in zip(pids, busy)]
    await working
    marks = statistics.quantiles(took[before:], n=100)
    return {
        "groups": count,
        "commits_per_s": round(done / lasted),
        "commit_ms": {"p50": round(marks[49] * 1000, 1), "p99": round(marks[98] * 1000, 1)},
        "zookeeper_writes_per_s": round(wrote / lasted),
        "zookeeper_core_percent": used[0],
        "brokers_core_percent": used[1:],
    }


def writes(host: str, port: int) -> int:
    """Return the number of writes to ZooKeeper so far: the lower half of its last transaction id
    (zxid)."""
    found = re.search(r"Zxid: 0x([0-9a-f]+)", four_letters(host, port, "srvr"))
    assert found is not None
    return int(found[1], 16) & 0xFFFFFFFF


def main() -> None:
    parser = argparse.ArgumentParser(prog="kafka_groups.py", description=__doc__)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with LocalCluster(brokers=3) as cluster:
        with connect(cluster.bootstrap_servers) as bus:
            bus.create_topic(TOPIC, partitions=PARTITIONS_A_GROUP, replication_factor=3)
        zookeeper = cluster.zookeeper_server
        assert zookeeper is not None and zookeeper.pid is not None
        servers, at = cluster.bootstrap_servers, ("127.0.0.1", zookeeper.port)
        pids = [zookeeper.pid, *(each.pid for each in cluster.brokers if each.pid is not None)]
        found = asyncio.run(commits(servers, at, pids, options.groups, options.seconds))
    print(json.dumps({"commit": found}))


if __name__ == "__main__":
    main()
