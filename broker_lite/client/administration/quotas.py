"""Describe and alter client quotas."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.client.administration.admin_requests import await_applied
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.requests import ask_any_broker, on_any_broker
from broker_lite.client.transport.steps import CallExchange, Operation
from broker_lite.errors import raise_for
from broker_lite.security.quotas import Entity, Values
from broker_lite.wire.calls.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribedClientQuotas,
)


def describe_quotas(cluster: Cluster, deadline_ms: float) -> Operation[dict[Entity, Values]]:
    """Return all client quotas, by entity (a user, a client id, or both).

    Raises ClusterAuthorizationError if the user lacks DESCRIBE_CONFIGS on the cluster."""
    exchange = CallExchange(DescribeClientQuotasRequest())
    answer = yield from on_any_broker(cluster, exchange, lambda _: None, deadline_ms)
    return _quotas(answer)


def alter_quotas(
    cluster: Cluster, entity: Entity, changes: Mapping[str, float | None], deadline_ms: float
) -> Operation[None]:
    """Set quotas of an entity (a user, a client id, or both); None deletes a quota.

    Return once every live broker has applied the change. Raises InvalidRequestError for an unknown
    quota or value."""
    request = AlterClientQuotasRequest(entity.parts, tuple(changes.items()))
    exchange = CallExchange(request)
    answer, writer = yield from ask_any_broker(cluster, exchange, lambda _: None, deadline_ms)
    for row in answer:
        raise_for(row.error_code, row.error_message)

    def read(answer: DescribedClientQuotas) -> dict[str, float | None]:
        known = _quotas(answer).get(entity, {})
        return {key: known.get(key) for key in changes}

    yield from await_applied(
        cluster,
        writer,
        CallExchange(DescribeClientQuotasRequest()),
        read,
        lambda found: found == changes,
        changed="the quotas",
        deadline_ms=deadline_ms,
    )


def _quotas(answer: DescribedClientQuotas) -> dict[Entity, Values]:
    raise_for(answer.error_code, answer.error_message)
    return {Entity(tuple(sorted(row.entity))): dict(row.values) for row in answer.entries or ()}
