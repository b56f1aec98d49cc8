"""Handle DescribeAcls 1-3: return the access control list entries (ACLs) that match a filter.

Any broker answers from its metadata snapshot.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import LogbusError
from broker_lite.security.acls import Acl, Entry, Pattern
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.acl_rows import check_authorizer, filter_of
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DescribeAclsResponse as Response
from broker_lite.wire.tables import build, error_fields

_Resource = Response.DescribeAclsResource


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Return the matching ACLs from the metadata snapshot, without a read of ZooKeeper."""
    try:
        check_authorizer(parts)
        acl_filter = filter_of(message)
    except LogbusError as error:
        return Response(**error_fields(error), resources=[])
    selected: dict[Pattern, list[Entry]] = {}
    for pattern, entries in sorted(parts.registry.snapshot.acls.items()):
        rows = [entry for entry in sorted(entries) if acl_filter.selects(Acl(pattern, entry))]
        if rows:
            selected[pattern] = rows
    return Response(
        **error_fields(None),
        resources=[
            build(
                _Resource,
                resource_type=pattern.kind,
                resource_name=pattern.name,
                pattern_type=pattern.type,
                acls=[
                    build(
                        _Resource.AclDescription,
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission,
                    )
                    for entry in entries
                ],
            )
            for pattern, entries in selected.items()
        ],
    )
