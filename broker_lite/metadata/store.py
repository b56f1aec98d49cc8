"""The port to the coordination service: reads, atomic writes, one-shot watches, session events.

Two implementations: ``metadata/zookeeper.py`` and the simulator's. All methods are called on the
loop thread; events arrive there too, perhaps after a read that already shows the change. Paths are
below the chroot. While there is no connection every call raises CoordinationUnavailableError at
once; a write that raises it may have happened (``write_surely`` decides by reading again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from broker_lite.errors import CoordinationUnavailableError, InvalidRequestError

RETRY_S = 0.05
"""Between two tries, whatever it is that fails, so that no fault becomes a busy loop."""


REQUEST_BYTES_MAX = 0xFFFFF
"""ZooKeeper's own default (jute.maxbuffer): it ends the connection of who asks for more at once."""


class Znode(NamedTuple):
    """A znode as read. ``created_zxid`` is unique to this incarnation of the path."""

    data: bytes
    version: int
    created_zxid: int
    session_id: int
    """Of its owner if it is ephemeral, else 0."""
    modified_ms: int = 0
    """When its value was written last, be it the same, by ZooKeeper's wall clock."""


class Check(NamedTuple):
    """The path exists with this version, else the whole write is refused."""

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
    """-1: whatever it is."""


class Delete(NamedTuple):
    path: str
    version: int = -1


Operation = Check | Create | Set | Delete


class Refused(NamedTuple):
    """A write that had no effect: which operation was at fault, and why."""

    position: int
    operation: Operation
    reason: Literal["exists", "missing", "version", "not_empty"]


class Connected(NamedTuple):
    """A connection is there. ``new_session``: ephemerals of the one before are gone or will be.

    Watches of before the connection was lost are void in either case.
    """

    session_id: int
    new_session: bool


class Suspended(NamedTuple):
    """The connection was lost; the session may live on."""


class SessionLost(NamedTuple):
    """The session expired: its ephemerals are deleted."""


class DataChanged(NamedTuple):
    """A watch of ``get`` fired: the znode was created, set or deleted."""

    path: str


class ChildrenChanged(NamedTuple):
    """A watch of ``children`` fired."""

    path: str


StoreEvent = Connected | Suspended | SessionLost | DataChanged | ChildrenChanged


class MetadataStore(Protocol):
    """What ``server/registry.py`` and ``server/controller.py`` stand on."""

    async def start(self, on_event: Callable[[StoreEvent], None]) -> None:
        """Connect and make the chroot. Raises CoordinationUnavailableError after the timeout."""

    async def close(self) -> None:
        """End the session: its ephemerals vanish at once."""

    @property
    def connected(self) -> bool: ...

    @property
    def session_id(self) -> int: ...

    @property
    def session_timeout_ms(self) -> int:
        """What ZooKeeper granted: after so long without contact it ends the session."""

    async def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """The znode, or None. A watch is set in both cases and fires once."""

    async def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """Names below a path, sorted, or None if it is not there (then no watch is set)."""

    async def write(self, operations: Sequence[Operation]) -> Refused | None:
        """All or nothing. None means done."""

    async def sync(self, path: str) -> None:
        """Reads that follow see every write that was answered to anyone before this call."""


def check_size(operations: Sequence[Operation]) -> None:
    """Raise InvalidRequestError for a write that is surely too large: tried, it would end the
    connection, and then again the next one."""
    size = sum(
        len(operation.path) + len(getattr(operation, "data", b"")) for operation in operations
    )
    if size > REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"it takes a write of {size} bytes to ZooKeeper, which takes {REQUEST_BYTES_MAX} at "
            "once; ask for less at a time"
        )


async def write_surely(
    store: MetadataStore,
    operations: Sequence[Operation],
    wait_connected: Callable[[], Awaitable[None]],
) -> Refused | None:
    """Write, and where the answer is lost, decide on the next connection what became of it.

    ``wait_connected`` returns when there is a connection of the same session, and raises what the
    caller is to get when there will be none.
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
    """Decide by content whether a write whose answer was lost took effect.

    To be asked on the connection after the loss. True: it did. False: it did not, try again.
    Refused: somebody wrote since, so it cannot be told; read anew. Writes that carry no version
    count as not done: doing them again is harmless.
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
