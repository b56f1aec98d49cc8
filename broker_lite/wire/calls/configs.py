"""The client's requests DescribeConfigs v4 and IncrementalAlterConfigs v1, which read and change
settings of topics and brokers. Field names are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import DeclaredCall, Int8, Int16, Int32

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

    resource_type: Int8
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None


class ConfigSynonym(NamedTuple):
    """One place that gives a setting a value (its source), such as the topic or the broker's
    configuration file, and that value. A setting's first synonym is in effect."""

    name: str
    value: str | None
    source: Int8


class DescribedConfig(NamedTuple):
    """One setting: its value, the source of the value, and its documentation."""

    name: str
    value: str | None
    read_only: bool
    config_source: Int8
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    config_type: Int8
    documentation: str | None


class DescribeConfigsResult(NamedTuple):
    """The settings of one topic or broker."""

    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str
    configs: tuple[DescribedConfig, ...]


class DescribeConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    results: tuple[DescribeConfigsResult, ...]


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest(DeclaredCall[DescribeConfigsResponse]):
    """Request settings of topics or of a broker. Any broker answers for topics, but only the broker
    itself for its own settings."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_CONFIGS
    VERSION: ClassVar[int] = 4

    resources: tuple[ConfigResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


class AlterableConfig(NamedTuple):
    """A change of one setting. ``config_operation`` is one of ``OPERATION_*``."""

    name: str
    config_operation: Int8
    value: str | None = None


class AlterConfigsResource(NamedTuple):
    """The changes of the settings of one topic or broker: all of them are made, or none."""

    resource_type: Int8
    resource_name: str
    configs: tuple[AlterableConfig, ...]


class AlterConfigsResult(NamedTuple):
    error_code: Int16
    error_message: str | None
    resource_type: Int8
    resource_name: str


class IncrementalAlterConfigsResponse(NamedTuple):
    throttle_time_ms: Int32
    responses: tuple[AlterConfigsResult, ...]


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest(DeclaredCall[IncrementalAlterConfigsResponse]):
    """Change settings of topics and brokers. The client sends the request to the controller."""

    API_KEY: ClassVar[int] = ApiKey.INCREMENTAL_ALTER_CONFIGS
    VERSION: ClassVar[int] = 1

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False
