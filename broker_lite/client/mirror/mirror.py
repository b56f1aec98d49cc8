"""``Mirror``: keeps the topics, settings and groups' offsets of one cluster copied to another.

One thread runs it; a second one only fetches ahead. Order of work: records, then the runs of the
offset map, then positions, then groups' offsets, so whatever is noted is there. Where it was killed
it goes on by ``positions.square``: nothing is lost, and nothing is copied twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from broker_lite.client.blocking import monotonic_ms
from broker_lite.client.cluster import ClusterView, backoff_ms
from broker_lite.client.fetcher import read_range
from broker_lite.client.mirror import planning, positions
from broker_lite.client.mirror.carrying import (
    Content,
    Piece,
    Walked,
    carry,
    contents,
    piece_contents,
)
from broker_lite.client.mirror.claim import SESSION_MS, Claim
from broker_lite.client.mirror.offset_map import OffsetMap, Run
from broker_lite.client.mirror.planning import GroupRow
from broker_lite.client.mirror.source import Source
from broker_lite.client.mirror.target import Target, read_log
from broker_lite.errors import (
    InvalidConfigError,
    LogbusError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CommittedOffset,
    TopicPartition,
)
from broker_lite.record.batch import read_header
from broker_lite.record.records import Row, encode_rows

WAIT_MS = 250
"""How long a fetch waits where nothing new is to be had."""
SAVE_MS = 1_000
LOOK_MS = 10_000
"""How often topics, settings and groups are looked at."""
ATTEMPTS_ONCE = 3
EPOCH_MAX = 32_000
"""Of a producer; then it is another producer."""
PROVEN_MS = 60_000
"""After so long without trouble, trouble is new."""

Tell = Callable[[str], None]
Fetched = dict[TopicPartition, Walked | LogbusError]


@dataclass(slots=True)
class Copy:
    """One partition on its way. ``fetch_from`` runs ahead of what is written."""

    where: TopicPartition
    source_id: str
    target_id: str
    known: OffsetMap
    fetch_from: int = 0
    unsaved: list[Run] = field(default_factory=list)
    is_dirty: bool = True
    copied: int = 0
    already: int = 0
    foreign: int = 0
    aged_out: int = 0


class Mirror:
    """Made for two clusters; ``run`` it, then ``close`` it. ``tell`` gets lines for people."""

    def __init__(
        self,
        source: str,
        target: str,
        *,
        topics: str = ".*",
        groups: str = ".*",
        replication_factor: int = -1,
        session_timeout_ms: int = SESSION_MS,
        tell: Tell,
    ) -> None:
        self.source = Source(source, "logbus-mirror")
        self.target = Target(target, "logbus-mirror")
        self.claim = Claim(target, "logbus-mirror", session_timeout_ms)
        self._topics, self._groups = topics, groups
        self._replication_factor = replication_factor
        self._say = tell
        self._told: set[str] = set()
        self.name = ""
        self.copies: dict[TopicPartition, Copy] = {}
        self.aside: dict[str, LogbusError] = {}
        self.absent: list[str] = []
        """Topics that are asked for by name and that the source has not."""
        self.group_rows: list[GroupRow] = []
        self._given: dict[str, dict[str, str]] = {}
        """The settings that each copy has from its source."""
        self._is_once = False
        self._signature: positions.Signature | None = None
        self._entries: dict[TopicPartition, list[positions.Entry]] = {}
        self._counted: dict[TopicPartition, int] = {}
        self._executor = ThreadPoolExecutor(1, "logbus-mirror-fetch")

    def close(self) -> None:
        """End the thread and the connections."""
        self._executor.shutdown(wait=True)
        self.claim.close()
        self.source.close()
        self.target.close()

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)

    # -- what is copied

    def open(self, stop: Event) -> bool:
        """Know both clusters, be the only mirror between them, make what is missing, and find
        where to go on. False if ``stop`` came first."""
        self.source.check_versions()
        mine = self.source.describe().cluster_id
        if mine == self.target.admin.describe_cluster().cluster_id:
            raise InvalidConfigError(f"--from and --to are the same cluster, {mine}")
        self.name = positions.name_for(mine)
        if not self.claim.take(self.name, stop):
            return False
        self._entries = self._read_log()
        self._counted = {where: copy.copied for where, copy in self.copies.items()}
        self.copies.clear()
        self._begin_producer()
        self.look()
        self.save()
        return True

    def _begin_producer(self) -> None:
        """Write as the same producer as the mirror before, an epoch later: so what that one may
        still send is refused."""
        commits = self.target.admin.committed(self.name)
        self._given = positions.read_settings(commits)
        signatures = [
            found for each in commits.values() if (found := positions.read_signature(each))
        ]
        before = max(signatures, default=None)
        if before is None or before.producer_epoch >= EPOCH_MAX:
            producer_id, epoch = self.target.new_producer_id(), 0
        else:
            producer_id, epoch = before.producer_id, before.producer_epoch + 1
        self._signature = positions.Signature(self.claim.member[1], producer_id, epoch)
        self.target.begin(producer_id, epoch, self.claim.check)

    def look(self) -> None:
        """Take up topics and partitions that are new, and settings that changed."""
        view = self.source.view()
        names = planning.chosen_topics(view, self._topics)
        self._tell_absent(view, names)
        settings = self.source.admin.describe_configs(names) if names else {}
        there = self.target.admin.cluster()
        fresh = [name for name in names if name not in there.topics]
        for name in names:
            wanted = planning.wanted_settings(settings["topic", name])
            for text in (*wanted.notes, *(f"{x} is not known here" for x in wanted.unknown)):
                self._tell_once(f"topic {name}: {text}")
            count = len(view.topics[name].partitions)
            if name in fresh:
                created = planning.settings_to_create(wanted)
                self.target.admin.create_topic(name, count, self._replication_factor, created)
                self._given[name] = wanted.values
                continue
            if len(there.topics[name].partitions) < count:
                self.target.admin.create_partitions(name, count)
        self._alter([name for name in names if name not in fresh], settings)
        there = self.target.admin.cluster(names) if names else there
        self._take_up(
            {
                where: (view.topics[name].topic_id, there.topics[name].topic_id)
                for name in names
                if name not in self.aside
                for where in view.partitions_of(name)
            }
        )

    def _tell_absent(self, view: ClusterView, names: list[str]) -> None:
        self.absent = planning.absent(self._topics, names)
        waits = "" if self._is_once else f"; looking for it every {LOOK_MS // 1000} s"
        if not names:
            there = planning.chosen_topics(view, ".*")
            text = planning.nothing_matches(self._topics, self.source.servers, there)
            if self._is_once:
                raise InvalidConfigError(text)
            self._tell_once(text + waits)
            return
        for name in self.absent:
            self._tell_once(f"there is no topic {name} at {self.source.servers}{waits}")

    def _alter(self, names: list[str], settings: Mapping[tuple[str, str], Any]) -> None:
        current = self.target.admin.describe_configs(names) if names else {}
        for name in names:
            refused = planning.refusal(name, current["topic", name])
            if refused is not None and name not in self.aside:
                self.save()  # what was written up to now is told by positions alone
                self._set_aside(name, refused)
                continue
            wanted = planning.wanted_settings(settings["topic", name])
            given = self._given.get(name, {})
            changes = planning.settings_to_alter(wanted, current["topic", name], given)
            if changes:
                self.target.admin.alter_configs(name, changes)
                self._say(f"topic {name}: {planning.told(changes)}, as at the source")
            self._given[name] = wanted.values
            first = self.copies.get(TopicPartition(name, 0))
            if first is not None and given != wanted.values:
                first.is_dirty = True

    def _take_up(self, ids: Mapping[TopicPartition, tuple[str, str]]) -> None:
        for where, copy in list(self.copies.items()):
            if where in ids and ids[where] != (copy.source_id, copy.target_id):
                self._set_aside(where.topic, UnknownTopicIdError("was deleted and made again"))
        fresh = [w for w in ids if w not in self.copies and w.topic not in self.aside]
        if not fresh:
            return
        commits = self.target.admin.committed(self.name, fresh)
        first = self.source.ends(fresh, EARLIEST_TIMESTAMP)
        listed = dict.fromkeys(fresh, LATEST_TIMESTAMP)
        ends = self.target.admin.list_offsets(listed, isolation="read_uncommitted")
        starts = self.target.admin.list_offsets(dict.fromkeys(fresh, EARLIEST_TIMESTAMP))
        for where in fresh:
            if where.topic in self.aside:
                continue
            source_id, target_id = ids[where]
            commit = commits.get(where)
            noted = (
                self._entries.get(where, ()),
                positions.read_commit(commit) if commit and commit.topic_id == target_id else None,
                source_id,
                target_id,
            )
            if positions.is_of_another(*noted):
                self._set_aside(where.topic, UnknownTopicIdError("was deleted and made again"))
                continue
            known = positions.restored(*noted)
            copy = Copy(where, source_id, target_id, known, copied=self._counted.get(where, 0))
            try:
                self._square(copy, first[where], starts[where].offset, ends[where].offset)
            except LogbusError as error:
                if error.retriable:
                    raise
                self._set_aside(where.topic, error)
                continue
            self.copies[where] = copy

    def _square(self, copy: Copy, first: int, start: int, end: int) -> None:
        """Find where to go on: the position that was noted, and what the target holds behind it."""
        known, where = copy.known, copy.where
        if known.source_next < 0:
            known.source_next, known.target_next = first, start
        known.cut(end)
        if end > max(known.target_next, start):
            leader_epoch = -1
            held = (
                row
                for rows in read_range(
                    where,
                    copy.target_id,
                    leader_epoch,
                    max(known.target_next, start),
                    end,
                    bootstrap=self.target.servers,
                )
                for row in contents(rows)
            )
            at_source = self._source_rows(copy, max(known.source_next, first))
            found = positions.square(known, held, at_source, end)
            copy.already, copy.foreign = found.copied, found.foreign
            copy.unsaved.extend(found.new_runs)
            if found.foreign:
                self._say(
                    f"{where}: {found.foreign} records on the target are not of the source "
                    "(others write there, or they aged out at the source meanwhile)"
                )
        if not known.runs:
            known.target_next = end
        self._begin_at(copy, first)

    def _begin_at(self, copy: Copy, first: int) -> None:
        known = copy.known
        if first > known.source_next:
            copy.aged_out += first - known.source_next
            lost = f"offsets {known.source_next} to {first - 1}"
            self._say(f"{copy.where}: {lost} aged out at the source before they were copied")
            known.passed(first)
        copy.fetch_from = known.source_next

    def _source_rows(self, copy: Copy, offset: int) -> Iterator[tuple[int, Content]]:
        end = self.source.ends((copy.where,), LATEST_TIMESTAMP)[copy.where]
        while offset < end:
            walked = self.source.fetch_one(copy.where, copy.source_id, offset)
            for batch in walked.batches:
                piece = carry(batch, copy.where, offset)
                if piece is not None:
                    yield from piece_contents(piece)
            offset = max(walked.next_offset, offset)

    def _set_aside(self, topic: str, error: LogbusError) -> None:
        self.aside[topic] = error
        self.copies = {w: copy for w, copy in self.copies.items() if w.topic != topic}
        self._say(
            f"topic {topic} is not copied any more: {error.message}; mend that (for a topic that "
            "was made again: delete the copy) and start the mirror again"
        )

    def translated(self, asked: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
        """Offsets of the source as those of the copy, from what a mirror noted; nothing is copied.
        Raises InvalidConfigError for what is not copied."""
        self.name = positions.name_for(self.source.describe().cluster_id)
        admin = self.target.admin
        view, there = self.source.view(), admin.cluster()
        log_id = there.topic_id(self.name)
        entries = (
            read_log(admin, self.target.servers, self.name, log_id)
            if self.name in there.topics
            else {}
        )
        wheres = [w for topic in asked for w in view.partitions_of(topic)]
        commits = admin.committed(self.name, wheres) if wheres else {}
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

    # -- records

    def _wanted(self) -> dict[TopicPartition, tuple[str, int]]:
        return {w: (copy.source_id, copy.fetch_from) for w, copy in self.copies.items()}

    def _begin_fetch(self, wait_ms: int) -> Future[Fetched]:
        return self._executor.submit(self.source.fetch, self._wanted(), wait_ms)

    def _advance(self, fetched: Fetched) -> dict[TopicPartition, Walked]:
        """Note how far was fetched, so that the next fetch may begin; see to what failed."""
        good: dict[TopicPartition, Walked] = {}
        for where, walked in fetched.items():
            copy = self.copies.get(where)
            if copy is None:
                continue
            if isinstance(walked, Walked):
                good[where] = walked
            elif isinstance(walked, OffsetOutOfRangeError):
                self._begin_at(copy, self.source.ends((where,), EARLIEST_TIMESTAMP)[where])
            elif isinstance(walked, UnknownTopicIdError) and self._is_gone(copy):
                self._set_aside(where.topic, UnknownTopicIdError("is gone at the source"))
            elif not walked.retriable:
                self._set_aside(where.topic, walked)
        return good

    def _is_gone(self, copy: Copy) -> bool:
        view = self.source.admin.cluster((copy.where.topic,))
        return view.topic_id(copy.where.topic) != copy.source_id

    def _write(self, good: Mapping[TopicPartition, Walked], froms: Mapping[Any, int]) -> bool:
        pieces: dict[TopicPartition, list[Piece]] = {}
        for where, walked in good.items():
            copy = self.copies.get(where)
            if copy is None:
                continue
            try:
                made = [carry(batch, where, froms[where]) for batch in walked.batches]
            except LogbusError as error:
                self._set_aside(where.topic, error)
                continue
            pieces[where] = [piece for piece in made if piece is not None]
        refused = self.target.write(pieces, self._written)
        for where, why in refused.items():
            if where.topic not in self.aside:
                self._set_aside(where.topic, why)
        for where, walked in good.items():
            copy = self.copies.get(where)
            if copy is not None and walked.next_offset > copy.known.source_next:
                copy.known.passed(walked.next_offset)
                copy.is_dirty = True
        return any(pieces.values())

    def _written(self, where: TopicPartition, piece: Piece, offset: int) -> None:
        copy = self.copies.get(where)
        if copy is None:
            return
        if copy.known.runs and offset > copy.known.target_next:
            copy.foreign += offset - copy.known.target_next
            self._tell_once(f"topic {where.topic}: somebody else writes to the copy")
        for first, count in piece.runs:
            if copy.known.add(first, offset, count):
                copy.unsaved.append(copy.known.runs[-1])
            offset += count
        copy.copied += piece.row_count
        copy.is_dirty = True

    # -- what is noted

    def _read_log(self) -> dict[TopicPartition, list[positions.Entry]]:
        """The mirror's topic, which is made where it is missing."""
        admin = self.target.admin
        settings = {"retention.ms": "-1", "retention.bytes": "-1"}
        topic_id = admin.create_topic(
            self.name, 1, self._replication_factor, settings, if_not_exists=True
        )
        return read_log(admin, self.target.servers, self.name, topic_id)

    def save(self) -> None:
        """Note new runs, then positions; what is noted has been written before."""
        dirty = [copy for copy in self.copies.values() if copy.is_dirty]
        entries = [
            positions.entry_of(copy.where, copy.source_id, copy.target_id, copy.known, runs)
            for copy in dirty
            for runs in positions.in_parts(copy.unsaved)
        ]
        if entries:
            log = TopicPartition(self.name, 0)
            now_ms = int(time.time() * 1000)
            rows = [
                Row(i, now_ms, str(entry.where).encode(), positions.write_entry(entry))
                for i, entry in enumerate(entries)
            ]
            buffer = encode_rows(rows)
            piece = Piece(buffer, read_header(buffer), ())
            refused = self.target.write({log: [piece]}, lambda *_: None)
            for error in refused.values():
                raise error
        commits = {
            copy.where: positions.commit_of(
                positions.Position(
                    copy.source_id,
                    copy.known.source_next,
                    copy.known.target_next,
                    positions.last_run(copy.known),
                ),
                copy.target_id,
                self._signature,
                None if copy.where.partition else self._given.get(copy.where.topic),
            )
            for copy in dirty
        }
        for where, failed in (self.claim.commit(commits) if commits else {}).items():
            if isinstance(failed, UnknownTopicIdError):
                self._set_aside(where.topic, failed)
            elif failed is not None:
                raise failed
        for copy in dirty:
            copy.unsaved.clear()
            copy.is_dirty = False

    def sync_groups(
        self, at_source: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
    ) -> None:
        """Write the groups' offsets that can be translated by now; ``group_rows`` tells all."""
        source_ids = {copy.where.topic: copy.source_id for copy in self.copies.values()}
        target_ids = {copy.where.topic: copy.target_id for copy in self.copies.values()}
        maps = {where: copy.known for where, copy in self.copies.items()}
        found: list[GroupRow] = []
        for group, commits in at_source.items():
            if group.startswith(positions.PREFIX):
                continue
            there = self.target.admin.committed(group)
            plan = (group, commits, there, maps, source_ids, target_ids)
            rows = planning.plan_group(*plan)
            writes = {
                row.where: CommittedOffset(
                    row.target_offset or 0,
                    metadata=planning.mark(self.name, row.source_offset),
                    topic_id=target_ids[row.where.topic],
                )
                for row in rows
                if row.state == "write"
            }
            found.extend(self._committed(rows, self._commit(group, writes)))
        self.group_rows = found

    def _commit(
        self, group: str, writes: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, LogbusError | None]:
        try:
            return self.target.admin.commit_each(group, writes)
        except LogbusError as error:
            if error.retriable:
                raise
            return dict.fromkeys(writes, error)

    def _committed(
        self, rows: Iterable[GroupRow], done: Mapping[TopicPartition, LogbusError | None]
    ) -> Iterator[GroupRow]:
        for row in rows:
            error = done.get(row.where)
            if row.state != "write" or error is None:
                yield row._replace(state="same") if row.state == "write" else row
                continue
            self._tell_once(
                f"group {row.group} has members on the target or another kind there, so its "
                f"offsets stay as they are: {error.message}"
            )
            yield row._replace(target_offset=None, state=f"refused: {error.message}")

    # -- running

    def run(self, *, once: bool, stop: Event, on_look: Callable[[], None]) -> None:
        """Copy until ``stop``, or ``once``: up to the ends at the start. ``on_look`` is called
        every ``LOOK_MS`` and at the end. What hinders for a while is told and outlasted; ``once``
        it is raised after a few attempts. Raises what cannot be mended by waiting:
        NonEmptyGroupError where another mirror of the source is at work, FencedInstanceIdError
        where another one took over, and ``once`` InvalidConfigError where no topic matches."""
        self._is_once = once
        try:
            self._run(once=once, stop=stop, on_look=on_look)
        finally:
            self.claim.release()

    def _run(self, *, once: bool, stop: Event, on_look: Callable[[], None]) -> None:
        attempt, began_ms = 0, monotonic_ms()
        while not stop.is_set():
            try:
                if not self.open(stop):
                    return
                began_ms = monotonic_ms()
                self._copy(once=once, stop=stop, on_look=on_look)
                return
            except LogbusError as error:
                if not error.retriable or (once and attempt >= ATTEMPTS_ONCE):
                    raise
                attempt = 0 if monotonic_ms() - began_ms > PROVEN_MS else attempt
                self._say(f"{error}; trying again")
                self.target.forget()
                stop.wait(backoff_ms(attempt, 250) / 1000.0)
                attempt += 1

    def _copy(self, *, once: bool, stop: Event, on_look: Callable[[], None]) -> None:
        groups = self._source_groups()
        goal = self.source.ends(list(self.copies), LATEST_TIMESTAMP) if once else None
        look_at, save_at = monotonic_ms() + LOOK_MS, monotonic_ms()
        under_way = self._begin_fetch(0)
        is_idle = False
        try:
            while not stop.is_set() and not self._is_done(goal):
                froms = {w: copy.fetch_from for w, copy in self.copies.items()}
                good = self._advance(under_way.result())
                for where, walked in good.items():
                    if where in self.copies:
                        self.copies[where].fetch_from = walked.next_offset
                under_way = self._begin_fetch(WAIT_MS if is_idle else 0)
                is_idle = not self._write(good, froms)
                if not good:
                    stop.wait(WAIT_MS / 1000.0)
                now_ms = monotonic_ms()
                if now_ms >= save_at:
                    self.save()
                    save_at = monotonic_ms() + SAVE_MS
                if now_ms >= look_at and goal is None:
                    under_way.result()  # what is fetched again is no loss
                    self.look()
                    self.sync_groups(self._source_groups())
                    under_way = self._begin_fetch(0)
                    on_look()
                    look_at = monotonic_ms() + LOOK_MS
        finally:
            under_way.exception()
        self.save()
        self.sync_groups(groups if once else self._source_groups())
        on_look()

    def _source_groups(self) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        found, native = self.source.groups(self._groups)
        for group in native:
            self._tell_once(f"group {group} is native (ZooKeeper's): its offsets are not copied")
        return found

    def _is_done(self, goal: Mapping[TopicPartition, int] | None) -> bool:
        return goal is not None and all(
            copy.known.source_next >= goal.get(where, 0) for where, copy in self.copies.items()
        )
