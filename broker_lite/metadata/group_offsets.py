"""The offsets of consumer groups, at /consumers/<group>/offsets/<topic>/<partition>. Loop thread.

A commit is answered when ZooKeeper has it; only the broker that has claimed the group writes them
(``group_claims``), many commits at once (``group_writer``). Every offset names its topic's id: one
of a deleted topic is never its successor's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
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
from broker_lite.metadata.group_claims import Claim, make_claim
from broker_lite.metadata.group_kind import is_open
from broker_lite.metadata.group_writer import WRITE_BYTES_MAX, GroupWriter
from broker_lite.metadata.loader import gather
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
"""Claims that are remembered."""
ATTEMPTS_MAX = 20
DELETES_PER_WRITE_MAX = 1000
COMMIT_WAIT_S = 5.0
"""A commit that ZooKeeper has not confirmed by then is answered with an error to try again."""


class GroupAge(NamedTuple):
    """Since when nobody has been in a group (None: somebody is, or it is not known), and its newest
    commit (None: it has no offset). In a native group a claim, and a member's registration, are as
    good as a commit: members come and go there between two looks of the brokers."""

    empty_since_ms: int | None
    newest_commit_ms: int | None


class _Row(NamedTuple):
    """An offset as it is written; ``touched_ms``: the last sign of life in it."""

    key: TopicPartition
    path: str
    version: int
    topic_id: str
    touched_ms: int


class GroupOffsets:
    """``find_topic`` looks into the present snapshot; ``now_ms`` is the wall clock; ``identity`` is
    this broker's id and the epoch of its present registration."""

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
        self._claims: dict[str, Claim] = {}
        self._claiming: dict[str, asyncio.Task[Claim]] = {}
        self._claims_made = 0

    async def claim(self, group: str) -> Claim:
        """This broker's claim of the group, made if it is not held. Raises as ``make_claim``."""
        claim, (broker_id, broker_epoch) = self._claims.get(group), self._identity()
        if broker_epoch == NO_EPOCH:
            raise CoordinationUnavailableError("this broker is not registered; try again later")
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

    async def _make_claim(self, group: str, broker_id: int, broker_epoch: int) -> Claim:
        self._claims_made += 1
        claim = await make_claim(
            self._store,
            group,
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            # No two registrations of any broker have one epoch.
            name=f"{broker_epoch}-{self._claims_made}",
            now_ms=self._now_ms,
        )
        self._used(claim)
        return claim

    def _used(self, claim: Claim) -> None:
        """Remember it; of too many, the one is forgotten that was not used for longest."""
        self._claims.pop(claim.group, None)
        self._claims[claim.group] = claim
        if len(self._claims) > KNOWN_MAX:
            del self._claims[next(iter(self._claims))]

    def release(self, claim: Claim) -> None:
        """Forget the claim: what is still to be written by it fails."""
        claim.held = False
        if self._claims.get(claim.group) is claim:
            del self._claims[claim.group]

    def release_others(self, is_ours: Callable[[str], bool]) -> None:
        """Forget the claims of all groups but ours."""
        for group, claim in list(self._claims.items()):
            if not is_ours(group):
                self.release(claim)

    async def begin_generation(
        self,
        claim: Claim,
        generation: int,
        *,
        is_empty: bool,
        members: int = 0,
        session_timeout_ms: int = 0,
    ) -> None:
        """Returns when ZooKeeper holds it, after all that was committed before, however long that
        takes. ``members`` and their longest session timeout are for the group's next coordinator.
        Raises NotCoordinatorError."""
        value = claim.value._replace(
            generation=generation,
            empty_since_ms=self._now_ms() if is_empty else None,
            members=members,
            session_timeout_ms=session_timeout_ms,
        )
        await asyncio.shield(self._writer.begin_generation(claim, value))

    def unwritten(self, claim: Claim) -> asyncio.Future[None] | None:
        """Done when all that was committed by this claim is written, or failed; None if it is."""
        return self._writer.unwritten(claim)

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        claim: Claim | None = None,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Fills in topic id and time where missing. Raises CoordinationUnavailableError,
        InvalidGroupIdError, NotCoordinatorError where ``claim`` is lost (without one the group is
        claimed again); what is wrong with one partition is in the answer."""
        znodes.group_path(group)
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; commit again later")
        results: dict[TopicPartition, LogbusError | None] = {}
        accepted = {}
        for key, offset in offsets.items():
            try:
                accepted[key] = self._complete(key, offset)
                results[key] = None
            except LogbusError as error:
                results[key] = error
        if accepted:
            try:
                async with asyncio.timeout(COMMIT_WAIT_S):
                    await self._commit(group, accepted, claim)
            except TimeoutError:
                raise CoordinationUnavailableError(
                    "ZooKeeper did not confirm the commit in time; commit again"
                ) from None
        return results

    async def _commit(
        self,
        group: str,
        offsets: dict[TopicPartition, CommittedOffset],
        claim: Claim | None,
    ) -> None:
        if claim is not None:
            if self._claims.get(group) is claim:
                self._used(claim)
            await asyncio.shield(self._writer.commit(claim, offsets))
            return
        for _ in range(ATTEMPTS_MAX):
            try:
                found = await self.claim(group)
                await asyncio.shield(self._writer.commit(found, offsets))
                return
            except NotCoordinatorError:
                continue
        raise WriteConflictError(f"group {group!r} is being claimed by others; commit again")

    async def fetch(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        with_former: bool = False,
    ) -> dict[TopicPartition, CommittedOffset]:
        """What is there and belongs to the topics as they are now. None: all of the group's.
        ``with_former``: of those that belong to a former topic of the name, its id, without an
        offset.

        ZooKeeper says what the topics are, not the present snapshot, which may be behind: who is
        told that there is no offset starts at an end of the log."""
        await self._store.sync(znodes.group_path(group))
        if partitions is None:
            keys = await self._committed(group)
        else:
            # A name that no topic can have may be no path either.
            keys = [key for key in partitions if is_valid_name(key.topic)]
        paths = [znodes.offset_path(group, *key) for key in keys]
        offsets = {
            key: znodes.decode_offset(path, znode.data)
            for key, path, znode in zip(
                keys, paths, await gather([self._store.get(path) for path in paths])
            )
            if znode is not None
        }
        # After the offsets: a topic that was read before them could be the former of its name.
        topics = await self._assignments({key.topic for key in offsets})
        found = {}
        for key, offset in offsets.items():
            topic = topics.get(key.topic)
            if topic is None or key.partition >= len(topic.replicas):
                continue
            # A native member that has a partition and committed nothing yet writes no offset there.
            if offset.topic_id == topic.topic_id and offset.offset != NO_OFFSET:
                found[key] = offset
            elif offset.topic_id != topic.topic_id and with_former:
                found[key] = CommittedOffset(NO_OFFSET, topic_id=offset.topic_id)
        return found

    async def _assignments(self, topics: Iterable[str]) -> dict[str, znodes.Assignment]:
        paths = {topic: znodes.topic_path(topic) for topic in sorted(topics)}
        rows = await gather([self._store.get(path) for path in paths.values()])
        return {
            topic: znodes.decode_assignment(path, row.data)
            for (topic, path), row in zip(paths.items(), rows)
            if row is not None
        }

    async def kind(self, group: str) -> str | None:
        """ "kafka" (also of one that ``is_open``), "native", or None if there is no such group."""
        path = znodes.group_path(group)
        znode = await self._store.get(path)
        return None if znode is None else znodes.decode_group(path, znode.data)

    async def kinds(self) -> dict[str, str]:
        """Every group that has state, with its kind."""
        groups = [znodes.group_name(n) for n in await self._store.children(znodes.CONSUMERS) or ()]
        kinds = await gather([self.kind(group) for group in groups])
        return {group: kind for group, kind in zip(groups, kinds) if kind is not None}

    async def members_left(self, group: str) -> int:
        """Members of a Kafka group's last generation, whichever broker began it."""
        claim = self._claims.get(group)
        if claim is not None and claim.held:
            return claim.value.members
        path = znodes.coordinator_path(group)
        znode = await self._store.get(path)
        return 0 if znode is None else znodes.decode_coordinator(path, znode.data).members

    async def is_open(self, group: str, kind: str) -> bool:
        """Whether a group of that kind has had no member yet: the first one decides which it is."""
        claim = self._claims.get(group)
        if claim is not None and claim.held:
            return kind == znodes.KIND_KAFKA and not claim.value.generation
        return is_open(group, kind, await self._store.get(znodes.coordinator_path(group)))

    async def native_members(self, group: str) -> list[str]:
        """Consumers of a native group that are there."""
        return await self._store.children(znodes.consumers_path(group)) or []

    async def is_held(self, claim: Claim) -> bool:
        """Whether nobody claimed the group since, as ZooKeeper has it now; watches what becomes of
        it (DataChanged of its coordinator znode, once)."""
        path = znodes.coordinator_path(claim.group)
        znode = await self._store.get(path, watch=True)
        # Not by its version: a group that was deleted and made again begins at 0 anew.
        if not claim.is_seen_in(znode):
            claim.held = False
        return claim.held

    async def age(self, group: str) -> GroupAge:
        """What the retention of its offsets goes by."""
        path = znodes.coordinator_path(group)
        znode = await self._store.get(path)
        empty_ms = None
        if znode is not None:
            empty_ms = znodes.decode_coordinator(path, znode.data).empty_since_ms
        if await self.native_members(group):
            empty_ms = None
        rows = await self._rows(group)
        newest_ms = max((row.touched_ms for row in rows), default=None)
        registry = await self._store.get(znodes.consumers_path(group))
        if newest_ms is not None and registry is not None:
            newest_ms = max(newest_ms, registry.modified_ms)
        return GroupAge(empty_ms, newest_ms)

    async def _rows(self, group: str) -> list[_Row]:
        keys = await self._committed(group)
        paths = [znodes.offset_path(group, *key) for key in keys]
        is_native = await self.kind(group) == znodes.KIND_NATIVE
        found = []
        znodes_there = await gather([self._store.get(path) for path in paths])
        for key, path, znode in zip(keys, paths, znodes_there):
            if znode is not None:
                offset = znodes.decode_offset(path, znode.data)
                # A claim writes the offset anew, as it was.
                touched_ms = max(offset.commit_ms, znode.modified_ms * is_native)
                found.append(_Row(key, path, znode.version, offset.topic_id, touched_ms))
        return found

    async def delete(self, group: str, partitions: Iterable[TopicPartition] | None) -> None:
        """None: the whole group. Raises GroupIdNotFoundError, WriteConflictError, and
        NonEmptyGroupError where a native member is in it, or its generation has members."""
        if await self.kind(group) is None:
            raise GroupIdNotFoundError(f"there is no group {group!r}")
        for _ in range(ATTEMPTS_MAX):
            if await self.native_members(group):
                raise NonEmptyGroupError(f"group {group!r} has members; stop them first")
            claim = await self.claim(group)
            if partitions is None:
                if claim.value.members:
                    raise NonEmptyGroupError(f"group {group!r} has members; stop them first")
                if await self._delete_group(claim) is None:
                    return
                continue
            checks = claim.checks
            wanted = [znodes.offset_path(group, *key) for key in partitions]
            there = await gather([self._store.get(path) for path in wanted])
            paths = [path for path, znode in zip(wanted, there) if znode is not None]
            self._writer.forget(group)
            refused = await self._delete(checks, paths, [])
            if refused is None:
                return
            if refused.operation in checks and claim.checks == checks:
                self.release(claim)
        raise WriteConflictError(f"group {group!r} is being written to; try again")

    async def expire(self, group: str, is_over: Callable[[GroupAge], bool]) -> bool:
        """Delete the group if it is over, whatever comes at that moment; whether it was. One with
        native members is not, however old its newest commit is."""
        if await self.native_members(group) or not is_over(await self.age(group)):
            return False
        claim = await self.claim(group)
        # Who commits or joins from now on claims it anew, which has the deletion refused.
        self.release(claim)
        if await self.native_members(group) or not is_over(await self.age(group)):
            return False
        return await self._delete_group(claim) is None

    async def expire_former(self, group: str, before_ms: int) -> int:
        """Delete the offsets of deleted topics that were committed before then, though the group
        lives; how many. Until then they tell who joins after a topic was made again that the group
        read a former one. Raises NotCoordinatorError, CoordinationUnavailableError."""
        await self._store.sync(znodes.group_path(group))
        old = [row for row in await self._rows(group) if row.touched_ms < before_ms]
        # After the offsets: a topic that was read before them could be the former of its name.
        topics = await self._assignments({row.key.topic for row in old})
        gone = [
            row
            for row in old
            if row.key.topic not in topics or topics[row.key.topic].topic_id != row.topic_id
        ]
        if not gone:
            return 0
        claim = await self.claim(group)
        deleted, step = 0, DELETES_PER_WRITE_MAX // 2  # of paths that may be long
        for first in range(0, len(gone), step):
            part = gone[first : first + step]
            # Of that version: whoever claims or commits in a topic of the name meanwhile keeps it.
            deletes = [Delete(row.path, row.version) for row in part]
            if await self._store.write([*claim.checks, *deletes]) is None:
                deleted += len(part)
        self._writer.forget(group)
        for topic in sorted({row.key.topic for row in gone} - topics.keys()):
            # Refused where anything is below, again or still.
            for place in (znodes.topic_offsets_path, znodes.topic_owners_path):
                await self._store.write([*claim.checks, Delete(place(group, topic))])
        return deleted

    async def note_members(self, group: str, *, is_empty: bool) -> None:
        """Write whether a native group has members, where that is not what is written."""
        claim = await self.claim(group)
        if (claim.value.empty_since_ms is not None) is not is_empty:
            await self.begin_generation(claim, claim.value.generation, is_empty=is_empty)

    async def _delete_group(self, claim: Claim) -> Refused | None:
        """The claim's znodes, checked by every write, and the group's go last."""
        path, group = znodes.coordinator_path(claim.group), znodes.group_path(claim.group)
        # Who joins or commits from now on claims the group anew, which has this refused; by the
        # claim a generation could be begun while the group is looked through.
        self.release(claim)
        checks, version = claim.checks, claim.version
        # What members have there is theirs to delete: it makes the write be refused, the first one
        # of several, before anything is lost.
        place = znodes.consumers_path(claim.group)
        theirs = f"{place}/"
        below = [each async for each in self._below(group)]
        kept = {path, group, claim.mark}
        paths = [p for p in below if p not in kept and not p.startswith(theirs)]
        paths.sort(key=lambda path: path != place)
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
        """What is not written yet fails."""
        self._writer.close()
        for task in self._claiming.values():
            task.cancel()

    def _complete(self, key: TopicPartition, offset: CommittedOffset) -> CommittedOffset:
        topic = self._find_topic(key.topic)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            raise UnknownTopicOrPartitionError(f"there is no partition {key}")
        if offset.topic_id not in (NULL_TOPIC_ID, topic.topic_id):
            raise UnknownTopicIdError(f"topic {key.topic!r} was deleted and made again")
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

    async def _below(self, path: str) -> AsyncIterator[str]:
        for name in await self._store.children(path) or ():
            async for inner in self._below(f"{path}/{name}"):
                yield inner
        yield path
