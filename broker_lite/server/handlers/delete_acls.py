"""Handle DeleteAcls 1-3: delete the access control list entries (ACLs) that match filters.

Any broker writes ACLs to ZooKeeper. The deletions of one resource pattern are one write. An ACL
that another client adds during the request is kept, unless it matches too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from broker_lite.errors import NO_ERROR, LogbusError
from broker_lite.security.acls import Acl, AclFilter, Entry, Pattern
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.acl_rows import check_authorizer, filter_of
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import DeleteAclsResponse as Response
from broker_lite.wire.tables import build, error_fields

_Result = Response.DeleteAclsFilterResult


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Delete the ACLs that match each filter. Each filter has its own error in the answer."""
    results = []
    for row in message.filters:
        deleted: list[Acl] = []
        failure: LogbusError | None = None
        try:
            check_authorizer(parts)
            acl_filter = filter_of(row)
            for pattern, entries in sorted(parts.registry.snapshot.acls.items()):
                if any(acl_filter.selects(Acl(pattern, entry)) for entry in entries):
                    deleted += await within(WAIT_MS, _delete(parts, acl_filter, pattern))
        except LogbusError as error:
            failure = error
        results.append(
            build(
                _Result,
                **error_fields(failure),
                matching_acls=[_row(acl) for acl in deleted],
            )
        )
    return Response(filter_results=results)


async def _delete(parts: BrokerContext, acl_filter: AclFilter, pattern: Pattern) -> list[Acl]:
    deleted: set[Acl] = set()

    def change(before: frozenset[Entry]) -> frozenset[Entry]:
        deleted.clear()
        deleted.update(filter(acl_filter.selects, map(partial(Acl, pattern), before)))
        return before - {acl.entry for acl in deleted}

    await parts.registry.administration.alter_acls(pattern, change)
    return sorted(deleted)


def _row(acl: Acl) -> Any:
    (kind, pattern_type, name), (principal, host, operation, permission) = acl
    return build(
        _Result.DeleteAclsMatchingAcl,
        error_code=NO_ERROR,
        error_message=None,
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern_type,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )
