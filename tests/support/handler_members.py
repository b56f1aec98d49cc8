"""A member of a Kafka group that calls request handlers directly."""

from __future__ import annotations

import asyncio
import struct as bytes_of
from collections.abc import Awaitable
from typing import Any

from broker_lite.errors import MemberIdRequiredError
from support.handler_world import World, struct

SUBSCRIPTION = bytes_of.pack(">hih1si", 0, 1, 1, b"t", 0)
"""A consumer's encoded subscription to topic t, in version 0."""


class Member:
    """A member of one group that sends its requests to the group's coordinator."""

    def __init__(self, world: World, group: str = "g", *, broker: int = 0) -> None:
        self.world, self.group = world, group
        self.broker = broker or coordinator(world, group)
        self.id, self.generation = "", -1
        self.answer: Any = None

    async def join(self, version: int = 9, **fields: Any) -> int:
        """Send JoinGroup and return the error code. If the first response only assigns a member id,
        send the request again with this id."""
        rows = [
            struct("JoinGroup", "JoinGroupRequestProtocol", name=name, metadata=SUBSCRIPTION)
            for name in fields.get("protocols", ["range"])
        ]
        answer = await self.world.ask(
            "JoinGroup", version, broker=self.broker, group_id=self.group, member_id=self.id,
            session_timeout_ms=fields.get("session_timeout_ms", 10_000),
            rebalance_timeout_ms=fields.get("rebalance_timeout_ms", 60_000),
            group_instance_id=fields.get("group_instance_id"),
            protocol_type=fields.get("protocol_type", "consumer"), protocols=rows,
        )  # fmt: skip
        self.answer = answer
        if answer.error_code == MemberIdRequiredError.code and not self.id:
            self.id = answer.member_id
            return await self.join(version, **fields)
        if not answer.error_code:
            self.id, self.generation = answer.member_id, answer.generation_id
        return int(answer.error_code)

    async def sync(self, version: int = 5, **work: bytes) -> Any:
        """Send SyncGroup with assignments by member id; return the response."""
        rows = [
            struct("SyncGroup", "SyncGroupRequestAssignment", member_id=name, assignment=part)
            for name, part in work.items()
        ]
        return await self.ask("SyncGroup", version, assignments=rows)

    async def heartbeat(self, version: int = 4, **fields: Any) -> int:
        return int((await self.ask("Heartbeat", version, **fields)).error_code)

    async def commit(self, offset: int, version: int = 9) -> int:
        path = "OffsetCommitRequestTopic"
        part = struct("OffsetCommit", f"{path}.OffsetCommitRequestPartition",
                      partition_index=0, committed_offset=offset)  # fmt: skip
        answer = await self.world.ask(
            "OffsetCommit", version, broker=self.broker, group_id=self.group, member_id=self.id,
            generation_id_or_member_epoch=self.generation,
            topics=[struct("OffsetCommit", path, name="t", partitions=[part])],
        )  # fmt: skip
        return int(answer.topics[0].partitions[0].error_code)

    async def leave(self, version: int = 5) -> list[int]:
        row = struct("LeaveGroup", "MemberIdentity", member_id=self.id, reason="done")
        fields: dict[str, Any] = {"members": [row]} if version >= 3 else {"member_id": self.id}
        answer = await self.world.ask(
            "LeaveGroup", version, broker=self.broker, group_id=self.group, **fields
        )
        return [answer.error_code, *(row.error_code for row in answer.members or ())]

    async def described(self) -> tuple[str, int]:
        """Return the group's state and its number of members, from DescribeGroups."""
        answer = await self.world.ask("DescribeGroups", 6, broker=self.broker, groups=[self.group])
        (row,) = answer.groups
        assert row.error_code == 0
        return row.group_state, len(row.members)

    async def listed(self) -> list[str]:
        """Return a list with the group's state from ListGroups, or an empty list if the response
        lacks the group."""
        answer = await self.world.ask("ListGroups", 5, broker=self.broker)
        return [row.group_state for row in answer.groups if row.group_id == self.group]

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        fields = {"generation_id": self.generation, "member_id": self.id, **fields}
        return await self.world.ask(
            name, version, broker=self.broker, group_id=self.group, **fields
        )


def coordinator(world: World, group: str) -> int:
    found = {
        view.broker_id
        for parts in world.brokers.values()
        if (view := parts.groups.coordinator_of(group)) is not None
    }
    (broker_id,) = found
    return broker_id


async def both(*work: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*work))


async def gathered(world: World, count: int, **fields: Any) -> list[Member]:
    """Form a stable group of ``count`` members and return them, the leader first."""
    members = [Member(world) for _ in range(count)]
    assert await both(*(member.join(**fields) for member in members)) == [0] * count
    members.sort(key=lambda member: member.answer.leader != member.id)
    work = {member.id: b"work %d" % n for n, member in enumerate(members)}
    answers = await both(members[0].sync(**work), *(member.sync() for member in members[1:]))
    assert [row.assignment for row in answers] == list(work.values())
    return members
