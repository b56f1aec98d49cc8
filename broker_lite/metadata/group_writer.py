"""Everything that a broker writes for its groups goes through here, one write after another.

Commits of all groups that arrive while a write is under way, or within ``interval_ms`` after it
began, share the next one: ZooKeeper bears one a broker in that time (several where they exceed
WRITE_BYTES_MAX together); of two commits for one partition the later stands. A new generation of a
Kafka group does not wait, and takes along what was committed before it. Each group's part checks
its claim: however many are lost at once, each fails its own group alone. Loop thread.
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
from broker_lite.metadata.group_claims import Claim
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
"""ZooKeeper takes 1 MB at once (jute.maxbuffer), paths included."""
KNOWN_MAX = 10_000
"""Group topics whose znodes are remembered to exist."""
ATTEMPTS_MAX = 20
"""Of one write, refused because somebody makes or deletes the offsets' znodes at the same time."""


@dataclass(slots=True, eq=False)
class Writing:
    """What one group has to write. ``generation``: the value that its coordinator znode gets."""

    claim: Claim
    done: asyncio.Future[None]
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    generation: znodes.Coordinator | None = None

    def fail(self, error: LogbusError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # Nobody may be waiting any more.
            self.done.exception()


@dataclass(slots=True, eq=False)
class Part:
    """As much of a group's writing as goes with one write."""

    writing: Writing
    offsets: dict[TopicPartition, CommittedOffset]
    generation: znodes.Coordinator | None
    is_last: bool


class GroupWriter:
    """``wait_connected`` returns when ZooKeeper answers again."""

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
        self._waiting: dict[Claim, Writing] = {}
        self._under_way: dict[Claim, Writing] = {}
        self._task: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._known: dict[str, set[str]] = {}
        """Path of a group's topic to the partitions that have an offset there."""

    def commit(
        self, claim: Claim, offsets: dict[TopicPartition, CommittedOffset]
    ) -> asyncio.Future[None]:
        """Done when ZooKeeper has them. Fails with NotCoordinatorError where the claim is lost."""
        writing = self._writing(claim)
        writing.offsets.update(offsets)
        return writing.done

    def begin_generation(self, claim: Claim, value: znodes.Coordinator) -> asyncio.Future[None]:
        """Done when ZooKeeper has it, with all that was committed before."""
        writing = self._writing(claim)
        writing.generation = value
        self._urgent.set()
        return writing.done

    def unwritten(self, claim: Claim) -> asyncio.Future[None] | None:
        """Done when all is written, or failed, that was asked for by this claim so far; None if it
        is."""
        writing = self._waiting.get(claim) or self._under_way.get(claim)
        return None if writing is None or writing.done.done() else writing.done

    def forget(self, group: str) -> None:
        """Its znodes are not known to be there any more."""
        prefix = znodes.offsets_path(group) + "/"
        for path in [path for path in self._known if path.startswith(prefix)]:
            del self._known[path]

    def close(self) -> None:
        """What is not written yet fails."""
        if self._task is not None:
            self._task.cancel()
        for writing in self._waiting.values():
            writing.fail(_stopping())
        self._waiting.clear()

    def _writing(self, claim: Claim) -> Writing:
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
                # A write whose answer is lost is judged by its first operation.
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

    async def _settle(self, parts: list[Part]) -> None:
        """Write them, and tell whoever waits."""
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
            # A mistake of ours. Whoever waits is told; the next write is another matter.
            logger.exception("offsets of groups could not be written")
            error = UnknownServerError(f"the offsets could not be written: {failure}")
        else:
            for part in parts:
                if part.is_last and not part.writing.done.done():
                    part.writing.done.set_result(None)
            return
        for part in parts:
            part.writing.fail(error)

    async def _write(self, parts: list[Part]) -> None:
        """All of them in one write, but for those whose claim is lost: they are told so here."""
        attempts = 0
        while attempts < ATTEMPTS_MAX:
            parts = [part for part in parts if self._is_wanted(part)]
            if not parts:
                return
            await self._learn(parts)
            operations: list[Operation] = []
            owners: list[Part] = []
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
                # No attempt of the others: each time there is one group less.
                await self._lost(claim, parts)
                continue
            attempts += 1
            # Somebody made or deleted znodes, perhaps of many groups: look again at all of them.
            for part in parts:
                self.forget(part.writing.claim.group)
        raise WriteConflictError("offsets are made and deleted at the same time; commit again")

    async def _try(self, parts: list[Part], operations: list[Operation]) -> Refused | None:
        if any(part.generation is not None for part in parts):
            return await write_surely(self._store, operations, self._wait_connected)
        return await self._store.write(operations)

    def _is_wanted(self, part: Part) -> bool:
        writing = part.writing
        if not writing.claim.held:
            group = writing.claim.group
            writing.fail(NotCoordinatorError(f"another broker coordinates group {group!r} by now"))
        return not writing.done.done()

    async def _learn(self, parts: list[Part]) -> None:
        """Note which offsets exist, and make their parents, where that is not known yet."""
        topics = {(part.writing.claim.group, key.topic) for part in parts for key in part.offsets}
        places = [
            (group, znodes.topic_offsets_path(group, topic)) for group, topic in sorted(topics)
        ]
        for _, path in places:
            if path in self._known:
                # Used last, so that those are forgotten first that are not used.
                self._known[path] = self._known.pop(path)
        await gather(
            [self._learn_topic(group, path) for group, path in places if path not in self._known]
        )
        too_many = len(self._known) - max(KNOWN_MAX, len(places))
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

    def _operations(self, part: Part) -> list[Operation]:
        claim = part.writing.claim
        operations: list[Operation] = list(claim.checks)
        if part.generation is not None:
            path = znodes.coordinator_path(claim.group)
            operations[0] = Set(path, znodes.encode_coordinator(part.generation), claim.version)
        for key, offset in part.offsets.items():
            path, data = znodes.offset_path(claim.group, *key), znodes.encode_offset(offset)
            known = self._known.get(znodes.topic_offsets_path(claim.group, key.topic), ())
            there = str(key.partition) in known
            operations.append(Set(path, data) if there else Create(path, data))
        return operations

    def _written(self, part: Part) -> None:
        claim = part.writing.claim
        for key in part.offsets:
            path = znodes.topic_offsets_path(claim.group, key.topic)
            self._known.get(path, set()).add(str(key.partition))
        if part.generation is not None:
            claim.value = part.generation
            claim.version += 1

    async def _lost(self, claim: Claim, parts: list[Part]) -> None:
        """One claim is lost, and perhaps others of this write: all that are go at once."""
        claim.held = False
        self.forget(claim.group)
        others = [part.writing.claim for part in parts if part.writing.claim.held]
        paths = [znodes.coordinator_path(other.group) for other in others]
        found = await gather([self._store.get(path) for path in paths])
        for other, znode in zip(others, found):
            if znode is None or znode.version != other.version or not other.is_seen_in(znode):
                other.held = False
                self.forget(other.group)


def _packed(batch: list[Writing]) -> Iterator[list[Part]]:
    """As few writes as ZooKeeper's limit allows; a group's generation goes with its last one."""
    packed: list[Part] = []
    size = 0
    for writing in batch:
        group = 300 + 3 * len(writing.claim.group)
        offsets: dict[TopicPartition, CommittedOffset] = {}
        size += group
        for key, offset in writing.offsets.items():
            cost = group + len(key.topic) + 6 * len(offset.metadata)
            if size + cost > WRITE_BYTES_MAX and (packed or offsets):
                if offsets:
                    packed.append(Part(writing, offsets, None, is_last=False))
                yield packed
                packed, offsets, size = [], {}, group
            offsets[key] = offset
            size += cost
        packed.append(Part(writing, offsets, writing.generation, is_last=True))
    yield packed


def _stopping() -> LogbusError:
    return CoordinationUnavailableError("the broker stops; commit again")
