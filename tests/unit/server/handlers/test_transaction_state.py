"""Tests of the topic __transaction_state: its creation, its coordinators and its protection."""

from __future__ import annotations

from typing import Any

import pytest
from support.handler_world import World, kind, run, struct, versions

from broker_lite.errors import (
    CoordinatorNotAvailableError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    TransactionalIdAuthorizationError,
)
from broker_lite.metadata.cache import TRANSACTION_FEATURE
from broker_lite.model import TRANSACTION_STATE
from broker_lite.record.crc32c import crc32c
from broker_lite.server.cluster.registry import SUPPORTED_FEATURES
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.configs import OPERATION_DELETE, OPERATION_SET

FEATURES = {**SUPPORTED_FEATURES, TRANSACTION_FEATURE: 2}


async def find(world: World, name: str, version: int = 4, broker: int = 1) -> Any:
    if version >= 4:
        fields: dict[str, Any] = {"coordinator_keys": [name]}
    else:
        fields = {"key": name}
    answer = await world.ask("FindCoordinator", version, broker=broker, key_type=1, **fields)
    return answer.coordinators[0] if version >= 4 else answer


@pytest.mark.parametrize("version", [v for v in versions(ApiKey.FIND_COORDINATOR) if v])
def test_first_transactional_id_creates_the_transaction_state_topic(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(3, FEATURES)
        row = await find(world, "id", version)
        assert row.error_code == 0, row.error_message
        view = world.brokers[1].registry.snapshot.topics[TRANSACTION_STATE]
        assert len(view.partitions) == 6
        assert {len(part.replicas) for part in view.partitions} == {3}
        assert view.config["retention.ms"] == view.config["retention.bytes"] == "-1"
        assert view.config["unclean.leader.election.enable"] == "false"
        leader = view.partitions[crc32c(b"id") % 6].state.leader
        assert (row.node_id, row.host, row.port) == (leader, "127.0.0.1", 9000 + leader)

    run(body)


def test_request_that_needs_the_transaction_state_topic_is_forwarded_to_the_controller() -> None:
    async def body(world: World) -> None:
        await world.start(3, FEATURES)
        found = {(await find(world, "id", broker=broker)).node_id for broker in (3, 2, 1)}
        assert len(found) == 1
        assert found <= {1, 2, 3}

    run(body)


def test_find_coordinator_refuses_transactional_ids_until_every_broker_supports_them() -> None:
    async def body(world: World) -> None:
        await world.start(1, SUPPORTED_FEATURES | {TRANSACTION_FEATURE: 1})
        row = await find(world, "id")
        assert row.error_code == TransactionalIdAuthorizationError.code
        assert "transactional.id" in row.error_message
        assert TRANSACTION_STATE not in world.brokers[1].registry.snapshot.topics

    run(body)


def test_find_coordinator_refuses_an_empty_transactional_id() -> None:
    async def body(world: World) -> None:
        await world.start(1, FEATURES)
        assert (await find(world, "")).error_code == InvalidRequestError.code

    run(body)


def test_find_coordinator_while_zookeeper_is_down_fails_with_a_retriable_error() -> None:
    async def body(world: World) -> None:
        await world.start(1, FEATURES)
        world.service.stop()
        assert (await find(world, "id")).error_code == CoordinatorNotAvailableError.code

    run(body)


def test_clients_may_not_change_the_transaction_state_topic() -> None:
    async def body(world: World) -> None:
        await world.start(1, FEATURES)
        row = struct(
            "CreateTopics", "CreatableTopic", name=TRANSACTION_STATE, num_partitions=1,
            replication_factor=1, assignments=[], configs=[],
        )  # fmt: skip
        made = await world.ask("CreateTopics", 7, topics=[row], timeout_ms=5000)
        assert made.topics[0].error_code == InvalidTopicError.code
        await find(world, "id")
        gone = await world.ask("DeleteTopics", 5, topic_names=[TRANSACTION_STATE], timeout_ms=5000)
        assert gone.responses[0].error_code == InvalidTopicError.code
        more = struct(
            "CreatePartitions", "CreatePartitionsTopic", name=TRANSACTION_STATE, count=12,
            assignments=None,
        )  # fmt: skip
        added = await world.ask("CreatePartitions", 3, topics=[more], timeout_ms=5000)
        assert added.results[0].error_code == InvalidTopicError.code
        part = kind("DeleteRecordsRequest").DeleteRecordsTopic.DeleteRecordsPartition
        deleted = await world.ask(
            "DeleteRecords", 2, timeout_ms=5000,
            topics=[struct("DeleteRecords", "DeleteRecordsTopic", name=TRANSACTION_STATE,
                           partitions=[part(partition_index=0, offset=-1)])],
        )  # fmt: skip
        assert deleted.topics[0].partitions[0].error_code == InvalidTopicError.code

    run(body)


@pytest.mark.parametrize(
    ("key", "value"),
    [("retention.ms", "1000"), ("retention.bytes", "1"), ("unclean.leader.election.enable", "true"),
     ("retention.ms", None)],
)  # fmt: skip
def test_topic_settings_that_would_delete_transaction_state_are_refused(
    key: str, value: str | None
) -> None:
    async def body(world: World) -> None:
        await world.start(1, FEATURES)
        await find(world, "id")
        before = world.brokers[1].registry.snapshot.topics[TRANSACTION_STATE].config
        for name, wanted, expected in (
            (key, value, InvalidConfigError.code),
            ("segment.bytes", "16777216", 0),
        ):
            path = "AlterConfigsResource"
            operation = OPERATION_DELETE if wanted is None else OPERATION_SET
            setting = struct(
                "IncrementalAlterConfigs", f"{path}.AlterableConfig", name=name, value=wanted,
                config_operation=operation,
            )  # fmt: skip
            row = struct(
                "IncrementalAlterConfigs", path, resource_type=2,
                resource_name=TRANSACTION_STATE, configs=[setting],
            )  # fmt: skip
            answer = await world.ask("IncrementalAlterConfigs", 1, resources=[row])
            assert answer.responses[0].error_code == expected, answer.responses[0].error_message
        after = world.brokers[1].registry.snapshot.topics[TRANSACTION_STATE].config
        assert after == {**before, "segment.bytes": "16777216"}

    run(body)


def test_metadata_marks_the_transaction_state_topic_as_internal() -> None:
    async def body(world: World) -> None:
        await world.start(1, FEATURES)
        await find(world, "id")
        await world.make_topic("t")
        answer = await world.ask("Metadata", 12, topics=None)
        assert {row.name: row.is_internal for row in answer.topics} == {
            TRANSACTION_STATE: True,
            "t": False,
        }

    run(body)


def test_new_cluster_has_the_features_of_its_first_broker() -> None:
    async def body(world: World) -> None:
        await world.start(1, FEATURES)
        answer = await world.ask(
            "ApiVersions", 4, client_software_name="c", client_software_version="1"
        )
        supported = {row.name: row.max_version for row in answer.supported_features}
        finalized = {row.name: row.max_version_level for row in answer.finalized_features}
        assert supported == finalized == FEATURES

    run(body)
