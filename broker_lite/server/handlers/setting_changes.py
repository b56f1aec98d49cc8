"""Change the settings of topics and brokers, for both APIs that do so.

The controller makes the changes; other brokers forward the request to it. All changes of one
resource (topic or broker) succeed or fail together. A broker reads its settings from its
configuration file, so only the rates of replication throttling, stored in ZooKeeper, can be
changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from broker_lite.errors import (
    NO_ERROR,
    InvalidConfigError,
    InvalidRequestError,
    LogbusError,
    NotControllerError,
    UnknownTopicOrPartitionError,
    wire_code,
)
from broker_lite.replication.throttle import RATES
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.handlers.forwarding import ask_controller
from broker_lite.server.handlers.topic_settings import (
    LIST_KEYS,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
    check_resource,
    checked,
    items,
    resource,
    topic_settings,
)
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.calls.configs import (
    OPERATION_APPEND,
    OPERATION_DELETE,
    OPERATION_DELETE_OTHERS,
    OPERATION_SET,
    OPERATION_SUBTRACT,
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from broker_lite.wire.tables import IncrementalAlterConfigsResponse as Response
from broker_lite.wire.tables import build

LOG_DIRS_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
"""Kafka's broker setting that throttles moves of replicas between data directories.

A broker of logbus has one directory, so the setting does not exist. Kafka's tools delete it after
every reassignment, so its deletion succeeds without effect."""

Outcome = tuple[int, str | None]
"""The error code and error message of one resource (topic or broker) in the answer."""


async def alter(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Alter the settings of each resource. ``message`` is an IncrementalAlterConfigs request."""
    if parts.registry.is_controller or request.is_forwarded:
        outcomes = await _alter_all(parts, request, message)
    else:
        outcomes = await _pass_on(parts, request, message)
    return Response(
        responses=[
            build(
                Response.AlterConfigsResourceResponse,
                error_code=code,
                error_message=text,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            for row, (code, text) in zip(message.resources, outcomes, strict=True)
        ]
    )


async def _alter_all(parts: BrokerContext, request: RequestContext, message: Any) -> list[Outcome]:
    times = Counter((row.resource_type, row.resource_name) for row in message.resources)
    outcomes: list[Outcome] = []
    for row in message.resources:
        try:
            check_resource(request.access, row)
            if times[row.resource_type, row.resource_name] > 1:
                raise InvalidRequestError(
                    f"{row.resource_name!r} occurs more than once in the request; name it once"
                )
            await _alter(parts, row, message.validate_only)
            outcomes.append((NO_ERROR, None))
        except LogbusError as error:
            outcomes.append((wire_code(error), error.message))
    return outcomes


async def _pass_on(parts: BrokerContext, request: RequestContext, message: Any) -> list[Outcome]:
    """Forward the request to the controller, which authorizes it.

    Return the error code and message of each resource."""
    request.access.leave_to_controller()
    call = IncrementalAlterConfigsRequest(
        tuple(
            AlterConfigsResource(
                row.resource_type,
                row.resource_name,
                tuple(AlterableConfig(c.name, c.config_operation, c.value) for c in row.configs),
            )
            for row in message.resources
        ),
        message.validate_only,
    )
    try:
        answer = await within(WAIT_MS, ask_controller(parts, call, request))
        if len(answer.responses) != len(message.resources):
            raise NotControllerError(
                "the controller did not answer for every topic or broker of the request; try again"
            )
    except LogbusError as error:
        return [(wire_code(error), error.message)] * len(message.resources)
    return [(row.error_code, row.error_message) for row in answer.responses]


async def _alter(parts: BrokerContext, row: Any, validate_only: bool) -> None:
    if row.resource_type == RESOURCE_BROKER:
        await _alter_broker(parts, row, validate_only)
        return
    if row.resource_type != RESOURCE_TOPIC:
        named = resource(row.resource_type, row.resource_name)
        raise InvalidRequestError(f"{named} has no settings; name a topic or a broker")
    await within(WAIT_MS, _alter_topic(parts, row, validate_only))


async def _alter_topic(parts: BrokerContext, row: Any, validate_only: bool) -> None:
    administration = parts.registry.administration
    # Make one change at a time: a change may append to the list that the change before has set.
    async with administration.altering_topic:
        changes = _changes(parts, row)
        await administration.alter_topic_config(
            row.resource_name, changes, validate_only=validate_only
        )


def _changes(parts: BrokerContext, row: Any) -> dict[str, str | None]:
    topic = parts.registry.snapshot.topics.get(row.resource_name)
    if topic is None:
        raise UnknownTopicOrPartitionError(f"topic {row.resource_name!r} does not exist")
    present = {each.key: each.value for each in topic_settings(topic.config)}
    changes: dict[str, str | None] = {}
    for change in row.configs:
        if change.config_operation == OPERATION_DELETE_OTHERS:
            named = {each.name for each in row.configs}
            changes.update(dict.fromkeys(topic.config.keys() - named))
            continue
        if change.name in changes:
            raise InvalidRequestError(
                f"setting {change.name} occurs more than once in the request; name it once"
            )
        changes[change.name] = _changed(change, present)
    after: dict[str, str | None] = {**topic.config, **changes}
    deleted = [key for key, value in changes.items() if value is None]
    checked({key: value for key, value in after.items() if value is not None})
    checked({key: present.get(key, "") for key in deleted if key not in present})
    return changes


async def _alter_broker(parts: BrokerContext, row: Any, validate_only: bool) -> None:
    """Set or delete the replication throttling rates of the broker in the request's ``row``."""
    changes: dict[str, str | None] = {}
    for change in row.configs:
        is_deleted = change.config_operation == OPERATION_DELETE
        if change.name == LOG_DIRS_RATE and is_deleted:
            continue
        if change.name not in RATES:
            raise InvalidRequestError(
                f"{change.name}: a broker's settings are read from its file when it starts; "
                f"change them there. Only {' and '.join(sorted(RATES))} can be altered"
            )
        if not is_deleted and (
            change.config_operation != OPERATION_SET or not (change.value or "").isdecimal()
        ):
            raise InvalidConfigError(
                f"{change.name}={change.value!r}: set a whole number (bytes per second)"
            )
        changes[change.name] = None if is_deleted else str(int(change.value))
    if not row.resource_name.isdecimal():
        raise InvalidRequestError(
            f"settings of broker {row.resource_name!r} cannot be altered: give a broker id, "
            "because there are no cluster-wide broker settings"
        )
    if changes and not validate_only:
        work = parts.registry.administration.alter_broker_config(int(row.resource_name), changes)
        await within(WAIT_MS, work)


def _changed(change: Any, present: dict[str, str]) -> str | None:
    """Return the new value of a setting; None if the change resets it to its default.

    ``present`` has the topic's current settings. Raises InvalidConfigError or InvalidRequestError
    for an operation that the setting does not allow."""
    operation, name, value = change.config_operation, change.name, change.value
    if operation == OPERATION_DELETE:
        return None
    if value is None:
        raise InvalidConfigError(
            f"setting {name} has no value; delete the setting to restore its default"
        )
    if operation == OPERATION_SET:
        return str(value)
    if operation not in (OPERATION_APPEND, OPERATION_SUBTRACT):
        raise unknown_operation(operation)
    if name not in LIST_KEYS:
        raise InvalidConfigError(
            f"setting {name} is not a list; set a value, without append or subtract"
        )
    before, given = items(present[name]), items(value)
    if operation == OPERATION_APPEND:
        return ",".join(before + [item for item in given if item not in before])
    return ",".join(item for item in before if item not in given)


def unknown_operation(operation: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"operation {operation} does not exist; give 0 (set), 1 (delete), 2 (append) or "
        "3 (subtract)"
    )
