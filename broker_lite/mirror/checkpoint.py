"""``Notes``: what a mirror writes down on the target, for itself and for the one after it.

Runs of the offset map go to its topic, then positions and settings to its group of the same name
(``positions`` has their form), in the claim's generation; what they speak of was written before.
``translated`` reads the notes of any mirror. Blocking; the mirror's thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from broker_lite.client.administration.admin import Admin
from broker_lite.client.consuming.fetcher import read_range
from broker_lite.client.received import records
from broker_lite.errors import LogbusError
from broker_lite.mirror import planning, positions
from broker_lite.mirror.claim import Claim
from broker_lite.mirror.copies import Copy
from broker_lite.mirror.rewrite import Piece
from broker_lite.mirror.source import Source
from broker_lite.mirror.target import Target
from broker_lite.model import LATEST_TIMESTAMP, CommittedOffset, TopicPartition
from broker_lite.record.batch import read_header
from broker_lite.record.records import Row, encode_rows

EPOCH_MAX = 32_000
"""Of a producer; then it is another producer."""
_SETTINGS = {"retention.ms": "-1", "retention.bytes": "-1"}

Entries = dict[TopicPartition, list[positions.Entry]]


class Notes:
    """``open`` them with the claim in hand, ``save`` as copies advance."""

    def __init__(self, target: Target, claim: Claim, replication_factor: int) -> None:
        self._target = target
        self._claim = claim
        self._replication_factor = replication_factor
        self._name = ""
        self._entries: Entries = {}
        self.signature: positions.Signature | None = None
        """As whom this mirror writes, once the notes are open."""
        self.settings: dict[str, dict[str, str]] = {}
        """By topic: the settings that its copy has from its source."""

    def open(self, name: str) -> None:
        """Read what was noted under this name, whose topic is made where it is missing, and be the
        producer that follows the last one."""
        self._name = name
        self._entries = self._read_log()
        self._begin_producer()

    def _read_log(self) -> Entries:
        admin = self._target.admin
        topic_id = admin.create_topic(
            self._name, 1, self._replication_factor, _SETTINGS, if_not_exists=True
        )
        return _read_log(admin, self._target.servers, self._name, topic_id)

    def _begin_producer(self) -> None:
        """Write as the same producer as the mirror before, an epoch later: so what that one may
        still send is refused."""
        commits = self._target.admin.committed(self._name)
        self.settings = positions.read_settings(commits)
        signatures = [
            found for each in commits.values() if (found := positions.read_signature(each))
        ]
        before = max(signatures, default=None)
        if before is None or before.producer_epoch >= EPOCH_MAX:
            producer_id, epoch = self._target.new_producer_id(), 0
        else:
            producer_id, epoch = before.producer_id, before.producer_epoch + 1
        self.signature = positions.Signature(self._claim.member[1], producer_id, epoch)
        self._target.begin(producer_id, epoch, self._claim.check)

    def committed(self, wheres: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The positions that were noted of these."""
        return self._target.admin.committed(self._name, wheres)

    def entries(self, where: TopicPartition) -> Sequence[positions.Entry]:
        """The runs of a partition that were noted before this mirror."""
        return self._entries.get(where, ())

    def save(self, copies: Iterable[Copy]) -> dict[TopicPartition, LogbusError | None]:
        """Note new runs, then positions: what became of each position. Raises what keeps the runs
        from being written."""
        dirty = list(copies)
        self._save_runs(dirty)
        commits = {
            copy.where: positions.commit_of(
                positions.Position(
                    copy.source_id,
                    copy.known.source_next,
                    copy.known.target_next,
                    positions.last_run(copy.known),
                    copy.lineage.last_epoch,
                ),
                copy.target_id,
                self.signature,
                None if copy.where.partition else self.settings.get(copy.where.topic),
            )
            for copy in dirty
        }
        return self._claim.commit(commits) if commits else {}

    def _save_runs(self, dirty: Sequence[Copy]) -> None:
        entries = (
            entry
            for copy in dirty
            for entry in positions.entries_of(
                copy.where,
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
            buffer = encode_rows([Row(i, now_ms, *each) for i, each in enumerate(batch)])
            pieces.append(Piece(buffer, read_header(buffer), ()))
        log = TopicPartition(self._name, 0)
        for error in self._target.write({log: pieces}, lambda *_: None).values():
            raise error


def translated(
    source: Source, target: Target, asked: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Offsets of the source as those of the copy, from what a mirror noted; nothing is copied.
    Raises InvalidConfigError for what is not copied."""
    name = positions.name_for(source.describe().cluster_id)
    admin = target.admin
    view, there = source.view(), admin.cluster()
    entries: Entries = (
        _read_log(admin, target.servers, name, there.topic_id(name)) if name in there.topics else {}
    )
    wheres = [w for topic in asked for w in view.partitions_of(topic)]
    commits = admin.committed(name, wheres) if wheres else {}
    maps = {}
    for where in wheres:
        commit = commits.get(where)
        maps[where] = positions.restored(
            entries.get(where, ()),
            None if commit is None else positions.read_commit(commit),
            view.topic_id(where.topic),
            there.topic_id(where.topic),
        )
    return planning.translate_offsets(asked, maps)


def _read_log(admin: Admin, servers: str, name: str, topic_id: str) -> Entries:
    """What a mirror wrote to its topic, by partition."""
    where = TopicPartition(name, 0)
    end = admin.list_offsets({where: LATEST_TIMESTAMP})[where].offset
    found: Entries = {}
    for rows in read_range(where, topic_id, -1, 0, end, bootstrap=servers):
        for record in records(where, rows):
            entry = positions.read_entry(record.value)
            if entry is not None:
                found.setdefault(entry.where, []).append(entry)
    return found
