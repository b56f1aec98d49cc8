"""The client's requests DescribeConfigs v4 and IncrementalAlterConfigs v1, which read and change
settings of topics and brokers. Field names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4

OPERATION_SET, OPERATION_DELETE, OPERATION_APPEND, OPERATION_SUBTRACT = range(4)
OPERATION_DELETE_OTHERS = -1
"""An operation of logbus, with which brokers forward AlterConfigs to the controller: delete the
topic's settings that the request does not name. The ``AlterableConfig`` has an empty name."""

SOURCE_TOPIC = 1
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5


class ConfigResource(NamedTuple):
    """A topic or broker whose settings are requested; all settings if ``configuration_keys`` is
    None."""

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


class ConfigSynonym(NamedTuple):
    """One place that gives a setting a value (its source), such as the topic or the broker's
    configuration file, and that value. A setting's first synonym is in effect."""

    name: str
    value: str | None
    source: int


class DescribedConfig(NamedTuple):
    """One setting: its value, the source of the value, and its documentation."""

    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    config_type: int
    documentation: str | None


class DescribeConfigsResult(NamedTuple):
    """The settings of one topic or broker."""

    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str
    configs: tuple[DescribedConfig, ...]


class DescribeConfigsResponse(NamedTuple):
    throttle_time_ms: int
    results: tuple[DescribeConfigsResult, ...]


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest:
    """Request settings of topics or of a broker. Any broker answers for topics, but only the broker
    itself for its own settings."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_CONFIGS
    VERSION: ClassVar[int] = 4

    resources: tuple[ConfigResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False

    def encode(self, writer: Writer) -> None:
        def put_resource(row: ConfigResource) -> None:
            writer.i8(row.resource_type)
            writer.string(row.resource_name)
            writer.nullable_array(row.configuration_keys, writer.string)
            writer.tag_end()

        writer.array(self.resources, put_resource)
        writer.boolean(self.include_synonyms)
        writer.boolean(self.include_documentation)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribeConfigsResponse:
        return reader.ended(
            DescribeConfigsResponse(reader.i32(), reader.array(_described_resource))
        )


def _described_resource(reader: Reader) -> DescribeConfigsResult:
    return reader.ended(
        DescribeConfigsResult(
            reader.i16(),
            reader.nullable_string(),
            reader.i8(),
            reader.string(),
            reader.array(_described_config),
        )
    )


def _described_config(reader: Reader) -> DescribedConfig:
    return reader.ended(
        DescribedConfig(
            reader.string(),
            reader.nullable_string(),
            reader.boolean(),
            reader.i8(),
            reader.boolean(),
            reader.array(_synonym),
            reader.i8(),
            reader.nullable_string(),
        )
    )


def _synonym(reader: Reader) -> ConfigSynonym:
    return reader.ended(ConfigSynonym(reader.string(), reader.nullable_string(), reader.i8()))


class AlterableConfig(NamedTuple):
    """A change of one setting. ``config_operation`` is one of ``OPERATION_*``."""

    name: str
    config_operation: int
    value: str | None = None


class AlterConfigsResource(NamedTuple):
    """The changes of the settings of one topic or broker: all of them are made, or none."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


class AlterConfigsResult(NamedTuple):
    error_code: int
    error_message: str | None
    resource_type: int
    resource_name: str


class IncrementalAlterConfigsResponse(NamedTuple):
    throttle_time_ms: int
    responses: tuple[AlterConfigsResult, ...]


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    """Change settings of topics and brokers. The client sends the request to the controller."""

    API_KEY: ClassVar[int] = ApiKey.INCREMENTAL_ALTER_CONFIGS
    VERSION: ClassVar[int] = 1

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False

    def encode(self, writer: Writer) -> None:
        def put_config(row: AlterableConfig) -> None:
            writer.string(row.name)
            writer.i8(row.config_operation)
            writer.nullable_string(row.value)
            writer.tag_end()

        def put_resource(row: AlterConfigsResource) -> None:
            writer.i8(row.resource_type)
            writer.string(row.resource_name)
            writer.array(row.configs, put_config)
            writer.tag_end()

        writer.array(self.resources, put_resource)
        writer.boolean(self.validate_only)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> IncrementalAlterConfigsResponse:
        return reader.ended(IncrementalAlterConfigsResponse(reader.i32(), reader.array(_altered)))


def _altered(reader: Reader) -> AlterConfigsResult:
    return reader.ended(
        AlterConfigsResult(reader.i16(), reader.nullable_string(), reader.i8(), reader.string())
    )
