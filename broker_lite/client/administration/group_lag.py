"""Compute the lag of a group in each partition, for ``Admin.lag``, without I/O and pyarrow.

Kafka groups, native groups (which coordinate through ZooKeeper) and Spark queries all store their
progress as committed offsets of a group, so one function serves all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from broker_lite.errors import LogbusError, ProtocolError
from broker_lite.model import CommittedOffset, ListedOffset, TopicPartition
from broker_lite.wire.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    from broker_lite.wire.calls.groups import DescribedGroupMember


class PartitionLag(NamedTuple):
    """A group's lag in one partition.

    - ``committed``: the committed offset. None if a member reads the partition but has not
      committed an offset; the lag then counts from the log's start.
    - ``end``: the last stable offset of the log.
    - ``records``: the number of offsets from the committed offset to ``end``.
    - ``seconds``: the age of the first unread record, by its timestamp and this machine's clock. 0
      if no records are unread, or only transaction markers and aborted records. None if the first
      unread record has no timestamp or cannot be read.
    - ``end``, ``records`` and ``seconds`` are None if the topic was deleted, or if the partition
      has no leader that answers.
    - ``owner``: the id of the member, or the run id of the Spark query, that reads the partition,
      or None.
    - ``unread``: offset and timestamp of the first unread record; None without a readable
      record."""

    committed: CommittedOffset | None
    end: int | None
    records: int | None
    seconds: float | None
    owner: str | None
    unread: ListedOffset | None = None


def lag_of(
    committed: Mapping[TopicPartition, CommittedOffset],
    *,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, ListedOffset],
    firsts: Mapping[TopicPartition, ListedOffset | LogbusError],
    owners: Mapping[TopicPartition, str],
    now_ms: float,
) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of all partitions that have a committed offset or an owner.

    - ``starts``: the offset from which to count in each partition with a leader: the committed
      offset, else the log start offset
    - ``ends``: the last stable offset of each partition with a leader
    - ``firsts``: the first unread record, or the error of its lookup
    - ``owners``: the member or query that reads the partition
    - ``now_ms``: the time in ms since 1970, from which the lag in seconds is computed

    The lag of a partition without a leader is unknown.
    """
    lags = {}
    for tp in sorted(committed.keys() | owners.keys()):
        end = ends[tp].offset if tp in ends else None
        records = None if end is None else max(end - starts[tp], 0)
        first = firsts.get(tp)
        seconds = _seconds(first, now_ms) if records else records
        unread = (
            first if records and isinstance(first, ListedOffset) and first.offset >= 0 else None
        )
        lags[tp] = PartitionLag(committed.get(tp), end, records, seconds, owners.get(tp), unread)
    return lags


def _seconds(first: ListedOffset | LogbusError | None, now_ms: float) -> float | None:
    if first is None or isinstance(first, LogbusError):
        return None
    if first.offset < 0:
        return 0.0
    if first.timestamp_ms < 0:
        return None
    # Return no negative lag if the producer's clock is ahead of this machine's clock.
    return max(0.0, round(now_ms - first.timestamp_ms) / 1000)


def owned_by(member: DescribedGroupMember) -> tuple[TopicPartition, ...]:
    """Return the partitions assigned to a group member; none if the member is no consumer.

    Kafka Connect workers, for example, are members of groups too."""
    try:
        return decode_assignment(member.member_assignment)
    except ProtocolError:
        return ()
