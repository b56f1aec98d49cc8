"""Tests of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs in every version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.handler_world import World, run, struct, versions

from broker_lite.config import BrokerConfig, TopicConfig, keys
from broker_lite.errors import (
    CompactionNotBuiltError,
    InvalidConfigError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from broker_lite.replication.throttle import RATES
from broker_lite.wire.api import ApiKey
from broker_lite.wire.calls.configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_DELETE_OTHERS,
    OPERATION_SET,
    OPERATION_SUBTRACT,
)

TOPIC, BROKER, GROUP = 2, 4, 32


def asked(kind: int, name: str, *wanted: str) -> Any:
    return struct(
        "DescribeConfigs", "DescribeConfigsResource", resource_type=kind, resource_name=name,
        configuration_keys=list(wanted) or None,
    )  # fmt: skip


def change(kind: int, name: str, *rows: tuple[str, int, str | None]) -> Any:
    path = "AlterConfigsResource"
    return struct(
        "IncrementalAlterConfigs", path, resource_type=kind, resource_name=name,
        configs=[
            struct("IncrementalAlterConfigs", f"{path}.AlterableConfig", name=key,
                   config_operation=operation, value=value)
            for key, operation, value in rows
        ],
    )  # fmt: skip


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_describe_configs_returns_the_settings_of_topics_and_brokers(version: int) -> None:
    async def body(world: World) -> None:
        await world.start(1, num_partitions=4)  # type: ignore[arg-type]
        await world.make_topic("t", retention_ms="60000")
        answer = await world.ask(
            "DescribeConfigs",
            version,
            resources=[asked(TOPIC, "t"), asked(BROKER, "1"), asked(TOPIC, "t", "segment.ms")],
            include_synonyms=True,
            include_documentation=True,
        )
        topic, broker, one = answer.results
        assert {topic.error_code, broker.error_code, one.error_code} == {0}
        settings = {row.name: row for row in topic.configs}
        assert set(settings) == {row.key for row in keys(TopicConfig).values()}
        retention = settings["retention.ms"]
        assert (retention.value, retention.config_source, retention.read_only) == (
            "60000", 1, False,
        )  # fmt: skip
        assert [(row.value, row.source) for row in retention.synonyms] == [
            ("60000", 1),
            ("604800000", 5),
        ]
        assert settings["segment.bytes"].config_source == 5
        brokers = {row.name: row for row in broker.configs}
        of_file = {row.key for row in keys(BrokerConfig).values()}
        assert set(brokers) == of_file | {"advertised.listeners"} | RATES
        assert brokers["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9001"
        assert (brokers["num.partitions"].value, brokers["num.partitions"].config_source) == (
            "4", 4,
        )  # fmt: skip
        assert brokers["port"].read_only
        assert [row.name for row in one.configs] == ["segment.ms"]
        if version >= 3:
            assert retention.documentation.endswith("(ms)")
            assert (retention.config_type, settings["cleanup.policy"].config_type) == (5, 7)

    run(body)


def test_describe_configs_omits_documentation_and_synonyms_unless_requested() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        answer = await world.ask("DescribeConfigs", 4, resources=[asked(TOPIC, "t")])
        assert {row.documentation for row in answer.results[0].configs} == {None}
        assert all(row.synonyms == [] for row in answer.results[0].configs)

    run(body)


@pytest.mark.parametrize(
    ("kind", "name", "code", "words"),
    [
        (TOPIC, "none", UnknownTopicOrPartitionError.code, "none"),
        (BROKER, "7", InvalidRequestError.code, "send the request to broker 7"),
        (8, "1", InvalidRequestError.code, "broker logger '1' has no settings"),
        (99, "x", InvalidRequestError.code, "resource of type 99 'x' has no settings"),
    ],
)
def test_describe_configs_of_an_unknown_resource_is_refused(
    kind: int, name: str, code: int, words: str
) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        rows = [asked(kind, name), asked(TOPIC, "t")]
        answer = await world.ask("DescribeConfigs", 4, resources=rows)
        assert (answer.results[0].error_code, answer.results[1].error_code) == (code, 0)
        assert words in answer.results[0].error_message

    run(body)


def test_group_has_no_settings_to_describe_or_alter() -> None:
    async def body(world: World) -> None:
        await world.start()
        answer = await world.ask("DescribeConfigs", 4, resources=[asked(GROUP, "g")])
        (row,) = answer.results
        assert (row.error_code, row.configs) == (0, [])
        resources = [change(GROUP, "g", ("consumer.session.timeout.ms", OPERATION_SET, "50000"))]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        (row,) = answer.responses
        assert row.error_code == InvalidRequestError.code
        assert row.error_message.startswith("group 'g' has no settings")

    run(body)


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_incremental_alter_configs_sets_deletes_and_appends_config_values(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", retention_ms="60000", segment_ms="5000")
        rows = (
            ("retention.ms", OPERATION_DELETE, None),
            ("segment.ms", OPERATION_SET, "6000"),
            ("cleanup.policy", OPERATION_APPEND, "delete"),
        )
        resources = [change(TOPIC, "t", *rows)]
        answer = await world.ask("IncrementalAlterConfigs", version, resources=resources)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert dict(view.config) == {"segment.ms": "6000", "cleanup.policy": "delete"}

    run(body)


def test_concurrent_append_operations_on_one_setting_are_all_kept() -> None:
    """Regression: the second request appended to the list without the item of the first request."""
    name = "leader.replication.throttled.replicas"

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        requests = [
            [change(TOPIC, "t", (name, OPERATION_APPEND, item))] for item in ("0:1", "1:2", "2:3")
        ]
        answers = await asyncio.gather(
            *(world.ask("IncrementalAlterConfigs", 1, resources=rows) for rows in requests)
        )
        assert [answer.responses[0].error_code for answer in answers] == [0, 0, 0]
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert view.config[name].split(",") == ["0:1", "1:2", "2:3"]

    run(body)


KAFKA_DEFAULTS = {
    "compression.type": "producer",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "errors.deadletterqueue.group.enable": "false",
    "file.delete.delay.ms": "60000",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    # The defaults of logbus for the settings below differ from Kafka's.
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "min.insync.replicas": "1",
}


def test_topic_settings_of_kafka_are_accepted_with_kafkas_defaults() -> None:
    """Terraform, Strimzi and kafka-configs write Kafka's settings with their defaults, and read
    them back."""

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", **KAFKA_DEFAULTS)
        answer = await world.ask("DescribeConfigs", 4, resources=[asked(TOPIC, "t")])
        found = {row.name: (row.value, row.config_source) for row in answer.results[0].configs}
        assert KAFKA_DEFAULTS.items() <= {name: value for name, (value, _) in found.items()}.items()
        assert {found[name][1] for name in KAFKA_DEFAULTS} == {1}
        rows = [(name, OPERATION_DELETE, None) for name in KAFKA_DEFAULTS]
        resources = [change(TOPIC, "t", *rows)]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message
        assert dict(world.brokers[1].registry.snapshot.topics["t"].config) == {}

    run(body)


def test_segment_bytes_may_be_below_max_message_bytes() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", segment_bytes="1048576")
        assert dict(world.brokers[1].registry.snapshot.topics["t"].config) == {
            "segment.bytes": "1048576"
        }

    run(body)


def test_value_of_a_setting_is_stored_in_canonical_form() -> None:
    """Regression: a number padded with spaces exceeded ZooKeeper's limit for one write.

    The controller then endlessly retried the write.
    """

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", retention_ms=" " * 2_000_000 + "60000")
        row = ("unclean.leader.election.enable", OPERATION_SET, "TRUE")
        resources = [change(TOPIC, "t", row, ("segment.ms", OPERATION_SET, "+005000"))]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert dict(view.config) == {
            "retention.ms": "60000", "unclean.leader.election.enable": "true", "segment.ms": "5000",
        }  # fmt: skip
        resources = [change(TOPIC, "t", ("segment.ms", OPERATION_SET, "x" * 2_000_000))]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        assert len(answer.responses[0].error_message) < 200
        resources = [change(TOPIC, "t", ("segment.ms", OPERATION_SET, "9" * 4000))]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        assert "whole number" in answer.responses[0].error_message

    run(body)


WRONG: list[tuple[tuple[tuple[str, int, str | None], ...], type[Exception], str]] = [
    ((("retention.mss", OPERATION_SET, "1"),), InvalidConfigError, "'retention.ms'"),
    ((("retention.mss", OPERATION_DELETE, None),), InvalidConfigError, "'retention.ms'"),
    ((("retention.ms", OPERATION_SET, None),), InvalidConfigError, "delete the setting"),
    ((("retention.ms", OPERATION_SET, "x"),), InvalidConfigError, "whole number"),
    ((("retention.ms", OPERATION_APPEND, "1"),), InvalidConfigError, "not a list"),
    ((("retention.ms", 9, "1"),), InvalidRequestError, "9"),
    ((("cleanup.policy", OPERATION_APPEND, "compact"),), CompactionNotBuiltError, "delete"),
    ((("cleanup.policy", OPERATION_SUBTRACT, "delete"),), InvalidConfigError, "cleanup.policy"),
    (
        (("retention.ms", OPERATION_SET, "1"), ("retention.ms", OPERATION_SET, "2")),
        InvalidRequestError,
        "more than once",
    ),
    (
        (("segment.ms", OPERATION_SET, "7000"), ("segment.bytes", OPERATION_SET, "1")),
        InvalidConfigError,
        "segment.bytes",
    ),
    (
        (("compression.type", OPERATION_SET, "zstd"),),
        InvalidConfigError,
        "compression.type='zstd' is not supported: batches are stored as the producer",
    ),
    (
        (("leader.replication.throttled.replicas", OPERATION_APPEND, "0-1"),),
        InvalidConfigError,
        'give "*", or partitions and brokers',
    ),
]


@pytest.mark.parametrize(("rows", "error", "words"), WRONG)
def test_invalid_config_change_is_refused_and_changes_nothing(
    rows: tuple[tuple[str, int, str | None], ...], error: type[Exception], words: str
) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", segment_ms="5000")
        resources = [change(TOPIC, "t", *rows)]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        (row,) = answer.responses
        assert row.error_code == error.code, row.error_message  # type: ignore[attr-defined]
        assert words in row.error_message
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert dict(view.config) == {"segment.ms": "5000"}

    run(body)


def test_incremental_alter_configs_of_a_client_may_not_have_an_internal_operation() -> None:
    """Regression: clients could send the operation -1 (delete all other settings), which only
    brokers may send to each other. Kafka has no such operation."""

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", segment_ms="5000")
        resources = [change(TOPIC, "t", ("", OPERATION_DELETE_OTHERS, None))]
        with pytest.raises(InvalidRequestError, match="operation -1 does not exist"):
            await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert dict(view.config) == {"segment.ms": "5000"}

    run(body)


def test_alter_configs_of_an_unchangeable_resource_is_refused() -> None:
    async def body(world: World) -> None:
        await world.start()
        row = ("retention.ms", OPERATION_SET, "1")
        resources = [change(BROKER, "1", row), change(TOPIC, "none", row), change(3, "x", row)]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        assert [row.error_code for row in answer.responses] == [
            InvalidRequestError.code,
            UnknownTopicOrPartitionError.code,
            InvalidRequestError.code,
        ]
        assert "file" in answer.responses[0].error_message

    run(body)


def test_deleting_an_unset_replication_throttle_succeeds() -> None:
    """After every move, Kafka's reassignment tool deletes the throttles of topics and brokers,
    even if none is set."""

    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("logs")
        rate = ("leader.replication.throttled.rate", OPERATION_DELETE, None)
        of_topic = ("leader.replication.throttled.replicas", OPERATION_DELETE, None)
        retention = ("retention.ms", OPERATION_DELETE, None)
        resources = [
            change(BROKER, "1", rate),
            change(TOPIC, "logs", of_topic),
            change(TOPIC, "none", of_topic, retention),
        ]
        answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
        codes = [row.error_code for row in answer.responses]
        assert codes == [0, 0, UnknownTopicOrPartitionError.code]

    run(body)


def test_replication_throttle_of_a_broker_is_set_described_and_deleted() -> None:
    """`kafka-reassign-partitions --throttle` sets the throttled rates before a reassignment."""
    name = "leader.replication.throttled.rate"

    async def body(world: World) -> None:
        await world.start()

        async def alter(*row: Any) -> int:
            resources = [change(BROKER, "1", row)]
            answer = await world.ask("IncrementalAlterConfigs", 1, resources=resources)
            return int(answer.responses[0].error_code)

        async def described() -> tuple[str, int, bool]:
            answer = await world.ask("DescribeConfigs", 4, resources=[asked(BROKER, "1")])
            found = {row.name: row for row in answer.results[0].configs}[name]
            return found.value, found.config_source, found.read_only

        unlimited = (str((1 << 63) - 1), 5, False)
        assert await described() == unlimited
        assert await alter(name, OPERATION_SET, "5000") == 0
        assert await described() == ("5000", 2, False)
        for value in ("", "-1", "x", "1.5"):
            assert await alter(name, OPERATION_SET, value) == InvalidConfigError.code
        assert await alter("log.dir", OPERATION_SET, "/") == InvalidRequestError.code
        assert await alter(name, OPERATION_DELETE, None) == 0
        assert await described() == unlimited

    run(body)


def test_incremental_alter_configs_with_validate_only_changes_nothing() -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t")
        resources = [change(TOPIC, "t", ("retention.ms", OPERATION_SET, "1"))]
        answer = await world.ask(
            "IncrementalAlterConfigs", 1, resources=resources, validate_only=True
        )
        assert answer.responses[0].error_code == 0
        assert dict(world.brokers[1].registry.snapshot.topics["t"].config) == {}

    run(body)


def replaced(kind: int, name: str, **settings: str) -> Any:
    path = "AlterConfigsResource"
    configs = [
        struct("AlterConfigs", f"{path}.AlterableConfig", name=key.replace("_", "."), value=v)
        for key, v in settings.items()
    ]
    return struct("AlterConfigs", path, resource_type=kind, resource_name=name, configs=configs)


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_alter_configs_replaces_all_settings_of_a_topic(version: int) -> None:
    async def body(world: World) -> None:
        await world.start()
        await world.make_topic("t", retention_ms="60000", segment_ms="5000")
        resources = [
            replaced(TOPIC, "t", segment_ms="6000", cleanup_policy="delete"),
            replaced(TOPIC, "none", segment_ms="6000"),
            replaced(BROKER, "1", num_partitions="2"),
        ]
        answer = await world.ask("AlterConfigs", version, resources=resources)
        assert [(row.resource_name, row.error_code) for row in answer.responses] == [
            ("t", 0),
            ("none", UnknownTopicOrPartitionError.code),
            ("1", InvalidRequestError.code),
        ]
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert dict(view.config) == {"segment.ms": "6000", "cleanup.policy": "delete"}

    run(body)


@pytest.mark.parametrize("broker", [1, 2])
def test_later_of_two_concurrent_alter_configs_requests_replaces_all_settings(broker: int) -> None:
    """Regression: each request deleted only the settings that its broker knew, so a setting of the
    other request stayed."""

    async def body(world: World) -> None:
        await world.start(2)
        await world.make_topic("t")
        answers = await asyncio.gather(
            world.ask("AlterConfigs", 1, resources=[replaced(TOPIC, "t", segment_ms="6000")]),
            world.ask(
                "AlterConfigs", 1, broker=broker,
                resources=[replaced(TOPIC, "t", retention_ms="60000")],
            ),
        )  # fmt: skip
        assert [row.error_code for answer in answers for row in answer.responses] == [0, 0]
        view = world.brokers[1].registry.snapshot.topics["t"]
        assert view.config == {"retention.ms": "60000"}

    run(body)
