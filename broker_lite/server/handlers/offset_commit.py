"""Handle OffsetCommit 0-9: write a group's offsets to ZooKeeper, as the group's coordinator.

The broker answers when ZooKeeper has confirmed the write. While a group has members, only they may
commit, in the current generation. Otherwise any client may, without a generation.

A logbus client sends each topic's id in a tagged field. If the topic was deleted and created anew
since, the commit fails with UNKNOWN_TOPIC_ID. Without an id, the current topic of that name is
meant.

Retention and commit times in versions 1-4 are ignored. Offsets are kept until their group or topic
is deleted, or the group has been empty for longer than the broker's offset retention."""

from __future__ import annotations

from typing import Any

from broker_lite.coordinator.events import Commit
from broker_lite.errors import NO_ERROR, LogbusError, error_for, wire_code
from broker_lite.model import UNNUMBERED
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.handlers.offset_rows import OffsetRows
from broker_lite.server.network.context import RequestContext
from broker_lite.wire.tables import OffsetCommitResponse as Response

_Topic = Response.OffsetCommitResponseTopic


async def handle(parts: BrokerContext, request: RequestContext, message: Any) -> Any:
    """Commit the offset of each partition, even if other offsets are refused."""
    access = request.access

    def check_access(topic: str) -> None:
        access.check_group(message.group_id)
        access.check_topic(topic)

    rows = OffsetRows.checked(parts, message, check_access)
    commit = Commit(
        UNNUMBERED,
        message.member_id,
        message.group_instance_id,
        message.generation_id_or_member_epoch,
    )
    if rows.offsets:
        began_us = parts.clock.monotonic_us()
        try:
            claim = await parts.groups.claim_for_commit(message.group_id, commit)
            rows.stored(await parts.registry.groups.commit(message.group_id, rows.offsets, claim))
        except LogbusError as error:
            rows.failed(wire_code(error))
        seconds = (parts.clock.monotonic_us() - began_us) / 1e6
        parts.groups.commit_durations.observe(seconds)

    for code in (*rows.refused.values(), *rows.codes.values()):
        if code != NO_ERROR:
            parts.metrics.count("offset_commit_errors", error_for(code).name)
    return Response(topics=rows.answer(_Topic, _Topic.OffsetCommitResponsePartition))
