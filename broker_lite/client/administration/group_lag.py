"""Compute the lag of a group in each partition, for ``Admin.lag``, from offsets and a time.

Native groups, Kafka groups and Spark queries store their offsets in the same place, so one function
serves all of them. The module does no I/O and imports no pyarrow.
"""

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

    - ``committed``: the committed offset. None if a member reads the partition without a commit;
      the lag then counts from the log's start.
    - ``records``: offsets between the committed offset and the end, the last stable offset.
    - ``seconds``: age of the first unread record by its timestamp and this machine's clock. 0
      without unread records, or if only markers and aborted records are unread. None if that record
      has no timestamp or is unreadable.
    - ``end``, ``records``, ``seconds``: None for a partition of a deleted topic, or without a
      leader that answers.
    - ``owner``: the member or Spark query (its run id) that reads the partition, or None.
    - ``unread``: the first unread record. None without unread records, or if the record is
      unreadable.
    """

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

    ``starts`` has the first unread offset, and ``ends`` the end, of each partition with a leader.
    ``firsts`` has the first unread records. ``now_ms`` is the time since 1970.
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
    # The producer's clock may be ahead of this machine's clock.
    return max(0.0, round(now_ms - first.timestamp_ms) / 1000)


def owned_by(member: DescribedGroupMember) -> tuple[TopicPartition, ...]:
    """Return the partitions of a group member. The result is empty for a member that is not a
    consumer."""
    try:
        return decode_assignment(member.member_assignment)
    except ProtocolError:
        return ()
