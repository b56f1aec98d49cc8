"""Tests of ApiVersions, Metadata, DescribeCluster and UpdateFeatures in every version."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.handler_world import World, context_of, run, struct, versions

from broker_lite.errors import (
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidUpdateVersionError,
    LeaderNotAvailableError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from broker_lite.server.audit import AuditLog
from broker_lite.server.handlers import api_versions
from broker_lite.server.handlers.topic_creation import CREATED_MAX
from broker_lite.wire import tables
from broker_lite.wire.api import ADVERTISED, ApiKey
from broker_lite.wire.primitives import uuid_bytes


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS))
def test_api_versions_lists_apis_versions_and_features(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        answer = await world.ask("ApiVersions", version)
        assert answer.error_code == 0
        rows = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        assert rows == ADVERTISED
        if version >= 3:
            assert {row.name for row in answer.supported_features} >= {"metadata"}
            assert {row.name for row in answer.finalized_features} >= {"metadata"}
            assert answer.finalized_features_epoch >= 0

    run(body)


def test_api_versions_request_of_an_unknown_version_receives_the_supported_versions() -> None:
    async def body(world: World) -> None:
        await world.start()
        message = tables.decode(ApiKey.API_VERSIONS, 9, memoryview(b"\x07"), 0)
        header = context_of(ApiKey.API_VERSIONS, 9)
        response = await api_versions.handle(world.brokers[1], header, message)
        octets = tables.encode(ApiKey.API_VERSIONS, 9, 1, response)
        got = tables.ApiVersionsResponse.decode(octets, version=0, header=True, framed=True)
        assert got.error_code == UnsupportedVersionError.code
        assert {row.api_key for row in got.api_keys} == set(ADVERTISED)

    run(body)


def by_name(*names: str) -> list[Any]:
    return [struct("Metadata", "MetadataRequestTopic", topic_id=None, name=name) for name in names]


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_metadata_request_describes_topics_by_name(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        made = await world.make_topic("t", 2)
        topics = by_name("t", "none", "not a name")
        answer = await world.ask("Metadata", version, topics=topics)
        assert [(row.node_id, row.host, row.port) for row in answer.brokers] == [
            (1, "127.0.0.1", 9001),
            (2, "127.0.0.1", 9002),
        ]
        found, unknown, invalid = answer.topics
        assert unknown.error_code == UnknownTopicOrPartitionError.code
        assert invalid.error_code == InvalidTopicError.code
        assert (found.error_code, found.name) == (0, "t")
        assert [row.partition_index for row in found.partitions] == [0, 1]
        assert {row.leader_id for row in found.partitions} == {1, 2}
        for row in found.partitions:
            assert (row.error_code, row.replica_nodes, row.isr_nodes) == (
                0, [row.leader_id], [row.leader_id],
            )  # fmt: skip
        if version >= 1:
            assert answer.controller_id == 1
        if version >= 2:
            assert answer.cluster_id == world.brokers[1].cluster_id()
        if version >= 10:
            assert found.topic_id == made.topic_id

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_metadata_request_creates_a_missing_topic_if_broker_and_client_allow_it(
    version: int,
) -> None:
    async def body(world: World) -> None:
        await world.start(2, auto_create_topics=True, num_partitions=3)
        await world.make_topic("old")
        asked = by_name("old", "new", "not a name", "__consumer_offsets")
        if version >= 4:
            answer = await world.ask(
                "Metadata", version, topics=asked, allow_auto_topic_creation=False
            )
            assert answer.topics[1].error_code == UnknownTopicOrPartitionError.code
        answer = await world.ask("Metadata", version, topics=asked)
        old, new, invalid, internal = answer.topics
        assert (old.error_code, new.error_code) == (0, 0)
        assert [row.leader_id > 0 for row in new.partitions] == [True] * 3
        assert invalid.error_code == InvalidTopicError.code
        assert internal.error_code == UnknownTopicOrPartitionError.code
        assert set(world.brokers[1].registry.snapshot.topics) == {"old", "new"}

    run(body)


def test_audit_log_of_the_controller_contains_topics_that_metadata_requests_create(
    tmp_path: Path,
) -> None:
    """Regression: the log had these topics only if another broker had forwarded the request."""
    path = tmp_path / "audit.log"

    async def body(world: World) -> None:
        await world.start(1, auto_create_topics=True, num_partitions=3)
        log = AuditLog(str(path))
        world.brokers[1] = dataclasses.replace(world.brokers[1], audit=log)
        await world.ask("Metadata", 12, topics=by_name("new"))
        log.close()

    run(body)
    [line] = map(json.loads, path.read_text("utf-8").splitlines())
    assert (line["event"], line["object"], line["user"]) == (
        "changed", "topic new", "User:ANONYMOUS",
    )  # fmt: skip
    assert line["after"]["partitions"] == 3


def test_metadata_error_of_a_missing_topic_says_why_the_topic_cannot_be_created() -> None:
    async def body(world: World) -> None:
        await world.start(1, auto_create_topics=True, default_replication_factor=2)
        answer = await world.ask("Metadata", 12, topics=by_name("t"))
        assert answer.topics[0].error_code == InvalidReplicationFactorError.code
        world.service.stop()
        while world.stores[1].connected:
            await asyncio.sleep(0.1)
        answer = await world.ask("Metadata", 12, topics=by_name("t"))
        assert answer.topics[0].error_code == LeaderNotAvailableError.code

    run(body)


def test_one_metadata_request_auto_creates_at_most_a_limited_number_of_topics() -> None:
    async def body(world: World) -> None:
        await world.start(1, auto_create_topics=True)
        names = [f"t{number}" for number in range(CREATED_MAX + 1)]
        answer = await world.ask("Metadata", 12, topics=by_name(*names))
        codes = [row.error_code for row in answer.topics]
        assert codes == [0] * CREATED_MAX + [UnknownTopicOrPartitionError.code]

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_metadata_request_with_null_topics_returns_all_topics_and_with_empty_topics_none(
    version: int,
) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("a")
        await world.make_topic("b")
        everything = await world.ask("Metadata", version, topics=None if version else [])
        assert sorted(row.name for row in everything.topics) == ["a", "b"]
        if version:
            assert (await world.ask("Metadata", version, topics=[])).topics == []

    run(body)


@pytest.mark.parametrize("version", [10, 11, 12])
def test_metadata_request_describes_topics_by_id(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        made = await world.make_topic("t")
        rows = [
            struct("Metadata", "MetadataRequestTopic", topic_id=topic_id, name=None)
            for topic_id in (made.topic_id, type(made.topic_id)(int=5))
        ]
        answer = await world.ask("Metadata", version, topics=rows)
        found, unknown = answer.topics
        assert (found.name, found.error_code) == ("t", 0)
        assert (unknown.name, unknown.error_code) == (
            None if version >= 12 else "", UnknownTopicIdError.code,
        )  # fmt: skip
        assert unknown.topic_id.int == 5
        assert found.topic_id.bytes == uuid_bytes(
            world.brokers[1].registry.snapshot.topics["t"].topic_id
        )

    run(body)


def test_metadata_response_has_an_error_for_a_leaderless_partition_beside_healthy_ones() -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("t", 2)
        world.stores[2].kill()
        registry = world.brokers[1].registry
        while 2 in registry.snapshot.brokers:
            await asyncio.sleep(0.1)
        answer = await world.ask("Metadata", 12, topics=by_name("t"))
        (topic,) = answer.topics
        states = {row.replica_nodes[0]: row for row in topic.partitions}
        assert topic.error_code == 0
        assert (states[1].error_code, states[1].leader_id) == (0, 1)
        assert (states[2].error_code, states[2].leader_id) == (LeaderNotAvailableError.code, -1)
        assert (states[2].offline_replicas, states[1].offline_replicas) == ([2], [])

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
def test_describe_cluster_returns_brokers_and_controller(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        answer = await world.ask("DescribeCluster", version)
        assert (answer.error_code, answer.controller_id) == (0, 1)
        assert answer.cluster_id == world.brokers[1].cluster_id()
        assert [(row.broker_id, row.port) for row in answer.brokers] == [(1, 9001), (2, 9002)]
        if version >= 1:
            refused = await world.ask("DescribeCluster", version, endpoint_type=2)
            assert refused.error_code == InvalidRequestError.code

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_CONFIG_RESOURCES))
def test_list_config_resources_returns_topics_and_brokers(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("t")

        async def listed(*kinds: int) -> list[tuple[int, str]]:
            fields = {"resource_types": list(kinds)} if version else {}
            answer = await world.ask("ListConfigResources", version, **fields)
            assert answer.error_code == 0
            return [(row.resource_type, row.resource_name) for row in answer.config_resources]

        if version == 0:
            assert await listed() == [], "version 0 asks for client metrics alone"
            return
        assert await listed() == [(2, "t"), (4, "1"), (4, "2")]
        assert await listed(4) == [(4, "1"), (4, "2")]
        assert await listed(8, 16, 32) == []

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
def test_update_features_accepts_a_feature_only_at_its_current_level(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        level = world.brokers[1].registry.snapshot.features["metadata"]

        async def update(**levels: int) -> tuple[int, str, dict[str, int]]:
            rows = [
                struct("UpdateFeatures", "FeatureUpdateKey", feature=name, max_version_level=level)
                for name, level in levels.items()
            ]
            answer = await world.ask("UpdateFeatures", version, feature_updates=rows)
            found = answer.results if version < 2 else []
            said = " ".join(filter(None, [answer.error_message, *(r.error_message for r in found)]))
            return answer.error_code, said, {row.feature: row.error_code for row in found}

        code = InvalidUpdateVersionError.code
        rows = {"metadata": 0} if version < 2 else {}
        assert await update(metadata=level) == (0, "", rows)
        whole, said, found = await update(metadata=level + 1)
        assert f"stays at level {level} instead of {level + 1}" in said
        assert (whole, found) == ((0, {"metadata": code}) if version < 2 else (code, {}))
        whole, said, found = await update(**{"kraft.version": 1})
        assert "no feature 'kraft.version'; its features are" in said
        assert (whole, found) == ((0, {"kraft.version": code}) if version < 2 else (code, {}))
        assert world.brokers[1].registry.snapshot.features["metadata"] == level

    run(body)


def test_describe_topic_partitions_returns_topics_in_pages() -> None:
    async def body(world: World) -> None:
        await world.start()
        for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
            await world.make_topic(name, partitions)

        async def pages(limit: int, *names: str) -> list[list[tuple[str, int]]]:
            found, cursor = [], None
            rows = [struct("DescribeTopicPartitions", "TopicRequest", name=each) for each in names]
            while True:
                answer = await world.ask(
                    "DescribeTopicPartitions", 0, topics=rows,
                    response_partition_limit=limit, cursor=cursor,
                )  # fmt: skip
                found.append(
                    [
                        (topic.name, row.partition_index)
                        for topic in answer.topics
                        for row in topic.partitions
                    ]
                )
                if answer.next_cursor is None:
                    return found
                cursor = struct(
                    "DescribeTopicPartitions", "Cursor",
                    topic_name=answer.next_cursor.topic_name,
                    partition_index=answer.next_cursor.partition_index,
                )  # fmt: skip

        every = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
        assert await pages(2000) == [every]
        assert await pages(2) == [every[:2], every[2:4], every[4:]]
        assert await pages(4) == [every[:4], every[4:]]
        assert await pages(-1) == [[one] for one in every]
        assert await pages(2, "c", "b") == [every[2:4], every[4:]]

    run(body)


def test_describe_topic_partitions_returns_the_metadata_of_each_partition() -> None:
    async def body(world: World) -> None:
        await world.start()
        made = await world.make_topic("t")
        rows = [
            struct("DescribeTopicPartitions", "TopicRequest", name=name)
            for name in ("t", "none", "not a name")
        ]
        answer = await world.ask("DescribeTopicPartitions", 0, topics=rows)
        none, invalid, found = answer.topics
        assert (none.name, none.error_code) == ("none", UnknownTopicOrPartitionError.code)
        assert (invalid.name, invalid.error_code) == ("not a name", InvalidTopicError.code)
        assert (found.error_code, found.topic_id) == (0, made.topic_id)
        [row] = found.partitions
        assert (row.error_code, row.leader_id, row.leader_epoch) == (0, 1, 0)
        assert (row.replica_nodes, row.isr_nodes, row.offline_replicas) == ([1], [1], [])
        assert row.eligible_leader_replicas == row.last_known_elr == []
        cursor = struct("DescribeTopicPartitions", "Cursor", topic_name="t", partition_index=-1)
        with pytest.raises(InvalidRequestError, match="give a partition of at least 0"):
            await world.ask("DescribeTopicPartitions", 0, topics=[], cursor=cursor)

    run(body)


ON_TOPIC, ON_GROUP = {3, 4, 5, 6, 7, 8, 10, 11}, {3, 6, 8, 10, 11}
ON_CLUSTER = {5, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize("is_asked", [True, False])
def test_authorized_operations_without_an_authorizer_are_all_operations(is_asked: bool) -> None:
    """If the client did not request the operations, the field is -2147483648, as in Kafka."""

    def seen(found: set[int] | None) -> set[int] | None:
        assert is_asked or found is None
        return found

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        asked = {"include_cluster_authorized_operations": is_asked}
        both = {**asked, "include_topic_authorized_operations": is_asked}
        answer = await world.ask("Metadata", 10, topics=by_name("t", "none"), **both)
        found, unknown = answer.topics
        cluster = await world.ask("DescribeCluster", 2, **asked)
        given = (found, answer, cluster)
        operations = [seen(each.authorized_operations) for each in given]
        assert operations == ([ON_TOPIC, ON_CLUSTER, ON_CLUSTER] if is_asked else [None] * 3)
        assert unknown.authorized_operations is None
        rows = [struct("DescribeTopicPartitions", "TopicRequest", name="t")]
        [topic] = (await world.ask("DescribeTopicPartitions", 0, topics=rows)).topics
        assert topic.topic_authorized_operations == sum(1 << each for each in ON_TOPIC)
        groups = await world.ask(
            "DescribeGroups", 5, groups=["g"], include_authorized_operations=is_asked
        )
        assert groups.groups[0].authorized_operations == (ON_GROUP if is_asked else None)

    run(body)
