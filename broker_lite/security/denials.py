"""The errors of denied requests: who may not do what, and the command that would allow it.

A broker names only what the client named itself, so a denial does not tell whether the resource
exists. Some answers of Kafka's protocol carry a code alone; the client then names the resource.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from broker_lite.errors import (
    ClusterAuthorizationError,
    GroupAuthorizationError,
    LogbusError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from broker_lite.security.acls import Operation, ResourceKind

ERRORS: Mapping[ResourceKind, type[LogbusError]] = {
    ResourceKind.TOPIC: TopicAuthorizationError,
    ResourceKind.GROUP: GroupAuthorizationError,
    ResourceKind.TRANSACTIONAL_ID: TransactionalIdAuthorizationError,
    ResourceKind.CLUSTER: ClusterAuthorizationError,
}
OF_THIS_ID = "of this id"
"""Text that replaces the topic name in an error if the client named the topic by id. The client may
not be allowed to know the topic's name."""
_MAY_NOT = " may not "
_USER = "User:"


def denial(
    principal: str, operation: Operation, kind: ResourceKind, name: str, shown: str = ""
) -> LogbusError:
    """Return the authorization error of the kind. ``shown`` replaces the name in its message."""
    verb, noun = operation.name.lower(), kind.name.lower()
    named_as = "NAME" if shown else shlex.quote(name)
    return ERRORS[kind](
        f"{principal}{_MAY_NOT}{verb} {noun} {shown or repr(name)}; "
        f"{_cure(principal, operation, kind, named_as)}"
    )


def cure(user: str, operation: Operation, kind: ResourceKind, name: str) -> str:
    """Return who may allow the operation to a user, and the command."""
    return _cure(f"{_USER}{user}", operation, kind, shlex.quote(name))


def _cure(principal: str, operation: Operation, kind: ResourceKind, name: str) -> str:
    return (
        "a user with ALTER on the cluster can allow it with: logbus acl add "
        f"{_argument(principal)} {operation.name.lower()} {_option(kind, name)}"
    )


def named(
    error: LogbusError, user: str, operation: Operation, kind: ResourceKind, name: str
) -> LogbusError:
    """Return a broker's denial with the resource that the client asked for; another error as it is.

    ``user`` is the client's user name. If it is empty, the principal is that of the broker's
    message, if the message has one.
    """
    if not isinstance(error, tuple(ERRORS.values())):
        return error
    principal = f"{_USER}{user}" if user else error.message.partition(_MAY_NOT)[0]
    return denial(principal, operation, kind, name)


def _argument(principal: str) -> str:
    """Return the principal as ``logbus acl add`` takes it; USER if it is not known."""
    if ":" not in principal:
        return "USER"
    name = principal.removeprefix(_USER)
    return shlex.quote(principal if ":" in name else name)


def _option(kind: ResourceKind, name: str) -> str:
    option = f"--{kind.name.lower().replace('_', '-')}"
    return option if kind is ResourceKind.CLUSTER else f"{option} {name}"
