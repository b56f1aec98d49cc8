"""The kind of a group, in logbus's terms."""

from __future__ import annotations

from broker_lite.client.administration.admin import GroupListing

NATIVE, SPARK, OFFSETS = "Native", "Spark query", "Offsets only"


def group_kind(listing: GroupListing) -> str:
    """Return the kind: "Native" (the members coordinate through ZooKeeper), "Offsets only" (no
    member yet), "Consumer" (a broker coordinates consumers), or another user of Kafka's group
    protocol, such as "Connect". A Spark query that publishes to a group appears only in the group's
    commits."""
    if listing.kind.lower() == "native":
        return NATIVE
    return listing.protocol_type.capitalize() or OFFSETS
