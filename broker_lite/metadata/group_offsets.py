"""The offsets of consumer groups in ZooKeeper, at /consumers/<group>/offsets/<topic>/<partition>.

Only the group's coordinator writes the offsets: the broker that holds the claim, the exclusive
right to write (``group_claims``). ``group_writer`` writes several commits together; a commit is
answered when ZooKeeper confirms the write. Each offset is stored with its topic id, so that it does
not apply to a recreated topic of the same name. The offsets of open transactions are *pending*:
they wait at /consumers/<group>/pending (``pending_offsets``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from broker_lite.errors import (
    CoordinationUnavailableError,
    LogbusError,
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
from broker_lite.metadata.pending_offsets import AddPart, EndPart, PartWrite, part_cost, split
from broker_lite.metadata.store import MetadataStore
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
COMMIT_WAIT_S = 5.0
"""Seconds after which a commit that ZooKeeper has not confirmed fails with a retriable error."""


class PendingRow(NamedTuple):
    """Offsets that an open transaction has stored in one znode. ``created_zxid`` is the zxid
    (ZooKeeper transaction id) of the write that created the znode."""

    part: znodes.PendingPart
    created_zxid: int
    value: znodes.PendingOffsets


class FetchedOffsets(NamedTuple):
    """The committed offsets of a group, and its unstable partitions: those whose offset is left
    out, because an open transaction has a pending one."""

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
            # The name of the claim (right to write) is unique: a broker epoch belongs to one
            # registration of one broker, and the broker numbers its claims.
            name=f"{broker_epoch}-{self._claims_made}",
            now_ms=self._now_ms,
        )
        # Clear the cache of the group's offset znodes: another broker may have been the coordinator
        # meanwhile, and have created or deleted some.
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

    def forget(self, group: str) -> None:
        """Forget which offset znodes of the group exist, because a write may have deleted some."""
        self._writer.forget(group)

    def unwritten(self, claim: GroupClaim) -> asyncio.Future[None] | None:
        """Return a future that completes when the group's queued writes are confirmed or have
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
        group (the right to write its offsets), and claims it again if another broker does so
        meanwhile. Raises InvalidGroupIdError, CoordinationUnavailableError, and NotCoordinatorError
        if another broker has claimed the group since ``claim``."""
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
        """Return those of a commit's ``offsets`` that can be written, each with a topic id and a
        commit time. Also return an error or None for each partition in ``offsets``.

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
        checked still hold. Raises CoordinationUnavailableError, NotCoordinatorError if another
        broker has become the group's coordinator, and TransactionAbortableError if the group
        already has PARTS_MAX (``pending_offsets``) znodes with offsets of open transactions."""
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
        """End a transaction for a group: delete each znode of offsets that the transaction has
        stored and, if ``is_commit``, commit the offsets in the same write.

        A repeated call has no effect. If the group has committed an offset of a partition since the
        transaction stored one, the newer commit stays. An offset of a deleted topic is not applied
        to a recreated topic of the same name. Raises the errors of ``claim`` and ``commit``."""
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
            topics = await self.assignments(
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
        """Return the result of ``fetch`` for the stable partitions, and the set of unstable
        partitions: those for which an open transaction has a pending offset (KIP-447)."""
        # Read the pending offsets before the committed ones. If a transaction commits between the
        # two reads, its partitions count as unstable. In the other order, the method could return
        # an offset from before that commit as stable.
        pending = await self.pending(group)
        offsets = await self.fetch(group, partitions, with_former=with_former)
        rows = {key: row for part in pending for key, row in part.value.offsets.items()}
        if rows:
            topics = await self.assignments({key.topic for key in rows})
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

        With ``with_former``, an offset that was committed for a deleted topic of the same name is
        returned as offset -1 with the deleted topic's id. Topic ids are read from ZooKeeper: a
        stale metadata snapshot may lack a new topic's id. The topic's offsets would then be left
        out, and the consumer would start at the beginning or end of the log."""
        await self._store.sync(znodes.group_path(group))
        if partitions is None:
            keys = await self.committed(group)
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
        topics = await self.assignments({key.topic for key in offsets})
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

    async def assignments(self, topics: Iterable[str]) -> dict[str, znodes.Assignment]:
        """Return the replica assignments of those topics that exist, read from ZooKeeper."""
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
        del self._reading[topic]  # Later callers start a new read: this one may miss later writes.
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

        Also sets a watch: the next change of the coordinator znode causes one DataChanged event."""
        path = znodes.coordinator_path(claim.group)
        znode = await self._store.get(path, watch=True)
        # The coordinator znode has the unique name of the present claim. Compare this name, not the
        # znode's version, which starts at 0 again if the group is deleted and created anew.
        if not claim.is_seen_in(znode):
            claim.held = False
        return claim.held

    async def note_members(self, group: str, *, is_empty: bool) -> None:
        """Record in ZooKeeper when a native group (without a coordinator) became empty, or that it
        has members again. Do nothing if this is recorded already."""
        claim = await self.claim(group)
        if (claim.value.empty_since_ms is not None) is not is_empty:
            await self.begin_generation(claim, claim.value.generation, is_empty=is_empty)

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

    async def committed(self, group: str) -> list[TopicPartition]:
        """Return the partitions of which the group has an offset znode."""
        topics = await self._store.children(znodes.offsets_path(group)) or []
        rows = await gather(
            [self._store.children(znodes.topic_offsets_path(group, topic)) for topic in topics]
        )
        return [
            TopicPartition(topic, int(name))
            for topic, row in zip(topics, rows)
            for name in row or ()
        ]


def _unconfirmed() -> CoordinationUnavailableError:
    return CoordinationUnavailableError(
        "ZooKeeper did not confirm the offset commit in time; commit again"
    )
