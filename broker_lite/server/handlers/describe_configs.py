"""Handle DescribeConfigs 1-4: return settings with their sources and descriptions.

Any broker describes topics; only a broker itself describes its settings, which come from its
configuration file and are read-only, except for the rates of replication throttling. logbus has no
settings of loggers or groups and no cluster-wide broker settings; a group's answer is empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError, UnknownTopicOrPartitionError
from broker_lite.replication.throttle import RATES
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.topic_settings import (
    RESOURCE_BROKER,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    Setting,
    broker_settings,
    check_resource,
    resource,
    topic_settings,
)
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DescribeConfigsResponse as Response
from broker_lite.wire.tables import build, error_fields

_Result = Response.DescribeConfigsResult
_Setting = _Result.DescribeConfigsResourceResult
_Synonym = _Setting.DescribeConfigsSynonym


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Describe topics and brokers from the metadata snapshot. Each has its own error, and one row
    even if the request repeats it with the same keys."""
    rows = {
        (row.resource_type, row.resource_name, tuple(row.configuration_keys or ())): row
        for row in message.resources
    }
    return Response(results=[_describe(parts, request, row, message) for row in rows.values()])


def _describe(parts: BrokerContext, request: RequestContext, row: Any, message: Any) -> Any:
    error: LogbusError | None = None
    settings: list[Setting] = []
    try:
        check_resource(request.access, row)
        settings = list(_settings(parts, row.resource_type, row.resource_name))
    except LogbusError as raised:
        error = raised
    keys = set(row.configuration_keys or ())
    return build(
        _Result,
        **error_fields(error),
        resource_type=row.resource_type,
        resource_name=row.resource_name,
        configs=[
            _row(each, row.resource_type == RESOURCE_BROKER and each.key not in RATES, message)
            for each in settings
            if not keys or each.key in keys
        ],
    )


def _settings(parts: BrokerContext, kind: int, name: str) -> Iterable[Setting]:
    if kind == RESOURCE_TOPIC:
        topic = parts.registry.snapshot.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        return topic_settings(topic.config)
    if kind != RESOURCE_BROKER:
        if kind == RESOURCE_GROUP:
            # Return no group settings: Kafka's belong to group protocols that logbus does not
            # serve, the consumer protocol of KIP-848 and share groups.
            return ()
        raise InvalidRequestError(
            f"{resource(kind, name)} has no settings; describe a topic or a broker"
        )
    if name == "":
        return ()
    if name != str(parts.broker_id):
        raise InvalidRequestError(
            f"broker {parts.broker_id} cannot describe broker {name}, because a broker describes "
            f"only itself; send the request to broker {name}"
        )
    own = parts.registry.snapshot.broker_config(parts.broker_id)
    return broker_settings(parts.config, parts.listeners or {"PLAINTEXT": parts.endpoint}, own)


def _row(setting: Setting, read_only: bool, message: Any) -> Any:
    synonyms = setting.levels if message.include_synonyms else ()
    return build(
        _Setting,
        name=setting.key,
        value=setting.value,
        read_only=read_only,
        config_source=setting.source,
        is_sensitive=False,
        synonyms=[
            build(_Synonym, name=setting.key, value=value, source=source)
            for value, source in synonyms
        ],
        config_type=setting.kind,
        documentation=setting.doc if message.include_documentation else None,
    )
