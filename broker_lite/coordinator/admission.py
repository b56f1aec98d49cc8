"""Decide whether a member may join a consumer group, by its timeouts, the size of its metadata, its
protocols and the group's limit of members."""

from __future__ import annotations

from broker_lite.coordinator.events import GroupLimits, Join
from broker_lite.coordinator.members import Roster, unreadable
from broker_lite.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    LogbusError,
)


def refusal(group: str, limits: GroupLimits, roster: Roster, event: Join) -> LogbusError | None:
    """Return the error with which to refuse a JoinGroup request; None if the member may join."""
    low, high = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if not low <= event.session_timeout_ms <= high:
        return InvalidSessionTimeoutError(
            f"session.timeout.ms={event.session_timeout_ms}: give {low} to {high}"
        )
    if event.rebalance_timeout_ms < 0:
        return InvalidRequestError(
            f"rebalance.timeout.ms={event.rebalance_timeout_ms}: give 0 or more"
        )
    size = event.metadata_bytes
    if size > limits.member_bytes_max:
        return InvalidRequestError(
            f"a member of group {group!r} sent {size} bytes of metadata, but at most "
            f"{limits.member_bytes_max} are allowed; subscribe to fewer topics"
        )
    own = roster.find(event.member_id, event.instance_id)
    others = roster.metadata_bytes - (0 if own is None else own.metadata_bytes)
    if others + size > limits.group_bytes_max:
        return GroupMaxSizeReachedError(
            f"the members of group {group!r} would have {others + size} bytes of metadata, but at "
            f"most {limits.group_bytes_max} are allowed; use fewer members or topics"
        )
    if not roster.fits(event.protocol_type, event.protocols, own):
        return InconsistentGroupProtocolError(
            f"group {group!r} has protocol type {roster.protocol_type!r} and the assignment "
            f"strategies {roster.known()}; give a strategy that all its members support"
        )
    reason = unreadable(event.protocol_type, event.protocols)
    if reason is not None:
        # Kafka's coordinator, too, answers INCONSISTENT_GROUP_PROTOCOL if it cannot decode a
        # subscription.
        return InconsistentGroupProtocolError(
            f"group {group!r}: the consumer's subscription cannot be decoded {reason}; encode it "
            "as ConsumerProtocolSubscription, or join with another protocol type"
        )
    if not event.member_id and own is None and roster.size >= limits.size_max:
        return GroupMaxSizeReachedError(
            f"group {group!r} has {roster.size} members, as many as group.max.size allows; stop a "
            "member, or raise the brokers' group.max.size"
        )
    return None
