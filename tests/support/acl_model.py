"""Random sets of access control lists, and the decision that Kafka's authorizer makes over them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from broker_lite.security import acls as rules
from broker_lite.security.acls import (
    ANYONE,
    IMPLIED_BY,
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)

ALICE, BOB = "User:alice", "User:bob"
HOST = "10.0.0.1"
TOPIC = ResourceKind.TOPIC
KINDS = [TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID, ResourceKind.CLUSTER]
OPERATIONS = {kind: sorted(rules.OPERATIONS[kind]) for kind in KINDS}
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
NAMES = ["a", "ab", "abc", "b", "*", "a*"]
HOSTS = [HOST, "10.0.0.2", "*"]

Question = tuple[str, str, Operation, ResourceKind, str]
"""A principal, its host, an operation, and the kind and name of a resource."""


def entries_of(acls: Iterable[Acl]) -> dict[Pattern, frozenset[Entry]]:
    entries: dict[Pattern, frozenset[Entry]] = {}
    for pattern, entry in acls:
        entries[pattern] = entries.get(pattern, frozenset()) | {entry}
    return entries


def acl(
    permission: Permission,
    operation: Operation,
    name: str,
    *,
    principal: str = ALICE,
    host: str = "*",
    type_: PatternType = LITERAL,
    kind: ResourceKind = TOPIC,
) -> Acl:
    return Acl(Pattern(kind, type_, name), Entry(principal, host, operation, permission))


def reference(
    acls: set[Acl],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceKind,
    name: str,
    allow_if_none: bool = False,
) -> bool:
    """Return the decision that Kafka would make, found by a search through all ACLs."""
    of_resource = [
        entry
        for pattern, entry in acls
        if pattern.kind is kind
        and (
            name.startswith(pattern.name)
            if pattern.type is PREFIXED
            else pattern.name in (name, "*")
        )
    ]
    if not of_resource:
        return allow_if_none
    about = [
        entry
        for entry in of_resource
        if entry.principal in (principal, ANYONE) and entry.host in (host, "*")
    ]
    for entry in about:
        if entry.permission is DENY and entry.operation in (operation, Operation.ALL):
            return False
    allowing = {operation, Operation.ALL} | IMPLIED_BY.get(operation, frozenset())
    return any(entry.permission is ALLOW and entry.operation in allowing for entry in about)


def random_acls(rng: random.Random, kind: ResourceKind) -> set[Acl]:
    """Return up to five ACLs, most of them on resources of this kind."""
    found = set()
    for _ in range(rng.randrange(6)):
        own = kind if rng.random() < 0.8 else rng.choice(KINDS)
        found.add(
            acl(
                rng.choice([ALLOW, ALLOW, DENY]),
                rng.choice([*OPERATIONS[own], Operation.ALL]),
                rng.choice(NAMES),
                principal=rng.choice([ALICE, BOB, ANYONE]),
                host=rng.choice(HOSTS),
                type_=rng.choice([LITERAL, PREFIXED]),
                kind=own,
            )
        )
    return found


def random_question(rng: random.Random, kind: ResourceKind) -> Question:
    principal, host = rng.choice([ALICE, BOB]), rng.choice(HOSTS[:2])
    return principal, host, rng.choice(OPERATIONS[kind]), kind, rng.choice(NAMES)
