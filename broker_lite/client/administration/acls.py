"""Describe, create and delete access control lists (ACLs)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_lite.client.administration.admin_requests import await_applied
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.requests import ask_any_broker, on_any_broker
from broker_lite.client.transport.steps import CallExchange, Operation
from broker_lite.errors import ClusterAuthorizationError, raise_for
from broker_lite.model import Endpoint
from broker_lite.security.acls import Acl, AclFilter, acl_of
from broker_lite.wire.calls.acls import (
    AclResult,
    AclRow,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribedAcls,
)


def describe_acls(
    cluster: Cluster, acl_filter: AclFilter, deadline_ms: float
) -> Operation[list[Acl]]:
    """Return the cluster's ACLs that match the filter.

    Raises SecurityDisabledError if the brokers have no authorizer, and ClusterAuthorizationError if
    the user lacks DESCRIBE on the cluster.
    """
    exchange = CallExchange(DescribeAclsRequest(_filter(acl_filter)))
    answer = yield from on_any_broker(cluster, exchange, lambda _: None, deadline_ms)
    return _acls(answer)


def create_acls(cluster: Cluster, acls: Sequence[Acl], deadline_ms: float) -> Operation[None]:
    """Create ACLs. Return once every live broker enforces them."""
    rows = tuple(
        AclRow(kind, name, pattern_type, *entry) for (kind, pattern_type, name), entry in acls
    )
    exchange = CallExchange(CreateAclsRequest(rows))
    results, writer = yield from ask_any_broker(cluster, exchange, lambda _: None, deadline_ms)
    _check(results)
    yield from _await(cluster, writer, acls, deadline_ms, present=True)


def delete_acls(
    cluster: Cluster, filters: Sequence[AclFilter], deadline_ms: float
) -> Operation[list[Acl]]:
    """Delete all ACLs that match a filter. Return them once no live broker enforces them."""
    exchange = CallExchange(DeleteAclsRequest(tuple(map(_filter, filters))))
    results, writer = yield from ask_any_broker(cluster, exchange, lambda _: None, deadline_ms)
    _check(results)
    deleted = [_acl(row) for result in results for row in result.deleted]
    yield from _await(cluster, writer, deleted, deadline_ms, present=False)
    return deleted


def _await(
    cluster: Cluster, writer: Endpoint, acls: Sequence[Acl], deadline_ms: float, *, present: bool
) -> Operation[None]:
    """Wait until every live broker has all these ACLs, or, if ``present`` is False, none of
    them."""

    wanted = set(acls) if present else set[Acl]()

    def read(answer: DescribedAcls) -> set[Acl]:
        if answer.error_code == ClusterAuthorizationError.code:
            # This user could change ACLs, and so describe them, a moment ago. The refusal shows
            # that the broker has applied the change, which took the permission away.
            return wanted
        return {acl for acl in _acls(answer) if acl in acls}

    return await_applied(
        cluster,
        writer,
        CallExchange(DescribeAclsRequest(_filter(AclFilter()))),
        read,
        lambda found: found == wanted,
        changed="the ACLs",
        deadline_ms=deadline_ms,
    )


def _acls(answer: DescribedAcls) -> list[Acl]:
    raise_for(answer.error_code, answer.error_message)
    return [_acl(row) for row in answer.acls]


def _acl(row: AclRow) -> Acl:
    assert row.name is not None and row.principal is not None and row.host is not None
    return acl_of(
        row.kind, row.pattern_type, row.name, row.principal, row.host, row.operation, row.permission
    )


def _filter(acl_filter: AclFilter) -> AclRow:
    return AclRow(
        acl_filter.kind,
        acl_filter.name,
        acl_filter.type,
        acl_filter.principal,
        acl_filter.host,
        acl_filter.operation,
        acl_filter.permission,
    )


def _check(results: Iterable[AclResult]) -> None:
    for row in results:
        raise_for(row.error_code, row.error_message)
