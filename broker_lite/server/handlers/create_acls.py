"""Handle CreateAcls 1-3: add entries to access control lists (ACLs).

Any broker writes ACLs to ZooKeeper. All new ACLs of one resource pattern are one write. It is no
error to create an ACL that exists.
"""

from __future__ import annotations

from typing import Any

from broker_lite.errors import InvalidRequestError, LogbusError
from broker_lite.metadata.acls import ACLS_MAX
from broker_lite.security.acls import Acl, Entry, Pattern, new_acl
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.acl_rows import check_authorizer
from broker_lite.server.handlers.deadline import WAIT_MS, within
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import CreateAclsResponse as Response
from broker_lite.wire.tables import build, error_fields


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Create the ACLs. Each ACL has its own error in the answer."""
    outcomes: list[LogbusError | Acl] = []
    new_entries: dict[Pattern, set[Entry]] = {}
    for row in message.creations:
        try:
            check_authorizer(parts)
            acl = _acl(row)
        except LogbusError as error:
            outcomes.append(error)
        else:
            outcomes.append(acl)
            new_entries.setdefault(acl.pattern, set()).add(acl.entry)
    failed: dict[Pattern, LogbusError] = {}
    for pattern, entries in new_entries.items():
        try:
            await within(WAIT_MS, _add(parts, pattern, frozenset(entries)))
        except LogbusError as error:
            failed[pattern] = error
    return Response(
        results=[
            build(
                Response.AclCreationResult,
                **error_fields(each if isinstance(each, LogbusError) else failed.get(each.pattern)),
            )
            for each in outcomes
        ]
    )


async def _add(parts: BrokerContext, pattern: Pattern, entries: frozenset[Entry]) -> None:
    if len(parts.authorizer.index) + len(entries) > ACLS_MAX:
        raise InvalidRequestError(
            f"the ACL cannot be added, because the cluster has the maximum of {ACLS_MAX} ACLs; "
            "replace several by one with a prefixed pattern"
        )
    await parts.registry.administration.alter_acls(pattern, lambda before: before | entries)


def _acl(row: Any) -> Acl:
    return new_acl(
        row.resource_type,
        row.resource_pattern_type,
        row.resource_name,
        row.principal,
        row.host,
        row.operation,
        row.permission_type,
    )
