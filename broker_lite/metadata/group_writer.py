"""The queue of a broker's ZooKeeper writes for its groups. It has one write in flight. Loop thread.

Commits of all groups that arrive during a write, or within ``interval_ms`` after its start, are
batched into the next write; a batch larger than WRITE_BYTES_MAX is split. The last commit of a
partition wins. A new generation of a Kafka group does not wait for the interval and includes the
commits before it. Each group's part of a write checks the group's claim. If claims are lost, only
their groups' commits fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
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
from broker_lite.metadata.store import (
    Create,
    MetadataStore,
    Operation,
    Refused,
    Set,
    write_surely,
)
from broker_lite.model import CommittedOffset, TopicPartition

logger = logging.getLogger("logbus.groups")

WRITE_BYTES_MAX = 512 << 10
"""Maximum bytes of one write. ZooKeeper's limit is 1 MB with paths (jute.maxbuffer)."""
KNOWN_MAX = 10_000
"""Maximum topics, over all groups, in the cache of existing offset znodes."""
ATTEMPTS_MAX = 20
"""Attempts of one write while others create or delete the same offset znodes."""


@dataclass(slots=True, eq=False)
class Writing:
    """The pending writes of one group. ``generation`` is the new value of its coordinator znode, if
    any. ``done`` completes when ZooKeeper confirms them."""

    claim: GroupClaim
    done: asyncio.Future[None]
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    generation: znodes.CoordinatorZnode | None = None

    def fail(self, error: LogbusError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # Mark the exception as retrieved: the caller may have stopped waiting.
            self.done.exception()


@dataclass(slots=True, eq=False)
class WritePart:
    """The part of a group's pending writes that one write contains."""

    writing: Writing
    offsets: dict[TopicPartition, CommittedOffset]
    generation: znodes.CoordinatorZnode | None
    is_last: bool


class GroupWriter:
    """Batches the commits and generations of all groups of a broker.

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
        self._waiting: dict[GroupClaim, Writing] = {}
        self._under_way: dict[GroupClaim, Writing] = {}
        self._task: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._known: dict[str, set[str]] = {}
        """Cache: path of a group's topic to the partitions that have an offset znode."""

    def commit(
        self, claim: GroupClaim, offsets: dict[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Queue offsets. The future completes when ZooKeeper confirms them, and fails with
        NotCoordinatorError if the claim is lost."""
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

    def unwritten(self, claim: GroupClaim) -> asyncio.Future[None] | None:
        """Return a future of the claim's pending writes, or None if it has none."""
        writing = self._waiting.get(claim) or self._under_way.get(claim)
        return None if writing is None or writing.done.done() else writing.done

    def forget(self, group: str) -> None:
        """Drop the group's znodes from the cache of existing znodes."""
        prefix = znodes.offsets_path(group) + "/"
        for path in [path for path in self._known if path.startswith(prefix)]:
            del self._known[path]

    def close(self) -> None:
        """Stop, and fail all pending writes with CoordinationUnavailableError."""
        if self._task is not None:
            self._task.cancel()
        for writing in self._waiting.values():
            writing.fail(_stopping())
        self._waiting.clear()

    def _writing(self, claim: GroupClaim) -> Writing:
        writing = self._waiting.get(claim)
        if writing is None:
            loop = asyncio.get_running_loop()
            writing = self._waiting[claim] = Writing(claim, loop.create_future())
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
                # Generations first: ``was_written`` decides by the first versioned operation
                # whether a write without an answer took effect.
                batch = sorted(self._under_way.values(), key=lambda row: row.generation is None)
                for parts in _packed(batch):
                    await self._settle(parts)
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

    async def _settle(self, parts: list[WritePart]) -> None:
        """Write the parts and complete their futures."""
        error: LogbusError
        try:
            await self._write(parts)
        except LogbusError as failure:
            error = failure
        except asyncio.CancelledError:
            for part in parts:
                part.writing.fail(_stopping())
            raise
        except Exception as failure:
            # A bug. Fail these commits; the queue continues with the next write.
            logger.exception("writing group offsets to ZooKeeper failed")
            error = UnknownServerError(f"writing the offsets to ZooKeeper failed: {failure}")
        else:
            for part in parts:
                if part.is_last and not part.writing.done.done():
                    part.writing.done.set_result(None)
            return
        for part in parts:
            part.writing.fail(error)

    async def _write(self, parts: list[WritePart]) -> None:
        """Write all parts in one transaction. Fail the parts whose claim is lost and write the
        others."""
        attempts = 0
        while attempts < ATTEMPTS_MAX:
            parts = [part for part in parts if self._is_wanted(part)]
            if not parts:
                return
            await self._learn(parts)
            operations: list[Operation] = []
            owners: list[WritePart] = []
            for part in parts:
                operations += self._operations(part)
                owners += [part] * (len(operations) - len(owners))
            refused = await self._try(parts, operations)
            if refused is None:
                for part in parts:
                    self._written(part)
                return
            claim = owners[refused.position].writing.claim
            if refused.operation.path in (check.path for check in claim.checks):
                # Not counted as an attempt: each round removes at least one group.
                await self._lost(claim, parts)
                continue
            attempts += 1
            # Another writer created or deleted znodes, perhaps of many groups: read all again.
            for part in parts:
                self.forget(part.writing.claim.group)
        raise WriteConflictError(
            "another writer keeps creating or deleting the group's offsets; commit again"
        )

    async def _try(self, parts: list[WritePart], operations: list[Operation]) -> Refused | None:
        if any(part.generation is not None for part in parts):
            return await write_surely(self._store, operations, self._wait_connected)
        return await self._store.write(operations)

    def _is_wanted(self, part: WritePart) -> bool:
        writing = part.writing
        if not writing.claim.held:
            group = writing.claim.group
            writing.fail(
                NotCoordinatorError(
                    f"another broker now coordinates group {group!r}; look it up again"
                )
            )
        return not writing.done.done()

    async def _learn(self, parts: list[WritePart]) -> None:
        """Read which offset znodes exist, and create their parents, for topics outside the
        cache."""
        topics = {(part.writing.claim.group, key.topic) for part in parts for key in part.offsets}
        pairs = [
            (group, znodes.topic_offsets_path(group, topic)) for group, topic in sorted(topics)
        ]
        for _, path in pairs:
            if path in self._known:
                # Moves the entry to the end: the cache evicts the least recently used first.
                self._known[path] = self._known.pop(path)
        await gather(
            [self._learn_topic(group, path) for group, path in pairs if path not in self._known]
        )
        too_many = len(self._known) - max(KNOWN_MAX, len(pairs))
        for path in list(islice(self._known, max(too_many, 0))):
            del self._known[path]

    async def _learn_topic(self, group: str, path: str) -> None:
        found = await self._store.children(path)
        if found is None:
            refused = await self._store.write([Create(path)])
            if refused is not None and refused.reason == "missing":
                await self._store.write([Create(znodes.offsets_path(group)), Create(path)])
            found = await self._store.children(path)
        self._known[path] = set(found or ())

    def _operations(self, part: WritePart) -> list[Operation]:
        claim = part.writing.claim
        operations: list[Operation] = list(claim.checks)
        if part.generation is not None:
            path = znodes.coordinator_path(claim.group)
            operations[0] = Set(path, znodes.encode_coordinator(part.generation), claim.version)
        for key, offset in part.offsets.items():
            path, data = znodes.offset_path(claim.group, *key), znodes.encode_offset(offset)
            known = self._known.get(znodes.topic_offsets_path(claim.group, key.topic), ())
            exists = str(key.partition) in known
            operations.append(Set(path, data) if exists else Create(path, data))
        return operations

    def _written(self, part: WritePart) -> None:
        claim = part.writing.claim
        for key in part.offsets:
            path = znodes.topic_offsets_path(claim.group, key.topic)
            self._known.get(path, set()).add(str(key.partition))
        if part.generation is not None:
            claim.value = part.generation
            claim.version += 1

    async def _lost(self, claim: GroupClaim, parts: list[WritePart]) -> None:
        """Mark the claim as lost, and every other claim of this write that is lost too."""
        claim.held = False
        self.forget(claim.group)
        others = [part.writing.claim for part in parts if part.writing.claim.held]
        paths = [znodes.coordinator_path(other.group) for other in others]
        found = await gather([self._store.get(path) for path in paths])
        for other, znode in zip(others, found):
            if znode is None or znode.version != other.version or not other.is_seen_in(znode):
                other.held = False
                self.forget(other.group)


def _packed(batch: list[Writing]) -> Iterator[list[WritePart]]:
    """Split a batch into writes of at most WRITE_BYTES_MAX bytes. A group's generation is in the
    last write of its offsets."""
    packed: list[WritePart] = []
    size = 0
    for writing in batch:
        group = 300 + 3 * len(writing.claim.group)
        offsets: dict[TopicPartition, CommittedOffset] = {}
        size += group
        for key, offset in writing.offsets.items():
            cost = group + len(key.topic) + 6 * len(offset.metadata)
            if size + cost > WRITE_BYTES_MAX and (packed or offsets):
                if offsets:
                    packed.append(WritePart(writing, offsets, None, is_last=False))
                yield packed
                packed, offsets, size = [], {}, group
            offsets[key] = offset
            size += cost
        packed.append(WritePart(writing, offsets, writing.generation, is_last=True))
    yield packed


def _stopping() -> LogbusError:
    return CoordinationUnavailableError("the broker is stopping; commit again")
