"""Decide whether a principal may do an operation, by Kafka's rules and an index of all ACLs.

The ACLs of an ``AclIndex`` never change. When ACLs change, a new index is made (``with_entries``).
Decisions follow Kafka's ``StandardAuthorizer``:

1. A super user may do everything.
2. An entry that denies wins over every entry that allows.
3. An entry that allows an operation also allows those it implies (``acls.IMPLIED_BY``).
4. Without any entry for the resource, ``allow_if_none`` decides. Otherwise the operation is denied.

``AclIndex`` caches its decisions, so only one thread may use an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_lite.security.acls import (
    ANYONE,
    IMPLIED_BY,
    WILDCARD,
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)

CACHED_DECISIONS_MAX = 100_000
CACHED_NAME_LENGTH_MAX = 255
"""Maximum characters of a resource name whose decision is cached. No topic has a longer name.

The limit protects the broker's memory: denials are cached too, and a client without any permission
can send names of 32 KiB."""


class Decision(NamedTuple):
    """Whether the operation is allowed, and the ACL that decided. ``acl`` is None for a super user,
    or if no entry applied."""

    is_allowed: bool
    acl: Acl | None = None


_NO_ENTRIES: frozenset[Entry] = frozenset()


class AclIndex:
    """All ACLs of a cluster, arranged for lookup by resource.

    ``super_users`` are principals. ``allow_if_none`` is Kafka's ``allow.everyone.if.no.acl.found``.
    """

    __slots__ = (
        "_allow_if_none",
        "_any_cache",
        "_cache",
        "_entries",
        "_prefix_lengths",
        "_super_users",
        "mark",
    )

    def __init__(
        self,
        entries: Mapping[Pattern, frozenset[Entry]],
        *,
        super_users: frozenset[str] = frozenset(),
        allow_if_none: bool = False,
    ) -> None:
        self._entries = {pattern: rows for pattern, rows in entries.items() if rows}
        self.mark = object()
        """An object that identifies this index. A cache of decisions elsewhere stores it, and is
        stale if it stores that of another index. The index itself is not stored, so that old
        indexes leave memory."""
        self._super_users = super_users
        self._allow_if_none = allow_if_none
        lengths: dict[ResourceKind, set[int]] = {kind: set() for kind in ResourceKind}
        for pattern in self._entries:
            if pattern.type is PatternType.PREFIXED:
                lengths[pattern.kind].add(len(pattern.name))
        self._prefix_lengths = {
            kind: sorted(kind_lengths) for kind, kind_lengths in lengths.items()
        }
        self._cache: dict[tuple[str, str, Operation, ResourceKind, str], Decision] = {}
        self._any_cache: dict[tuple[str, str, Operation, ResourceKind], bool] = {}

    def with_entries(self, entries: Mapping[Pattern, frozenset[Entry]]) -> AclIndex:
        """Return an index of ``entries``, with this index's super users and ``allow_if_none``."""
        return AclIndex(entries, super_users=self._super_users, allow_if_none=self._allow_if_none)

    def acls(self) -> Iterable[Acl]:
        """Yield every ACL."""
        for pattern, entries in self._entries.items():
            for entry in entries:
                yield Acl(pattern, entry)

    def entries(self, pattern: Pattern) -> frozenset[Entry]:
        """Return the ACL entries of one resource pattern."""
        return self._entries.get(pattern, _NO_ENTRIES)

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def may(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str
    ) -> bool:
        """Return whether the principal may do the operation on the named resource."""
        decision = self._cache.get((principal, host, operation, kind, name))
        if decision is None:
            decision = self.decide(principal, host, operation, kind, name)
        return decision.is_allowed

    def decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str
    ) -> Decision:
        """Return whether the principal may do the operation on the named resource, and the ACL that
        decides so."""
        key = (principal, host, operation, kind, name)
        decision = self._cache.get(key)
        if decision is None:
            decision = self._decide(*key)
            if len(name) <= CACHED_NAME_LENGTH_MAX:
                if len(self._cache) >= CACHED_DECISIONS_MAX:
                    self._cache.clear()
                self._cache[key] = decision
        return decision

    def _decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceKind, name: str
    ) -> Decision:
        if principal in self._super_users:
            return Decision(True)
        allowing = {operation, Operation.ALL} | IMPLIED_BY.get(operation, frozenset())
        allowed, is_known = None, False
        for pattern in self._covering(kind, name):
            is_known = True
            for entry in self._entries[pattern]:
                if not _is_about(entry, principal, host):
                    continue
                if entry.permission is Permission.DENY:
                    if entry.operation in (operation, Operation.ALL):
                        return Decision(False, Acl(pattern, entry))
                elif allowed is None and entry.operation in allowing:
                    allowed = Acl(pattern, entry)
        if allowed is not None:
            return Decision(True, allowed)
        return Decision(self._allow_if_none and not is_known)

    def may_any(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        """Return whether the principal may do the operation on at least one resource name of the
        kind, whether or not the resource exists (Kafka's ``authorizeByResourceType``)."""
        if principal in self._super_users:
            return True
        key = (principal, host, operation, kind)
        is_allowed = self._any_cache.get(key)
        if is_allowed is None:
            if len(self._any_cache) >= CACHED_DECISIONS_MAX:
                self._any_cache.clear()
            is_allowed = self._any_cache[key] = self._may_any(*key)
        return is_allowed

    def _may_any(self, principal: str, host: str, operation: Operation, kind: ResourceKind) -> bool:
        allowing = {operation, Operation.ALL} | IMPLIED_BY.get(operation, frozenset())
        allowed: list[Pattern] = []
        denied: list[Pattern] = []
        for pattern, entries in self._entries.items():
            if pattern.kind is not kind:
                continue
            for entry in entries:
                if not _is_about(entry, principal, host):
                    continue
                if entry.permission is Permission.ALLOW and entry.operation in allowing:
                    allowed.append(pattern)
                if entry.permission is Permission.DENY and entry.operation in (
                    operation,
                    Operation.ALL,
                ):
                    denied.append(pattern)
        if any(pattern.type is PatternType.LITERAL and pattern.name == WILDCARD
               for pattern in denied):  # fmt: skip
            return False
        if self._allow_if_none and not denied:
            return True
        return any(not _is_covered(pattern, denied) for pattern in allowed)

    def _covering(self, kind: ResourceKind, name: str) -> Iterable[Pattern]:
        """Yield the patterns that cover the resource and have entries."""
        entries = self._entries
        for literal in (name, WILDCARD) if name != WILDCARD else (WILDCARD,):
            pattern = Pattern(kind, PatternType.LITERAL, literal)
            if pattern in entries:
                yield pattern
        for length in self._prefix_lengths[kind]:
            if length > len(name):
                return
            pattern = Pattern(kind, PatternType.PREFIXED, name[:length])
            if pattern in entries:
                yield pattern


def _is_about(entry: Entry, principal: str, host: str) -> bool:
    return entry.principal in (principal, ANYONE) and entry.host in (host, WILDCARD)


def _is_covered(allowed: Pattern, denied: Iterable[Pattern]) -> bool:
    """Return whether one of the ``denied`` patterns denies every name of the ``allowed`` pattern.
    The caller has already handled a denial of all names (``*``)."""
    for pattern in denied:
        if pattern.type is PatternType.PREFIXED:
            is_everything = allowed.type is PatternType.LITERAL and allowed.name == WILDCARD
            if not is_everything and allowed.name.startswith(pattern.name):
                return True
        elif allowed == pattern:
            return True
    return False
