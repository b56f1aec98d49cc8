"""How far a group is behind, partition by partition: what ``Admin.lag`` answers. Without pyarrow.

One way for native groups, Kafka groups and Spark queries: their offsets are in one store. Pure: the
caller asks, and says what time it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker_lite.errors import LogbusError, ProtocolError
from broker_lite.model import CommittedOffset, ListedOffset, TopicPartition
from broker_lite.wire.calls.groups import DescribedGroupMember
from broker_lite.wire.consumer_protocol import decode_assignment


class PartitionLag(NamedTuple):
    """A group's place in one partition.

    ``committed``: None where a member reads the partition and nothing was committed yet; its lag
    is counted from the log's start then, the most that it can be.
    ``records``: from the committed offset to the end. ``seconds``: how long ago the first of them
    was written, by its timestamp and this machine's clock; 0 where nothing is unread. ``end``,
    ``records`` and ``seconds`` are None for a partition without a leader or of a topic that is
    gone, ``seconds`` also where that record has no timestamp or cannot be read now.
    ``owner``: who reads the partition now: a member, a Spark query (the id of its run), or None.
    """

    committed: CommittedOffset | None
    end: int | None
    records: int | None
    seconds: float | None
    owner: str | None


def lag_of(
    committed: Mapping[TopicPartition, CommittedOffset],
    *,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, ListedOffset],
    firsts: Mapping[TopicPartition, ListedOffset | LogbusError],
    owners: Mapping[TopicPartition, str],
    now_ms: float,
) -> dict[TopicPartition, PartitionLag]:
    """Of what is committed or owned. ``starts`` (from where is unread) and ``ends`` of the
    partitions that have a leader; ``firsts``: the first unread records."""
    found = {}
    for tp in sorted(committed.keys() | owners.keys()):
        end = ends[tp].offset if tp in ends else None
        records = None if end is None else max(end - starts[tp], 0)
        seconds = _seconds(firsts.get(tp), now_ms) if records else records
        found[tp] = PartitionLag(committed.get(tp), end, records, seconds, owners.get(tp))
    return found


def _seconds(first: ListedOffset | LogbusError | None, now_ms: float) -> float | None:
    if first is None or isinstance(first, LogbusError) or first.timestamp_ms < 0:
        return None
    # A producer's clock may be ahead of ours.
    return max(0.0, round(now_ms - first.timestamp_ms) / 1000)


def owned_by(member: DescribedGroupMember) -> tuple[TopicPartition, ...]:
    """The partitions of a member; none of one that is no consumer."""
    try:
        return decode_assignment(member.member_assignment)
    except ProtocolError:
        return ()
