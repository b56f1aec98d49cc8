"""The ACLs of a cluster's znodes, which admit only the brokers' credential."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import CREATOR_ALL_ACL

from broker_lite.errors import InvalidConfigError
from broker_lite.metadata.zookeeper.connection import children, connected, read_auth_file
from broker_lite.metadata.zookeeper.tls import ZooKeeperTls

SECURING_S = 20.0
"""Seconds within which ``close_znodes``, which restricts the ACLs of znodes, must have connected to
ZooKeeper."""


def close_znodes(
    address: str,
    auth_file: Path,
    seeds: Mapping[str, bytes],
    *,
    closes_root: bool = False,
    tls: ZooKeeperTls | None = None,
) -> int:
    """Make a cluster's znodes usable only with the credentials in ``auth_file``. Return the number
    of znodes.

    Also write the znodes in ``seeds``, which maps paths to data. Znodes that only a former
    credential may use are changed too, if the file contains this credential as well.
    ``closes_root`` also restricts ZooKeeper's root, so that other clients cannot create znodes
    there. The function blocks. Raises CoordinationUnavailableError, and InvalidConfigError if
    znodes belong to another credential."""
    auth = read_auth_file(auth_file)
    with connected(address, SECURING_S, auth, tls) as (client, chroot):
        client.ensure_path(chroot or "/", CREATOR_ALL_ACL)
        for path, data in seeds.items():
            client.ensure_path(chroot + path, CREATOR_ALL_ACL)
            client.set(chroot + path, data)
        top = chroot or "/"
        former = {owner for owner in _owners(client, top) or () if owner[0] != "world"}
        client.set_acls(top, CREATOR_ALL_ACL)
        # ZooKeeper stores only hashes of credentials. Read this client's hashes from one znode, to
        # compare the other znodes with them.
        owners = _owners(client, top)
        # The root may still admit a credential that the file no longer has.
        if closes_root or _owns(client, "/", (owners or frozenset()) | former):
            client.set_acls("/", CREATOR_ALL_ACL)
        for path in _tree(client, top):
            # ``_tree`` lists a znode's children after this block has run for the znode. From then
            # on a client without the credential can create no child, so the list is complete.
            if _owners(client, path) not in (None, owners):
                with contextlib.suppress(NoNodeError):
                    client.set_acls(path, CREATOR_ALL_ACL)
        paths = list(_tree(client, top))
        left = [path for path in paths if _is_open(client, path)]
        if left:
            raise InvalidConfigError(
                f"znode {left[0]} of {address} is still open to all clients; run the command again"
            )
        return len(paths)


def _tree(client: KazooClient, path: str) -> Iterator[str]:
    """Yield the paths of a znode and of all znodes below it. List the children of a znode only when
    the caller asks for the path after that znode's."""
    waiting = [path]
    while waiting:
        path = waiting.pop()
        yield path
        waiting += [f"{path.rstrip('/')}/{name}" for name in children(client, path)]


def _owners(client: KazooClient, path: str) -> frozenset[tuple[str, str]] | None:
    """Return the scheme and id of each entry in a znode's ACL; None if the znode does not exist."""
    try:
        acls, _ = client.get_acls(path)
    except NoNodeError:
        return None
    return frozenset((acl.id.scheme, acl.id.id) for acl in acls)


def _owns(client: KazooClient, path: str, credentials: frozenset[tuple[str, str]] | None) -> bool:
    """Return whether only ``credentials`` may use the znode at ``path``."""
    try:
        owners = _owners(client, path)
    except NoAuthError:
        return False
    return bool(owners and credentials and owners <= credentials)


def _is_open(client: KazooClient, path: str) -> bool:
    return any(scheme == "world" for scheme, _ in _owners(client, path) or ())
