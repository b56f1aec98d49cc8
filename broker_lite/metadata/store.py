"""The interface to ZooKeeper: reads, atomic writes, one-shot watches, session events.

``metadata/zookeeper.py`` implements the interface with kazoo, and the simulator in memory. All
calls and events run on the event loop's thread. An event may arrive after a read that already
returned the change. Paths are relative to the chroot. Without a connection, every call raises
CoordinationUnavailableError at once. If a write raises this error, the write may have taken effect.
``write_surely`` determines the outcome with a read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from broker_lite.errors import CoordinationUnavailableError, InvalidRequestError

RETRY_S = 0.05
"""Seconds between two attempts of ``write_surely`` to read the outcome of a write."""

REQUEST_BYTES_MAX = 0xFFFFF
"""Maximum bytes of a request to ZooKeeper (its default of ``jute.maxbuffer``). ZooKeeper closes the
connection of a client that sends a larger request.
"""


class Znode(NamedTuple):
    """A znode. ``created_zxid`` shows whether it was deleted and recreated."""

    data: bytes
    version: int
    created_zxid: int
    session_id: int
    """Id of the session that owns an ephemeral znode; 0 for a persistent znode."""
    modified_ms: int = 0
    """Time of the last write in ms of ZooKeeper's wall clock. A write that does not change the
    value counts too."""
    modified_zxid: int = 0
    """The zxid of the last write: its position in ZooKeeper's order of all writes."""


class Check(NamedTuple):
    """An operation that fails the whole write unless the path exists with this version. -1 stands
    for any version."""

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
    """Version that the znode must have. -1 stands for any version."""


class Delete(NamedTuple):
    path: str
    version: int = -1


Operation = Check | Create | Set | Delete


RefusalReason = Literal["exists", "missing", "version", "not_empty"]


class Refused(NamedTuple):
    """The result of a write that ZooKeeper rejected as a whole: the failed operation, its position
    in the write, and the reason."""

    position: int
    operation: Operation
    reason: RefusalReason


class Connected(NamedTuple):
    """The event of a new connection. Watches of the former connection are then invalid.

    With ``new_session``, the ephemeral znodes of the former session are deleted, or will be when
    that session expires.
    """

    session_id: int
    new_session: bool


class Suspended(NamedTuple):
    """The event of a lost connection. The session may survive."""


class SessionLost(NamedTuple):
    """The event of an expired session, whose ephemeral znodes are deleted."""


class DataChanged(NamedTuple):
    """The event of a watch that ``get`` set: the znode was created, set or deleted."""

    path: str


class ChildrenChanged(NamedTuple):
    """The event of a watch that ``children`` set: a child was created or deleted."""

    path: str


StoreEvent = Connected | Suspended | SessionLost | DataChanged | ChildrenChanged


class MetadataStore(Protocol):
    """A connection to ZooKeeper, with its session."""

    async def start(self, on_event: Callable[[StoreEvent], None]) -> None:
        """Connect and create the chroot. Raises CoordinationUnavailableError after the timeout."""

    async def close(self) -> None:
        """End the session. ZooKeeper deletes its ephemeral znodes at once."""

    @property
    def connected(self) -> bool: ...

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that ZooKeeper granted, in milliseconds."""

    async def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """Return the znode, or None. A watch is set in both cases and fires once."""

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """Return the sorted names of a znode's children. If the znode does not exist, return None
        and set no watch."""

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        """Apply all operations atomically. Return None on success, or the reason if ZooKeeper
        rejects them."""

    async def sync(self, path: str) -> None:
        """Wait until this connection's reads see all writes that were acknowledged before this
        call."""


def check_size(operations: Sequence[Operation]) -> None:
    """Raise InvalidRequestError for a write larger than ZooKeeper accepts.

    ZooKeeper would close the connection, and would close it again after each retry.
    """
    size = sum(
        len(operation.path) + len(getattr(operation, "data", b"")) for operation in operations
    )
    if size > REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"the request needs a ZooKeeper write of {size} bytes; the limit is "
            f"{REQUEST_BYTES_MAX}. Split the request"
        )


async def write_surely(
    store: MetadataStore,
    operations: Sequence[Operation],
    wait_connected: Callable[[], Awaitable[None]],
) -> Refused | None:
    """Write, and determine the outcome even if the answer is lost.

    After a lost answer, read on the next connection whether the write took effect, and repeat the
    write if it did not. ``wait_connected`` returns once the same session is connected again, or
    raises an error, which this function passes on.
    """
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
    """Return whether a write whose answer was lost took effect, by reading the znodes.

    Call this function on a new connection. Return True if the write took effect, and False if it
    did not and may be repeated. Return Refused if another client has written since, so that the
    outcome is unknown. The first operation that can prove the outcome decides: a Create, a Delete,
    or a Set with a version.
    """
    for index, operation in enumerate(operations):
        match operation:
            case Create(path, data, ephemeral):
                znode = await store.get(path)
                if znode is None:
                    return False
                mine = znode.data == data and (
                    not ephemeral or znode.session_id == store.session_id
                )
                return True if mine else Refused(index, operation, "exists")
            case Set(path, data, version) if version >= 0:
                znode = await store.get(path)
                if znode is None:
                    return Refused(index, operation, "missing")
                if znode.version == version:
                    return False
                mine = znode.version == version + 1 and znode.data == data
                return True if mine else Refused(index, operation, "version")
            case Delete(path):
                return await store.get(path) is None
            case _:
                continue
    return False
