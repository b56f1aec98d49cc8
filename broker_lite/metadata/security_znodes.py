"""Change the znode of a user, an access control list or quotas in ZooKeeper.

One write sets the znode (compare-and-set) and adds a change notice to /changes (``notices``), so
that every connected broker applies the change within a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker_lite.metadata.loader import ZnodeKind
from broker_lite.metadata.notices import security_changed
from broker_lite.metadata.registration import write_cluster_change
from broker_lite.metadata.store import Create, Delete, MetadataStore, Operation, Set

T = TypeVar("T")


async def _allow_creation() -> None:
    """Allow the creation of every znode."""


async def replace_value(
    store: MetadataStore,
    path: str,
    change: Callable[[T], T],
    wait_connected: Callable[[], Awaitable[None]],
    *,
    empty: T,
    kind: ZnodeKind[Any, T],
    encode: Callable[[T], bytes],
    check_creation: Callable[[], Awaitable[None]] = _allow_creation,
) -> T:
    """Replace the value of the znode at ``path`` by the result of ``change``, and return that
    result.

    ``change`` receives the current value, or ``empty`` if the znode does not exist. It is called
    again after a conflict with another writer, and may raise an error. An empty result deletes the
    znode. ``check_creation`` runs before a new znode is created, and may raise an error."""
    after = empty

    async def write() -> Operation | None:
        nonlocal after
        znode = await store.get(path)
        before = empty if znode is None else kind.read(path, znode.data, {})
        after = change(before)
        if after == before:
            return None
        if znode is None:
            await check_creation()
            return Create(path, encode(after))
        return Set(path, encode(after), znode.version) if after else Delete(path, znode.version)

    folders = path.split("/")[1:-1]
    for depth in range(len(folders)):
        await store.write([Create("/" + "/".join(folders[: depth + 1]))])
    await write_cluster_change(store, write, wait_connected, security_changed(path))
    return after
