"""Access control lists (ACLs) in ZooKeeper, at /acls/<resource kind>/<literal|prefixed>/<name>.

A znode holds the ACL entries of one resource pattern: a resource name or a prefix of names. Every
broker keeps the entries of all patterns in memory (``MetadataSnapshot.acls``), and any broker may
change them.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import quote, unquote

from broker_lite.errors import InvalidRequestError
from broker_lite.metadata.security_znodes import Unreadable, ZnodeKind, refreshed, replace_value
from broker_lite.metadata.store import MetadataStore
from broker_lite.metadata.znodes import decode_value, encode_value
from broker_lite.security import acls
from broker_lite.security.acls import (
    ANYONE,
    OPERATIONS,
    WILDCARD,
    Entry,
    Pattern,
    PatternType,
    Permission,
)

ACLS = "/acls"
ENTRIES_MAX = 1000
"""Maximum number of ACL entries of one resource pattern, so that its znode stays below ZooKeeper's
limit of 1 MB."""
ACLS_MAX = 100_000
PATH_LENGTH_MAX = 3000
"""Maximum length of a resource name in a znode's path, in characters after percent-encoding."""

UNREADABLE = frozenset({Entry(ANYONE, WILDCARD, acls.Operation.ALL, Permission.DENY)})
"""The entries that a broker uses in place of a znode that it cannot decode.

They deny everything to all users except super users, because the znode may contain denials."""

Acls = Mapping[Pattern, frozenset[Entry]]


def pattern_path(pattern: Pattern) -> str:
    name = quote(pattern.name, safe="").replace(".", "%2E")
    if len(name) > PATH_LENGTH_MAX:
        raise InvalidRequestError(
            f"the ACL's name {pattern.name[:40]!r} is longer than {PATH_LENGTH_MAX} bytes when "
            "percent-encoded; use a prefix"
        )
    return f"{ACLS}/{pattern.kind.name.lower()}/{pattern.type.name.lower()}/{name}"


def path_pattern(path: str) -> Pattern:
    kind, pattern_type, name = path.removeprefix(f"{ACLS}/").split("/")
    return Pattern(
        acls.ResourceKind[kind.upper()], PatternType[pattern_type.upper()], unquote(name)
    )


def encode_entries(entries: Iterable[Entry]) -> bytes:
    rows = [
        [entry.principal, entry.host, int(entry.operation), int(entry.permission)]
        for entry in sorted(entries)
    ]
    return encode_value({"entries": rows})


def decode_entries(path: str, data: bytes) -> frozenset[Entry]:
    entries = frozenset(
        Entry(_text(principal), _text(host), acls.Operation(operation), Permission(permission))
        for principal, host, operation, permission in decode_value(path, data)["entries"]
    )
    if any(entry.permission is Permission.ANY for entry in entries):
        raise ValueError("an ACL entry neither allows nor denies")
    return entries


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the value {value!r} in an ACL entry is not text")
    return value


def _cure(path: str) -> str:
    pattern = path_pattern(path)
    is_cluster = pattern.kind is acls.ResourceKind.CLUSTER
    words = [
        f"--{pattern.kind.name.lower().replace('_', '-')}",
        "" if is_cluster else shlex.quote(pattern.name),
        "--prefix" if pattern.type is PatternType.PREFIXED else "",
    ]
    return (
        f"Until you run: logbus acl delete '*' all {' '.join(filter(None, words))} --deny, only "
        "super users may use the resources that this znode names. Then add the znode's ACLs again"
    )


KIND = ZnodeKind(
    ACLS,
    pattern_path,
    path_pattern,
    encode_entries,
    decode_entries,
    empty=frozenset[Entry](),
    bad=UNREADABLE,
    cure=_cure,
)


async def load_acls(store: MetadataStore, unreadable: Unreadable) -> Acls:
    """Read all ACL entries from ZooKeeper, by resource pattern. Add undecodable znodes to
    ``unreadable``."""
    if await store.children(ACLS) is None:
        return {}
    folders = [
        f"{ACLS}/{kind.name.lower()}/{pattern_type.name.lower()}"
        for kind in OPERATIONS
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
    ]
    names = await asyncio.gather(*(store.children(folder) for folder in folders))
    paths = [
        f"{folder}/{name}" for folder, children in zip(folders, names) for name in children or ()
    ]
    return await refreshed(store, {}, paths, KIND, unreadable)


async def change_entries(
    store: MetadataStore,
    pattern: Pattern,
    change: Callable[[frozenset[Entry]], frozenset[Entry]],
    wait_connected: Callable[[], Awaitable[None]],
) -> int:
    """Replace the ACL entries of a resource pattern in ZooKeeper by the result of ``change``; try
    again after a conflict with another writer. Return the sequence number of the change notice, by
    which brokers learn of the change."""

    def checked(before: frozenset[Entry]) -> frozenset[Entry]:
        after = change(before)
        if after != before and len(after) > ENTRIES_MAX:
            raise InvalidRequestError(
                f"{pattern} would have {len(after)} ACLs; at most {ENTRIES_MAX} are allowed. "
                "Delete some, or add ACLs to a prefix of the name, which has its own limit"
            )
        return after

    return await replace_value(store, KIND, pattern, checked, wait_connected)
