"""The partitions that one consumer of a native group claims, owns and releases, and its offset
commits. No I/O.

In ZooKeeper, each partition of the group has an ephemeral owner znode, which names the owner, and
an offset znode, which has the committed offset. To claim a partition, the consumer creates the
owner znode, and in the same transaction rewrites the offset znode unchanged. This gives the offset
znode a new version. A commit is a compare-and-set on this version, so an earlier owner can no
longer commit. Each write also checks that the consumer is registered. Only the owner deletes its
owner znode, after its reader has stopped."""

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
from broker_lite.metadata.store import Check, Create, Delete, Operation, Refused, Set, Znode, put
from broker_lite.metadata.znodes import OwnerZnode
from broker_lite.model import NULL_TOPIC_ID, CommittedOffset, TopicPartition
from broker_lite.native.events import (
    ALL,
    CommitAnswer,
    PartitionStart,
    StreamAssign,
    StreamCommit,
    StreamLose,
    StreamRevoke,
)
from broker_lite.native.pending_requests import BACKOFF_MAX_MS, PendingRequests, backoff_ms
from broker_lite.native.view import WatchedTopic

GRACE_MS = 300
"""Milliseconds for which a consumer waits for the reader of a revoked partition to stop. Afterwards
it releases the partition without a commit of the reader's position."""
COMMIT_ROWS_MAX = 500
"""Once a write has this many offsets, the other waiting commits go into the next write."""
WRITE_BYTES_MAX = 512 << 10
"""Maximum bytes of the commits in one write, with the paths: half of ZooKeeper's jute.maxbuffer."""
METADATA_BYTES_MAX = 4096
"""Maximum bytes of the metadata of a committed offset."""
NO_OFFSET = -1
"""The offset in the offset znode of a partition that was claimed and has no committed offset."""

OWNED, REVOKED, RELEASED = "owned", "revoked", "released"
READING, WRITING, READING_OWNER, WAITING = "reading", "writing", "reading owner", "waiting"


@dataclass(slots=True)
class OwnedPartition:
    """A partition that this consumer owns. ``stream`` is the number of the consumer's stream that
    reads it. ``version`` and ``data`` are the version and the value of its offset znode."""

    stream: int
    topic_id: str
    version: int
    data: bytes
    grant: int = 0
    """The number of the assignment with which a reader received the partition; 0 if no reader has
    received it."""
    state: str = OWNED
    due_ms: int = 0
    """The time (ms) at which a revoked partition is released even if the reader has not stopped."""
    final: CommittedOffset | None = None
    """The reader's last position, which the write that releases the partition commits."""
    writing: bytes | None = None
    """The new value of the offset znode that a commit in flight writes, or None."""
    is_sure: bool = True
    """Whether the consumer certainly owns the partition. After a lost connection to ZooKeeper, the
    consumer is sure again only when it has read the owner znode."""


@dataclass(slots=True)
class PartitionClaim:
    """An attempt to become the owner of a partition that is assigned to this consumer. Another
    consumer may still own it. ``stage`` says what the attempt waits for."""

    stream: int
    stage: str = READING
    tries: int = 0
    tried_ms: int = 0
    retry_ms: int = 0
    """The time (ms) at which this consumer tries again to own the partition, if ``stage`` is
    "waiting"."""
    is_over: bool = False
    """Whether the owner znode of another consumer has changed since this consumer began to watch
    it, so that the other consumer probably no longer owns the partition."""


class Queued(NamedTuple):
    """A commit that waits to be written. ``claims`` has, for each partition, the ``OwnedPartition``
    of the time when the reader asked for the commit."""

    number: int
    rows: Mapping[TopicPartition, CommittedOffset]
    claims: Mapping[TopicPartition, OwnedPartition]


class Ownership:
    """The partitions that one consumer owns, or claims (tries to own), according to the assignment
    that ``set_target`` sets. Also writes the consumer's offset commits."""

    def __init__(self, requests: PendingRequests, group: str, consumer: str) -> None:
        self.owned: dict[TopicPartition, OwnedPartition] = {}
        self.claims: dict[TopicPartition, PartitionClaim] = {}
        self.is_unregistered = False
        """Whether a write found the consumer's registration missing. The consumer must then join
        again."""
        self.unready: set[str] = set()
        """Topics for which a write failed because the parents of owner and offset znodes are
        missing."""
        self._requests = requests
        self._group = group
        self._consumer = consumer
        self._target: dict[TopicPartition, tuple[int, WatchedTopic]] = {}
        self._owned_by_others: Container[TopicPartition] = ()
        self._owner_paths: dict[str, TopicPartition] = {}
        self._uncertain: set[TopicPartition] = set()
        """Partitions that this consumer perhaps owns: the connection to ZooKeeper was lost before
        the answer to its claim (the attempt to own)."""
        self._commits: deque[Queued] = deque()
        self._writing: list[tuple[Queued, list[TopicPartition]]] = []
        self._unanswered: dict[int, tuple[int, dict[TopicPartition, LogbusError]]] = {}
        self._grants = 0
        self._next_ms: int | None = None
        """The earliest time (ms) at which a partition must be released, or an attempt to own a
        partition must be repeated. It is stored so that not every event must look at all
        partitions."""

    @property
    def is_settled(self) -> bool:
        """Whether the consumer owns exactly the partitions of its assignment."""
        return self.owned.keys() == self._target.keys() and all(
            owned.state == OWNED and owned.is_sure for owned in self.owned.values()
        )

    # Methods that bring the owned partitions closer to the assignment.

    def set_target(
        self,
        target: Mapping[TopicPartition, tuple[int, WatchedTopic]],
        owned_by_others: Container[TopicPartition] = (),
    ) -> None:
        """Set the partitions that this consumer must own, each with its stream and topic, and begin
        to claim (try to own) and release partitions accordingly. ``owned_by_others`` has partitions
        that other consumers probably still own: before a claim, their owner znodes are read."""
        self._target = dict(target)
        self._owned_by_others = owned_by_others
        for tp in [*self.owned, *self.claims, *self._target]:
            self._advance(tp)

    def _advance(self, tp: TopicPartition) -> None:
        """Begin to claim (try to own) or to revoke a partition if the assignment requires it."""
        assigned = self._target.get(tp)
        owned = self.owned.get(tp)
        claim = self.claims.get(tp)
        if owned is not None:
            fits = assigned is not None and owned.stream == assigned[0]
            if fits and assigned is not None and owned.topic_id == assigned[1].topic_id:
                return
            if owned.state == OWNED:
                self._revoke(tp, owned)
        elif claim is not None:
            if claim.stage == WRITING or (assigned is not None and claim.stream == assigned[0]):
                return
            del self.claims[tp]
            self._advance(tp)
        elif assigned is not None:
            claim = self.claims[tp] = PartitionClaim(assigned[0])
            if tp in self._owned_by_others:
                claim.tried_ms = self._requests.now_ms
                self._read_owner(tp, claim)
            else:
                self._read(tp)

    def _write(
        self, operations: Sequence[Operation], then: Callable[[Refused | None], None]
    ) -> None:
        """Write owner and offset znodes, and call ``then`` with the result. The same transaction
        checks this consumer's registration, so that no delayed write of an ended session takes
        effect. If the registration is missing, the write fails, and ``then`` is not called, because
        the consumer must join again."""
        me = znodes.consumer_path(self._group, self._consumer)
        self._requests.write([Check(me, 0), *operations], partial(self._wrote, then))

    def _wrote(self, then: Callable[[Refused | None], None], refused: Refused | None) -> None:
        if refused is None:
            then(None)
        elif refused.position:
            then(refused._replace(position=refused.position - 1))
        else:
            self.is_unregistered = True

    # Methods that claim partitions.

    def _read(self, tp: TopicPartition) -> None:
        claim = self.claims[tp]
        claim.stage, claim.tried_ms = READING, self._requests.now_ms
        path = znodes.offset_path(self._group, *tp)
        self._requests.get(path, partial(self._claim, tp, claim, path))

    def _claim(
        self, tp: TopicPartition, claim: PartitionClaim, path: str, znode: Znode | None
    ) -> None:
        assigned = self._target.get(tp)
        if self.claims.get(tp) is not claim or assigned is None:
            return
        topic_id = assigned[1].topic_id
        committed = None if znode is None else znodes.decode_offset(path, znode.data)
        if committed is None or committed.topic_id != topic_id:
            # Store NO_OFFSET: the group has no committed offset for the partition, or only one of a
            # deleted topic of the same name.
            committed = CommittedOffset(NO_OFFSET, topic_id=topic_id)
        data = znodes.encode_offset(committed)
        claim.stage = WRITING
        owner = znodes.encode_owner(OwnerZnode(self._consumer, claim.stream))
        self._write(
            [
                Create(znodes.owner_path(self._group, *tp), owner, ephemeral=True),
                put(path, data, znode),
            ],
            partial(
                self._claimed,
                tp,
                claim,
                OwnedPartition(
                    claim.stream, topic_id, 0 if znode is None else znode.version + 1, data
                ),
                committed,
            ),
        )

    def _claimed(
        self,
        tp: TopicPartition,
        claim: PartitionClaim,
        owned: OwnedPartition,
        stored: CommittedOffset,
        refused: Refused | None,
    ) -> None:
        assigned = self._target.get(tp)
        if refused is None:
            del self.claims[tp]
            self._uncertain.discard(tp)
            self.owned[tp] = owned
            if assigned is None or (assigned[0], assigned[1].topic_id) != (
                owned.stream,
                owned.topic_id,
            ):
                self._release(tp, owned)
                return
            self._grants += 1
            owned.grant = self._grants
            committed = None if stored.offset == NO_OFFSET else stored
            is_added = tp.partition >= assigned[1].first_count
            start = PartitionStart(committed, is_added, owned.topic_id, owned.grant)
            self._requests.out.append(StreamAssign(owned.stream, tp, start))
            return
        if assigned is None:
            del self.claims[tp]
            return
        if refused.position == 0 and refused.reason == "exists":
            claim.tries += 1
            self._read_owner(tp, claim)
            return
        if refused.reason == "missing":
            self.unready.add(tp.topic)
        self._wait(claim)
        claim.tries += 1

    def _read_owner(self, tp: TopicPartition, claim: PartitionClaim) -> None:
        claim.stage, claim.is_over = READING_OWNER, False
        path = znodes.owner_path(self._group, *tp)
        self._owner_paths[path] = tp
        self._requests.get(path, partial(self._owner_read, tp, claim), watch=True)

    def _owner_read(self, tp: TopicPartition, claim: PartitionClaim, znode: Znode | None) -> None:
        if self.claims.get(tp) is not claim:
            return
        if znode is None and not claim.tries:
            self._read(tp)
        elif znode is None:
            self._wait(claim)
        elif znode.session_id == self._requests.session_id:
            # An earlier claim of this consumer succeeded, but ZooKeeper's answer was lost, so the
            # version of the offset znode is unknown. Delete the owner znode and claim again.
            path = znodes.owner_path(self._group, *tp)
            self._write([Delete(path)], lambda _: self._wait(claim))
        else:
            # Another consumer still owns the partition. Claim it again when the watch on the owner
            # znode fires. A timer covers the case that the watch has fired already or never fires.
            self._wait(claim, None if claim.is_over else BACKOFF_MAX_MS)

    def _wait(self, claim: PartitionClaim, pause_ms: int | None = None) -> None:
        pause_ms = backoff_ms(claim.tries) if pause_ms is None else pause_ms
        claim.stage = WAITING
        claim.retry_ms = self._requests.now_ms + pause_ms
        self._arm(claim.retry_ms)
        claim.tries = max(1, claim.tries)

    def owner_changed(self, path: str) -> None:
        """Handle a change of another consumer's owner znode: if this consumer waits to own the
        partition, try again as soon as the backoff allows."""
        tp = self._owner_paths.pop(path, None)
        claim = None if tp is None else self.claims.get(tp)
        if claim is not None:
            claim.is_over = True
        if claim is not None and claim.stage == WAITING:
            earliest_ms = claim.tried_ms + backoff_ms(claim.tries - 1)
            claim.retry_ms = max(self._requests.now_ms, min(claim.retry_ms, earliest_ms))
            self._arm(claim.retry_ms)

    # Methods that release partitions.

    def _revoke(self, tp: TopicPartition, owned: OwnedPartition) -> None:
        owned.state = REVOKED
        owned.due_ms = self._requests.now_ms + GRACE_MS
        self._arm(owned.due_ms)
        self._requests.out.append(StreamRevoke(owned.stream, tp))

    def settled(self, tp: TopicPartition, final: CommittedOffset | None, grant: int) -> None:
        """Release a revoked partition, because its reader has stopped. Commit ``final``, the
        reader's last position, unless it is None.

        ``grant`` is the assignment number with which the reader received the partition. If the
        partition was assigned to a reader again since, its number has changed, and the call has no
        effect."""
        owned = self.owned.get(tp)
        if owned is not None and owned.state == REVOKED and owned.grant == grant:
            owned.final = final
            self._release(tp, owned)

    def _release(self, tp: TopicPartition, owned: OwnedPartition) -> None:
        owned.state = RELEASED
        if owned.writing is not None or not owned.is_sure:
            return  # A write of this partition is in flight. Its answer continues the release.
        operations: list[Operation] = []
        if owned.final is not None and _check(owned, owned.final) is None:
            data = _encoded(owned, owned.final)
            if znodes.decode_offset("", owned.data).offset != owned.final.offset:
                path = znodes.offset_path(self._group, *tp)
                operations.append(Set(path, data, owned.version))
        operations.append(Delete(znodes.owner_path(self._group, *tp)))
        self._write(operations, partial(self._released, tp, owned, len(operations)))

    def _released(
        self, tp: TopicPartition, owned: OwnedPartition, count: int, refused: Refused | None
    ) -> None:
        if refused is not None and refused.position < count - 1:
            # Another client has changed the committed offset. Keep that offset, and only delete the
            # owner znode.
            owned.final = None
            self._release(tp, owned)
            return
        self._drop(tp, owned)

    def _drop(self, tp: TopicPartition, owned: OwnedPartition) -> None:
        if self.owned.get(tp) is owned:
            del self.owned[tp]
            self._advance(tp)

    def _lose(self, tp: TopicPartition, owned: OwnedPartition) -> None:
        """Take a partition from its reader, because another client has changed the partition's
        committed offset.

        If the partition is still assigned to this consumer, it is claimed again and read from the
        new offset."""
        self._requests.out.append(StreamLose(owned.stream, tp))
        owned.final = owned.writing = None
        owned.is_sure = True
        self._release(tp, owned)

    def lose_all(self) -> None:
        """Drop all partitions, because the consumer's ZooKeeper session has ended."""
        for tp, owned in self.owned.items():
            self._requests.out.append(StreamLose(owned.stream, tp))
        self.owned.clear()
        self.claims.clear()
        self._uncertain.clear()
        self._owner_paths.clear()
        self._target = {}
        self._fail_commits()

    # Methods that handle a lost connection and a reconnect.

    def suspend(self) -> None:
        """Record the loss of the connection to ZooKeeper. The writes in flight may have taken
        effect or not."""
        for owned in self.owned.values():
            owned.is_sure = False
        self._uncertain.update(tp for tp, claim in self.claims.items() if claim.stage != READING)
        self.claims.clear()
        self._owner_paths.clear()
        self._fail_commits()

    def resume(self) -> None:
        """After a reconnect in the same session, find out which of the writes that were in flight
        when the connection was lost have succeeded."""
        for tp in sorted(self._uncertain):
            # First undo the claims that may have succeeded. Otherwise a new claim of the partition
            # would find the owner znode of the old claim.
            path = znodes.owner_path(self._group, *tp)
            self._requests.get(path, partial(self._undo, tp, path))
        for tp, owned in self.owned.items():
            path = znodes.owner_path(self._group, *tp)
            self._requests.get(path, partial(self._check_owner, tp, owned))

    def _undo(self, tp: TopicPartition, path: str, znode: Znode | None) -> None:
        """Delete the owner znode of a claim (an attempt to own the partition) that succeeded, but
        whose answer was lost: without the answer, the consumer does not know the version of the
        offset znode, and cannot commit."""
        if znode is not None and znode.session_id == self._requests.session_id:
            self._write([Delete(path)], lambda _: self._uncertain.discard(tp))
        else:
            self._uncertain.discard(tp)

    def _check_owner(self, tp: TopicPartition, owned: OwnedPartition, znode: Znode | None) -> None:
        if self.owned.get(tp) is not owned:
            return
        if znode is None or znode.session_id != self._requests.session_id:
            if owned.state != RELEASED:
                self._requests.out.append(StreamLose(owned.stream, tp))
            self._drop(tp, owned)
            return
        path = znodes.offset_path(self._group, *tp)
        self._requests.get(path, partial(self._check_offset, tp, owned))

    def _check_offset(self, tp: TopicPartition, owned: OwnedPartition, znode: Znode | None) -> None:
        if self.owned.get(tp) is not owned:
            return
        version, data = (-1, b"") if znode is None else (znode.version, znode.data)
        if version == owned.version + 1 and data == owned.writing:
            owned.version, owned.data = version, data
        elif version != owned.version:
            if owned.state != RELEASED:
                self._lose(tp, owned)
                return
            owned.final = None
        owned.writing, owned.is_sure = None, True
        if owned.state == RELEASED:
            self._release(tp, owned)
        self._write_commits()

    # Methods that write commits.

    def commit(self, commit: StreamCommit) -> None:
        """Queue a commit of a reader. When ZooKeeper has answered, a ``CommitAnswer`` follows."""
        errors: dict[TopicPartition, LogbusError] = {}
        for tp, row in commit.rows.items():
            owned = self.owned.get(tp)
            problem: LogbusError | None = _not_owner(tp)
            if owned is not None and owned.state != RELEASED:
                # If the partition was released and claimed again since the reader read these
                # records, another owner may have committed a later offset. Refuse the commit.
                is_same = owned.grant == commit.grants.get(tp)
                problem = _check(owned, row) if is_same else problem
            if problem is not None:
                errors[tp] = problem
        rows = {tp: row for tp, row in commit.rows.items() if tp not in errors}
        self._unanswered[commit.number] = (len(rows), errors)
        claims = {tp: self.owned[tp] for tp in rows}
        self._commits.append(Queued(commit.number, rows, claims))
        self._answer(commit.number, 0, {})
        self._write_commits()

    def _answer(
        self, number: int, count: int, errors: Mapping[TopicPartition, LogbusError]
    ) -> None:
        """Record the results for ``count`` partitions of the commit with this ``number``: those in
        ``errors`` failed, the others succeeded. Answer the commit when no result is missing."""
        left, known = self._unanswered[number]
        known.update(errors)
        left -= count
        self._unanswered[number] = (left, known)
        if left == 0:
            del self._unanswered[number]
            self._requests.out.append(CommitAnswer(number, known))

    def _write_commits(self) -> None:
        """Write the waiting commits together. If several contain the same partition, write only the
        last offset."""
        if self._writing or any(not owned.is_sure for owned in self.owned.values()):
            return
        rows: dict[TopicPartition, CommittedOffset] = {}
        while self._commits and len(rows) < COMMIT_ROWS_MAX:
            commit = self._commits.popleft()
            lost = {
                tp: _not_owner(tp)
                for tp in commit.rows
                if self.owned.get(tp) is not commit.claims[tp]
                or commit.claims[tp].state == RELEASED
            }
            tps = [tp for tp in commit.rows if tp not in lost]
            if lost:
                self._answer(commit.number, len(lost), lost)
            if tps:
                self._writing.append((commit, tps))
                rows.update({tp: commit.rows[tp] for tp in tps})
        if rows:
            self._write_rows(rows)

    def _write_rows(self, rows: Mapping[TopicPartition, CommittedOffset]) -> None:
        operations: list[Operation] = []
        part: dict[TopicPartition, CommittedOffset] = {}
        rest: dict[TopicPartition, CommittedOffset] = {}
        size = 0
        for tp, row in rows.items():
            owned = self.owned[tp]
            owned.writing = _encoded(owned, row)
            path = znodes.offset_path(self._group, *tp)
            size += len(path) + len(owned.writing)
            if part and size > WRITE_BYTES_MAX:
                rest[tp] = row
                continue
            part[tp] = row
            operations.append(Set(path, owned.writing, owned.version))
        self._write(operations, partial(self._written, part, rest))

    def _written(
        self,
        part: dict[TopicPartition, CommittedOffset],
        rest: dict[TopicPartition, CommittedOffset],
        refused: Refused | None,
    ) -> None:
        if refused is None:
            for tp in part:
                self._decided(tp, None)
        else:
            fenced = list(part)[refused.position]
            owned = self.owned[fenced]
            self._decided(fenced, _not_owner(fenced))
            if self.owned.get(fenced) is owned and owned.state != RELEASED:
                self._lose(fenced, owned)
            del part[fenced]
            rest = {**part, **rest}
        if rest:
            self._write_rows(rest)
        elif not self._writing:
            self._write_commits()

    def _decided(self, tp: TopicPartition, error: LogbusError | None) -> None:
        owned = self.owned[tp]
        if error is None and owned.writing is not None:
            owned.version, owned.data = owned.version + 1, owned.writing
        owned.writing = None
        for entry in list(self._writing):
            commit, tps = entry
            if tp in tps:
                tps.remove(tp)
                if not tps:
                    self._writing.remove(entry)
                self._answer(commit.number, 1, {} if error is None else {tp: error})
        if owned.state == RELEASED:
            self._release(tp, owned)

    def _fail_commits(self) -> None:
        self._writing.clear()
        self._commits.clear()
        for number in list(self._unanswered):
            left, errors = self._unanswered.pop(number)
            error = CoordinationUnavailableError(
                "ZooKeeper does not answer, and the commit may have taken effect; commit again"
            )
            self._requests.out.append(
                CommitAnswer(number, {**errors, ALL: error} if left else errors)
            )

    # Methods that handle the passing of time.

    def next_ms(self) -> int | None:
        """The time (ms) at which the caller must call ``pass_time`` next, or None if no partition
        must be released later and no attempt to own one must be repeated."""
        return self._next_ms

    def _arm(self, at_ms: int) -> None:
        self._next_ms = at_ms if self._next_ms is None else min(self._next_ms, at_ms)

    def pass_time(self) -> None:
        """Release revoked partitions whose readers did not stop within GRACE_MS, and repeat failed
        attempts to own a partition after their backoff."""
        now_ms = self._requests.now_ms
        if self._next_ms is None or now_ms < self._next_ms:
            return
        for tp, owned in list(self.owned.items()):
            if owned.state == REVOKED and owned.due_ms <= now_ms:
                self._requests.out.append(StreamLose(owned.stream, tp))
                self._release(tp, owned)
        for tp, claim in list(self.claims.items()):
            if claim.stage == WAITING and claim.retry_ms <= now_ms:
                self._read(tp)
        times = [owned.due_ms for owned in self.owned.values() if owned.state == REVOKED]
        times += [claim.retry_ms for claim in self.claims.values() if claim.stage == WAITING]
        self._next_ms = min(times, default=None)


def _encoded(owned: OwnedPartition, row: CommittedOffset) -> bytes:
    return znodes.encode_offset(row._replace(topic_id=owned.topic_id))


def _check(owned: OwnedPartition, row: CommittedOffset) -> LogbusError | None:
    if row.topic_id not in (NULL_TOPIC_ID, owned.topic_id):
        return UnknownTopicIdError("the topic was deleted and recreated; seek to an offset in it")
    if len(row.metadata.encode()) > METADATA_BYTES_MAX:
        return OffsetMetadataTooLargeError(
            f"the offset's metadata is longer than {METADATA_BYTES_MAX} bytes; shorten it"
        )
    return None


def _not_owner(tp: TopicPartition) -> NotOwnerError:
    return NotOwnerError(f"this consumer no longer owns {tp}; drop its records")
