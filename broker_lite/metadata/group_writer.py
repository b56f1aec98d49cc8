"""The queue of a broker's ZooKeeper writes for its groups, with one write in flight.

The queue batches commits of all groups: commits that arrive during a write, or within
``interval_ms`` after its start, go into the next write. A batch above WRITE_BYTES_MAX is split. The
last commit of a partition wins. A new generation of a Kafka group does not wait for the interval,
and its write includes the earlier commits. Pending offsets of transactions do not wait for the
interval either (``pending_offsets``).

Each group's share of a write checks the broker's claim of the group (``group_claims``). If another
broker has claimed a group, only the commits of this group fail.
"""

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
from broker_lite.metadata.loader import gather
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
"""Maximum entries in the cache of existing offset znodes. The cache has one entry for each topic of
a group."""
ATTEMPTS_MAX = 20
"""Maximum attempts of one write while other writers create or delete the same offset znodes."""


@dataclass(slots=True, eq=False)
class GroupWrites:
    """The pending writes of one group.

    ``generation`` is the value of the coordinator znode in a new generation, or None without a new
    generation. ``done`` completes when ZooKeeper confirms all these writes.
    """

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
            # Mark the exception as retrieved: the caller may have stopped waiting.
            self.done.exception()


@dataclass(slots=True, eq=False)
class WriteShare:
    """The share of a group's pending writes that one ZooKeeper write contains.

    ``is_last`` says that no later write has a share of ``writing``. ``planned`` has the operations
    on ``parts`` in the present attempt.
    """

    writing: GroupWrites
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    parts: list[PartWrite] = field(default_factory=list)
    generation: znodes.CoordinatorZnode | None = None
    is_last: bool = False
    planned: PartOperations | None = None

    @property
    def parents(self) -> set[str]:
        """The paths below which the write may create or set znodes."""
        group = self.writing.claim.group
        topics = {key.topic for key in self.offsets}
        for part in self.parts:
            topics.update(key.topic for key in part.offsets)
        paths = {znodes.topic_offsets_path(group, topic) for topic in topics}
        return paths | {znodes.pending_path(group)} if self.parts else paths

    @property
    def ended(self) -> set[str]:
        """The paths of the parts that the write ends, and the paths of their offsets."""
        group, paths = self.writing.claim.group, set()
        for part in self.parts:
            if isinstance(part, EndPart):
                paths.add(znodes.part_path(group, part.name))
                paths.update(znodes.offset_path(group, *key) for key in part.offsets)
        return paths


class GroupWriter:
    """The writer of the commits and generations of all groups of a broker. It combines them to
    batches.

    ``wait_connected`` returns when the connection to ZooKeeper is restored.
    """

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
        """Cache: the partitions that have an offset znode, by the path of a group's topic."""

    def commit(
        self, claim: GroupClaim, offsets: dict[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Queue offsets. The future completes when ZooKeeper confirms them, and fails with
        NotCoordinatorError if another broker has claimed the group."""
        writing = self._writing(claim)
        writing.offsets.update(offsets)
        return writing.done

    def begin_generation(
        self, claim: GroupClaim, value: znodes.CoordinatorZnode
    ) -> asyncio.Future[None]:
        """Queue a new generation without delay. The future completes when ZooKeeper confirms it and
        all earlier commits."""
        writing = self._writing(claim)
        writing.generation = value
        self._urgent.set()
        return writing.done

    def write_part(self, claim: GroupClaim, part: PartWrite) -> None:
        """Queue a write of a transaction's part without delay, in the order of the calls.
        ``part.done`` completes like the future of ``commit``.
        """
        self._writing(claim).parts.append(part)
        self._urgent.set()

    def unwritten(self, claim: GroupClaim) -> asyncio.Future[None] | None:
        """Return a future of the claim's pending writes, or None if it has none."""
        writing = self._waiting.get(claim) or self._under_way.get(claim)
        return None if writing is None or writing.done.done() else writing.done

    def forget(self, group: str) -> None:
        """Drop the group's znodes from the cache of existing znodes."""
        prefix = znodes.group_path(group) + "/"
        for path in [path for path in self._known if path.startswith(prefix)]:
            del self._known[path]

    def close(self) -> None:
        """Stop the writer, and fail all pending writes with CoordinationUnavailableError."""
        if self._task is not None:
            self._task.cancel()
        stopping = CoordinationUnavailableError("the broker is stopping; commit again")
        for writing in (*self._under_way.values(), *self._waiting.values()):
            writing.fail(stopping)
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
                # Sort rows with a generation first. If a write gets no answer, ``was_written``
                # tells by the version of the first versioned operation whether it took effect.
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
        """Write all shares in one ZooKeeper transaction, and complete the future of each group."""
        error: LogbusError
        try:
            await self._write(shares)
        except LogbusError as failure:
            error = failure
        except Exception as failure:
            # The error is unexpected. Fail these commits and continue with the next write.
            logger.exception("writing group offsets to ZooKeeper failed")
            error = UnknownServerError(f"writing the offsets to ZooKeeper failed: {failure}")
        else:
            for share in shares:
                if share.is_last and not share.writing.done.done():
                    share.writing.done.set_result(None)
            return
        for share in shares:
            share.writing.fail(error)

    async def _write(self, shares: list[WriteShare]) -> None:
        """Write the shares of all groups atomically. Fail the shares of groups that another broker
        has claimed, and write the others."""
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
                # This round removes at least one group, so it does not count as an attempt.
                await self._lost(claim, shares)
                continue
            attempts += 1
            # Another writer created or deleted znodes, perhaps of many groups, so read all znodes
            # again.
            for share in shares:
                self.forget(share.writing.claim.group)
        raise WriteConflictError(
            "another writer keeps creating or deleting the group's offsets; commit again"
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

    async def _learn(self, shares: list[WriteShare]) -> dict[str, Znode | None]:
        """Read which znodes exist at paths outside the cache, and create their parents. Return the
        znodes of ended parts and of their offsets, by path."""
        pairs = sorted((p, share.writing.claim.group) for share in shares for p in share.parents)
        for path, _ in pairs:
            if path in self._known:
                # Move the entry to the end, because the cache evicts from the front.
                self._known[path] = self._known.pop(path)
        await gather(
            [self._learn_children(group, path) for path, group in pairs if path not in self._known]
        )
        too_many = len(self._known) - max(KNOWN_MAX, len(pairs))
        for path in list(islice(self._known, max(too_many, 0))):
            del self._known[path]
        paths = sorted({path for share in shares for path in share.ended})
        return dict(zip(paths, await gather([self._store.get(path) for path in paths])))

    async def _learn_children(self, group: str, path: str) -> None:
        children = await self._store.children(path)
        if children is None:
            refused = await self._store.write([Create(path)])
            if refused is not None and refused.reason == "missing":
                await self._store.write([Create(znodes.offsets_path(group)), Create(path)])
            children = await self._store.children(path)
        self._known[path] = set(children or ())

    def _operations(
        self, share: WriteShare, znodes_by_path: Mapping[str, Znode | None]
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
        """Mark the claim as lost. Read the other claims of this write and mark those that are lost
        too."""
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
    """Split a batch into writes of at most WRITE_BYTES_MAX bytes. A group's generation is in the
    last write of its offsets."""
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
