"""Copy the source cluster's topics and their settings to the target cluster, and begin the copies
of partitions.

All calls block, and only the mirror's thread makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_lite.client.operations.cluster import ClusterView
from broker_lite.errors import InvalidConfigError, LogbusError, UnknownTopicIdError
from broker_lite.mirror import planning, positions
from broker_lite.mirror.checkpoint import MirrorCheckpoint
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.log import MirrorLog
from broker_lite.mirror.resuming import Resumer
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

CHECK_MS = 10_000
"""Milliseconds after which the mirror looks again for new topics, changed settings and group
offsets."""


class TopicSync:
    """Copies all topics whose whole name matches ``pattern``, and adds their partitions to
    ``checkpoint.copies``."""

    def __init__(
        self,
        source: MirrorSource,
        target: MirrorTarget,
        log: MirrorLog,
        checkpoint: MirrorCheckpoint,
        resumer: Resumer,
        *,
        pattern: str,
        replication_factor: int,
    ) -> None:
        self.absent: list[str] = []
        """Topics that the caller named but that do not exist at the source."""
        self._source = source
        self._target = target
        self._log = log
        self._checkpoint = checkpoint
        self._copies = checkpoint.copies
        self._resumer = resumer
        self._pattern = pattern
        self._replication_factor = replication_factor

    def run(self, target_id: str, *, once: bool) -> None:
        """Create new topics and partitions on the target, copy changed settings, and begin to copy
        the new partitions.

        ``target_id`` is the id of the target cluster. With ``once``, raises InvalidConfigError if
        no topic matches."""
        view = self._source.view()
        names = planning.chosen_topics(view, self._pattern)
        self._log_absent(view, names, once=once)
        self._exclude_loops(view, names, target_id)
        names = [name for name in names if name not in self._copies.aside]
        settings = self._source.admin.describe_configs(names) if names else {}
        there = self._target.admin.cluster()
        fresh = [name for name in names if name not in there.topics]
        for name in names:
            copy_settings = planning.wanted_settings(settings["topic", name])
            for text in (
                *copy_settings.notes,
                *(f"{x} is not known here" for x in copy_settings.unknown),
            ):
                self._log.write_once(f"topic {name}: {text}")
            count = len(view.topics[name].partitions)
            if name in fresh:
                created = planning.settings_to_create(copy_settings)
                self._target.admin.create_topic(name, count, self._replication_factor, created)
                self._checkpoint.settings[name] = copy_settings.values
                continue
            if len(there.topics[name].partitions) < count:
                self._target.admin.create_partitions(name, count)
        self._alter([name for name in names if name not in fresh], settings)
        there = self._target.admin.cluster(names) if names else there
        self._begin_copies(
            {
                tp: (view.topics[name].topic_id, there.topics[name].topic_id)
                for name in names
                if name not in self._copies.aside
                for tp in view.partitions_of(name)
            }
        )

    def _log_absent(self, view: ClusterView, names: list[str], *, once: bool) -> None:
        self.absent = planning.absent(self._pattern, names)
        waits = "" if once else f"; looking for it every {CHECK_MS // 1000} s"
        if not names:
            there = planning.chosen_topics(view, ".*")
            text = planning.nothing_matches(self._pattern, self._source.servers, there)
            if once:
                raise InvalidConfigError(text)
            self._log.write_once(text + waits)
            return
        for name in self.absent:
            self._log.write_once(f"there is no topic {name} at {self._source.servers}{waits}")

    def _exclude_loops(self, view: ClusterView, names: list[str], target_id: str) -> None:
        """Stop copying topics that another mirror copies in the opposite direction, from this
        target to this source. The two mirrors would copy each record for ever."""
        for name in self._source.made_of(target_id, view).intersection(names):
            if name not in self._copies.aside:
                self._checkpoint.save()
                error = InvalidConfigError(
                    f"another mirror copies the topic from this target to {self._source.servers}, "
                    f"and the two mirrors would copy each record for ever; stop that mirror first"
                )
                self._copies.set_aside(name, error)

    def _alter(self, names: list[str], settings: Mapping[tuple[str, str], Any]) -> None:
        current = self._target.admin.describe_configs(names) if names else {}
        for name in names:
            refused = planning.refusal(name, current["topic", name])
            if refused is not None:
                # Store the positions before ``set_aside`` drops them. Without a stored position, a
                # later mirror recognises copies only if their timestamps equal the source's. In a
                # topic with LogAppendTime they differ.
                self._checkpoint.save()
                self._copies.set_aside(name, refused)
                continue
            copy_settings = planning.wanted_settings(settings["topic", name])
            given = self._checkpoint.settings.get(name, {})
            changes = planning.settings_to_alter(copy_settings, current["topic", name], given)
            if changes:
                self._target.admin.alter_configs(name, changes)
                self._log.write(
                    f"topic {name}: {planning.describe_changes(changes)}, as at the source"
                )
            self._checkpoint.settings[name] = copy_settings.values
            first = self._copies.get(TopicPartition(name, 0))
            if first is not None and given != copy_settings.values:
                first.is_dirty = True

    def _begin_copies(self, ids: Mapping[TopicPartition, tuple[str, str]]) -> None:
        for tp, copy in list(self._copies.items()):
            if tp in ids and ids[tp] != (copy.source_id, copy.target_id):
                self._copies.set_aside(
                    tp.topic, UnknownTopicIdError("the topic was deleted and recreated")
                )
        fresh = [w for w in ids if w not in self._copies and w.topic not in self._copies.aside]
        if not fresh:
            return
        commits = self._checkpoint.committed(fresh)
        first = self._source.ends(fresh, EARLIEST_TIMESTAMP)
        listed = dict.fromkeys(fresh, LATEST_TIMESTAMP)
        ends = self._target.admin.list_offsets(listed, isolation="read_uncommitted")
        starts = self._target.admin.list_offsets(dict.fromkeys(fresh, EARLIEST_TIMESTAMP))
        for tp in fresh:
            if tp.topic in self._copies.aside:
                continue
            source_id, target_id = ids[tp]
            commit = commits.get(tp)
            position = (
                positions.read_commit(commit) if commit and commit.topic_id == target_id else None
            )
            stored = (self._checkpoint.entries(tp), position, source_id, target_id)
            if positions.is_of_another(*stored):
                self._copies.set_aside(
                    tp.topic, UnknownTopicIdError("the topic was deleted and recreated")
                )
                continue
            known = positions.restored(*stored)
            copy = Copy(tp, source_id, target_id, known, copied=self._copies.counted.get(tp, 0))
            try:
                self._resumer.reconcile(copy, first[tp], starts[tp].offset, ends[tp].offset)
            except LogbusError as error:
                if error.retriable:
                    raise
                self._copies.set_aside(tp.topic, error)
                continue
            offset = copy.position.offset
            copy.position.seek(offset, positions.epoch_before(offset, position, source_id))
            self._copies[tp] = copy
