"""The offsets of consumer groups, at /consumers/<group>/offsets/<topic>/<partition>. Loop thread.

A commit is answered when ZooKeeper has it. Commits of one group that arrive while one is being
written, or within ``interval_ms`` after it, share one write; of two for one partition the later
stands. Every offset names its topic's id: one of a deleted topic is never its successor's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from broker_lite.errors import (
    CoordinationUnavailableError,
    GroupIdNotFoundError,
    LogbusError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WriteConflictError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.loader import gather
from broker_lite.metadata.store import Create, Delete, MetadataStore, Operation, Set
from broker_lite.model import (
    NO_TIMESTAMP,
    NULL_TOPIC_ID,
    CommittedOffset,
    TopicPartition,
    TopicView,
)

logger = logging.getLogger("logbus.groups")

WRITE_BYTES_MAX = 512 << 10
"""ZooKeeper takes 1 MB at once (jute.maxbuffer), paths included."""
KNOWN_MAX = 10_000
"""Groups and group topics whose znodes are remembered to exist."""
ATTEMPTS_MAX = 20
DELETES_PER_WRITE_MAX = 1000


@dataclass(slots=True)
class _Batch:
    """Commits that will share a write."""

    done: asyncio.Future[None]
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


class GroupOffsets:
    """``find_topic`` looks into the present snapshot; ``now_ms`` is the wall clock."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        find_topic: Callable[[str], TopicView | None],
        now_ms: Callable[[], int],
        interval_ms: int,
    ) -> None:
        self._store = store
        self._find_topic = find_topic
        self._now_ms = now_ms
        self._interval_s = interval_ms / 1000
        self._batches: dict[str, _Batch] = {}
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._groups: set[str] = set()
        """Groups whose znodes are known to be there."""
        self._known: dict[str, set[str]] = {}
        """Path of a group's topic to the partitions that have an offset there."""

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, LogbusError | None]:
        """Fills in topic id and time where missing. Raises CoordinationUnavailableError,
        InvalidGroupIdError; what is wrong with one partition is in the answer."""
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
        if not accepted:
            return results
        batch = self._batches.get(group)
        if batch is None:
            loop = asyncio.get_running_loop()
            batch = self._batches[group] = _Batch(loop.create_future())
            if group not in self._writers:
                self._writers[group] = loop.create_task(self._write_batches(group))
        batch.offsets.update(accepted)
        await asyncio.shield(batch.done)
        return results

    async def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What is there and belongs to the topics as they are now. None: all of the group's."""
        await self._store.sync(znodes.group_path(group))
        keys = await self._committed(group) if partitions is None else list(partitions)
        reads = [self._store.get(znodes.offset_path(group, *key)) for key in keys]
        found = {}
        for key, znode in zip(keys, await gather(reads)):
            topic = self._find_topic(key.topic)
            if znode is None or topic is None or not 0 <= key.partition < len(topic.partitions):
                continue
            offset = znodes.decode_offset(znodes.offset_path(group, *key), znode.data)
            if offset.topic_id == topic.topic_id:
                found[key] = offset
        return found

    async def kind(self, group: str) -> str | None:
        """ "kafka", "native", or None if there is no such group."""
        path = znodes.group_path(group)
        znode = await self._store.get(path)
        return None if znode is None else znodes.decode_group(path, znode.data)

    async def kinds(self) -> dict[str, str]:
        """Every group that has state, with its kind."""
        groups = [znodes.group_name(n) for n in await self._store.children(znodes.CONSUMERS) or ()]
        kinds = await gather([self.kind(group) for group in groups])
        return {group: kind for group, kind in zip(groups, kinds) if kind is not None}

    async def delete(self, group: str, partitions: Iterable[TopicPartition] | None) -> None:
        """None: the whole group. Raises GroupIdNotFoundError, WriteConflictError."""
        if await self.kind(group) is None:
            raise GroupIdNotFoundError(f"there is no group {group!r}")
        for _ in range(ATTEMPTS_MAX):
            if partitions is None:
                paths = [path async for path in self._below(znodes.group_path(group))]
            else:
                wanted = [znodes.offset_path(group, *key) for key in partitions]
                there = await gather([self._store.get(path) for path in wanted])
                paths = [path for path, znode in zip(wanted, there) if znode is not None]
            self._groups.discard(group)
            self._known.clear()
            for at in range(0, len(paths), DELETES_PER_WRITE_MAX):
                chunk = [Delete(path) for path in paths[at : at + DELETES_PER_WRITE_MAX]]
                if await self._store.write(chunk) is not None:
                    break
            else:
                return
        raise WriteConflictError(f"group {group!r} is being written to; try again")

    def close(self) -> None:
        """What is not written yet fails."""
        for task in self._writers.values():
            task.cancel()
        for batch in self._batches.values():
            _fail(batch, CoordinationUnavailableError("the broker stops; commit again"))

    # Commits.

    def _complete(self, key: TopicPartition, offset: CommittedOffset) -> CommittedOffset:
        topic = self._find_topic(key.topic)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            raise UnknownTopicOrPartitionError(f"there is no partition {key}")
        if offset.topic_id not in (NULL_TOPIC_ID, topic.topic_id):
            raise UnknownTopicIdError(f"topic {key.topic!r} was deleted and made again")
        commit_ms = self._now_ms() if offset.commit_ms == NO_TIMESTAMP else offset.commit_ms
        return offset._replace(topic_id=topic.topic_id, commit_ms=commit_ms)

    async def _write_batches(self, group: str) -> None:
        try:
            while group in self._batches:
                batch = self._batches.pop(group)
                try:
                    await self._write(group, batch.offsets)
                except LogbusError as error:
                    _fail(batch, error)
                except asyncio.CancelledError:
                    _fail(batch, CoordinationUnavailableError("the broker stops; commit again"))
                    raise
                except Exception as error:
                    # A mistake of ours. Whoever waits is told; the next batch is another matter.
                    logger.exception("group %s: its offsets could not be written", group)
                    _fail(batch, UnknownServerError(f"the offsets could not be written: {error}"))
                else:
                    batch.done.set_result(None)
                if self._interval_s:
                    await asyncio.sleep(self._interval_s)
        finally:
            del self._writers[group]

    async def _write(self, group: str, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        topics = sorted({key.topic for key in offsets})
        for part in _parts(group, offsets):
            for _ in range(ATTEMPTS_MAX):
                await self._learn(group, topics)
                refused = await self._store.write(self._operations(group, part))
                if refused is None:
                    for key in part:
                        path = znodes.topic_offsets_path(group, key.topic)
                        self._known.get(path, set()).add(str(key.partition))
                    break
                # Somebody made or deleted znodes of this group: look again.
                self._groups.discard(group)
                for topic in topics:
                    self._known.pop(znodes.topic_offsets_path(group, topic), None)
            else:
                raise WriteConflictError(f"group {group!r} is being deleted; commit again")

    async def _learn(self, group: str, topics: list[str]) -> None:
        """Make the parents and note which offsets exist, where that is not known yet."""
        if group not in self._groups:
            if len(self._groups) > KNOWN_MAX:
                self._groups.clear()
            kind = znodes.encode_group(znodes.KIND_KAFKA)
            await self._store.write([Create(znodes.group_path(group), kind)])
            await self._store.write([Create(znodes.offsets_path(group))])
            self._groups.add(group)
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        for topic in topics:
            path = znodes.topic_offsets_path(group, topic)
            if path not in self._known:
                await self._store.write([Create(path)])
                self._known[path] = set(await self._store.children(path) or ())

    def _operations(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> list[Operation]:
        operations: list[Operation] = []
        for key, offset in offsets.items():
            path, data = znodes.offset_path(group, *key), znodes.encode_offset(offset)
            known = self._known.get(znodes.topic_offsets_path(group, key.topic), ())
            there = str(key.partition) in known
            operations.append(Set(path, data) if there else Create(path, data))
        return operations

    # Reads.

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


def _parts(
    group: str, offsets: dict[TopicPartition, CommittedOffset]
) -> Iterator[dict[TopicPartition, CommittedOffset]]:
    """As few writes as ZooKeeper's limit allows."""
    part: dict[TopicPartition, CommittedOffset] = {}
    size = 0
    for key, offset in offsets.items():
        cost = 300 + len(group) * 3 + len(key.topic) + 6 * len(offset.metadata)
        if part and size + cost > WRITE_BYTES_MAX:
            yield part
            part, size = {}, 0
        part[key] = offset
        size += cost
    yield part


def _fail(batch: _Batch, error: LogbusError) -> None:
    if not batch.done.done():
        batch.done.set_exception(error)
        # Nobody may be waiting any more.
        batch.done.exception()
