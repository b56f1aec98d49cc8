"""Handle UpdateFeatures 0-2: confirm the current level of each named feature, and change none.

The controller itself raises a feature's level once every broker supports the next level, and never
lowers it. Any broker answers from its metadata snapshot.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, InvalidUpdateVersionError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import UpdateFeaturesResponse as Response
from broker_lite.wire.tables import build

ROWS_UNTIL = 1
"""The last version of UpdateFeatures whose answer has a result for each feature instead of one
error for all."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Confirm features at their current level; refuse other levels with INVALID_UPDATE_VERSION."""
    snapshot = parts.registry.snapshot
    reasons = {row.feature: _why_not(snapshot, row) for row in message.feature_updates}
    rows = [
        build(
            Response.UpdatableFeatureResult,
            feature=feature,
            error_code=InvalidUpdateVersionError.code if reason else NO_ERROR,
            error_message=reason or None,
        )
        for feature, reason in reasons.items()
    ]
    whole = "; ".join(filter(None, reasons.values()))
    if request.api_version <= ROWS_UNTIL or not whole:
        return Response(error_code=NO_ERROR, error_message=None, results=rows)
    return Response(error_code=InvalidUpdateVersionError.code, error_message=whole)


def _why_not(snapshot: MetadataSnapshot, row: Any) -> str:
    level = snapshot.features.get(row.feature, 0)
    if row.max_version_level == level:
        return ""
    if not level:
        known = ", ".join(sorted(snapshot.features))
        return f"this cluster has no feature {row.feature!r}; its features are {known}"
    return (
        f"feature {row.feature!r} stays at level {level} instead of {row.max_version_level}: the "
        "controller raises it once every broker supports the next level; upgrade all brokers"
    )
