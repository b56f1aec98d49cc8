"""A member of a Kafka group, which sends the requests of Kafka's consumer itself.

Many members are coroutines of one process. The process uses more processor time than the broker, so
with many members it lengthens the measured times.
"""

from __future__ import annotations

import asyncio
from typing import Any

import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata

from broker_lite.client.membership.assignors import assign, candidate
from broker_lite.wire.calls.members import JoinedMember
from broker_lite.wire.consumer_protocol import encode_assignment, encode_subscription

TOPIC = "t"
HEARTBEAT_SECONDS = 3
"""Kafka's ``heartbeat.interval.ms``."""
MEMBER_ID_REQUIRED = 79
JOINED = consumer.JoinGroupRequest.JoinGroupRequestProtocol
SHARE = consumer.SyncGroupRequest.SyncGroupRequestAssignment
COMMITTED = consumer.OffsetCommitRequest.OffsetCommitRequestTopic


class GroupMember:
    """A group member that subscribes to TOPIC, with a connection to the coordinator."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._id = ""
        self._generation = -1

    async def connect(self, servers: str) -> None:
        """Connect to the broker that coordinates the group."""
        host, _, port = servers.split(",")[0].rpartition(":")
        self._streams = await asyncio.open_connection(host, int(port))
        found = await self._ask("FindCoordinator", 3, key=self._group, key_type=0)
        self.close()
        self._streams = await asyncio.open_connection(found.host, found.port)

    async def join(self, count: int, partitions: int) -> None:
        """Join the group and sync until it has ``count`` members and this member has its share of
        the partitions. The group's leader assigns by ``range``."""
        while True:
            joined = await self._ask_as_member(
                "JoinGroup", 7, session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=[JOINED(name="range", metadata=encode_subscription([TOPIC]))],
            )  # fmt: skip
            if joined.error_code == MEMBER_ID_REQUIRED:
                self._id = joined.member_id
                continue
            members = [candidate("range", JoinedMember(row.member_id, None, row.metadata))
                       for row in joined.members or ()]  # fmt: skip
            # Assign no partitions until all members have joined. A member without partitions joins
            # again.
            is_whole = len(members) >= count
            shares = assign("range", members, {TOPIC: partitions}) if is_whole else {}
            synced = await self._ask_as_member(
                "SyncGroup", 3, generation_id=joined.generation_id,
                assignments=[SHARE(member_id=each, assignment=encode_assignment(share))
                             for each, share in shares.items()],
            )  # fmt: skip
            if synced.error_code == 0 and synced.assignment:
                self._generation = int(joined.generation_id)
                return

    async def heartbeat(self) -> None:
        answer = await self._ask_as_member("Heartbeat", 3, generation_id=self._generation)
        assert answer.error_code == 0, answer.error_code

    async def commit(self, partition: int, offset: int) -> None:
        row = COMMITTED.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=-1,
            committed_metadata="",
        )  # fmt: skip
        answer = await self._ask_as_member(
            "OffsetCommit", 7, generation_id_or_member_epoch=self._generation,
            topics=[COMMITTED(name=TOPIC, partitions=[row])],
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code == 0, answer

    def close(self) -> None:
        self._streams[1].close()

    async def _ask_as_member(self, name: str, version: int, **fields: Any) -> Any:
        named = {"group_id": self._group, "member_id": self._id, "group_instance_id": None}
        return await self._ask(name, version, **named, **fields)

    async def _ask(self, name: str, version: int, **fields: Any) -> Any:
        reader, writer = self._streams
        module = next(each for each in (consumer, metadata) if hasattr(each, f"{name}Request"))
        request = getattr(module, f"{name}Request")(version=version, **fields)
        request.with_header(correlation_id=1, client_id="benchmark")
        writer.write(request.encode(header=True, framed=True))
        size = await reader.readexactly(4)
        frame = size + await reader.readexactly(int.from_bytes(size, "big"))
        answer = getattr(module, f"{name}Response")
        return answer.decode(frame, version=version, header=True, framed=True)
