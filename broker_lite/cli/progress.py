"""How far groups are: committed offset, end offset and lag of each partition, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker_lite.cli.output import iso
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from broker_lite.client.admin import Admin


def group_progress(admin: Admin, group: str) -> list[dict[str, Any]]:
    """One row for each partition that the group committed; empty where it committed none.

    ``end`` and ``lag`` are None for a partition without a leader, or of a topic that is gone.
    """
    committed = {tp: at for tp, at in admin.committed(group).items() if at.offset >= 0}
    if not committed:
        return []
    view = admin.cluster({tp.topic for tp in committed})
    led = [tp for tp in committed if view.leader(tp) is not None]
    ends = admin.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP)) if led else {}
    return [
        _row(group, tp, committed[tp].offset, committed[tp].commit_ms, ends)
        for tp in sorted(committed)
    ]


def _row(
    group: str, tp: TopicPartition, offset: int, commit_ms: int, ends: dict[TopicPartition, Any]
) -> dict[str, Any]:
    end = ends[tp].offset if tp in ends else None
    return {
        "group": group,
        "topic": tp.topic,
        "partition": tp.partition,
        "committed": offset,
        "end": end,
        "lag": max(end - offset, 0) if end is not None else None,
        "committed_at": iso(commit_ms),
    }
