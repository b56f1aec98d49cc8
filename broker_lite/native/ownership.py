"""The partitions that one consumer claims, owns and releases, and its commits. Pure.

A claim is one write with two operations: create the ephemeral owner znode and rewrite the offset
unchanged. The rewrite gives the claim a version of its own, so an earlier owner cannot commit any
more. A commit is a compare-and-set on that version and checks the registration. Only the owner's
session deletes an owner znode, after the reader has stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from broker_lite.errors import (
    CoordinationUnavailableError,
    LogbusError,
    NotOwnerError,
    OffsetMetadataTooLargeError,
    UnknownTopicIdError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Check, Create, Delete, Operation, Refused, Set, Znode
from broker_lite.metadata.znodes import OwnerZnode
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, TopicPartition
from broker_lite.native.asking import BACKOFF_MAX_MS, Asking, backoff_ms
from broker_lite.native.events import (
    ALL,
    CommitAnswer,
    PartitionStart,
    StreamCommit,
    StreamGive,
    StreamLose,
    StreamTake,
)
from broker_lite.native.view import WatchedTopic

GRACE_MS = 300
"""Milliseconds a reader may take to stop before its partition is released without its position."""
COMMIT_ROWS_MAX = 500
WRITE_BYTES_MAX = 512 << 10
"""Maximum bytes of one write; ZooKeeper accepts 1 MB, paths included (jute.maxbuffer)."""
METADATA_BYTES_MAX = 4096
NO_OFFSET = -1
"""Offset of a claimed partition without a commit."""

OWNED, TAKEN, RELEASED = "owned", "taken", "released"
READING, WRITING, LOOKING, WAITING = "reading", "writing", "looking", "waiting"


@dataclass(slots=True)
class OwnedPartition:
    """An owned partition. ``version`` and ``data`` are those of its offset znode."""

    stream: int
    topic_id: str
    version: int
    data: bytes
    grant: int = 0
    """The number of the grant under which the reader reads; 0: no reader was notified."""
    state: str = OWNED
    due_ms: int = 0
    """When a revoked partition is released without the reader's position."""
    final: CommittedOffset | None = None
    writing: bytes | None = None
    """The value that a commit in flight writes over ``data``."""
    is_sure: bool = True
    """False after a lost connection until the owner znode is read again."""


@dataclass(slots=True)
class PartitionClaim:
    """A partition of the assignment that is not owned yet."""

    stream: int
    stage: str = READING
    tries: int = 0
    tried_ms: int = 0
    retry_ms: int = 0
    """When a waiting claim is tried again."""
    is_over: bool = False
    """The owner's watch fired before the answer that set the watch arrived."""


class Queued(NamedTuple):
    """A waiting commit. ``claims`` has the claim under which each row was read."""

    number: int
    rows: Mapping[TopicPartition, CommittedOffset]
    claims: Mapping[TopicPartition, OwnedPartition]


class Holdings:
    """The owned and claimed partitions of a consumer. ``target`` maps each partition of the
    assignment to its stream and topic."""

    def __init__(self, asking: Asking, group: str, consumer: str) -> None:
        self.held: dict[TopicPartition, OwnedPartition] = {}
        self.claims: dict[TopicPartition, PartitionClaim] = {}
        self.is_unregistered = False
        """The registration was missing, so the consumer must join again."""
        self.unready: set[str] = set()
        """Topics whose registry znodes were missing."""
        self._asking = asking
        self._group = group
        self._consumer = consumer
        self._target: dict[TopicPartition, tuple[int, WatchedTopic]] = {}
        self._taken: Container[TopicPartition] = ()
        self._owner_paths: dict[str, TopicPartition] = {}
        self._doubtful: set[TopicPartition] = set()
        """Claims whose answers were lost with the connection."""
        self._commits: deque[Queued] = deque()
        self._writing: list[tuple[Queued, list[TopicPartition]]] = []
        self._left: dict[int, tuple[int, dict[TopicPartition, LogbusError]]] = {}
        self._grants = 0

    @property
    def is_settled(self) -> bool:
        """Return whether the consumer owns its whole assignment and nothing else."""
        return self.held.keys() == self._target.keys() and all(
            held.state == OWNED and held.is_sure for held in self.held.values()
        )

    # Assignment.

    def aim(
        self,
        target: Mapping[TopicPartition, tuple[int, WatchedTopic]],
        taken: Container[TopicPartition] = (),
    ) -> None:
        """Set the assignment. ``taken`` are partitions that other consumers probably still own."""
        self._target = dict(target)
        self._taken = taken
        for where in [*self.held, *self.claims, *self._target]:
            self._pursue(where)

    def _pursue(self, where: TopicPartition) -> None:
        """Take the next step of one partition towards the assignment."""
        wanted = self._target.get(where)
        held = self.held.get(where)
        claim = self.claims.get(where)
        if held is not None:
            fits = wanted is not None and held.stream == wanted[0]
            if fits and wanted is not None and held.topic_id == wanted[1].topic_id:
                return
            if held.state == OWNED:
                self._take(where, held)
        elif claim is not None:
            if claim.stage == WRITING or (wanted is not None and claim.stream == wanted[0]):
                return
            del self.claims[where]
            self._pursue(where)
        elif wanted is not None:
            claim = self.claims[where] = PartitionClaim(wanted[0])
            if where in self._taken:
                claim.tried_ms = self._asking.now_ms
                self._look(where, claim)
            else:
                self._read(where)

    def _write(
        self, operations: Sequence[Operation], then: Callable[[Refused | None], None]
    ) -> None:
        """Write owners and offsets together with a check of the registration.

        The check keeps a late write of an old session from taking effect in the next one. Without a
        registration ``then`` is not called.
        """
        me = znodes.consumer_path(self._group, self._consumer)
        self._asking.write([Check(me, 0), *operations], partial(self._wrote, then))

    def _wrote(self, then: Callable[[Refused | None], None], refused: Refused | None) -> None:
        if refused is None:
            then(None)
        elif refused.position:
            then(refused._replace(position=refused.position - 1))
        else:
            self.is_unregistered = True

    # Claims.

    def _read(self, where: TopicPartition) -> None:
        claim = self.claims[where]
        claim.stage, claim.tried_ms = READING, self._asking.now_ms
        path = znodes.offset_path(self._group, *where)
        self._asking.get(path, partial(self._claim, where, claim, path))

    def _claim(
        self, where: TopicPartition, claim: PartitionClaim, path: str, znode: Znode | None
    ) -> None:
        wanted = self._target.get(where)
        if self.claims.get(where) is not claim or wanted is None:
            return
        topic_id = wanted[1].topic_id
        found = None if znode is None else znodes.decode_offset(path, znode.data)
        if found is None or found.topic_id != topic_id:
            # No offset, or an offset of a deleted topic: it does not apply to this topic.
            found = CommittedOffset(NO_OFFSET, topic_id=topic_id)
        data = znodes.encode_offset(found)
        claim.stage = WRITING
        owner = znodes.encode_owner(OwnerZnode(self._consumer, claim.stream))
        self._write(
            [
                Create(znodes.owner_path(self._group, *where), owner, ephemeral=True),
                Create(path, data) if znode is None else Set(path, data, znode.version),
            ],
            partial(
                self._claimed,
                where,
                claim,
                OwnedPartition(
                    claim.stream, topic_id, 0 if znode is None else znode.version + 1, data
                ),
                found,
            ),
        )

    def _claimed(
        self,
        where: TopicPartition,
        claim: PartitionClaim,
        held: OwnedPartition,
        found: CommittedOffset,
        refused: Refused | None,
    ) -> None:
        wanted = self._target.get(where)
        if refused is None:
            del self.claims[where]
            self._doubtful.discard(where)
            self.held[where] = held
            if wanted is None or (wanted[0], wanted[1].topic_id) != (held.stream, held.topic_id):
                self._release(where, held)
                return
            self._grants += 1
            held.grant = self._grants
            committed = None if found.offset == NO_OFFSET else found
            is_added = where.partition >= wanted[1].first_count
            start = PartitionStart(committed, is_added, held.topic_id, held.grant)
            self._asking.out.append(StreamGive(held.stream, where, start))
            return
        if wanted is None:
            del self.claims[where]
            return
        if refused.position == 0 and refused.reason == "exists":
            claim.tries += 1
            self._look(where, claim)
            return
        if refused.reason == "missing":
            self.unready.add(where.topic)
        self._wait(claim)
        claim.tries += 1

    def _look(self, where: TopicPartition, claim: PartitionClaim) -> None:
        claim.stage, claim.is_over = LOOKING, False
        path = znodes.owner_path(self._group, *where)
        self._owner_paths[path] = where
        self._asking.get(path, partial(self._owner_seen, where, claim), watch=True)

    def _owner_seen(
        self, where: TopicPartition, claim: PartitionClaim, znode: Znode | None
    ) -> None:
        if self.claims.get(where) is not claim:
            return
        if znode is None and not claim.tries:
            self._read(where)
        elif znode is None:
            self._wait(claim)
        elif znode.session_id == self._asking.session_id:
            # The answer of a claim was lost: claim again to learn the version.
            path = znodes.owner_path(self._group, *where)
            self._write([Delete(path)], lambda _: self._wait(claim))
        else:
            # The owner's watch wakes the claim; otherwise the retry timer does.
            self._wait(claim, None if claim.is_over else BACKOFF_MAX_MS)

    def _wait(self, claim: PartitionClaim, pause_ms: int | None = None) -> None:
        pause_ms = backoff_ms(claim.tries) if pause_ms is None else pause_ms
        claim.stage = WAITING
        claim.retry_ms = self._asking.now_ms + pause_ms
        claim.tries = max(1, claim.tries)

    def owner_changed(self, path: str) -> None:
        """Retry a claim after the watch of its owner znode fired, within the backoff."""
        where = self._owner_paths.pop(path, None)
        claim = None if where is None else self.claims.get(where)
        if claim is not None:
            claim.is_over = True
        if claim is not None and claim.stage == WAITING:
            earliest_ms = claim.tried_ms + backoff_ms(claim.tries - 1)
            claim.retry_ms = max(self._asking.now_ms, min(claim.retry_ms, earliest_ms))

    # Releasing.

    def _take(self, where: TopicPartition, held: OwnedPartition) -> None:
        held.state = TAKEN
        held.due_ms = self._asking.now_ms + GRACE_MS
        self._asking.out.append(StreamTake(held.stream, where))

    def settled(self, where: TopicPartition, final: CommittedOffset | None, grant: int) -> None:
        """Release a partition whose reader stopped. Ignore reports from an earlier grant."""
        held = self.held.get(where)
        if held is not None and held.state == TAKEN and held.grant == grant:
            held.final = final
            self._release(where, held)

    def _release(self, where: TopicPartition, held: OwnedPartition) -> None:
        held.state = RELEASED
        if held.writing is not None or not held.is_sure:
            return  # The answer continues.
        operations: list[Operation] = []
        if held.final is not None and _check(held, held.final) is None:
            data = _encoded(held, held.final)
            if znodes.decode_offset("", held.data).offset != held.final.offset:
                path = znodes.offset_path(self._group, *where)
                operations.append(Set(path, data, held.version))
        operations.append(Delete(znodes.owner_path(self._group, *where)))
        self._write(operations, partial(self._released, where, held, len(operations)))

    def _released(
        self, where: TopicPartition, held: OwnedPartition, count: int, refused: Refused | None
    ) -> None:
        if refused is not None and refused.position < count - 1:
            # Another client set the offset; keep it.
            held.final = None
            self._release(where, held)
            return
        self._drop(where, held)

    def _drop(self, where: TopicPartition, held: OwnedPartition) -> None:
        if self.held.get(where) is held:
            del self.held[where]
            self._pursue(where)

    def _lose(self, where: TopicPartition, held: OwnedPartition) -> None:
        """Give up a claim whose offset another client changed, and claim again from there."""
        self._asking.out.append(StreamLose(held.stream, where))
        held.final = held.writing = None
        held.is_sure = True
        self._release(where, held)

    def lose_all(self) -> None:
        """Drop all partitions: the session ended."""
        for where, held in self.held.items():
            self._asking.out.append(StreamLose(held.stream, where))
        self.held.clear()
        self.claims.clear()
        self._doubtful.clear()
        self._owner_paths.clear()
        self._target = {}
        self._fail_commits()

    # Connection.

    def suspend(self) -> None:
        """Handle a lost connection: writes in flight may or may not have succeeded."""
        for held in self.held.values():
            held.is_sure = False
        self._doubtful.update(w for w, claim in self.claims.items() if claim.stage != READING)
        self.claims.clear()
        self._owner_paths.clear()
        self._fail_commits()

    def resume(self) -> None:
        """Read the results of the writes in flight after a reconnect in the same session."""
        for where in sorted(self._doubtful):
            # Undo comes before any new claim, which must find only its own znode.
            path = znodes.owner_path(self._group, *where)
            self._asking.get(path, partial(self._undo, where, path))
        for where, held in self.held.items():
            path = znodes.owner_path(self._group, *where)
            self._asking.get(path, partial(self._check_owner, where, held))

    def _undo(self, where: TopicPartition, path: str, znode: Znode | None) -> None:
        """Delete the owner znode of a claim whose answer was lost, since its version is unknown."""
        if znode is not None and znode.session_id == self._asking.session_id:
            self._write([Delete(path)], lambda _: self._doubtful.discard(where))
        else:
            self._doubtful.discard(where)

    def _check_owner(
        self, where: TopicPartition, held: OwnedPartition, znode: Znode | None
    ) -> None:
        if self.held.get(where) is not held:
            return
        if znode is None or znode.session_id != self._asking.session_id:
            if held.state != RELEASED:
                self._asking.out.append(StreamLose(held.stream, where))
            self._drop(where, held)
            return
        path = znodes.offset_path(self._group, *where)
        self._asking.get(path, partial(self._check_offset, where, held))

    def _check_offset(
        self, where: TopicPartition, held: OwnedPartition, znode: Znode | None
    ) -> None:
        if self.held.get(where) is not held:
            return
        version, data = (-1, b"") if znode is None else (znode.version, znode.data)
        if version == held.version + 1 and data == held.writing:
            held.version, held.data = version, data
        elif version != held.version:
            if held.state != RELEASED:
                self._lose(where, held)
                return
            held.final = None
        held.writing, held.is_sure = None, True
        if held.state == RELEASED:
            self._release(where, held)
        self._write_commits()

    # Commits.

    def commit(self, commit: StreamCommit) -> None:
        """Queue a commit; the answer comes with ZooKeeper's result."""
        errors: dict[TopicPartition, LogbusError] = {}
        for where, row in commit.rows.items():
            held = self.held.get(where)
            problem: LogbusError | None = _not_owner(where)
            if held is not None and held.state != RELEASED:
                # Rows from another claim may be behind offsets that others committed since.
                is_same = held.grant == commit.grants.get(where)
                problem = _check(held, row) if is_same else problem
            if problem is not None:
                errors[where] = problem
        rows = {where: row for where, row in commit.rows.items() if where not in errors}
        self._left[commit.number] = (len(rows), errors)
        claims = {where: self.held[where] for where in rows}
        self._commits.append(Queued(commit.number, rows, claims))
        self._answer(commit.number, 0, {})
        self._write_commits()

    def _answer(
        self, number: int, count: int, errors: Mapping[TopicPartition, LogbusError]
    ) -> None:
        """Record that ``count`` rows of a commit are decided."""
        left, known = self._left[number]
        known.update(errors)
        left -= count
        self._left[number] = (left, known)
        if left == 0:
            del self._left[number]
            self._asking.out.append(CommitAnswer(number, known))

    def _write_commits(self) -> None:
        """Write the waiting commits together; the later of two for one partition wins."""
        if self._writing or any(not held.is_sure for held in self.held.values()):
            return
        rows: dict[TopicPartition, CommittedOffset] = {}
        while self._commits and len(rows) < COMMIT_ROWS_MAX:
            commit = self._commits.popleft()
            gone = {
                where: _not_owner(where)
                for where in commit.rows
                if self.held.get(where) is not commit.claims[where]
                or commit.claims[where].state == RELEASED
            }
            wheres = [where for where in commit.rows if where not in gone]
            if gone:
                self._answer(commit.number, len(gone), gone)
            if wheres:
                self._writing.append((commit, wheres))
                rows.update({where: commit.rows[where] for where in wheres})
        if rows:
            self._write_rows(rows)

    def _write_rows(self, rows: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write as many rows as one write holds, then the rest."""
        operations: list[Operation] = []
        part: dict[TopicPartition, CommittedOffset] = {}
        rest: dict[TopicPartition, CommittedOffset] = {}
        size = 0
        for where, row in rows.items():
            held = self.held[where]
            held.writing = _encoded(held, row)
            path = znodes.offset_path(self._group, *where)
            size += len(path) + len(held.writing)
            if part and size > WRITE_BYTES_MAX:
                rest[where] = row
                continue
            part[where] = row
            operations.append(Set(path, held.writing, held.version))
        self._write(operations, partial(self._written, part, rest))

    def _written(
        self,
        part: dict[TopicPartition, CommittedOffset],
        rest: dict[TopicPartition, CommittedOffset],
        refused: Refused | None,
    ) -> None:
        if refused is None:
            for where in part:
                self._decided(where, None)
        else:
            fenced = list(part)[refused.position]
            held = self.held[fenced]
            self._decided(fenced, _not_owner(fenced))
            if self.held.get(fenced) is held and held.state != RELEASED:
                self._lose(fenced, held)
            del part[fenced]
            rest = {**part, **rest}
        if rest:
            self._write_rows(rest)
        elif not self._writing:
            self._write_commits()

    def _decided(self, where: TopicPartition, error: LogbusError | None) -> None:
        held = self.held[where]
        if error is None and held.writing is not None:
            held.version, held.data = held.version + 1, held.writing
        held.writing = None
        for entry in list(self._writing):
            commit, wheres = entry
            if where in wheres:
                wheres.remove(where)
                if not wheres:
                    self._writing.remove(entry)
                self._answer(commit.number, 1, {} if error is None else {where: error})
        if held.state == RELEASED:
            self._release(where, held)

    def _fail_commits(self) -> None:
        self._writing.clear()
        self._commits.clear()
        for number in list(self._left):
            left, errors = self._left.pop(number)
            error = CoordinationUnavailableError(
                "ZooKeeper does not answer; the commit may have happened; commit again"
            )
            self._asking.out.append(
                CommitAnswer(number, {**errors, ALL: error} if left else errors)
            )

    # Time.

    def next_ms(self) -> int | None:
        """Return when ``pass_time`` has work to do."""
        times = [held.due_ms for held in self.held.values() if held.state == TAKEN]
        times += [claim.retry_ms for claim in self.claims.values() if claim.stage == WAITING]
        return min(times, default=None)

    def pass_time(self) -> None:
        """Revoke partitions whose readers did not stop in time, and retry due claims."""
        now_ms = self._asking.now_ms
        for where, held in list(self.held.items()):
            if held.state == TAKEN and held.due_ms <= now_ms:
                self._asking.out.append(StreamLose(held.stream, where))
                self._release(where, held)
        for where, claim in list(self.claims.items()):
            if claim.stage == WAITING and claim.retry_ms <= now_ms:
                self._read(where)


def _encoded(held: OwnedPartition, row: CommittedOffset) -> bytes:
    return znodes.encode_offset(row._replace(topic_id=held.topic_id))


def _check(held: OwnedPartition, row: CommittedOffset) -> LogbusError | None:
    if row.topic_id not in (NULL_TOPIC_ID, held.topic_id):
        return UnknownTopicIdError("the topic was deleted and made again")
    if len(row.metadata.encode()) > METADATA_BYTES_MAX:
        return OffsetMetadataTooLargeError(f"metadata is longer than {METADATA_BYTES_MAX} bytes")
    return None


def _not_owner(where: TopicPartition) -> NotOwnerError:
    return NotOwnerError(f"{where} is not owned by this consumer (any more)")
