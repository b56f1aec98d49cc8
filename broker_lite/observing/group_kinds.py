"""The kind of a group, in logbus's terms."""

from __future__ import annotations

from broker_lite.client.administration.admin import GroupListing

NATIVE, SPARK, OFFSETS = "Native", "Spark query", "Offsets only"


def group_kind(listing: GroupListing) -> str:
    """Return "Native" if the members coordinate through ZooKeeper, and "Offsets only" before the
    first member; else a broker coordinates them: "Consumer" for logbus's and Kafka's consumers, or
    another use of the protocol, as "Connect". Only the commits of a group tell that a Spark query
    publishes to it."""
    if listing.kind.lower() == "native":
        return NATIVE
    return listing.protocol_type.capitalize() or OFFSETS
