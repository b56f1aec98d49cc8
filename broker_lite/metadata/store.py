"""The interface to ZooKeeper: reads, atomic writes, one-shot watches, and events of the session.

``metadata/zookeeper/store.py`` implements it with kazoo, and the simulator of the tests in memory.
All calls and events run on the event loop's thread. The event of a watch may arrive after a read
that already returned the change. Paths are relative to the chroot of ``zookeeper.connect``.

Without a connection, every call raises CoordinationUnavailableError at once. If a write raises this
error, it may have taken effect all the same. ``write_surely`` finds out with a read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

from broker_lite.errors import CoordinationUnavailableError, InvalidRequestError

RETRY_S = 0.05
"""Seconds between two attempts of ``insist``, and between two attempts of ``write_surely`` to find
out whether a write took effect."""

REQUEST_BYTES_MAX = 0xFFFFF
"""Maximum bytes of a request to ZooKeeper, the default of its ``jute.maxbuffer``. ZooKeeper closes
the connection of a client that sends more."""


_Result = TypeVar("_Result")


class Znode(NamedTuple):
    """A znode as it was read. If ``created_zxid`` (the id of the creating transaction) changes, the
    znode was deleted and created again."""

    data: bytes
    version: int
    created_zxid: int
    session_id: int
    """Id of the session that owns an ephemeral znode; 0 for a persistent znode."""
    modified_ms: int = 0
    """Time of the last write, even if it did not change the value, in ms by ZooKeeper's wall
    clock."""
    modified_zxid: int = 0
    """The zxid (ZooKeeper transaction id) of the last write: its place in the order of all
    writes."""


class Check(NamedTuple):
    """An operation of a write that changes nothing. The whole write fails unless the znode exists
    with this version; -1 stands for any version."""

    path: str
    version: int


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = -1
    """The version that the znode must have for the write to succeed; -1 stands for any version."""


class Delete(NamedTuple):
    path: str
    version: int = -1


Operation = Check | Create | Set | Delete


def put(path: str, data: bytes, znode: Znode | None) -> Create | Set:
    """Return the operation that stores ``data`` at ``path`` only if the znode there has not changed
    since it was read as ``znode`` (None: it did not exist)."""
    return Create(path, data) if znode is None else Set(path, data, znode.version)


RefusalReason = Literal["exists", "missing", "version", "not_empty"]


class Refused(NamedTuple):
    """The result of a write that ZooKeeper rejected as a whole: the operation that failed, its
    position in the write, and the reason."""

    position: int
    operation: Operation
    reason: RefusalReason


class Connected(NamedTuple):
    """The event of a new connection to ZooKeeper. Watches that were set on the former connection
    never fire.

    With ``new_session``, the ephemeral znodes of the former session are gone, or will be when that
    session expires."""

    session_id: int
    new_session: bool


class Suspended(NamedTuple):
    """The event of a lost connection to ZooKeeper. The session may survive."""


class SessionLost(NamedTuple):
    """The event of an expired session. ZooKeeper has deleted the session's ephemeral znodes."""


class DataChanged(NamedTuple):
    """The event of a watch that ``get`` has set: the znode was created, set or deleted."""

    path: str


class ChildrenChanged(NamedTuple):
    """The event of a watch that ``children`` has set: a child was created or deleted."""

    path: str


StoreEvent = Connected | Suspended | SessionLost | DataChanged | ChildrenChanged


class MetadataStore(Protocol):
    """A connection to ZooKeeper, with its session."""

    async def start(self, on_event: Callable[[StoreEvent], None]) -> None:
        """Connect to ZooKeeper and create the chroot. Raises CoordinationUnavailableError after the
        timeout."""

    async def close(self) -> None:
        """End the session. ZooKeeper deletes the session's ephemeral znodes at once."""

    @property
    def connected(self) -> bool: ...

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that ZooKeeper granted, in milliseconds."""

    async def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """Return the znode; None if it does not exist. With ``watch``, its next change, creation or
        deletion causes a DataChanged event."""

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """Return the sorted names of a znode's children; None if the znode does not exist. With
        ``watch``, the next change of the list causes a ChildrenChanged event; a znode that does not
        exist gets no watch."""

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        """Apply all operations atomically. Return None; if ZooKeeper rejects the write, return
        which operation failed and why."""

    async def sync(self, path: str) -> None:
        """Wait until this connection's reads see all writes that were acknowledged before this
        call."""


def check_size(operations: Sequence[Operation]) -> None:
    """Raise InvalidRequestError if the operations together are larger than ZooKeeper accepts in one
    request. ZooKeeper would close the connection at every attempt."""
    size = sum(
        len(operation.path) + len(getattr(operation, "data", b"")) for operation in operations
    )
    if size > REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"the request needs a ZooKeeper write of {size} bytes; the limit is "
            f"{REQUEST_BYTES_MAX}. Split the request"
        )


async def insist(call: Callable[[], Awaitable[_Result]], timeout_s: float) -> _Result:
    """Return the result of ``call``. Repeat the call if the connection to ZooKeeper was lost, for
    at most ``timeout_s`` seconds.

    Raises CoordinationUnavailableError."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        try:
            return await call()
        except CoordinationUnavailableError:
            if loop.time() >= deadline_s:
                raise
        await asyncio.sleep(RETRY_S)


async def write_surely(
    store: MetadataStore,
    operations: Sequence[Operation],
    wait_connected: Callable[[], Awaitable[None]],
) -> Refused | None:
    """Write, and find out whether the write took effect even if ZooKeeper's answer is lost.

    After a lost answer, this function reads on the next connection whether the write took effect,
    and repeats the write if not. ``wait_connected`` returns once the same session is connected
    again, or raises an error, which ends this function."""
    while True:
        try:
            return await store.write(operations)
        except CoordinationUnavailableError:
            pass
        while True:
            await wait_connected()
            try:
                written = await was_written(store, operations)
                break
            except CoordinationUnavailableError:
                await asyncio.sleep(RETRY_S)
        if written is True:
            return None
        if isinstance(written, Refused):
            return written


async def was_written(store: MetadataStore, operations: Sequence[Operation]) -> bool | Refused:
    """Find out, by reading the znodes, whether a write whose answer was lost took effect.

    Call this function on a new connection. It returns True if the write took effect, and False if
    it did not and may be repeated. It returns Refused if another client has written since, so that
    the outcome is unknown. The first Create, Delete or Set with a version decides. Another client
    may have made the same Create or Set, so True then also requires that no znode of a later Set
    shows that the write failed."""
    for index, operation in enumerate(operations):
        match operation:
            case Create(path, data, ephemeral):
                znode = await store.get(path)
                if znode is None:
                    return False
                if znode.data != data or (ephemeral and znode.session_id != store.session_id):
                    return Refused(index, operation, "exists")
                is_mine = await _may_have_written(store, operations[index + 1 :])
                return is_mine or Refused(index, operation, "exists")
            case Set(path, data, version) if version >= 0:
                znode = await store.get(path)
                if znode is None:
                    return Refused(index, operation, "missing")
                if znode.version == version:
                    return False
                is_mine = znode.version == version + 1 and znode.data == data
                is_mine = is_mine and await _may_have_written(store, operations[index + 1 :])
                return is_mine or Refused(index, operation, "version")
            case Delete(path):
                return await store.get(path) is None
            case _:
                continue
    return False


async def _may_have_written(store: MetadataStore, operations: Sequence[Operation]) -> bool:
    """Return False if a znode shows that a Set with a version had no effect: the znode's version is
    not above that of the Set, or is the next one with another value than the Set's."""
    for operation in operations:
        if not isinstance(operation, Set) or operation.version < 0:
            continue
        znode = await store.get(operation.path)
        if znode is None:
            # The Set may have taken effect: another write may have deleted the znode since.
            continue
        is_next = znode.version == operation.version + 1
        if znode.version <= operation.version or (is_next and znode.data != operation.data):
            return False
    return True
