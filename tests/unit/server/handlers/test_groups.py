"""Tests of the APIs for group offsets, group coordinators and producer ids in every version."""

from __future__ import annotations

from typing import Any

import pytest
from support.handler_world import World, handler, received, run, struct, versions

from broker_lite.coordinator.effects import HeartbeatResult
from broker_lite.coordinator.events import Heartbeat
from broker_lite.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidRequestError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import UNNUMBERED
from broker_lite.wire import tables
from broker_lite.wire.api import ApiKey, decode_call, encode_call
from broker_lite.wire.calls import groups


def commit_row(name: str, **rows: Any) -> Any:
    """Return a topic's row of an OffsetCommit request.

    ``p0=(offset, epoch, metadata)`` is the commit for partition 0, ``p1`` the one for partition 1.
    """
    path = "OffsetCommitRequestTopic"
    return struct(
        "OffsetCommit", path, name=name,
        partitions=[
            struct("OffsetCommit", f"{path}.OffsetCommitRequestPartition",
                   partition_index=int(key[1:]), committed_offset=offset,
                   committed_leader_epoch=epoch, committed_metadata=metadata)
            for key, (offset, epoch, metadata) in rows.items()
        ],
    )  # fmt: skip


async def commit(world: World, version: int, group: str, topics: list[Any], **fields: Any) -> Any:
    fields = {"generation_id_or_member_epoch": -1, "member_id": "", **fields}
    return await world.ask("OffsetCommit", version, group_id=group, topics=topics, **fields)


async def fetch(world: World, version: int, group: str, wanted: dict[str, list[int]] | None) -> Any:
    """Return (error, {(topic, partition): (offset, epoch, metadata)}) of OffsetFetch in any
    version."""
    if version >= 8:
        path = "OffsetFetchRequestGroup"
        topics = wanted and [
            struct("OffsetFetch", f"{path}.OffsetFetchRequestTopics", name=name,
                   partition_indexes=indexes)
            for name, indexes in wanted.items()
        ]  # fmt: skip
        row = struct("OffsetFetch", path, group_id=group, topics=topics)
        answer = (await world.ask("OffsetFetch", version, groups=[row])).groups[0]
        assert answer.group_id == group
    else:
        topics = wanted and [
            struct("OffsetFetch", "OffsetFetchRequestTopic", name=name, partition_indexes=indexes)
            for name, indexes in wanted.items()
        ]
        answer = await world.ask("OffsetFetch", version, group_id=group, topics=topics)
    found = {
        (topic.name, row.partition_index): (
            row.committed_offset, row.committed_leader_epoch, row.metadata,
        )
        for topic in answer.topics
        for row in topic.partitions
    }  # fmt: skip
    return answer.error_code, found


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_offset_commit_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 3)
        rows = [
            commit_row("t", p0=(5, 2, "m"), p2=(1 << 40, -1, None)),
            commit_row("no", p0=(1, 1, "")),
        ]
        answer = await commit(world, version, "a group/with: ünicode", rows)
        assert [
            (topic.name, [(row.partition_index, row.error_code) for row in topic.partitions])
            for topic in answer.topics
        ] == [("t", [(0, 0), (2, 0)]), ("no", [(0, UnknownTopicOrPartitionError.code)])]
        _, found = await fetch(world, 8, "a group/with: ünicode", None)
        assert found == {
            ("t", 0): (5, 2 if version >= 6 else -1, "m"),
            ("t", 2): (1 << 40, -1, ""),
        }

    run(body)


def test_offset_commit_of_version_1_is_stored() -> None:
    """kaf, and sarama before 1.41, send version 1. kaf ignores errors, so it would not report a
    refusal."""
    body_of_2016 = (
        b"\0\1g" + b"\xff" * 4 + b"\0\0"
        + b"\0\0\0\1" + b"\0\1t"
        + b"\0\0\0\1" + bytes(4) + (7).to_bytes(8, "big") + b"\xff" * 8 + b"\0\3why"
    )  # fmt: skip
    frame = memoryview(b"\0\x08\0\1\0\0\0\3\0\1c" + body_of_2016)

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        context = received(frame)
        message = tables.decode(context.api_key, 1, frame, context.body_at)
        answer = await handler(ApiKey.OFFSET_COMMIT)(world.brokers[1], context, message)
        octets = tables.encode(ApiKey.OFFSET_COMMIT, 1, 3, answer)
        assert octets[8:] == b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1" + bytes(4) + b"\0\0"
        assert await fetch(world, 8, "g", None) == (0, {("t", 0): (7, -1, "why")})

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offset_fetch_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 3)
        await commit(world, 9, "g", [commit_row("t", p1=(7, 3, "why"))])
        code, found = await fetch(world, version, "g", {"t": [0, 1], "none": [4]})
        epoch = 3 if version >= 5 else -1
        assert code == 0
        assert found == {
            ("t", 0): (-1, -1, ""),
            ("t", 1): (7, epoch, "why"),
            ("none", 4): (-1, -1, ""),
        }
        if version >= 2:
            assert await fetch(world, version, "g", None) == (0, {("t", 1): (7, epoch, "why")})
            assert await fetch(world, version, "stranger", None) == (0, {})

    run(body)


def test_invalid_offset_commits_are_refused() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 2)

        async def codes(group: str, topic: Any, **fields: Any) -> list[int]:
            answer = await commit(world, 9, group, [topic], **fields)
            return [row.error_code for row in answer.topics[0].partitions]

        assert await codes("g", commit_row("t", p0=(1, 0, "x" * 5000), p1=(1, 0, ""))) == [
            OffsetMetadataTooLargeError.code,
            0,
        ]
        assert await codes("g", commit_row("t", p0=(-5, 0, ""))) == [InvalidRequestError.code]
        assert await codes("g", commit_row("t", p2=(1, 0, ""))) == [
            UnknownTopicOrPartitionError.code
        ]
        assert await codes("", commit_row("t", p0=(1, 0, ""))) == [InvalidGroupIdError.code]
        member = {"generation_id_or_member_epoch": 3, "member_id": "m"}
        assert await codes("g", commit_row("t", p0=(1, 0, "")), **member) == [
            UnknownMemberIdError.code
        ]
        errors = OffsetMetadataTooLargeError, UnknownTopicOrPartitionError, UnknownMemberIdError
        value = world.brokers[1].metrics.value
        assert [value("offset_commit_errors", error.name) for error in errors] == [1, 1, 1]

    run(body)


def test_recreated_topic_has_no_committed_offsets() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        await commit(world, 9, "g", [commit_row("t", p0=(5, 0, ""))])
        await world.ask("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
        await world.make_topic("t")
        assert await fetch(world, 8, "g", {"t": [0]}) == (0, {("t", 0): (-1, -1, "")})

    run(body)


async def call(world: World, request: Any, version: int) -> Any:
    """Send a request in the encoding of the logbus client; return the decoded response."""
    frame = memoryview(encode_call(request, 3, "c"))[4:]
    header = received(frame)
    message = tables.decode(header.api_key, version, frame, header.body_at)
    response = await handler(header.api_key)(world.brokers[1], header, message)
    return decode_call(request, memoryview(tables.encode(header.api_key, version, 3, response))[4:])


async def own_commit(world: World, *topics: groups.OffsetCommitTopic) -> list[list[int]]:
    answer = await call(world, groups.OffsetCommitRequest("g", topics), 9)
    return [[row.error_code for row in topic.partitions] for topic in answer.topics]


def test_offset_commit_for_a_former_topic_id_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 2)
        old = world.brokers[1].registry.snapshot.topics["t"].topic_id
        await world.ask("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
        await world.make_topic("t", 2)
        await world.make_topic("u")
        new = world.brokers[1].registry.snapshot.topics["t"].topic_id
        assert old != new
        stale = groups.OffsetCommitTopic("t", (groups.OffsetToCommit(0, 900),), old)
        other = groups.OffsetCommitTopic("u", (groups.OffsetToCommit(0, 7),))
        assert await own_commit(world, stale, other) == [[UnknownTopicIdError.code], [0]]
        assert await fetch(world, 8, "g", None) == (0, {("u", 0): (7, -1, "")})
        # One request has the deleted and the recreated topic, and each is checked by its own id.
        right = groups.OffsetCommitTopic("t", (groups.OffsetToCommit(0, 3),), new)
        code = UnknownTopicIdError.code
        assert await own_commit(world, right, stale) == [[0], [code]]
        assert await own_commit(world, stale, right) == [[code], [0]]
        assert (await fetch(world, 8, "g", {"t": [0]}))[1] == {("t", 0): (3, -1, "")}

    run(body)


def test_offset_commit_for_a_deleted_topic_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        old = world.brokers[1].registry.snapshot.topics["t"].topic_id
        await world.ask("DeleteTopics", 5, topic_names=["t"], timeout_ms=5000)
        stale = groups.OffsetCommitTopic("t", (groups.OffsetToCommit(0, 9),), old)
        assert await own_commit(world, stale) == [[UnknownTopicOrPartitionError.code]]

    run(body)


def test_offset_fetch_of_a_logbus_client_has_topic_ids_and_commit_times() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 2)
        topic_id = world.brokers[1].registry.snapshot.topics["t"].topic_id
        await commit(world, 9, "g", [commit_row("t", p1=(7, 3, "why"))])
        wanted = (
            groups.OffsetFetchGroup("g", (groups.OffsetFetchTopic("t", (0, 1)),)),
            groups.OffsetFetchGroup("stranger"),
        )
        answer = await call(world, groups.OffsetFetchRequest(wanted), 8)
        known, stranger = answer.groups
        none, row = known.topics[0].partitions
        assert none == groups.FetchedOffset(0, -1, -1, "", 0)
        assert row[:6] == (1, 7, 3, "why", 0, topic_id)
        now_ms = world.brokers[1].clock.now_ms()
        assert now_ms - 3_600_000 < row.commit_ms <= now_ms
        assert stranger == groups.FetchedOffsetsGroup("stranger", (), 0)

    run(body)


def test_while_zookeeper_is_down_offset_commits_fail_with_a_retriable_error() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        world.service.stop()
        answer = await commit(world, 9, "g", [commit_row("t", p0=(5, 0, ""))])
        assert answer.topics[0].partitions[0].error_code == 15
        code, _ = await fetch(world, 8, "g", {"t": [0]})
        assert code == 15
        code, _ = await fetch(world, 5, "g", {"t": [0]})
        assert code == 15
        wanted = groups.OffsetFetchRequest((groups.OffsetFetchGroup("g"),))
        assert (await call(world, wanted, 8)).groups == (groups.FetchedOffsetsGroup("g", (), 15),)

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
def test_every_broker_names_the_same_group_coordinator(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(3)
        found = set()
        for broker in (1, 2, 3):
            if version >= 4:
                fields: dict[str, Any] = {"key_type": 0, "coordinator_keys": ["g", "h"]}
                answer = await world.ask("FindCoordinator", version, broker=broker, **fields)
                assert [row.key for row in answer.coordinators] == ["g", "h"]
                row = answer.coordinators[0]
            else:
                row = await world.ask("FindCoordinator", version, broker=broker, key="g")
            assert row.error_code == 0
            assert (row.host, row.port) == ("127.0.0.1", 9000 + row.node_id)
            found.add(row.node_id)
        assert len(found) == 1

    run(body)


def test_find_coordinator_refuses_an_empty_key() -> None:
    async def body(world: World) -> None:
        await world.start()
        answer = await world.ask("FindCoordinator", 3, key_type=0, key="")
        assert (answer.error_code, answer.node_id) == (InvalidGroupIdError.code, -1)

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_list_groups_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        await commit(world, 9, "g", [commit_row("t", p0=(5, 0, ""))])
        answer = await world.ask("ListGroups", version)
        (row,) = answer.groups
        assert (answer.error_code, row.group_id) == (0, "g")
        assert row.protocol_type == "", (
            "as in Kafka, a group without former members has no protocol type"
        )
        if version >= 4:
            assert row.group_state == "Empty"
            stable = await world.ask("ListGroups", version, states_filter=["Stable"])
            assert stable.groups == []
            empty = await world.ask("ListGroups", version, states_filter=["empty"])
            assert len(empty.groups) == 1
        if version >= 5:
            assert row.group_type == "Classic"
            share = await world.ask("ListGroups", version, types_filter=["share"])
            assert share.groups == []

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_describe_groups_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        await commit(world, 9, "g", [commit_row("t", p0=(5, 0, ""))])
        answer = await world.ask("DescribeGroups", version, groups=["g", "stranger"])
        known, stranger = answer.groups
        assert (known.error_code, known.group_state, known.protocol_type) == (
            0, "Empty", "",
        )  # fmt: skip
        assert known.members == []
        assert stranger.group_state == "Dead"
        assert stranger.error_code == (GroupIdNotFoundError.code if version >= 6 else 0)

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_delete_groups_is_answered_in_every_version(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 2)
        for group in ("g", "kept"):
            await commit(world, 9, group, [commit_row("t", p0=(5, 0, ""), p1=(6, 0, ""))])
        names = ["g", "stranger", ""]
        answer = await world.ask("DeleteGroups", version, groups_names=names)
        assert [(row.group_id, row.error_code) for row in answer.results] == [
            ("g", 0),
            ("stranger", GroupIdNotFoundError.code),
            ("", InvalidGroupIdError.code),
        ]
        listed = await world.ask("ListGroups", 5)
        assert [row.group_id for row in listed.groups] == ["kept"]
        # A new group may use the name.
        await commit(world, 9, "g", [commit_row("t", p0=(1, 0, ""))])
        assert await fetch(world, 8, "g", None) == (0, {("t", 0): (1, 0, "")})

    run(body)


def test_offset_delete_removes_the_offsets_of_a_group() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", 3)
        await commit(world, 9, "g", [commit_row("t", p0=(5, 0, ""), p1=(6, 0, ""))])

        async def delete(group: str, **wanted: list[int]) -> tuple[int, list[tuple[int, int]]]:
            path = "OffsetDeleteRequestTopic"
            topics = [
                struct("OffsetDelete", path, name=name, partitions=[
                    struct("OffsetDelete", f"{path}.OffsetDeleteRequestPartition",
                           partition_index=index)
                    for index in indexes
                ])
                for name, indexes in wanted.items()
            ]  # fmt: skip
            answer = await world.ask("OffsetDelete", 0, group_id=group, topics=topics)
            rows = [row for topic in answer.topics for row in topic.partitions]
            return answer.error_code, [(row.partition_index, row.error_code) for row in rows]

        unknown = UnknownTopicOrPartitionError.code
        assert await delete("g", t=[0, 2, 7], no=[0]) == (
            0,
            [(0, 0), (2, 0), (7, unknown), (0, unknown)],
        )
        assert await fetch(world, 8, "g", None) == (0, {("t", 1): (6, 0, "")})
        assert await delete("stranger", t=[0]) == (GroupIdNotFoundError.code, [])

    run(body)


def test_request_for_a_group_that_the_coordinator_gave_up_does_not_reload_the_group() -> None:
    """Regression: the request put the group's state back into memory, and the group's offsets
    never expired."""

    async def body(world: World) -> None:
        await world.start()
        coordinator = world.brokers[1].groups
        coordinated = await coordinator._load("g")
        coordinator.give_up("g", 2)
        with pytest.raises(NotCoordinatorError, match="taken over"):
            heartbeat = Heartbeat(UNNUMBERED, "m", None, 1)
            await coordinator._submit(coordinated, heartbeat, HeartbeatResult)
        assert coordinator.group_names == ()

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id_returns_unique_producer_ids(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        given = []
        for broker in (1, 2, 1):
            answer = await world.ask(
                "InitProducerId", version, broker=broker, transactional_id=None,
                transaction_timeout_ms=1000,
            )  # fmt: skip
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            given.append(answer.producer_id)
        assert len(set(given)) == 3

    run(body)
