"""Handle DescribeClientQuotas 0-1: return the quotas of the entities that match a request.

Entities are users, client ids and IP addresses. Any broker answers from its metadata snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.security.quotas import DEFAULT, IP, KEYS, Component, selects
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DescribeClientQuotasResponse as Response
from broker_lite.wire.tables import build, error_fields

EXACT, OF_DEFAULT, ANY = 0, 1, 2
"""Kafka's match types for an entity's name: an exact name, the default entity, any name."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Return the matching quotas from the metadata snapshot, without a read of ZooKeeper."""
    try:
        components = [_component(row) for row in message.components]
        _check_types([each.entity_type for each in components])
    except LogbusError as error:
        return Response(**error_fields(error), entries=None)
    return Response(
        **error_fields(None),
        entries=[
            build(
                Response.EntryData,
                entity=[
                    build(Response.EntryData.EntityData, entity_type=kind, entity_name=name)
                    for kind, name in entity.parts
                ],
                values=[
                    build(Response.EntryData.ValueData, key=key, value=value)
                    for key, value in sorted(values.items())
                ],
            )
            for entity, values in sorted(
                parts.registry.snapshot.quotas.items(), key=lambda item: str(item[0])
            )
            if selects(components, entity, strict=message.strict)
        ],
    )


def _component(row: Any) -> Component:
    if row.entity_type not in KEYS:
        raise InvalidRequestError(
            f"entity type {row.entity_type[:40]!r} does not exist; give {', '.join(KEYS)}"
        )
    if row.match_type == EXACT and row.match is not None:
        return Component(row.entity_type, row.match)
    if row.match_type in (OF_DEFAULT, ANY) and row.match is None:
        return Component(row.entity_type, DEFAULT, row.match_type == ANY)
    raise InvalidRequestError(
        f"{row.entity_type}: match type {row.match_type} with the name {row.match!r}; give 0 with "
        "a name, or 1 (default) or 2 (any) without one"
    )


def _check_types(types: Iterable[str]) -> None:
    given = list(types)
    if len(set(given)) < len(given):
        raise InvalidRequestError(
            "an entity type occurs twice in the request; name each entity type once"
        )
    if IP in given and len(given) > 1:
        raise InvalidRequestError(
            "quotas of an ip have no user and no client id; request the ip by itself"
        )
