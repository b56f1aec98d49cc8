"""The deletion of consumer groups and of their offsets, on request or because they have expired.

A group's coordinator may write while a deletion runs. This broker therefore claims the group (the
right to write, ``group_claims``), and each write checks this claim. A commit or join meanwhile
needs a new claim, which changes the coordinator znode, and ZooKeeper refuses the deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from broker_lite.errors import GroupIdNotFoundError, NonEmptyGroupError, WriteConflictError
from broker_lite.metadata import znodes
from broker_lite.metadata.group_claims import GroupClaim
from broker_lite.metadata.group_offsets import ATTEMPTS_MAX, GroupOffsets
from broker_lite.metadata.loader import gather, read_znodes
from broker_lite.metadata.pending_offsets import WRITE_BYTES_MAX
from broker_lite.metadata.store import Check, Delete, MetadataStore, Operation, Refused
from broker_lite.model import TopicPartition

DELETES_PER_WRITE_MAX = 1000


class GroupAge(NamedTuple):
    """The times from which a group's retention of offsets is counted.

    ``empty_since_ms`` is the time at which the last member left, or None if the group has members
    or the time is unknown. ``newest_commit_ms`` is the time of the newest commit, or None if the
    group has no offsets. Brokers poll the members of a native group (without a coordinator) at
    intervals, and may miss a short membership. In a native group, the registration of a member and
    each change of a partition's owner therefore count as commits."""

    empty_since_ms: int | None
    newest_commit_ms: int | None


class _OffsetRow(NamedTuple):
    """An offset znode.

    ``touched_ms`` is the time of the last commit. In a native group (without a coordinator), a
    change of the partition's owner counts as a commit."""

    key: TopicPartition
    path: str
    version: int
    topic_id: str
    touched_ms: int


class GroupDeletion:
    """Deletes groups and offsets on behalf of one broker. The broker first claims each group (the
    right to write its offsets) through ``offsets``."""

    def __init__(self, store: MetadataStore, offsets: GroupOffsets) -> None:
        self._store = store
        self._offsets = offsets

    async def delete(
        self, group: str, check_empty: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Delete a group with its offsets.

        ``check_empty`` is called before each attempt. It raises NonEmptyGroupError if this broker
        knows members of the group. Without this check, repeated attempts would keep out members
        that join, because each attempt replaces the group's coordinator.

        Raises GroupIdNotFoundError, WriteConflictError, and NonEmptyGroupError if the group has
        members or offsets of open transactions."""
        for _ in range(ATTEMPTS_MAX):
            if check_empty is not None:
                await check_empty()
            await self._check_exists(group)
            await self._check_without_natives(group)
            if await self._offsets.has_pending(group):
                raise NonEmptyGroupError(
                    f"group {group!r} has offsets of open transactions; end these first (see: "
                    "logbus transactions list)"
                )
            claim = await self._offsets.claim(group)
            if claim.value.members:
                raise _has_members(group)
            if await self._delete_group(claim) is None:
                return
        raise _changing(group)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the group's offsets of these partitions.

        Raises GroupIdNotFoundError, WriteConflictError, and NonEmptyGroupError if the group has
        native members (without a coordinator); the caller checks for Kafka members."""
        await self._check_exists(group)
        paths = [znodes.offset_path(group, *key) for key in partitions]
        for _ in range(ATTEMPTS_MAX):
            await self._check_without_natives(group)
            claim = await self._offsets.claim(group)
            checks = claim.checks
            present = list(await read_znodes(self._store, paths))
            self._offsets.forget(group)
            refused = await self._delete(checks, present, [])
            if refused is None:
                return
            if refused.operation in checks and claim.checks == checks:
                self._offsets.release(claim)
        raise _changing(group)

    async def _check_exists(self, group: str) -> None:
        if await self._offsets.kind(group) is None:
            raise GroupIdNotFoundError(
                f"group {group!r} does not exist; list the groups with: logbus groups list"
            )

    async def _check_without_natives(self, group: str) -> None:
        if await self._offsets.native_members(group):
            raise _has_members(group)

    async def expire(self, group: str, is_over: Callable[[GroupAge], bool]) -> bool:
        """Delete the group if ``is_over`` returns True for its age (when its last member left, and
        when its newest commit was). Return whether it was deleted.

        A group with native members or offsets of open transactions is never deleted. A commit or
        join meanwhile needs a new claim of the group, so that ZooKeeper refuses the deletion."""
        if await self._offsets.native_members(group) or not is_over(await self.age(group)):
            return False
        if await self._offsets.has_pending(group):
            return False
        claim = await self._offsets.claim(group)
        # Release this broker's claim to coordinate the group. A commit or join must then make a new
        # claim, which changes the coordinator znode, so ZooKeeper refuses the deletion.
        self._offsets.release(claim)
        age = await self.age(group)
        # A new claim (right to write the offsets) sets an unknown ``empty_since_ms`` (None) to the
        # present time. If the time is unknown under an older claim, the group may have members.
        if age.empty_since_ms is None or await self._offsets.native_members(group):
            return False
        return is_over(age) and await self._delete_group(claim) is None

    async def expire_former(self, group: str, before_ms: int) -> int:
        """Delete a group's offsets of deleted topics that were committed before ``before_ms``.
        Return their number.

        A later offset is kept: if the topic is recreated, this offset tells members that their
        group has read the former topic. Raises NotCoordinatorError,
        CoordinationUnavailableError."""
        await self._store.sync(znodes.group_path(group))
        old = [row for row in await self._rows(group) if row.touched_ms < before_ms]
        # Read the topics after the offsets. Otherwise, if a topic is recreated between the reads,
        # the new topic's offsets would count as expired.
        topics = await self._offsets.assignments({row.key.topic for row in old})
        expired = [
            row
            for row in old
            if row.key.topic not in topics or topics[row.key.topic].topic_id != row.topic_id
        ]
        if not expired:
            return 0
        claim = await self._offsets.claim(group)
        # Delete half the usual number of znodes in one write: the paths may be long, and a write
        # holds 1 MB.
        deleted, step = 0, DELETES_PER_WRITE_MAX // 2
        for first in range(0, len(expired), step):
            part = expired[first : first + step]
            # Delete an offset only in the version that was read: since then, a client may have
            # committed an offset for a new topic of the same name.
            deletes = [Delete(row.path, row.version) for row in part]
            if await self._store.write([*claim.checks, *deletes]) is None:
                deleted += len(part)
        self._offsets.forget(group)
        for topic in sorted({row.key.topic for row in expired} - topics.keys()):
            # ZooKeeper refuses to delete a znode that has children, so offsets of other partitions
            # keep their parent.
            for parent_path in (znodes.topic_offsets_path, znodes.topic_owners_path):
                await self._store.write([*claim.checks, Delete(parent_path(group, topic))])
        return deleted

    async def age(self, group: str) -> GroupAge:
        """Return when the group's last member left, and when the group's newest commit was. The
        retention of offsets depends on both times."""
        znode = await self._store.get(znodes.coordinator_path(group))
        empty_ms = znodes.read_coordinator(group, znode).empty_since_ms
        if await self._offsets.native_members(group):
            empty_ms = None
        rows = await self._rows(group)
        newest_ms = max((row.touched_ms for row in rows), default=None)
        registry = await self._store.get(znodes.consumers_path(group))
        if newest_ms is not None and registry is not None:
            newest_ms = max(newest_ms, registry.modified_ms)
        return GroupAge(empty_ms, newest_ms)

    async def _rows(self, group: str) -> list[_OffsetRow]:
        keys = await self._offsets.committed(group)
        paths = {znodes.offset_path(group, *key): key for key in keys}
        is_native = await self._offsets.kind(group) == znodes.KIND_NATIVE
        rows = []
        for path, znode in (await read_znodes(self._store, paths)).items():
            offset = znodes.decode_offset(path, znode.data)
            # In a native group (without a coordinator), a partition's new owner writes the offset
            # again, unchanged. Only the znode's modification time shows that the group is used.
            touched_ms = max(offset.commit_ms, znode.modified_ms * is_native)
            rows.append(_OffsetRow(paths[path], path, znode.version, offset.topic_id, touched_ms))
        return rows

    async def _delete_group(self, claim: GroupClaim) -> Refused | None:
        """Delete all znodes of a group; return None, or the operation that ZooKeeper refused.

        The znodes in ``GroupClaim.checks`` are deleted last, because the earlier writes of this
        deletion check them, like each write of a coordinator."""
        path, group = znodes.coordinator_path(claim.group), znodes.group_path(claim.group)
        # Release the coordinator's claim. A join or commit must then make a new claim, which
        # changes the coordinator znode, so ZooKeeper refuses this deletion. Under the old claim, a
        # new generation could begin while this method lists the znodes.
        self._offsets.release(claim)
        checks, version = claim.checks, claim.version
        # Leave out the znodes below ``parents``: those of live members and of open transactions.
        # While one exists, ZooKeeper refuses to delete its parent, and with the parent the whole
        # first write.
        parents = znodes.consumers_path(claim.group), znodes.pending_path(claim.group)
        theirs = tuple(f"{parent}/" for parent in parents)
        below = await self._below(group)
        last_paths = {path, group, claim.mark}
        paths = [p for p in below if p not in last_paths and not p.startswith(theirs)]
        paths.sort(key=lambda path: path not in parents)
        self._offsets.forget(claim.group)
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
