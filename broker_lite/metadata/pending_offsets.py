"""The pending offsets of open transactions, at /consumers/<group>/pending in ZooKeeper.

Each TxnOffsetCommit adds a *part*: a znode with offsets that one transaction commits for the group.
A large request adds several parts.

When the transaction ends, a write deletes each part. If the transaction commits, the same write
sets the committed offsets from the part. The deletion makes the end idempotent: if the
transaction's end is sent again, no part is left, so the second end cannot overwrite a later commit
with older offsets. ``group_writer`` carries out these writes.
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
"""Maximum bytes of one ZooKeeper write of group offsets, with the paths: half of what ZooKeeper
accepts."""
PARTS_MAX = 1000
"""Maximum number of parts (znodes with offsets of an open transaction) in one group, because every
OffsetFetch of stable offsets reads all of them."""

Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(slots=True, eq=False)
class _PartWrite:
    """A queued write that creates or deletes a part, a znode with offsets of an open transaction.

    ``done`` completes when ZooKeeper has confirmed it. ``cost`` is its size in bytes."""

    done: asyncio.Future[None]
    cost: int

    def fail(self, error: LogbusError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # Retrieve the exception, or asyncio would log it: the caller may have stopped waiting.
            self.done.exception()

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True, eq=False)
class AddPart(_PartWrite):
    """A queued write that stores offsets of an open transaction in a znode of their own (a
    part)."""

    transaction: TransactionKey
    value: PendingOffsets

    @property
    def offsets(self) -> Offsets:
        """The offsets that this write commits: none, because the transaction is open."""
        return {}


@dataclass(slots=True, eq=False)
class EndPart(_PartWrite):
    """A queued write that ends one part of a transaction: it deletes the znode with stored offsets.

    ``offsets`` are the offsets that the same write commits; none if the transaction aborts.
    ``created_zxid`` is the zxid (ZooKeeper transaction id) of the write that stored them as
    pending. If a partition has been committed since then, its newer commit stays."""

    name: str
    created_zxid: int
    offsets: Offsets


PartWrite = AddPart | EndPart


def group_cost(group: str) -> int:
    """Return an upper bound of the bytes that the check of a group's claim (its coordinator's right
    to write) takes in a write. It is also a bound for one offset without its topic and metadata.
    Both contain the group's name."""
    return 300 + 3 * len(group)


def row_cost(group: str, key: TopicPartition, offset: CommittedOffset) -> int:
    """Return an upper bound of the bytes that one offset takes in a write."""
    return group_cost(group) + len(key.topic) + 6 * len(offset.metadata)


def part_cost(group: str, offsets: Offsets) -> int:
    """Return an upper bound of the bytes of a write that creates or deletes a part: a znode with
    ``offsets`` of an open transaction."""
    rows = sum(row_cost(group, key, offset) for key, offset in offsets.items())
    return 2 * group_cost(group) + rows


def split(group: str, offsets: Offsets) -> Iterator[Offsets]:
    """Divide the offsets of a transaction into parts (one for each znode), each so small that a
    single ZooKeeper write can commit it."""
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
    """The operations on one group's parts (znodes with pending offsets) in one ZooKeeper write.

    ``names`` are the names of the group's existing parts. ``znodes_by_path`` has the znodes of the
    parts that the write deletes, and the offset znodes that it sets from them. ``committed`` are
    the partitions with an ordinary commit in the same write. This commit takes precedence, because
    it came after the parts."""

    def __init__(
        self,
        group: str,
        names: Container[str],
        znodes_by_path: Mapping[str, Znode],
        committed: Container[TopicPartition],
    ) -> None:
        self.operations: list[Operation] = []
        self.added: set[str] = set()
        """Names of the parts (znodes with offsets of open transactions) that this write creates."""
        self.ended: set[str] = set()
        self.created: list[TopicPartition] = []
        """Partitions whose offset znode the write creates."""
        self._group = group
        self._names = names
        self._znodes = znodes_by_path
        self._committed = committed
        self._set: dict[str, tuple[int, int]] = {}
        """For each offset znode that this write sets, by path: the znode's version afterwards, and
        the zxid (ZooKeeper transaction id) of the write that had stored the offset as pending."""

    def add(self, write: AddPart, count: int) -> None:
        """Add a part (a znode with offsets of an open transaction). The group has ``count`` parts
        already. If it would get more than PARTS_MAX, ``write`` fails."""
        if count + len(self.added) >= PARTS_MAX:
            write.fail(
                TransactionAbortableError(
                    f"group {self._group!r} has {count} pending commits of open transactions, the "
                    "maximum; end some transactions, or commit offsets less often in each"
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
        """End a part: delete the znode with stored offsets of a transaction, and commit
        ``write.offsets`` (empty if the transaction aborts). If the transaction's end was sent
        twice, the part does not exist any more: do nothing."""
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
