"""Tests of the authorizer's decisions, compared with a reference that searches all ACLs each
time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

import pytest

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
from broker_lite.security.authorizer import AclIndex

SETS = int(os.environ.get("LOGBUS_ACL_SETS", "2000"))
"""Random sets of ACLs; the release check uses 100,000."""
ALICE, BOB = "User:alice", "User:bob"
HOST = "10.0.0.1"
TOPIC = ResourceKind.TOPIC
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def index_of(*acls: Acl, **options: object) -> AclIndex:
    return AclIndex(entries_of(acls), **options)  # type: ignore[arg-type]


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
) -> Acl:
    return Acl(Pattern(TOPIC, type_, name), Entry(principal, host, operation, permission))


def reference(
    acls: set[Acl], principal: str, host: str, operation: Operation, kind: ResourceKind, name: str
) -> bool:
    """Return the decision that Kafka would make, found by a search through all ACLs."""
    about = [
        entry
        for pattern, entry in acls
        if pattern.kind is kind
        and (
            name.startswith(pattern.name)
            if pattern.type is PREFIXED
            else pattern.name in (name, "*")
        )
        and entry.principal in (principal, ANYONE)
        and entry.host in (host, "*")
    ]
    for entry in about:
        if entry.permission is DENY and entry.operation in (operation, Operation.ALL):
            return False
    allowing = {operation, Operation.ALL} | IMPLIED_BY.get(operation, frozenset())
    return any(entry.permission is ALLOW and entry.operation in allowing for entry in about)


NAMES = ["a", "ab", "abc", "b", "*", "a*"]
HOSTS = [HOST, "10.0.0.2", "*"]
OPERATIONS = [READ, WRITE, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS]


def random_acls(rng: random.Random) -> set[Acl]:
    return {
        acl(
            rng.choice([ALLOW, ALLOW, DENY]),
            rng.choice([*OPERATIONS, Operation.ALL]),
            rng.choice(NAMES),
            principal=rng.choice([ALICE, BOB, ANYONE]),
            host=rng.choice(HOSTS),
            type_=rng.choice([LITERAL, PREFIXED]),
        )
        for _ in range(rng.randrange(6))
    }


def test_authorizer_index_decides_like_a_search_through_all_acls() -> None:
    """CVE-2024-27309: in Kafka, the deletion of an ACL also removed another ACL of the same
    resource."""
    for seed in range(SETS):
        rng = random.Random(seed)
        acls = random_acls(rng)
        question = (
            rng.choice([ALICE, BOB]),
            rng.choice(HOSTS[:2]),
            rng.choice(OPERATIONS),
            TOPIC,
            rng.choice(NAMES),
        )
        index = index_of(*acls)
        assert index.may(*question) == reference(acls, *question), (seed, acls, question)
        if acls:
            gone = rng.choice(sorted(acls))
            index = index.with_entries(entries_of(acls - {gone}))
            assert set(index.acls()) == acls - {gone}
            assert index.may(*question) == reference(acls - {gone}, *question), seed


def test_adding_a_deny_acl_never_permits_more_requests() -> None:
    for seed in range(SETS // 4):
        rng = random.Random(seed)
        acls = random_acls(rng)
        denial = acl(DENY, rng.choice(OPERATIONS), rng.choice(NAMES), principal=ANYONE)
        question = (ALICE, HOST, rng.choice(OPERATIONS), TOPIC, rng.choice(NAMES))
        if not index_of(*acls).may(*question):
            assert not index_of(*acls, denial).may(*question)


def test_decision_names_the_deciding_acl() -> None:
    allow, deny = acl(ALLOW, READ, "a", type_=PREFIXED), acl(DENY, Operation.ALL, "ab")
    index = index_of(allow, deny)
    assert index.decide(ALICE, HOST, DESCRIBE, TOPIC, "ax") == (True, allow)
    assert index.decide(ALICE, HOST, DESCRIBE, TOPIC, "ab") == (False, deny)
    assert index.decide(BOB, HOST, DESCRIBE, TOPIC, "ax") == (False, None)


def test_super_user_is_allowed_despite_a_deny_acl() -> None:
    index = index_of(acl(DENY, Operation.ALL, "*"), super_users=frozenset({ALICE}))
    assert index.may(ALICE, HOST, READ, TOPIC, "a")
    assert index.may_any(ALICE, HOST, READ, TOPIC)


def test_allow_everyone_if_no_acl_is_found_applies_only_to_resources_without_acls() -> None:
    index = index_of(acl(ALLOW, READ, "a", principal=BOB), allow_if_none=True)
    assert index.may(ALICE, HOST, READ, TOPIC, "other")
    assert not index.may(ALICE, HOST, READ, TOPIC, "a")


def test_cached_decision_is_not_used_after_a_change_of_acls() -> None:
    allow = acl(ALLOW, READ, "a")
    index = index_of(allow)
    assert index.may(ALICE, HOST, READ, TOPIC, "a")
    assert not index.with_entries({}).may(ALICE, HOST, READ, TOPIC, "a")


@pytest.mark.parametrize(
    ("acls", "expected"),
    [
        ([], False),
        ([acl(ALLOW, WRITE, "t")], True),
        ([acl(ALLOW, WRITE, "t", principal=BOB)], False),
        ([acl(ALLOW, WRITE, "t"), acl(DENY, WRITE, "t")], False),
        ([acl(ALLOW, WRITE, "*"), acl(DENY, WRITE, "t")], True),
        ([acl(ALLOW, WRITE, "t"), acl(DENY, WRITE, "*")], False),
        ([acl(ALLOW, WRITE, "tab"), acl(DENY, WRITE, "t", type_=PREFIXED)], False),
        ([acl(ALLOW, WRITE, "t", type_=PREFIXED), acl(DENY, WRITE, "tab", type_=PREFIXED)], True),
        ([acl(ALLOW, WRITE, "tab", type_=PREFIXED), acl(DENY, WRITE, "t", type_=PREFIXED)], False),
        ([acl(ALLOW, WRITE, "*"), acl(DENY, WRITE, "t", type_=PREFIXED)], True),
    ],
)
def test_permission_on_at_least_one_topic_follows_kafkas_rules(
    acls: list[Acl], expected: bool
) -> None:
    """InitProducerId needs write permission on any one topic. The rule is
    Kafka's ``authorizeByResourceType``."""
    assert index_of(*acls).may_any(ALICE, HOST, WRITE, TOPIC) is expected


def test_number_of_cached_decisions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_lite.security.authorizer.CACHED_DECISIONS_MAX", 10)
    index = index_of(acl(ALLOW, READ, "t", type_=PREFIXED))
    for number in range(1000):
        assert index.may(ALICE, HOST, READ, TOPIC, f"t{number}")
    assert len(index._cache) <= 10


def test_decision_on_a_topic_name_longer_than_255_characters_is_not_cached() -> None:
    """Otherwise a user without permissions could fill the broker's memory with long names."""
    index = index_of(acl(ALLOW, READ, "t", type_=PREFIXED))
    for name in ("t" * 256, "x" * 32_767):
        assert index.may(ALICE, HOST, READ, TOPIC, name) == name.startswith("t")
    assert not index._cache
    assert index.may(ALICE, HOST, READ, TOPIC, "t" * 255) and len(index._cache) == 1
