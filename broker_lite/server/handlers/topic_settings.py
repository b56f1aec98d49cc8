"""Validate, list and describe settings of topics and brokers, without I/O.

The numbers that stand for resource types, sources and value types are Kafka's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from broker_lite.config import BrokerConfig, Key, TopicConfig, keys, parse, value_text
from broker_lite.errors import CompactionNotBuiltError, InvalidConfigError
from broker_lite.model import Endpoint
from broker_lite.replication.throttle import RATES, UNLIMITED
from broker_lite.server.network.access import Access

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
RESOURCE_GROUP = 32
_RESOURCES = {8: "broker logger", 16: "client metrics subscription", RESOURCE_GROUP: "group"}

SOURCE_TOPIC = 1
SOURCE_DYNAMIC_BROKER = 2
SOURCE_STATIC_BROKER = 4
SOURCE_DEFAULT = 5

TYPE_BOOLEAN = 1
TYPE_STRING = 2
TYPE_LONG = 5
TYPE_LIST = 7
_TYPES = {"bool": TYPE_BOOLEAN, "int": TYPE_LONG}

LIST_KEYS = frozenset(
    {
        "cleanup.policy",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
"""Settings whose values are lists, to which IncrementalAlterConfigs may append items."""


class Setting(NamedTuple):
    """A setting of a topic or a broker.

    ``levels`` has the values with their sources, the effective one first. ``kind`` is Kafka's
    number of the value type, ``doc`` the description."""

    key: str
    levels: tuple[tuple[str, int], ...]
    kind: int
    doc: str

    @property
    def value(self) -> str:
        return self.levels[0][0]

    @property
    def source(self) -> int:
        return self.levels[0][1]


def checked(settings: Mapping[str, str | None]) -> dict[str, str]:
    """Return a topic's overridden settings, validated together with the defaults.

    Raises InvalidConfigError for a null, unknown or out-of-range setting, and
    CompactionNotBuiltError for ``cleanup.policy=compact``."""
    given: dict[str, str] = {}
    for key, value in settings.items():
        if value is None:
            raise InvalidConfigError(f"{key} has no value; leave it out for its default")
        if key == "cleanup.policy" and "compact" in items(value):
            raise CompactionNotBuiltError(
                f"cleanup.policy={value} is not built yet; use cleanup.policy=delete"
            )
        given[key] = value
    parse(TopicConfig, given)
    return given


def resource(kind: int, name: str) -> str:
    """Return a resource's type and name as text for an error."""
    return f"{_RESOURCES.get(kind, f'resource of type {kind}')} {name!r}"


def check_resource(access: Access, row: Any) -> None:
    """Raise an authorization error unless the client may use the settings of the resource ``row``.

    For a topic's settings, the client needs the permission on the topic; for a broker's, the
    permission on the cluster."""
    if row.resource_type == RESOURCE_TOPIC:
        access.check_topic(row.resource_name)
    else:
        access.check_cluster()


def items(value: str) -> list[str]:
    """Return the items of a comma-separated list."""
    return [item.strip() for item in value.split(",") if item.strip()]


def topic_settings(own: Mapping[str, str]) -> Iterator[Setting]:
    """Yield every setting of a topic. ``own`` has the settings that the topic overrides."""
    plain = TopicConfig()
    types = {item.name: str(item.type) for item in dataclasses.fields(TopicConfig)}
    for name, row in keys(TopicConfig).items():
        levels = [(value_text(getattr(plain, name)), SOURCE_DEFAULT)]
        if row.key in own:
            levels.insert(0, (own[row.key], SOURCE_TOPIC))
        yield Setting(row.key, tuple(levels), _kind(row, types[name]), _doc(row))


def broker_settings(
    config: BrokerConfig, listeners: Mapping[str, Endpoint], own: Mapping[str, str]
) -> Iterator[Setting]:
    """Yield every setting of a running broker.

    ``own`` has the broker's settings in ZooKeeper, which can only be rates of replication
    throttling. ``listeners`` are the broker's advertised addresses, listed as Kafka's
    ``advertised.listeners``."""
    for key in sorted(RATES):
        doc = "maximum rate of throttled replication; unlimited if unset (bytes per second)"
        levels = [(str(UNLIMITED), SOURCE_DEFAULT)]
        if key in own:
            levels.insert(0, (own[key], SOURCE_DYNAMIC_BROKER))
        yield Setting(key, tuple(levels), TYPE_LONG, doc)
    advertised = ",".join(f"{name}://{endpoint}" for name, endpoint in listeners.items())
    doc = "addresses at which clients reach this broker"
    yield Setting("advertised.listeners", ((advertised, SOURCE_STATIC_BROKER),), TYPE_LIST, doc)
    plain = BrokerConfig()
    types = {item.name: str(item.type) for item in dataclasses.fields(BrokerConfig)}
    for name, row in keys(BrokerConfig).items():
        if row.key == "advertised.listeners":
            continue
        default, value = value_text(getattr(plain, name)), value_text(getattr(config, name))
        levels = [(default, SOURCE_DEFAULT)]
        if value != default:
            levels.insert(0, (value, SOURCE_STATIC_BROKER))
        yield Setting(row.key, tuple(levels), _kind(row, types[name]), _doc(row))


def _kind(row: Key, annotation: str) -> int:
    return TYPE_LIST if row.key in LIST_KEYS else _TYPES.get(annotation, TYPE_STRING)


def _doc(row: Key) -> str:
    return f"{row.doc} ({row.unit})" if row.unit else row.doc
