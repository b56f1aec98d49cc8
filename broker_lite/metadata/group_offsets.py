"""The offsets of consumer groups in ZooKeeper, at /consumers/<group>/offsets/<topic>/<partition>.

Only the broker that holds the group's claim, the exclusive right of its coordinator, writes the
offsets (``group_claims``). ``group_writer`` writes several commits together; a commit is answered
when ZooKeeper confirms the write. Each offset is stored with its topic id, so that it does not
apply to a recreated topic of the same name. The offsets of open transactions are *pending*: they
wait at /consumers/<group>/pending (``pending_offsets``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from broker_lite.errors import (
    CoordinationUnavailableError,
    GroupIdNotFoundError,
    LogbusError,
    NonEmptyGroupError,
    NotCoordinatorError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WriteConflictError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.group_claims import GroupClaim, make_claim
from broker_lite.metadata.group_kind import is_open
from broker_lite.metadata.group_writer import GroupWriter
from broker_lite.metadata.loader import gather, read_znodes
from broker_lite.metadata.native_members import NativeMember, read_members
from broker_lite.metadata.pending_offsets import (
    WRITE_BYTES_MAX,
    AddPart,
    EndPart,
    PartWrite,
    part_cost,
    split,
)
from broker_lite.metadata.store import Check, Delete, MetadataStore, Operation, Refused
from broker_lite.model import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    NULL_TOPIC_ID,
    CommittedOffset,
    TopicPartition,
    TopicView,
    is_valid_name,
)

KNOWN_MAX = 10_000
"""Maximum number of groups whose claims (rights to write offsets) a broker keeps in memory. The
least recently used claim is evicted."""
ATTEMPTS_MAX = 20
DELETES_PER_WRITE_MAX = 1000
COMMIT_WAIT_S = 5.0
"""Seconds after which a commit that ZooKeeper has not confirmed fails with a retriable error."""


class GroupAge(NamedTuple):
    """The times from which a group's retention of offsets is counted.

    ``empty_since_ms`` is the time at which the last member left, or None if the group has members
    or the time is unknown. ``newest_commit_ms`` is the time of the newest commit, or None if the
    group has no offsets. Brokers only poll the members of a native group (without a coordinator),
    and may miss a member that leaves soon. In such a group, the registration of a member and each
    change of a partition's owner therefore count as commits."""

    empty_since_ms: int | None
    newest_commit_ms: int | None


class _OffsetRow(NamedTuple):
    """An offset znode.

    ``touched_ms`` is the time of its last commit or, in a native group (without a coordinator), of
    the partition's last change of owner if that is later."""

    key: TopicPartition
    path: str
    version: int
    topic_id: str
    touched_ms: int


class PendingRow(NamedTuple):
    """Offsets that an open transaction has stored in one znode. ``created_zxid`` is the zxid
    (ZooKeeper transaction id) of the write that created the znode."""

    part: znodes.PendingPart
    created_zxid: int
    value: znodes.PendingOffsets


class FetchedOffsets(NamedTuple):
    """The committed offsets of a group's stable partitions, and the unstable partitions: those for
    which an open transaction has a pending offset."""

    offsets: dict[TopicPartition, CommittedOffset]
    unstable: frozenset[TopicPartition]


class GroupOffsets:
    """Reads and writes the offsets of consumer groups on behalf of one broker.

    ``find_topic`` returns a topic from the current metadata snapshot. ``now_ms`` is the wall clock.
    ``identity`` returns this broker's id and current broker epoch.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        find_topic: Callable[[str], TopicView | None],
        now_ms: Callable[[], int],
        interval_ms: int,
        identity: Callable[[], tuple[int, int]],
        wait_connected: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._find_topic = find_topic
        self._now_ms = now_ms
        self._identity = identity
        self._writer = GroupWriter(store, interval_ms=interval_ms, wait_connected=wait_connected)
        self._claims: dict[str, GroupClaim] = {}
        self._claiming: dict[str, asyncio.Task[GroupClaim]] = {}
        self._claims_made = 0
        self._reading: dict[str, asyncio.Task[znodes.Assignment | None]] = {}

    async def claim(self, group: str) -> GroupClaim:
        """Return this broker's claim of the group, its exclusive right to write the group's
        offsets. If the broker does not hold it, claim the group.

        Raises the errors of ``make_claim``, and CoordinationUnavailableError while the broker is
        not registered."""
        claim, (broker_id, broker_epoch) = self._claims.get(group), self._identity()
        if broker_epoch == NO_EPOCH:
            raise CoordinationUnavailableError(
                "this broker is not registered in ZooKeeper; try again later"
            )
        if claim is not None and claim.held and claim.value.broker_epoch == broker_epoch:
            self._used(claim)
            return claim
        task = self._claiming.get(group)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._make_claim(group, broker_id, broker_epoch)
            )
            self._claiming[group] = task
            task.add_done_callback(lambda _: self._claiming.pop(group, None))
        return await asyncio.shield(task)

    async def _make_claim(self, group: str, broker_id: int, broker_epoch: int) -> GroupClaim:
        self._claims_made += 1
        claim = await make_claim(
            self._store,
            group,
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            # The claim's name is unique: a broker epoch belongs to one registration of one broker,
            # and the broker numbers its claims.
            name=f"{broker_epoch}-{self._claims_made}",
            now_ms=self._now_ms,
        )
        # Another broker may have been the coordinator, and have written offsets, meanwhile.
        # Forget the cached versions of the group's znodes, which are out of date.
        self._writer.forget(group)
        self._used(claim)
        return claim

    def _used(self, claim: GroupClaim) -> None:
        """Mark a claim (the right to write a group's offsets) as the most recently used. Evict the
        least recently used claim if there are more than KNOWN_MAX."""
        self._claims.pop(claim.group, None)
        self._claims[claim.group] = claim
        if len(self._claims) > KNOWN_MAX:
            del self._claims[next(iter(self._claims))]

    def release(self, claim: GroupClaim) -> None:
        """Give up the right to write a group's offsets. Writes of this broker that are not
        confirmed yet then fail."""
        claim.held = False
        if self._claims.get(claim.group) is claim:
            del self._claims[claim.group]

    def release_others(self, is_ours: Callable[[str], bool]) -> None:
        """Give up the right to write the offsets of all groups for which ``is_ours`` returns False,
        because another broker coordinates them now."""
        for group, claim in list(self._claims.items()):
            if not is_ours(group):
                self.release(claim)

    async def begin_generation(
        self,
        claim: GroupClaim,
        generation: int,
        *,
        is_empty: bool,
        members: int = 0,
        session_timeout_ms: int = 0,
    ) -> None:
        """Write a new generation of the group. Return when ZooKeeper has confirmed it and all
        earlier commits. There is no timeout.

        ``members`` (a count) and their longest session timeout are stored for the group's next
        coordinator. Raises NotCoordinatorError if another broker has become the group's
        coordinator."""
        value = claim.value._replace(
            generation=generation,
            empty_since_ms=self._now_ms() if is_empty else None,
            members=members,
            session_timeout_ms=session_timeout_ms,
        )
        await asyncio.shield(self._writer.begin_generation(claim, value))

    def unwritten(self, claim: GroupClaim) -> asyncio.Future[None] | None:
        """Return a future that completes when the queued writes of the group are confirmed or
        failed; None if nothing is queued."""
        return self._writer.unwritten(claim)

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        claim: GroupClaim | None = None,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Commit offsets of a group. Return an error or None for each partition.

        A missing topic id or commit time is filled in. Without ``claim``, this broker claims the
        group (the right to write its offsets), and once more if another broker claims it meanwhile.
        Raises InvalidGroupIdError, CoordinationUnavailableError, and NotCoordinatorError if another
        broker has replaced ``claim``."""
        znodes.group_path(group)
        self._check_connected()
        accepted, results = self._accepted(offsets)
        if accepted:
            try:
                async with asyncio.timeout(COMMIT_WAIT_S):
                    await self._commit(group, accepted, claim)
            except TimeoutError:
                raise _unconfirmed() from None
        return results

    def _check_connected(self) -> None:
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; commit again later")

    def _accepted(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, LogbusError | None]]:
        """Return the offsets of a commit that can be written, completed by topic id and commit
        time. Also return an error or None for each partition.

        For example, a partition that does not exist gets an error."""
        results: dict[TopicPartition, LogbusError | None] = {}
        accepted = {}
        for key, offset in offsets.items():
            try:
                accepted[key] = self._complete(key, offset)
                results[key] = None
            except LogbusError as error:
                results[key] = error
        return accepted, results

    async def _commit(
        self,
        group: str,
        offsets: dict[TopicPartition, CommittedOffset],
        claim: GroupClaim | None,
    ) -> None:
        if claim is not None:
            if self._claims.get(group) is claim:
                self._used(claim)
            await asyncio.shield(self._writer.commit(claim, offsets))
            return
        for _ in range(ATTEMPTS_MAX):
            try:
                new_claim = await self.claim(group)
                await asyncio.shield(self._writer.commit(new_claim, offsets))
                return
            except NotCoordinatorError:
                continue
        raise WriteConflictError(f"other brokers keep taking over group {group!r}; commit again")

    async def add_pending(
        self,
        claim: GroupClaim,
        transaction: znodes.TransactionKey,
        value: znodes.PendingOffsets,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Store offsets that an open transaction commits. Return an error or None for each
        partition.

        The write is queued before the first ``await``, so that the conditions that the caller has
        checked cannot change before. Raises CoordinationUnavailableError, NotCoordinatorError if
        another broker has become the group's coordinator, and TransactionAbortableError if open
        transactions have stored offsets in PARTS_MAX znodes of the group already
        (``pending_offsets``)."""
        self._check_connected()
        accepted, results = self._accepted(value.offsets)
        loop = asyncio.get_running_loop()
        writes: list[PartWrite] = []
        for rows in split(claim.group, accepted) if accepted else ():
            cost = part_cost(claim.group, rows)
            part = value._replace(offsets=rows)
            writes.append(AddPart(loop.create_future(), cost, transaction, part))
        await self._write_parts(claim, writes)
        return results

    async def end_pending(
        self, group: str, transaction: znodes.TransactionKey, *, is_commit: bool
    ) -> None:
        """End a transaction for a group: delete the offsets that the transaction has stored and, if
        ``is_commit``, commit them in the same write.

        A repeated call has no effect. If a partition has been committed since an offset was stored,
        the newer commit stays. An offset of a deleted topic is not applied to a recreated topic of
        the same name. Raises the errors of ``claim`` and ``commit``."""
        if await self.kind(group) is None:
            # The ZooKeeper server of this broker may lag behind the server through which another
            # broker has just created the group. Let it catch up, and look again.
            await self._store.sync(znodes.group_path(group))
            if await self.kind(group) is None:
                # The group has no coordinator, so no broker can be writing pending offsets of it.
                return
        for _ in range(ATTEMPTS_MAX):
            claim = await self.claim(group)
            if (unwritten := self.unwritten(claim)) is not None:
                # Wait for the queued writes, so that the read below finds their pending offsets.
                written, _ = await asyncio.wait([unwritten], timeout=COMMIT_WAIT_S)
                if not written:
                    raise _unconfirmed()
            ended = [
                row for row in await self.pending(group) if row.part.transaction == transaction
            ]
            try:
                await self._end_parts(claim, ended, is_commit=is_commit)
                return
            except NotCoordinatorError:
                continue
        raise WriteConflictError(
            f"other brokers keep taking over group {group!r}; end the transaction again"
        )

    async def _end_parts(
        self, claim: GroupClaim, ended: list[PendingRow], *, is_commit: bool
    ) -> None:
        topics = {}
        if is_commit:
            topics = await self._assignments(
                {key.topic for row in ended for key in row.value.offsets}
            )
        loop = asyncio.get_running_loop()
        writes: list[PartWrite] = []
        for row in ended:
            offsets = {
                key: offset
                for key, offset in row.value.offsets.items()
                if key.topic in topics and topics[key.topic].topic_id == offset.topic_id
            }
            cost = part_cost(claim.group, offsets)
            name = str(row.part)
            writes.append(EndPart(loop.create_future(), cost, name, row.created_zxid, offsets))
        await self._write_parts(claim, writes)

    async def _write_parts(self, claim: GroupClaim, writes: list[PartWrite]) -> None:
        if self._claims.get(claim.group) is claim:
            self._used(claim)
        for write in writes:
            self._writer.write_part(claim, write)
        try:
            async with asyncio.timeout(COMMIT_WAIT_S):
                for write in writes:
                    await asyncio.shield(write.done)
        except TimeoutError:
            raise _unconfirmed() from None

    async def pending(self, group: str) -> list[PendingRow]:
        """Return the offsets that open transactions have stored in a group, one row for each znode.
        The rows of one transaction are in the order in which they were written."""
        path = znodes.pending_path(group)
        await self._store.sync(path)
        names = await self._store.children(path) or ()
        parts = sorted(map(znodes.decode_part, names))
        paths = {znodes.part_path(group, str(part)): part for part in parts}
        return [
            PendingRow(paths[path], znode.created_zxid, znodes.decode_pending(path, znode.data))
            for path, znode in (await read_znodes(self._store, paths)).items()
        ]

    async def fetch_stable(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        with_former: bool = False,
    ) -> FetchedOffsets:
        """Return the committed offsets of stable partitions, as ``fetch`` does, and the set of
        unstable partitions: those for which an open transaction has a pending offset (KIP-447)."""
        # Read the pending offsets before the committed ones. If a transaction commits between the
        # two reads, its partitions count as unstable. In the other order, the method could return
        # an offset from before that commit as stable.
        pending = await self.pending(group)
        offsets = await self.fetch(group, partitions, with_former=with_former)
        rows = {key: row for part in pending for key, row in part.value.offsets.items()}
        if rows:
            topics = await self._assignments({key.topic for key in rows})
            rows = {
                key: row
                for key, row in rows.items()
                if key.topic in topics and topics[key.topic].topic_id == row.topic_id
            }
        stable = {key: row for key, row in offsets.items() if key not in rows}
        return FetchedOffsets(stable, frozenset(rows))

    async def fetch(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        with_former: bool = False,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group for ``partitions`` in existing topics. None
        selects all partitions.

        With ``with_former``, the offset of a deleted topic of the same name is returned as offset
        -1 with the deleted topic's id. Topic ids are read from ZooKeeper. With those of a stale
        metadata snapshot an offset could be left out, and the consumer would start at the beginning
        or end of the log."""
        await self._store.sync(znodes.group_path(group))
        if partitions is None:
            keys = await self._committed(group)
        else:
            # Leave out invalid topic names: as a part of a znode's path they could be invalid too.
            keys = [key for key in partitions if is_valid_name(key.topic)]
        paths = {znodes.offset_path(group, *key): key for key in keys}
        offsets = {
            paths[path]: znodes.decode_offset(path, znode.data)
            for path, znode in (await read_znodes(self._store, paths)).items()
        }
        # Read the topics after the offsets. Otherwise, if a topic is recreated between the reads,
        # the new topic's offsets would not match the id of the old one.
        topics = await self._assignments({key.topic for key in offsets})
        committed = {}
        for key, offset in offsets.items():
            topic = topics.get(key.topic)
            if topic is None or key.partition >= len(topic.replicas):
                continue
            # NO_OFFSET is not a commit: a member of a native group stores it when it becomes the
            # owner of a partition without an offset.
            if offset.topic_id == topic.topic_id and offset.offset != NO_OFFSET:
                committed[key] = offset
            elif offset.topic_id != topic.topic_id and with_former:
                committed[key] = CommittedOffset(NO_OFFSET, topic_id=offset.topic_id)
        return committed

    async def _assignments(self, topics: Iterable[str]) -> dict[str, znodes.Assignment]:
        names = sorted(topics)
        rows = await gather([self._assignment(name) for name in names])
        return {name: row for name, row in zip(names, rows) if row is not None}

    async def _assignment(self, topic: str) -> znodes.Assignment | None:
        """Return the replica assignment of a topic from ZooKeeper; None if the topic does not
        exist.

        Calls in one iteration of the event loop share one read."""
        reading = self._reading.get(topic)
        if reading is None:
            reading = asyncio.ensure_future(self._assignment_next_turn(topic))
            self._reading[topic] = reading
        return await asyncio.shield(reading)

    async def _assignment_next_turn(self, topic: str) -> znodes.Assignment | None:
        del self._reading[topic]  # Later callers need a new read: this one may miss changes.
        path = znodes.topic_path(topic)
        znode = await self._store.get(path)
        return None if znode is None else znodes.decode_assignment(path, znode.data)

    async def kind(self, group: str) -> str | None:
        """Return the kind of a group, "native" (coordinated through ZooKeeper) or "kafka"; None if
        the group does not exist. A group that has never had members is "kafka"."""
        path = znodes.group_path(group)
        znode = await self._store.get(path)
        return None if znode is None else znodes.decode_group(path, znode.data)

    async def names(self) -> list[str]:
        """Return the name of every group in ZooKeeper."""
        children = await self._store.children(znodes.CONSUMERS) or ()
        return [znodes.group_name(name) for name in children]

    async def kinds(self, groups: Iterable[str] | None = None) -> dict[str, str]:
        """Return the kind of each of these groups, or of all groups in ZooKeeper, by group name.
        Groups that do not exist are left out."""
        names = await self.names() if groups is None else list(groups)
        kinds = await gather([self.kind(name) for name in names])
        return {name: kind for name, kind in zip(names, kinds) if kind is not None}

    async def members_left(self, group: str) -> int:
        """Return the number of members in the last generation of a Kafka group. The generation may
        have begun while another broker was the group's coordinator."""
        claim = self._claims.get(group)
        if claim is not None and claim.held:
            return claim.value.members
        znode = await self._store.get(znodes.coordinator_path(group))
        return znodes.read_coordinator(group, znode).members

    async def is_open(self, group: str, kind: str) -> bool:
        """Return whether the group has never had members, so that it can still become a native
        group (without a coordinator)."""
        claim = self._claims.get(group)
        if claim is not None and claim.held:
            return kind == znodes.KIND_KAFKA and not claim.value.generation
        return is_open(group, kind, await self._store.get(znodes.coordinator_path(group)))

    async def has_pending(self, group: str) -> bool:
        """Return whether the group has offsets of open transactions."""
        return bool(await self._store.children(znodes.pending_path(group)))

    async def native_members(self, group: str) -> list[str]:
        """Return the names of the members of a native group, which register in ZooKeeper and not at
        a broker."""
        return await self._store.children(znodes.consumers_path(group)) or []

    async def describe_native(self, group: str) -> list[NativeMember]:
        """Return the live members of a native group, which coordinates through ZooKeeper, with the
        partitions that they own."""
        return await read_members(self._store, group)

    async def is_held(self, claim: GroupClaim) -> bool:
        """Return whether ZooKeeper still has this claim (right to write the group's offsets), so
        that this broker is the group's coordinator.

        Also sets a watch: the next change of the coordinator znode raises one DataChanged event."""
        path = znodes.coordinator_path(claim.group)
        znode = await self._store.get(path, watch=True)
        # Compare the unique name of this broker's claim, not the version of the coordinator znode:
        # the version starts at 0 again if the group is deleted and created anew.
        if not claim.is_seen_in(znode):
            claim.held = False
        return claim.held

    async def age(self, group: str) -> GroupAge:
        """Return when the last member left the group, and when its newest commit was. The retention
        of offsets depends on both times."""
        znode = await self._store.get(znodes.coordinator_path(group))
        empty_ms = znodes.read_coordinator(group, znode).empty_since_ms
        if await self.native_members(group):
            empty_ms = None
        rows = await self._rows(group)
        newest_ms = max((row.touched_ms for row in rows), default=None)
        registry = await self._store.get(znodes.consumers_path(group))
        if newest_ms is not None and registry is not None:
            newest_ms = max(newest_ms, registry.modified_ms)
        return GroupAge(empty_ms, newest_ms)

    async def _rows(self, group: str) -> list[_OffsetRow]:
        paths = {znodes.offset_path(group, *key): key for key in await self._committed(group)}
        is_native = await self.kind(group) == znodes.KIND_NATIVE
        rows = []
        for path, znode in (await read_znodes(self._store, paths)).items():
            offset = znodes.decode_offset(path, znode.data)
            # Use the modification time of a native group's znode: a member that becomes the owner
            # of a partition writes the offset again, unchanged.
            touched_ms = max(offset.commit_ms, znode.modified_ms * is_native)
            rows.append(_OffsetRow(paths[path], path, znode.version, offset.topic_id, touched_ms))
        return rows

    async def delete(
        self, group: str, check_empty: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Delete a group with its offsets.

        ``check_empty`` is called before each attempt. It raises NonEmptyGroupError if this broker
        knows members, which may have joined since the last attempt. Without this check, repeated
        attempts would keep new members out, because each attempt takes the group from its
        coordinator.

        Raises GroupIdNotFoundError, WriteConflictError, and NonEmptyGroupError if the group has
        members or offsets of open transactions."""
        for _ in range(ATTEMPTS_MAX):
            if check_empty is not None:
                await check_empty()
            await self._check_exists(group)
            await self._check_without_natives(group)
            if await self.has_pending(group):
                raise NonEmptyGroupError(
                    f"group {group!r} has offsets of open transactions; end these first (see: "
                    "logbus transactions list)"
                )
            claim = await self.claim(group)
            if claim.value.members:
                raise _has_members(group)
            if await self._delete_group(claim) is None:
                return
        raise _changing(group)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the group's offsets of these partitions.

        Raises GroupIdNotFoundError, WriteConflictError, and NonEmptyGroupError if the group has
        native members (without a coordinator)."""
        await self._check_exists(group)
        paths = [znodes.offset_path(group, *key) for key in partitions]
        for _ in range(ATTEMPTS_MAX):
            await self._check_without_natives(group)
            claim = await self.claim(group)
            checks = claim.checks
            present = list(await read_znodes(self._store, paths))
            self._writer.forget(group)
            refused = await self._delete(checks, present, [])
            if refused is None:
                return
            if refused.operation in checks and claim.checks == checks:
                self.release(claim)
        raise _changing(group)

    async def _check_exists(self, group: str) -> None:
        if await self.kind(group) is None:
            raise GroupIdNotFoundError(
                f"group {group!r} does not exist; list the groups with: logbus groups list"
            )

    async def _check_without_natives(self, group: str) -> None:
        if await self.native_members(group):
            raise _has_members(group)

    async def expire(self, group: str, is_over: Callable[[GroupAge], bool]) -> bool:
        """Delete the group if ``is_over`` returns True for its age (the times of its last member
        and its newest commit). Return whether it was deleted.

        A group with native members or offsets of open transactions is never deleted. A commit or
        join meanwhile changes the coordinator znode, so that ZooKeeper refuses the deletion."""
        if await self.native_members(group) or not is_over(await self.age(group)):
            return False
        if await self.has_pending(group):
            return False
        claim = await self.claim(group)
        # Release the claim. A commit or join must then make a new claim, which changes the
        # coordinator znode, so ZooKeeper refuses the deletion.
        self.release(claim)
        if await self.native_members(group) or not is_over(await self.age(group)):
            return False
        return await self._delete_group(claim) is None

    async def expire_former(self, group: str, before_ms: int) -> int:
        """Delete a group's offsets of deleted topics that were committed before ``before_ms``.
        Return their number.

        A later offset is kept, because it tells members that their group has read the former topic
        of that name. Raises NotCoordinatorError, CoordinationUnavailableError."""
        await self._store.sync(znodes.group_path(group))
        old = [row for row in await self._rows(group) if row.touched_ms < before_ms]
        # Read the topics after the offsets. Otherwise, if a topic is recreated between the reads,
        # the new topic's offsets would count as expired.
        topics = await self._assignments({row.key.topic for row in old})
        expired = [
            row
            for row in old
            if row.key.topic not in topics or topics[row.key.topic].topic_id != row.topic_id
        ]
        if not expired:
            return 0
        claim = await self.claim(group)
        # Delete half the usual number in one write: the paths may be long, and a write holds 1 MB.
        deleted, step = 0, DELETES_PER_WRITE_MAX // 2
        for first in range(0, len(expired), step):
            part = expired[first : first + step]
            # Check the znode's version, so that an offset stays if it was committed since it was
            # read, for a new topic of the same name.
            deletes = [Delete(row.path, row.version) for row in part]
            if await self._store.write([*claim.checks, *deletes]) is None:
                deleted += len(part)
        self._writer.forget(group)
        for topic in sorted({row.key.topic for row in expired} - topics.keys()):
            # ZooKeeper refuses to delete a znode that has children, so offsets of other partitions
            # keep their parent.
            for parent_path in (znodes.topic_offsets_path, znodes.topic_owners_path):
                await self._store.write([*claim.checks, Delete(parent_path(group, topic))])
        return deleted

    async def note_members(self, group: str, *, is_empty: bool) -> None:
        """Record in ZooKeeper when a native group (without a coordinator) became empty, or that it
        has members again. Do nothing if neither has changed."""
        claim = await self.claim(group)
        if (claim.value.empty_since_ms is not None) is not is_empty:
            await self.begin_generation(claim, claim.value.generation, is_empty=is_empty)

    async def _delete_group(self, claim: GroupClaim) -> Refused | None:
        """Delete all znodes of a group; return None, or the operation that ZooKeeper refused.

        The znodes that every write of a coordinator checks are deleted last, because the earlier
        writes of this deletion check them, too."""
        path, group = znodes.coordinator_path(claim.group), znodes.group_path(claim.group)
        # Release the claim. A join or commit must then make a new one, which changes the
        # coordinator znode, so ZooKeeper refuses this deletion. Under the old claim, a new
        # generation could begin while this method lists the znodes.
        self.release(claim)
        checks, version = claim.checks, claim.version
        # Leave out the znodes below ``parents``, of live members and of open transactions. While
        # there are any, ZooKeeper refuses to delete the parents, and with them the whole first
        # write.
        parents = znodes.consumers_path(claim.group), znodes.pending_path(claim.group)
        theirs = tuple(f"{parent}/" for parent in parents)
        below = await self._below(group)
        last_paths = {path, group, claim.mark}
        paths = [p for p in below if p not in last_paths and not p.startswith(theirs)]
        paths.sort(key=lambda path: path not in parents)
        self._writer.forget(claim.group)
        last: list[Operation] = [Delete(claim.mark), Delete(path, version), Delete(group)]
        return await self._delete(checks, paths, last)

    async def _delete(
        self, checks: tuple[Check, ...], paths: list[str], last: list[Operation]
    ) -> Refused | None:
        writes: list[list[Operation]] = []
        size = WRITE_BYTES_MAX
        for path in paths:
            size += len(path)
            if size > WRITE_BYTES_MAX or len(writes[-1]) > DELETES_PER_WRITE_MAX:
                writes.append(list(checks))
                size = len(path)
            writes[-1].append(Delete(path))
        for write in (*writes, last) if last else writes:
            refused = await self._store.write(write)
            if refused is not None:
                return refused
        return None

    def close(self) -> None:
        """Stop the writer, and fail all commits that are not confirmed."""
        self._writer.close()
        for task in self._claiming.values():
            task.cancel()

    def _complete(self, key: TopicPartition, offset: CommittedOffset) -> CommittedOffset:
        topic = self._find_topic(key.topic)
        if topic is None or topic.partition(key.partition) is None:
            raise UnknownTopicOrPartitionError(
                f"partition {key} does not exist, so no offset is committed"
            )
        if offset.topic_id not in (NULL_TOPIC_ID, topic.topic_id):
            raise UnknownTopicIdError(
                f"topic {key.topic!r} was deleted and recreated, so the offset is not committed"
            )
        commit_ms = self._now_ms() if offset.commit_ms == NO_TIMESTAMP else offset.commit_ms
        return offset._replace(topic_id=topic.topic_id, commit_ms=commit_ms)

    async def _committed(self, group: str) -> list[TopicPartition]:
        topics = await self._store.children(znodes.offsets_path(group)) or []
        rows = await gather(
            [self._store.children(znodes.topic_offsets_path(group, topic)) for topic in topics]
        )
        return [
            TopicPartition(topic, int(name))
            for topic, row in zip(topics, rows)
            for name in row or ()
        ]

    async def _below(self, path: str) -> list[str]:
        """Return the paths of a znode and of all znodes below it, children before parents."""
        found: list[str] = []
        level = [path]
        while level:
            found += level
            rows = await gather([self._store.children(parent) for parent in level])
            level = [f"{parent}/{name}" for parent, row in zip(level, rows) for name in row or ()]
        return found[::-1]


def _has_members(group: str) -> NonEmptyGroupError:
    return NonEmptyGroupError(f"group {group!r} has members; stop them first")


def _changing(group: str) -> WriteConflictError:
    return WriteConflictError(f"group {group!r} is changing; stop its consumers and try again")


def _unconfirmed() -> CoordinationUnavailableError:
    return CoordinationUnavailableError(
        "ZooKeeper did not confirm the offset commit in time; commit again"
    )
