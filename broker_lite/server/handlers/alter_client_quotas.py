"""Handle AlterClientQuotas 0-1: set and delete quotas of clients.

Any broker writes quotas to ZooKeeper. All changes of one entity, for example a user, are one write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.security.quotas import Values, check_value, entity_of
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import AlterClientQuotasResponse as Response
from broker_lite.wire.tables import build, error_fields


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Alter the quotas of each entity. Each entity has its own error in the answer."""
    named = [tuple(sorted(_pairs(row), key=str)) for row in message.entries]
    times = Counter(named)
    entries = []
    for name, row in zip(named, message.entries):
        error: LogbusError | None = None
        try:
            if times[name] > 1:
                raise InvalidRequestError(
                    "an entity (user, client id, ip) is named twice in the request; name each once"
                )
            await _alter(parts, row, validate_only=message.validate_only)
        except LogbusError as raised:
            error = raised
        entries.append(
            build(
                Response.EntryData,
                **error_fields(error),
                entity=[
                    build(Response.EntryData.EntityData, entity_type=kind, entity_name=each)
                    for kind, each in _pairs(row)
                ],
            )
        )
    return Response(entries=entries)


def _pairs(row: Any) -> list[tuple[str, str | None]]:
    return [(each.entity_type, each.entity_name) for each in row.entity]


async def _alter(parts: BrokerContext, row: Any, *, validate_only: bool) -> None:
    entity = entity_of(_pairs(row))
    changes: dict[str, float | None] = {}
    for each in row.ops:
        if each.key in changes:
            raise InvalidRequestError(
                f"quota {each.key[:60]!r} occurs more than once for {entity}; name it once"
            )
        check_value(entity, each.key, 1.0 if each.remove else each.value)
        changes[each.key] = None if each.remove else each.value
    if changes and not validate_only:
        work = parts.registry.administration.alter_quotas(
            entity, lambda before: _changed(before, changes)
        )
        await within(WAIT_MS, work)


def _changed(before: Values, changes: Mapping[str, float | None]) -> Values:
    after = {**before, **changes}
    return {key: value for key, value in after.items() if value is not None}
