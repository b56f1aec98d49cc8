"""Check that offsets, timestamps and partition numbers fit into the protocol's fields."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.errors import InvalidRequestError
from broker_lite.model import CommittedOffset, TopicPartition

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1


def check_offsets(offsets: Mapping[TopicPartition, int], *, at_least: int = 0) -> None:
    """Raise InvalidRequestError, which names the partition, for an offset out of bounds.

    The bounds are ``at_least`` and 2^63-1."""
    for tp, offset in offsets.items():
        if not isinstance(offset, int) or not at_least <= offset <= INT64_MAX:
            raise InvalidRequestError(
                f"{tp}: offset {offset!r}: give a whole number from {at_least} to 2^63-1"
            )
        _check_partition(tp)


def check_commits(commits: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Raise InvalidRequestError, which names the partition, unless offsets are 0 to 2^63-1, and
    leader epochs -1 to 2^31-1."""
    check_offsets({tp: row.offset for tp, row in commits.items()})
    for tp, row in commits.items():
        if not isinstance(row.leader_epoch, int) or not -1 <= row.leader_epoch <= INT32_MAX:
            raise InvalidRequestError(
                f"{tp}: leader epoch {row.leader_epoch!r}: give a whole number from -1 to 2^31-1"
            )


def check_times(timestamps: Mapping[TopicPartition, int]) -> None:
    """Raise InvalidRequestError, which names the partition, for a timestamp that is no 64-bit
    integer."""
    for tp, timestamp in timestamps.items():
        if not isinstance(timestamp, int) or not -INT64_MAX <= timestamp <= INT64_MAX:
            raise InvalidRequestError(
                f"{tp}: timestamp {timestamp!r}: give milliseconds since 1970, below 2^63"
            )
        _check_partition(tp)


def _check_partition(tp: TopicPartition) -> None:
    if not isinstance(tp.partition, int) or not 0 <= tp.partition <= INT32_MAX:
        raise InvalidRequestError(
            f"{tp.topic!r}: partition {tp.partition!r}: give a whole number from 0 to 2^31-1"
        )
