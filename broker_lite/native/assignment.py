"""The range assignment of native groups: which stream of which consumer reads a partition. No I/O.

Every consumer of the group computes the assignment from the same registrations in ZooKeeper, and
gets the same result. The streams of all consumers are sorted. Each topic's partitions are divided
among the streams in consecutive ranges of equal size. If they do not divide evenly, the first
streams get one more."""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker_lite.metadata.znodes import NativeSubscription, OwnerZnode
from broker_lite.model import INTERNAL_PREFIX, TopicPartition


def assign(
    subscriptions: Mapping[str, NativeSubscription], partition_counts: Mapping[str, int]
) -> dict[TopicPartition, OwnerZnode]:
    """Return the stream (a reader of a consumer) that must own each partition of the subscribed
    topics.

    ``subscriptions`` has the subscription of each consumer of the group, by its name, and
    ``partition_counts`` the number of partitions of each topic."""
    readers: dict[NativeSubscription, list[OwnerZnode]] = {}
    for consumer, row in subscriptions.items():
        streams = readers.setdefault(selection(row), [])
        streams += [OwnerZnode(consumer, stream) for stream in range(row.streams)]
    owners = {}
    for topic in sorted(partition_counts):
        streams = sorted(
            owner for selected, rows in readers.items() if covers(selected, topic) for owner in rows
        )
        if not streams:
            continue
        each, rest = divmod(partition_counts[topic], len(streams))
        partition = 0
        for position, owner in enumerate(streams):
            for _ in range(each + (position < rest)):
                owners[TopicPartition(topic, partition)] = owner
                partition += 1
    return owners


def selection(subscription: NativeSubscription) -> NativeSubscription:
    """Return the part of a subscription that selects topics: names and pattern, without the number
    of streams.

    Most consumers of a group select the same topics. A caller can match all topics with each
    different selection only once."""
    return NativeSubscription(subscription.topics, subscription.pattern, 0)


def covers(subscription: NativeSubscription, topic: str) -> bool:
    """Return whether a subscription includes a topic, by name or by pattern. No topic matches an
    invalid pattern."""
    if topic in subscription.topics:
        return True
    if subscription.pattern is None or topic.startswith(INTERNAL_PREFIX):
        return False
    try:
        return re.fullmatch(subscription.pattern, topic) is not None
    except re.error:
        return False
