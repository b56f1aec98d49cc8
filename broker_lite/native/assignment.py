"""The range assignment of native groups: which stream of which consumer reads a partition.

Every consumer computes the assignment from the same registrations, and gets the same result. The
assignment divides the ordered partitions of each topic into one range for each ordered stream. If
the division has a remainder, the first ranges have one partition more. The module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker_lite.metadata.znodes import NativeSubscription, OwnerZnode
from broker_lite.model import INTERNAL_PREFIX, TopicPartition


def assign(
    subscriptions: Mapping[str, NativeSubscription], partition_counts: Mapping[str, int]
) -> dict[TopicPartition, OwnerZnode]:
    """Return the owner of every partition of the subscribed topics."""
    owners = {}
    for topic in sorted(partition_counts):
        streams = [
            OwnerZnode(consumer, stream)
            for consumer in sorted(subscriptions)
            if covers(subscriptions[consumer], topic)
            for stream in range(subscriptions[consumer].streams)
        ]
        if not streams:
            continue
        each, rest = divmod(partition_counts[topic], len(streams))
        partition = 0
        for position, owner in enumerate(streams):
            for _ in range(each + (position < rest)):
                owners[TopicPartition(topic, partition)] = owner
                partition += 1
    return owners


def covers(subscription: NativeSubscription, topic: str) -> bool:
    """Return whether a subscription includes a topic."""
    if topic in subscription.topics:
        return True
    if subscription.pattern is None or topic.startswith(INTERNAL_PREFIX):
        return False
    try:
        return re.fullmatch(subscription.pattern, topic) is not None
    except re.error:
        return False
