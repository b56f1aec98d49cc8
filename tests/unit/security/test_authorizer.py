"""Tests of the authorizer's decisions, compared with a reference that searches all ACLs each
time."""

from __future__ import annotations

import os
import random

import pytest
from support.acl_model import (
    ALICE,
    ALLOW,
    BOB,
    DENY,
    HOST,
    KINDS,
    NAMES,
    OPERATIONS,
    PREFIXED,
    TOPIC,
    acl,
    entries_of,
    random_acls,
    random_question,
    reference,
)

from broker_lite.security.acls import ANYONE, Acl, Operation
from broker_lite.security.authorizer import AclIndex

SETS = int(os.environ.get("LOGBUS_ACL_SETS", "2000"))
"""Random sets of ACLs; the release check uses 100,000."""
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE


def index_of(*acls: Acl, **options: object) -> AclIndex:
    return AclIndex(entries_of(acls), **options)  # type: ignore[arg-type]


def test_authorizer_index_decides_like_a_search_through_all_acls() -> None:
    for seed in range(SETS):
        rng = random.Random(seed)
        kind = rng.choice(KINDS)
        acls, question = random_acls(rng, kind), random_question(rng, kind)
        super_users = frozenset({ALICE} if rng.random() < 0.1 else ())
        allow_if_none = rng.random() < 0.3
        index = index_of(*acls, super_users=super_users, allow_if_none=allow_if_none)
        expected = question[0] in super_users or reference(acls, *question, allow_if_none)
        assert index.may(*question) == expected, (seed, acls, question)
        if acls:
            left = acls - {rng.choice(sorted(acls))}
            index = index.with_entries(entries_of(left))
            assert set(index.acls()) == left
            expected = question[0] in super_users or reference(left, *question, allow_if_none)
            assert index.may(*question) == expected, seed


def test_adding_a_deny_acl_never_permits_more_requests() -> None:
    for seed in range(SETS // 4):
        rng = random.Random(seed)
        acls, question = random_acls(rng, TOPIC), random_question(rng, TOPIC)
        denial = acl(DENY, rng.choice(OPERATIONS[TOPIC]), rng.choice(NAMES), principal=ANYONE)
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
