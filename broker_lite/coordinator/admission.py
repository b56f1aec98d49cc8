"""Whether a join can be let in: by its times, its size, what it knows, how many there are. Pure."""

from __future__ import annotations

from broker_lite.coordinator.events import Join, Limits
from broker_lite.coordinator.members import Roster, unreadable
from broker_lite.errors import (
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    LogbusError,
)


def refusal(group: str, limits: Limits, roster: Roster, event: Join) -> LogbusError | None:
    """Why nobody who asks so can be let in; None if that is not certain."""
    low, high = limits.session_timeout_min_ms, limits.session_timeout_max_ms
    if not low <= event.session_timeout_ms <= high:
        return InvalidSessionTimeoutError(
            f"session.timeout.ms={event.session_timeout_ms}: give {low} to {high}"
        )
    if event.rebalance_timeout_ms < 0:
        return InvalidRequestError(f"a rebalance timeout of {event.rebalance_timeout_ms} ms")
    size = event.said_bytes
    if size > limits.member_bytes_max:
        return InvalidRequestError(
            f"a member of group {group!r} says {size} bytes of itself; at most "
            f"{limits.member_bytes_max} are taken"
        )
    own = roster.find(event.member_id, event.instance_id)
    others = roster.said_bytes - (0 if own is None else own.said_bytes)
    if others + size > limits.group_bytes_max:
        return GroupMaxSizeReachedError(
            f"the members of group {group!r} would say {others + size} bytes of themselves; at "
            f"most {limits.group_bytes_max} are kept"
        )
    if not roster.fits(event.protocol_type, event.protocols, own):
        return InconsistentGroupProtocolError(
            f"group {group!r} is of type {roster.protocol_type!r} and knows {roster.known()}; "
            "give an assignment strategy that all its members know"
        )
    reason = unreadable(event.protocol_type, event.protocols)
    if reason is not None:
        # As Kafka's coordinator says of such a member where it reads subscriptions itself.
        return InconsistentGroupProtocolError(
            f"a consumer's subscription cannot be read {reason}; send "
            "ConsumerProtocolSubscription, or join with another protocol type"
        )
    if not event.member_id and own is None and roster.size >= limits.size_max:
        return GroupMaxSizeReachedError(
            f"group {group!r} has {roster.size} members, as many as group.max.size allows"
        )
    return None
