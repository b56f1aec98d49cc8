"""The progress of a group as rows to print: committed offset, end offset and lag of each
partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from broker_lite.cli.output import iso
from broker_lite.model import TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.administration.admin import Admin


def group_progress(admin: Admin, group: str) -> list[dict[str, Any]]:
    """Return a row for each partition with a committed offset of the group or a reading member.

    ``committed`` and ``committed_at`` are None without a committed offset. ``lag`` is the number of
    unread records, and ``lag_s`` the age in seconds of the oldest of them (``PartitionLag``)."""
    return [
        {
            "group": group,
            "topic": tp.topic,
            "partition": tp.partition,
            "committed": row.committed and row.committed.offset,
            "end": row.end,
            "lag": row.records,
            "lag_s": row.seconds,
            "committed_at": row.committed and iso(row.committed.commit_ms),
            "owner": row.owner,
        }
        for tp, row in admin.lag(group).items()
    ]


def uncounted(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each partition whose lag is unknown."""
    for row in rows:
        if row["lag"] is None:
            yield (
                f"group {row['group']!r}: the lag in {row['topic']}-{row['partition']} is not "
                "known: it has no leader, or the topic was deleted"
            )


PENDING_MAX = 20
"""Maximum partitions that one sentence about open transactions names."""


def pending(group: str, unstable: Iterable[TopicPartition]) -> Iterator[str]:
    """Yield a sentence that names the partitions ``unstable``, whose committed offsets open
    transactions may still change; none if there are no such partitions."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(unstable)]
    if names:
        rest = len(names) - PENDING_MAX
        more = f" and {rest} more" if rest > 0 else ""
        yield (
            f"group {group!r}: open transactions have later offsets for "
            f"{' '.join(names[:PENDING_MAX])}{more}; these count once the transactions commit"
        )
