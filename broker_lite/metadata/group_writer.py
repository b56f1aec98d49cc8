"""The queue of a broker's ZooKeeper writes for its consumer groups. At most one write is in flight.

Commits of all groups share writes: the commits that arrive during a write, or within
``interval_ms`` after its start, go into the next one, or into several if they exceed
WRITE_BYTES_MAX. Of several commits for a partition, the last one counts.

A new generation of a Kafka group does not wait for the interval, and its write includes the earlier
commits. Pending offsets of open transactions do not wait for the interval either
(``pending_offsets``).

The operations for each group include checks of the broker's claim, the exclusive right of the
group's coordinator (``group_claims``). If another broker has claimed a group, only the commits of
this group fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from broker_lite.errors import (
    CoordinationUnavailableError,
    LogbusError,
    NotCoordinatorError,
    UnknownServerError,
    WriteConflictError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.group_claims import GroupClaim
from broker_lite.metadata.loader import gather, read_znodes
from broker_lite.metadata.pending_offsets import (
    WRITE_BYTES_MAX,
    EndPart,
    PartOperations,
    PartWrite,
    group_cost,
    row_cost,
)
from broker_lite.metadata.store import (
    Create,
    MetadataStore,
    Operation,
    Refused,
    Set,
    Znode,
    write_surely,
)
from broker_lite.model import CommittedOffset, TopicPartition

logger = logging.getLogger("logbus.groups")

KNOWN_MAX = 10_000
"""Maximum number of entries in the cache of existing offset znodes and parts: one for each pair of
a group and a topic, and one for each group with transactions."""
ATTEMPTS_MAX = 20
"""Maximum number of attempts of one write. An attempt fails if other writers have created or
deleted the same znodes."""


@dataclass(slots=True, eq=False)
class GroupWrites:
    """The queued writes of one group.

    ``offsets`` are commits, and ``parts`` are changes of pending offsets of transactions.
    ``generation`` is the new value of the coordinator znode if a new generation is queued, else
    None. ``done`` completes when ZooKeeper has confirmed all these writes."""

    claim: GroupClaim
    done: asyncio.Future[None]
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    parts: list[PartWrite] = field(default_factory=list)
    generation: znodes.CoordinatorZnode | None = None

    def fail(self, error: LogbusError) -> None:
        for part in self.parts:
            part.fail(error)
        if not self.done.done():
            self.done.set_exception(error)
            # Retrieve the exception, or asyncio would log it: the caller may have stopped waiting.
            self.done.exception()


@dataclass(slots=True, eq=False)
class WriteShare:
    """The operations of one group in one ZooKeeper write.

    ``writing`` has all queued writes of the group; ``offsets``, ``parts`` and ``generation`` are
    those in this ZooKeeper write. ``is_last`` is True if no later write has operations of the
    group. ``planned`` has the operations on ``parts`` (pending offsets) in the current attempt."""

    writing: GroupWrites
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    parts: list[PartWrite] = field(default_factory=list)
    generation: znodes.CoordinatorZnode | None = None
    is_last: bool = False
    planned: PartOperations | None = None

    @property
    def parents(self) -> set[str]:
        """The paths of the parents of all znodes that the write creates or sets."""
        group = self.writing.claim.group
        topics = {key.topic for key in self.offsets}
        for part in self.parts:
            topics.update(key.topic for key in part.offsets)
        paths = {znodes.topic_offsets_path(group, topic) for topic in topics}
        return paths | {znodes.pending_path(group)} if self.parts else paths

    @property
    def ended(self) -> set[str]:
        """The paths of the znodes that the write deletes (with pending offsets), and of the offset
        znodes to which it commits these offsets."""
        group, paths = self.writing.claim.group, set()
        for part in self.parts:
            if isinstance(part, EndPart):
                paths.add(znodes.part_path(group, part.name))
                paths.update(znodes.offset_path(group, *key) for key in part.offsets)
        return paths


class GroupWriter:
    """Writes the commits and generations of all groups of a broker to ZooKeeper, several groups in
    one write. ``wait_connected`` returns when the connection to ZooKeeper is restored."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        interval_ms: int,
        wait_connected: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._interval_s = interval_ms / 1000
        self._wait_connected = wait_connected
        self._waiting: dict[GroupClaim, GroupWrites] = {}
        self._under_way: dict[GroupClaim, GroupWrites] = {}
        self._task: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._known: dict[str, set[str]] = {}
        """Cache of the names of existing znodes, by the path of their parent: partitions with an
        offset below a topic of a group, and parts (pending offsets) below a group."""

    def commit(
        self, claim: GroupClaim, offsets: dict[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Queue offsets to commit. The returned future completes when ZooKeeper has confirmed them.
        It fails with NotCoordinatorError if another broker has become the group's coordinator."""
        writing = self._writing(claim)
        writing.offsets.update(offsets)
        return writing.done

    def begin_generation(
        self, claim: GroupClaim, value: znodes.CoordinatorZnode
    ) -> asyncio.Future[None]:
        """Queue a new generation and write it at once. The returned future completes when ZooKeeper
        has confirmed it and all earlier commits."""
        writing = self._writing(claim)
        writing.generation = value
        self._urgent.set()
        return writing.done

    def write_part(self, claim: GroupClaim, part: PartWrite) -> None:
        """Queue the creation or deletion of a part (pending offsets of a transaction), and write
        without waiting for ``interval_ms``. Several calls are written in their order.

        The future ``part.done`` completes when ZooKeeper has confirmed the write."""
        self._writing(claim).parts.append(part)
        self._urgent.set()

    def unwritten(self, claim: GroupClaim) -> asyncio.Future[None] | None:
        """Return a future that completes when ZooKeeper has confirmed the group's queued writes;
        None if nothing is queued."""
        writing = self._waiting.get(claim) or self._under_way.get(claim)
        return None if writing is None or writing.done.done() else writing.done

    def forget(self, group: str) -> None:
        """Drop the group's entries from the cache of existing offset znodes."""
        prefix = znodes.group_path(group) + "/"
        for path in [path for path in self._known if path.startswith(prefix)]:
            del self._known[path]

    def close(self) -> None:
        """Stop the writer, and fail all queued writes with CoordinationUnavailableError."""
        if self._task is not None:
            self._task.cancel()
        for writing in (*self._under_way.values(), *self._waiting.values()):
            writing.fail(
                CoordinationUnavailableError(
                    f"the broker is stopping; commit the offsets of group {writing.claim.group!r} "
                    "again"
                )
            )
        self._waiting.clear()

    def _writing(self, claim: GroupClaim) -> GroupWrites:
        writing = self._waiting.get(claim)
        if writing is None:
            loop = asyncio.get_running_loop()
            writing = self._waiting[claim] = GroupWrites(claim, loop.create_future())
            if self._task is None:
                self._task = loop.create_task(self._run())
        return writing

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                next_at = loop.time() + self._interval_s
                self._urgent.clear()
                self._under_way, self._waiting = self._waiting, {}
                # Groups with a new generation come first in a write. If the answer to the write is
                # lost, ``was_written`` needs an operation that changes a znode's version, to decide
                # whether ZooKeeper applied the write. Only a new generation is such an operation.
                batch = sorted(self._under_way.values(), key=lambda row: row.generation is None)
                for shares in _packed(batch):
                    await self._settle(shares)
                self._under_way = {}
                if next_at > loop.time():
                    await self._pause(next_at - loop.time())
        finally:
            self._task = None

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._urgent.wait(), seconds)
        except TimeoutError:
            return

    async def _settle(self, shares: list[WriteShare]) -> None:
        """Write all shares (each has the operations of one group) in one ZooKeeper write. Then
        complete or fail the future of each group."""
        error: LogbusError
        try:
            await self._write(shares)
        except LogbusError as failure:
            error = failure
        except Exception as failure:
            # The error is unexpected. Fail the commits of this write and continue with the next
            # write.
            logger.exception("writing group offsets to ZooKeeper failed")
            error = UnknownServerError(f"writing the offsets to ZooKeeper failed: {failure}")
        else:
            for share in shares:
                if share.is_last and not share.writing.done.done():
                    share.writing.done.set_result(None)
            return
        for share in shares:
            group = share.writing.claim.group
            share.writing.fail(type(error)(f"group {group!r}: {error.message}"))

    async def _write(self, shares: list[WriteShare]) -> None:
        """Write all shares (each has the operations of one group) in one ZooKeeper write.

        If another broker has become the coordinator of a group, only this group's share fails."""
        attempts = 0
        while attempts < ATTEMPTS_MAX:
            shares = [share for share in shares if self._is_wanted(share)]
            if not shares:
                return
            znodes_by_path = await self._learn(shares)
            operations: list[Operation] = []
            owners: list[WriteShare] = []
            for share in shares:
                operations += self._operations(share, znodes_by_path)
                owners += [share] * (len(operations) - len(owners))
            refused = await self._try(shares, operations)
            if refused is None:
                for share in shares:
                    self._written(share)
                return
            claim = owners[refused.position].writing.claim
            if refused.operation.path in (check.path for check in claim.checks):
                # Another broker has become this group's coordinator. Try again without the group,
                # and do not count the attempt: each such attempt drops a group, so their number is
                # limited.
                await self._lost(claim, shares)
                continue
            attempts += 1
            # Another writer has created or deleted znodes, perhaps of many groups, so the cache is
            # stale for all of them.
            for share in shares:
                self.forget(share.writing.claim.group)
        raise WriteConflictError(
            "another writer keeps creating or deleting offsets of this group, or of another "
            "group in the same write; commit again"
        )

    async def _try(self, shares: list[WriteShare], operations: list[Operation]) -> Refused | None:
        if any(share.generation is not None for share in shares):
            return await write_surely(self._store, operations, self._wait_connected)
        return await self._store.write(operations)

    def _is_wanted(self, share: WriteShare) -> bool:
        writing = share.writing
        if not writing.claim.held:
            group = writing.claim.group
            writing.fail(
                NotCoordinatorError(
                    f"another broker now coordinates group {group!r}; find the coordinator again"
                )
            )
        return not writing.done.done()

    async def _learn(self, shares: list[WriteShare]) -> dict[str, Znode]:
        """Before a write, find out which offset znodes exist, and create missing parents.

        Return, by path, the znodes of pending offsets that the write deletes, and the offset znodes
        to which it commits these offsets."""
        pairs = sorted((p, share.writing.claim.group) for share in shares for p in share.parents)
        for path, _ in pairs:
            if path in self._known:
                # Move the entry to the end: the cache evicts from the front, the least recently
                # used entries first.
                self._known[path] = self._known.pop(path)
        await gather(
            [self._learn_children(group, path) for path, group in pairs if path not in self._known]
        )
        too_many = len(self._known) - max(KNOWN_MAX, len(pairs))
        for path in list(islice(self._known, max(too_many, 0))):
            del self._known[path]
        paths = sorted({path for share in shares for path in share.ended})
        return await read_znodes(self._store, paths)

    async def _learn_children(self, group: str, path: str) -> None:
        children = await self._store.children(path)
        if children is None:
            refused = await self._store.write([Create(path)])
            if refused is not None and refused.reason == "missing":
                await self._store.write([Create(znodes.offsets_path(group)), Create(path)])
            children = await self._store.children(path)
        self._known[path] = set(children or ())

    def _operations(
        self, share: WriteShare, znodes_by_path: Mapping[str, Znode]
    ) -> list[Operation]:
        claim = share.writing.claim
        operations: list[Operation] = list(claim.checks)
        if share.generation is not None:
            path = znodes.coordinator_path(claim.group)
            operations[0] = Set(path, znodes.encode_coordinator(share.generation), claim.version)
        names = self._known.get(znodes.pending_path(claim.group), set())
        planned = PartOperations(claim.group, names, znodes_by_path, share.offsets)
        for part in share.parts:
            if part.done.done():
                continue
            if isinstance(part, EndPart):
                planned.end(part)
            else:
                planned.add(part, len(names))
        share.planned = planned
        operations += planned.operations
        for key, offset in share.offsets.items():
            path, data = znodes.offset_path(claim.group, *key), znodes.encode_offset(offset)
            known = self._known.get(znodes.topic_offsets_path(claim.group, key.topic), ())
            exists = str(key.partition) in known
            operations.append(Set(path, data) if exists else Create(path, data))
        return operations

    def _written(self, share: WriteShare) -> None:
        claim, planned = share.writing.claim, share.planned
        assert planned is not None
        for key in (*share.offsets, *planned.created):
            path = znodes.topic_offsets_path(claim.group, key.topic)
            self._known.get(path, set()).add(str(key.partition))
        names = self._known.get(znodes.pending_path(claim.group), set())
        names |= planned.added
        names -= planned.ended
        if share.generation is not None:
            claim.value = share.generation
            claim.version += 1
        for part in share.parts:
            part.succeed()

    async def _lost(self, claim: GroupClaim, shares: list[WriteShare]) -> None:
        """Record that another broker coordinates the group of ``claim`` now, so that this broker
        may not write its offsets. Read whether this broker still coordinates the other groups of
        the write that ZooKeeper refused (``shares``)."""
        claim.held = False
        self.forget(claim.group)
        others = [share.writing.claim for share in shares if share.writing.claim.held]
        paths = [znodes.coordinator_path(other.group) for other in others]
        current = await gather([self._store.get(path) for path in paths])
        for other, znode in zip(others, current):
            if znode is None or znode.version != other.version or not other.is_seen_in(znode):
                other.held = False
                self.forget(other.group)


def _packed(batch: list[GroupWrites]) -> Iterator[list[WriteShare]]:
    """Divide the queued writes of all groups into ZooKeeper writes of at most WRITE_BYTES_MAX
    bytes.

    A group's new generation goes into the last write of the group, so that ZooKeeper does not store
    the generation before the offsets."""
    packed: list[WriteShare] = []
    size = 0
    for writing in batch:
        group = writing.claim.group
        share = WriteShare(writing)
        size += group_cost(group)
        rows = [(row_cost(group, *row), row) for row in writing.offsets.items()]
        for cost, row in (*((part.cost, part) for part in writing.parts), *rows):
            if size + cost > WRITE_BYTES_MAX and (packed or share.parts or share.offsets):
                if share.parts or share.offsets:
                    packed.append(share)
                yield packed
                packed, share, size = [], WriteShare(writing), group_cost(group)
            if isinstance(row, tuple):
                share.offsets[row[0]] = row[1]
            else:
                share.parts.append(row)
            size += cost
        share.generation, share.is_last = writing.generation, True
        packed.append(share)
    yield packed
