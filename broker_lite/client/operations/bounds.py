"""Checks of callers' numbers before a request is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.errors import InvalidRequestError
from broker_lite.model import CommittedOffset, TopicPartition

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1


def check_offsets(offsets: Mapping[TopicPartition, int], *, at_least: int = 0) -> None:
    """Raise InvalidRequestError, with the partition, for an offset out of bounds."""
    for where, offset in offsets.items():
        if not isinstance(offset, int) or not at_least <= offset <= INT64_MAX:
            raise InvalidRequestError(
                f"{where}: offset {offset!r} is none: give a whole number from {at_least} to 2^63-1"
            )
        _check_partition(where)


def check_commits(commits: Mapping[TopicPartition, CommittedOffset]) -> None:
    """Raise InvalidRequestError, with the partition, for a commit out of bounds."""
    check_offsets({where: row.offset for where, row in commits.items()})
    for where, row in commits.items():
        if not isinstance(row.leader_epoch, int) or not -1 <= row.leader_epoch <= INT32_MAX:
            raise InvalidRequestError(f"{where}: leader epoch {row.leader_epoch!r} is none")


def check_times(timestamps: Mapping[TopicPartition, int]) -> None:
    """Raise InvalidRequestError, with the partition, for a timestamp out of bounds."""
    for where, timestamp in timestamps.items():
        if not isinstance(timestamp, int) or not -INT64_MAX <= timestamp <= INT64_MAX:
            raise InvalidRequestError(
                f"{where}: time {timestamp!r} is none: give milliseconds since 1970, below 2^63"
            )
        _check_partition(where)


def _check_partition(where: TopicPartition) -> None:
    if not isinstance(where.partition, int) or not 0 <= where.partition <= INT32_MAX:
        raise InvalidRequestError(f"{where.topic!r}: partition {where.partition!r} is none")
