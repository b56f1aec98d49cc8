"""Copy the committed offsets of the source cluster's groups to the target cluster.

Each offset at the source is translated to the offset of the copied record. The offsets may be those
of Kafka groups and of native groups (without a coordinator). On the target, a group with nothing
but copied offsets has no kind yet: its first member decides the kind (``metadata/group_kind.py``).
The mirror writes an offset only if the group on the target has no members, and no offset of this
partition that another client committed (``planning.plan_group``). All calls block, and only the
mirror's thread makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from broker_lite.errors import LogbusError
from broker_lite.mirror import planning
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.planning import GroupRow
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import MIRROR_PREFIX, CommittedOffset, TopicPartition

GroupCommits = tuple[str, Mapping[TopicPartition, CommittedOffset]]
"""The name of a group and its committed offsets."""


class GroupSync:
    """Copies the committed offsets of all groups whose whole name matches ``pattern``. ``rows`` has
    what the last complete ``write`` did with each offset."""

    def __init__(
        self, source: MirrorSource, target: MirrorTarget, log: MirrorLog, pattern: str
    ) -> None:
        self.rows: list[GroupRow] = []
        self._source = source
        self._target = target
        self._log = log
        self._pattern = pattern

    def read(self) -> Iterator[GroupCommits]:
        """Yield the source's groups with their committed offsets."""
        return self._source.groups(self._pattern)

    def write(
        self, mirror: str, copies: Mapping[TopicPartition, Copy], at_source: Iterable[GroupCommits]
    ) -> Iterator[str]:
        """Translate the committed offsets ``at_source``, which ``read`` yields, to offsets of the
        copies. Commit on the target the results that ``planning.plan_group`` allows, with the name
        ``mirror`` in their metadata.

        Yield each group's name before its offsets are written, so that the caller can copy records
        in between."""
        source_ids = {copy.tp.topic: copy.source_id for copy in copies.values()}
        target_ids = {copy.tp.topic: copy.target_id for copy in copies.values()}
        maps = {tp: copy.known for tp, copy in copies.items()}
        group_rows: list[GroupRow] = []
        for group, commits in at_source:
            yield group
            if group.startswith(MIRROR_PREFIX) or not commits:
                continue
            there = self._target.admin.committed(group)
            rows = planning.plan_group(
                group, commits, there, maps=maps, source_ids=source_ids, target_ids=target_ids
            )
            writes = {
                row.tp: CommittedOffset(
                    row.target_offset or 0,
                    metadata=planning.mark(mirror, row.source_offset),
                    topic_id=target_ids[row.tp.topic],
                )
                for row in rows
                if row.state == "write"
            }
            group_rows.extend(self._committed(rows, self._commit(group, writes)))
        self.rows = group_rows

    def _commit(
        self, group: str, writes: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, LogbusError | None]:
        try:
            return self._target.admin.commit_each(group, writes)
        except LogbusError as error:
            if error.retriable:
                raise
            return dict.fromkeys(writes, error)

    def _committed(
        self, rows: Iterable[GroupRow], done: Mapping[TopicPartition, LogbusError | None]
    ) -> Iterator[GroupRow]:
        for row in rows:
            error = done.get(row.tp)
            if row.state != "write" or error is None:
                yield row._replace(state="same") if row.state == "write" else row
                continue
            self._log.write_once(
                f"group {row.group} has members on the target, so the mirror does not change its "
                f"offsets there: {error.message}"
            )
            yield row._replace(target_offset=None, state=f"refused: {error.message}")
