"""Read and change the znodes of users, access control lists and quotas in ZooKeeper.

One write sets the znode (compare-and-set) and adds a change notice to /changes (``notices``), so
that every connected broker applies the change within a second.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from broker_lite.errors import LogbusError
from broker_lite.metadata.loader import gather
from broker_lite.metadata.notices import security_changed
from broker_lite.metadata.registration import write_cluster_change
from broker_lite.metadata.store import Create, Delete, MetadataStore, Operation, Set
from broker_lite.model import UnreadableZnode

REASON_LENGTH_MAX = 300
"""Maximum length in characters of the reason why a znode cannot be decoded."""

K = TypeVar("K")
T = TypeVar("T")
Unreadable = dict[str, UnreadableZnode]
"""The znodes of users, access control lists and quotas that a broker cannot decode, by path."""

logger = logging.getLogger("logbus.metadata")


class ZnodeKind(NamedTuple, Generic[K, T]):
    """One kind of security znode below ``root``: users, access control lists or quotas.

    ``path_of`` and ``key_of`` convert between the key (such as a user's name) and the path of its
    znode, ``encode`` and ``decode`` between the value and the znode's bytes. A missing znode has
    the value ``empty``. For a malformed znode, ``bad`` is the value to use instead, and ``cure``
    returns the operator's next step."""

    root: str
    path_of: Callable[[K], str]
    key_of: Callable[[str], K]
    encode: Callable[[T], bytes]
    decode: Callable[[str, bytes], T]
    empty: T
    bad: T
    cure: Callable[[str], str]

    def read(self, path: str, data: bytes, unreadable: Unreadable) -> T:
        """Return the decoded value of a znode.

        If the znode is malformed, log an error, add the znode to ``unreadable``, and return
        ``self.bad``, so that the broker can still read the other znodes."""
        try:
            return self.decode(path, data)
        except (LogbusError, ValueError, TypeError, LookupError, AttributeError) as error:
            if isinstance(error, LogbusError):
                reason = error.message.replace(f"znode {path}", "it", 1)
            else:
                reason = f"it is malformed ({error!r})"
            reason = reason[:REASON_LENGTH_MAX]
        _add_unreadable(unreadable, UnreadableZnode(path, reason, self.cure(path)))
        return self.bad


def _add_unreadable(unreadable: Unreadable, znode: UnreadableZnode) -> None:
    logger.error("znode %s cannot be read: %s. %s", *znode)
    unreadable[znode.path] = znode


async def load(
    store: MetadataStore, kind: ZnodeKind[K, T], unreadable: Unreadable
) -> Mapping[K, T]:
    """Read all znodes of a kind (users, access control lists or quotas), by key. Add those that
    cannot be decoded to ``unreadable``."""
    names = await store.children(kind.root) or ()
    return await refreshed(store, {}, [f"{kind.root}/{name}" for name in names], kind, unreadable)


async def refreshed(
    store: MetadataStore,
    known: Mapping[K, T],
    paths: Iterable[str],
    kind: ZnodeKind[K, T],
    unreadable: Unreadable,
) -> Mapping[K, T]:
    """Read again those znodes at ``paths`` that are of this ``kind``. Return a copy of ``known``
    with the new values, or ``known`` itself if no path is of this kind. Values of deleted znodes
    are left out.

    Add each of these znodes that cannot be decoded to ``unreadable``; remove from it each one that
    was decoded or deleted."""
    changed = [path for path in paths if path.startswith(f"{kind.root}/")]
    if not changed:
        return known
    fresh = dict(known)
    for path, znode in zip(changed, await gather([store.get(path) for path in changed])):
        unreadable.pop(path, None)
        try:
            key = kind.key_of(path)
        except (LookupError, ValueError):
            if znode is not None:
                reason = "this version of logbus does not know its kind"
                _add_unreadable(unreadable, UnreadableZnode(path, reason, "Upgrade logbus"))
            continue
        if znode is None:
            fresh.pop(key, None)
        else:
            fresh[key] = kind.read(path, znode.data, unreadable)
    return fresh


async def _allow_creation() -> None:
    """The default of ``check_creation`` in ``replace_value``: allow the creation of any znode."""


async def replace_value(
    store: MetadataStore,
    kind: ZnodeKind[K, T],
    key: K,
    change: Callable[[T], T],
    wait_connected: Callable[[], Awaitable[None]],
    *,
    check_creation: Callable[[], Awaitable[None]] = _allow_creation,
) -> int:
    """Replace the value of the znode of ``key`` by the result of ``change``. Return the sequence
    number of the change notice, by which brokers learn of the change.

    ``change`` receives the current value. It is called again after a conflict with another writer,
    and may raise an error. An empty result deletes the znode. ``check_creation`` runs before a new
    znode is created, and may raise an error."""
    path = kind.path_of(key)

    async def write() -> Operation | None:
        znode = await store.get(path)
        before = kind.empty if znode is None else kind.read(path, znode.data, {})
        after = change(before)
        if after == before:
            return None
        if znode is None:
            await check_creation()
            return Create(path, kind.encode(after))
        return (
            Set(path, kind.encode(after), znode.version) if after else Delete(path, znode.version)
        )

    folders = path.split("/")[1:-1]
    for depth in range(len(folders)):
        await store.write([Create("/" + "/".join(folders[: depth + 1]))])
    return await write_cluster_change(store, write, wait_connected, security_changed(path))
