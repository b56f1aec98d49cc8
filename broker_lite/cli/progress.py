"""How far groups are: committed offset, end offset and lag of each partition, in one place."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from broker_lite.cli.output import iso
from broker_lite.errors import GroupIdNotFoundError, ProtocolError
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition
from broker_lite.wire.consumer_protocol import decode_assignment

if TYPE_CHECKING:
    from broker_lite.client.admin import Admin
    from broker_lite.wire.calls.groups import DescribedGroupMember


def group_members(admin: Admin, group: str) -> dict[str, tuple[TopicPartition, ...]]:
    """The live members of a group and what each owns; none where there is no such group."""
    with contextlib.suppress(GroupIdNotFoundError):
        return {
            row.member_id: owned_by(row) for row in admin.describe_groups([group])[group].members
        }
    return {}


def owned_by(member: DescribedGroupMember) -> tuple[TopicPartition, ...]:
    """The partitions of a member; none of one that is no consumer."""
    try:
        return decode_assignment(member.member_assignment)
    except ProtocolError:
        return ()


def group_progress(admin: Admin, group: str) -> list[dict[str, Any]]:
    """One row for each partition that the group committed; empty where it committed none.

    ``end`` and ``lag`` are None for a partition without a leader, or of a topic that is gone;
    ``owner`` is the member that reads it now, or None.
    """
    committed = {tp: at for tp, at in admin.committed(group).items() if at.offset >= 0}
    if not committed:
        return []
    members = group_members(admin, group)
    owners = {tp: name for name, owned in members.items() for tp in owned}
    view = admin.cluster({tp.topic for tp in committed})
    led = [tp for tp in committed if view.leader(tp) is not None]
    ends = admin.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP)) if led else {}
    return [
        _row(group, tp, committed[tp].offset, committed[tp].commit_ms, ends, owners)
        for tp in sorted(committed)
    ]


def _row(
    group: str,
    tp: TopicPartition,
    offset: int,
    commit_ms: int,
    ends: dict[TopicPartition, Any],
    owners: dict[TopicPartition, str],
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
        "owner": owners.get(tp),
    }
