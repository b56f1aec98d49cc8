"""Handle ApiVersions 0-4: return the served APIs with their versions, and the cluster's features.

A request of a later version gets UNSUPPORTED_VERSION with the same list, encoded in version 0; the
client then repeats it in a known version. The session stores the name of the client's software."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import NO_ERROR, UnsupportedVersionError
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.api import ADVERTISED, ApiKey, is_served
from broker_lite.wire.tables import ApiVersionsResponse as Response
from broker_lite.wire.tables import build

SOFTWARE_FROM = 3
"""The first version of ApiVersions in which a client names its software (KIP-511)."""
SOFTWARE_MAX = 100
"""Maximum characters of the client's software name and version that a session stores."""


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Return the list of APIs, even to a request of an unknown version.

    A client sends ApiVersions before it knows which versions the broker serves."""
    snapshot = parts.registry.snapshot
    here = snapshot.brokers.get(parts.broker_id)
    known = is_served(ApiKey.API_VERSIONS, request.api_version)
    if known and request.api_version >= SOFTWARE_FROM:
        name, version = message.client_software_name, message.client_software_version
        request.session.software = f"{name} {version}"[:SOFTWARE_MAX]
    return Response(
        error_code=NO_ERROR if known else UnsupportedVersionError.code,
        api_keys=[
            build(Response.ApiVersion, api_key=int(key), min_version=first, max_version=last)
            for key, (first, last) in sorted(ADVERTISED.items())
        ],
        supported_features=[
            build(Response.SupportedFeatureKey, name=name, min_version=1, max_version=level)
            for name, level in sorted(here.features.items() if here else ())
        ],
        finalized_features_epoch=snapshot.controller_epoch,
        finalized_features=[
            build(
                Response.FinalizedFeatureKey,
                name=name,
                min_version_level=1,
                max_version_level=level,
            )
            for name, level in sorted(snapshot.features.items())
        ],
    )
