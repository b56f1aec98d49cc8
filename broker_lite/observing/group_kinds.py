"""The kind of a consumer group, such as "Native" or "Connect", as the command line and the console
show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import GroupListing

NATIVE, SPARK, OFFSETS = "Native", "Spark query", "Offsets only"


def group_kind(listing: GroupListing) -> str:
    """Return the kind of a listed group.

    - "Native": the members coordinate through ZooKeeper.
    - "Offsets only": the group has had no member yet.
    - "Consumer": a broker coordinates consumers.
    - Another protocol type, such as "Connect": another kind of program uses Kafka's group protocol.

    Whether a Spark query commits its progress to the group is not shown by a listing, but by the
    metadata of the group's commits, which the callers read."""
    if listing.kind.lower() == "native":
        return NATIVE
    return listing.protocol_type.capitalize() or OFFSETS
