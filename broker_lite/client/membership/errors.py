"""Explain the coordinator's errors to a consumer's user, with group, setting and remedy."""

from __future__ import annotations

from broker_lite.client.membership.settings import MemberConfig
from broker_lite.errors import (
    FencedInstanceIdError,
    GroupAuthorizationError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    LogbusError,
)
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.security.denials import named


def denied_member(error: LogbusError, user: str, group: str) -> LogbusError:
    """Return ``error``. If it is an authorization error, its message names group and permission."""
    if not isinstance(error, GroupAuthorizationError):
        return error
    return named(error, user, Operation.READ, ResourceKind.GROUP, group)


def explained(error: LogbusError, group: str, config: MemberConfig) -> LogbusError:
    """Return ``error`` with a message that tells the consumer's user the cause and the remedy.

    An error that has a message of its own, or no known cause, is returned unchanged."""
    why = {
        InconsistentGroupProtocolError: (
            f"group {group!r} has members that support none of partition.assignment.strategy="
            f"{config.assignors!r}, or it is a native group; give a strategy that they support, "
            "or another group"
        ),
        InvalidSessionTimeoutError: (
            f"session.timeout.ms={config.session_timeout_ms} is not between the brokers' "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        ),
        InvalidRequestError: (
            f"the coordinator of group {group!r} refused the subscription, which has more than "
            "256 KiB of topic names, counted once for each of partition.assignment.strategy="
            f"{config.assignors!r}; subscribe to fewer topics, or give one strategy"
        ),
        GroupMaxSizeReachedError: (
            f"group {group!r} has as many members as group.max.size allows, or its members "
            "subscribe to too many topics; stop a member, or subscribe to fewer topics"
        ),
        FencedInstanceIdError: (
            f"another consumer joined group {group!r} as group.instance.id="
            f"{config.group_instance_id!r} and has its partitions; give each consumer its own"
        ),
    }
    kind = type(error)
    is_bare = error.message == kind().message
    return kind(why[kind]) if is_bare and kind in why else error
