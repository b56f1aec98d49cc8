"""What the APIs for access control lists (ACLs) share: their check for an authorizer, and the
filters in their requests."""

from __future__ import annotations

from typing import Any

from broker_lite.errors import SecurityDisabledError
from broker_lite.security.acls import AclFilter, acl_filter
from broker_lite.server.broker_context import BrokerContext


def check_authorizer(parts: BrokerContext) -> None:
    """Raise SecurityDisabledError if this broker checks no ACLs."""
    if not parts.authorizer.is_on:
        raise SecurityDisabledError(
            "this broker has no authorizer; set authorizer=report or authorizer=enforce"
        )


def filter_of(row: Any) -> AclFilter:
    """Return the ACL filter in a request. Raises InvalidRequestError for an invalid filter."""
    return acl_filter(
        row.resource_type_filter,
        row.pattern_type_filter,
        row.resource_name_filter,
        row.principal_filter,
        row.host_filter,
        row.operation,
        row.permission_type,
    )
