"""The errors of denied requests: who may not do what, and the command that would allow it.

The message of a broker names a resource only as the client named it in the request, so a denial
does not reveal whether the resource exists. Some answers in Kafka's protocol have an error code but
no message. The client then makes the message, because it knows which resource it asked for
(``named``)."""

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
    """Return the authorization error for a resource of this kind. ``shown``, if not empty, replaces
    the resource's name in the message."""
    verb, noun = operation.name.lower(), kind.name.lower()
    named_as = "NAME" if shown else shlex.quote(name)
    return ERRORS[kind](
        f"{principal}{_MAY_NOT}{verb} {noun} {shown or repr(name)}; "
        f"{_cure(principal, operation, kind, named_as)}"
    )


def cure(user: str, operation: Operation, kind: ResourceKind, name: str) -> str:
    """Return the part of a message that says who can allow ``user`` the operation, and with which
    command."""
    return _cure(f"{_USER}{user}", operation, kind, shlex.quote(name))


def _cure(principal: str, operation: Operation, kind: ResourceKind, name: str) -> str:
    return (
        "a user with ALTER on the cluster can allow it with: logbus acl add "
        f"{_argument(principal)} {operation.name.lower()} {_option(kind, name)}"
    )


def named(
    error: LogbusError, user: str, operation: Operation, kind: ResourceKind, name: str
) -> LogbusError:
    """Return a broker's authorization error with a new message that names the resource for which
    the client asked. Any other error is returned unchanged.

    The new message names ``user``, or the principal in the broker's message if ``user`` is
    empty."""
    if not isinstance(error, tuple(ERRORS.values())):
        return error
    principal = f"{_USER}{user}" if user else error.message.partition(_MAY_NOT)[0]
    return denial(principal, operation, kind, name)


def _argument(principal: str) -> str:
    """Return the principal as an argument of ``logbus acl add``, or the placeholder USER if the
    principal is not known."""
    if ":" not in principal:
        return "USER"
    name = principal.removeprefix(_USER)
    return shlex.quote(principal if ":" in name else name)


def _option(kind: ResourceKind, name: str) -> str:
    option = f"--{kind.name.lower().replace('_', '-')}"
    return option if kind is ResourceKind.CLUSTER else f"{option} {name}"
