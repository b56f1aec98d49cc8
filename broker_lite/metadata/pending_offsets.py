"""The pending offsets of open transactions, at /consumers/<group>/pending in ZooKeeper.

TxnOffsetCommit adds a *part*: a znode with some offsets of one transaction for the group. When the
transaction ends, one write deletes the part. If the transaction commits, the same write sets the
part's offsets. The deletion makes the end idempotent: a repeated end finds no part, so it cannot
overwrite a later commit with older offsets. ``group_writer`` carries out these writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from broker_lite.errors import LogbusError, TransactionAbortableError
from broker_lite.metadata import znodes
from broker_lite.metadata.store import Create, Delete, Operation, Set, Znode
from broker_lite.metadata.znodes import PendingOffsets, PendingPart, TransactionKey
from broker_lite.model import CommittedOffset, TopicPartition

WRITE_BYTES_MAX = 512 << 10
"""Maximum bytes of one write of group offsets. ZooKeeper accepts 1 MB, paths included."""
PARTS_MAX = 1000
"""Maximum pending parts of one group. Every read of stable offsets (``fetch_stable``) reads all of
them."""

Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(slots=True, eq=False)
class _PartWrite:
    """A queued write of one part. ``done`` completes when ZooKeeper confirms the write."""

    done: asyncio.Future[None]
    cost: int

    def fail(self, error: LogbusError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # Mark the exception as retrieved: the caller may have stopped waiting.
            self.done.exception()

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class AddPart(_PartWrite):
    """A write that adds offsets to a transaction, as its next part."""

    transaction: TransactionKey
    value: PendingOffsets

    @property
    def offsets(self) -> Offsets:
        """Return no offsets, because a new part changes no committed offset."""
        return {}


@dataclass(slots=True, eq=False)
class EndPart(_PartWrite):
    """A write that ends a part.

    ``offsets`` are the offsets to commit, none if the transaction aborts. ``created_zxid`` is the
    zxid of the part's creation. An offset that was written later is kept.
    """

    name: str
    created_zxid: int
    offsets: Offsets


PartWrite = AddPart | EndPart


def group_cost(group: str) -> int:
    """Return an upper bound of the bytes that the checks of a group's claim, or the path of one
    offset, take in a write."""
    return 300 + 3 * len(group)


def row_cost(group: str, key: TopicPartition, offset: CommittedOffset) -> int:
    """Return an upper bound of the bytes of one offset in a write."""
    return group_cost(group) + len(key.topic) + 6 * len(offset.metadata)


def part_cost(group: str, offsets: Offsets) -> int:
    """Return an upper bound of the bytes of a write that adds or ends a part."""
    rows = sum(row_cost(group, key, offset) for key, offset in offsets.items())
    return 2 * group_cost(group) + rows


def split(group: str, offsets: Offsets) -> Iterator[Offsets]:
    """Split a transaction's offsets into parts that are small enough to be ended in one
    write each.
    """
    rows: dict[TopicPartition, CommittedOffset] = {}
    size = part_cost(group, rows)
    for key, offset in offsets.items():
        cost = row_cost(group, key, offset)
        if rows and size + cost > WRITE_BYTES_MAX:
            yield rows
            rows, size = {}, part_cost(group, {})
        rows[key] = offset
        size += cost
    yield rows


class PartOperations:
    """The operations on parts in one write for one group.

    ``names`` are the known parts of the group. ``znodes_by_path`` has the znodes of the ended parts
    and of their offsets. The write also has ordinary commits in the ``committed`` partitions;
    these commits came after the parts and take precedence.
    """

    def __init__(
        self,
        group: str,
        names: Container[str],
        znodes_by_path: Mapping[str, Znode | None],
        committed: Container[TopicPartition],
    ) -> None:
        self.operations: list[Operation] = []
        self.added: set[str] = set()
        """Names of the parts that this write creates."""
        self.ended: set[str] = set()
        self.created: list[TopicPartition] = []
        """Partitions whose offset znode the write creates."""
        self._group = group
        self._names = names
        self._znodes = znodes_by_path
        self._committed = committed
        self._set: dict[str, tuple[int, int]] = {}
        """By path, each offset that this write sets: the version of its znode, and the zxid at
        which its part was created."""

    def add(self, write: AddPart, count: int) -> None:
        """Add a part to a group that has ``count`` parts. Fail the write if the group has PARTS_MAX
        parts."""
        if count + len(self.added) >= PARTS_MAX:
            write.fail(
                TransactionAbortableError(
                    f"group {self._group!r} has {count} pending commits of open transactions, the "
                    "maximum; end some transactions, or send offsets less often in each"
                )
            )
            return
        part = PendingPart(write.transaction, 0)
        while str(part) in self._names or str(part) in self.added:
            part = part._replace(sequence=part.sequence + 1)
        self.added.add(str(part))
        data = znodes.encode_pending(write.value)
        self.operations.append(Create(znodes.part_path(self._group, str(part)), data))

    def end(self, write: EndPart) -> None:
        """Delete a part and set its offsets, unless it has ended already."""
        path = znodes.part_path(self._group, write.name)
        if self._znodes.get(path) is None or write.name in self.ended:
            return
        self.ended.add(write.name)
        self.operations.append(Delete(path))
        for key, offset in write.offsets.items():
            if key not in self._committed:
                self._commit(key, offset, write.created_zxid)

    def _commit(self, key: TopicPartition, offset: CommittedOffset, created_zxid: int) -> None:
        path = znodes.offset_path(self._group, *key)
        znode = self._znodes.get(path)
        known = self._set.get(path)
        if known is None and znode is not None:
            known = znode.version, znodes.offset_zxid(path, znode)
        data = znodes.encode_offset(offset, added_zxid=created_zxid)
        if known is None:
            self.operations.append(Create(path, data))
            self.created.append(key)
            self._set[path] = 0, created_zxid
        elif known[1] <= created_zxid:
            self.operations.append(Set(path, data, known[0]))
            self._set[path] = known[0] + 1, created_zxid
