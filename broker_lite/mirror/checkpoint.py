"""The state that a mirror stores on the target cluster, from which it, or the next mirror of the
same source, resumes.

The mirror stores it in a topic and in a group of equal name, and is the group's only member.
Records of the topic hold the offset maps (``offset_map``). Committed offsets hold the positions and
the copied settings (``positions`` defines the formats). The mirror always writes copied records
first and the state about them afterwards. ``translated`` reads the stored state of any mirror. All
calls block, and only the mirror's thread makes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from broker_lite.client.received import records
from broker_lite.errors import UnknownTopicIdError
from broker_lite.mirror import planning, positions
from broker_lite.mirror.claim import MirrorClaim
from broker_lite.mirror.copies import Copies, Copy
from broker_lite.mirror.rewrite import RewrittenBatch
from broker_lite.mirror.source import MirrorSource
from broker_lite.mirror.target import MirrorTarget
from broker_lite.model import LATEST_TIMESTAMP, CommittedOffset, TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.record.records import encode_entries

EPOCH_MAX = 32_000
"""The producer epoch after which a mirror takes a new producer id, because an epoch cannot exceed
32,767."""
_SETTINGS = {"retention.ms": "-1", "retention.bytes": "-1"}

Entries = dict[TopicPartition, list[positions.CopiedEntry]]


class MirrorCheckpoint:
    """Reads and writes the stored state of one mirror's ``copies``. Call ``open`` when the mirror
    has its claim (the exclusive right to copy the source), and ``save`` after it has copied
    records."""

    def __init__(
        self, target: MirrorTarget, claim: MirrorClaim, copies: Copies, replication_factor: int
    ) -> None:
        self.copies = copies
        self._target = target
        self._claim = claim
        self._replication_factor = replication_factor
        self._name = ""
        self._entries: Entries = {}
        self.signature: positions.Signature | None = None
        """The identity under which this mirror stores positions: its producer id and epoch, and its
        generation in the mirror's group. None before ``open``."""
        self.settings: dict[str, dict[str, str]] = {}
        """The settings that the mirror has copied from the source, by topic."""

    def open(self, name: str) -> None:
        """Create the topic ``name`` if it is missing. Read the mirror's state from the topic
        and group ``name``. Take over the producer id of the mirror that stored this state."""
        self._name = name
        self._entries = self._read_log()
        self._begin_producer()

    def _read_log(self) -> Entries:
        admin = self._target.admin
        topic_id = admin.create_topic(
            self._name, 1, self._replication_factor, _SETTINGS, if_not_exists=True
        )
        return _read_log(self._target, self._name, topic_id)

    def _begin_producer(self) -> None:
        """Take over the previous mirror's producer id with the next producer epoch, which fences
        writes of the previous mirror. If no mirror stored an id, or its epochs are used up
        (EPOCH_MAX), get a new producer id."""
        commits = self._target.admin.committed(self._name)
        self.settings = positions.read_settings(commits)
        signatures = [
            signature for each in commits.values() if (signature := positions.read_signature(each))
        ]
        before = max(signatures, default=None)
        if before is None or before.producer_epoch >= EPOCH_MAX:
            producer_id, epoch = self._target.new_producer_id(), 0
        else:
            producer_id, epoch = before.producer_id, before.producer_epoch + 1
        self.signature = positions.Signature(self._claim.member[1], producer_id, epoch)
        self._target.begin(producer_id, epoch, self._claim.check)

    def committed(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Return how far these partitions are copied, as stored in committed offsets of the
        mirror's group."""
        return self._target.admin.committed(self._name, tps)

    def entries(self, tp: TopicPartition) -> Sequence[positions.CopiedEntry]:
        """Return the entries (records with ranges of copied offsets) that earlier mirrors stored
        for a partition."""
        return self._entries.get(tp, ())

    def save(self) -> None:
        """Store the state about all records that the mirror has written so far: first new runs
        (ranges of copied offsets), then positions."""
        dirty = [copy for copy in self.copies.values() if copy.is_dirty]
        self._save_runs(dirty)
        commits = {
            copy.tp: positions.commit_of(
                positions.Position(
                    copy.source_id,
                    copy.known.source_next,
                    copy.known.target_next,
                    positions.last_run(copy.known),
                    copy.position.lineage.last_epoch,
                ),
                copy.target_id,
                self.signature,
                None if copy.tp.partition else self.settings.get(copy.tp.topic),
            )
            for copy in dirty
        }
        saved = self._claim.commit(commits) if commits else {}
        for tp, failed in saved.items():
            if isinstance(failed, UnknownTopicIdError):
                self.copies.set_aside(tp.topic, failed)
            elif failed is not None:
                raise failed
        for copy in dirty:
            copy.unsaved.clear()
            copy.is_dirty = copy.is_cut = False

    def _save_runs(self, dirty: Sequence[Copy]) -> None:
        entries = (
            entry
            for copy in dirty
            for entry in positions.entries_of(
                copy.tp,
                copy.source_id,
                copy.target_id,
                copy.known,
                copy.unsaved,
                is_cut=copy.is_cut,
            )
        )
        now_ms = int(time.time() * 1000)
        pieces = []
        for batch in positions.in_batches(entries):
            buffer = encode_entries(batch, now_ms)
            pieces.append(RewrittenBatch(buffer, read_header(buffer), ()))
        log = TopicPartition(self._name, 0)
        for error in self._target.write({log: pieces}, lambda *_: None).values():
            raise error


def translated(
    source: MirrorSource, target: MirrorTarget, offsets: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Translate offsets at the source to offsets of the copy, using the state that a mirror has
    stored on the target.

    ``offsets`` has an offset for each topic and partition number. Raises InvalidConfigError for an
    offset if the records before it are not all copied yet."""
    name = positions.name_for(source.describe().cluster_id)
    admin = target.admin
    view, there = source.view(), admin.cluster()
    entries: Entries = _read_log(target, name, there.topic_id(name)) if name in there.topics else {}
    tps = [w for topic in offsets for w in view.partitions_of(topic)]
    commits = admin.committed(name, tps) if tps else {}
    maps = {}
    for tp in tps:
        commit = commits.get(tp)
        maps[tp] = positions.restored(
            entries.get(tp, ()),
            None if commit is None else positions.read_commit(commit),
            view.topic_id(tp.topic),
            there.topic_id(tp.topic),
        )
    return planning.translate_offsets(offsets, maps)


def _read_log(target: MirrorTarget, name: str, topic_id: str) -> Entries:
    """Return the entries (runs of copied offsets) of each partition in a mirror's topic, in the
    order of their writes."""
    tp = TopicPartition(name, 0)
    end = target.admin.list_offsets({tp: LATEST_TIMESTAMP})[tp].offset
    entries: Entries = {}
    for rows in target.read(tp, topic_id, 0, end):
        for record in records(tp, rows):
            entry = positions.read_entry(record.value)
            if entry is not None:
                entries.setdefault(entry.tp, []).append(entry)
    return entries
