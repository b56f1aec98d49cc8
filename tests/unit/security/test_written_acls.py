"""Tests of ACLs written as text: round trips, defaults, and invalid text."""

from __future__ import annotations

import pytest

from broker_lite.errors import InvalidRequestError
from broker_lite.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
)
from broker_lite.security.written_acls import (
    acl_of_words,
    filter_of,
    new_acl_of_words,
    words_of,
)

WORDS = {"permission": "allow", "operation": "read", "resource": "topic", "pattern": "literal"}


def test_every_acl_round_trips_through_its_text() -> None:
    found = [
        Acl(
            Pattern(kind, pattern, CLUSTER_NAME if kind is ResourceKind.CLUSTER else "a.b"),
            Entry("User:alice", host, operation, permission),
        )
        for kind, operations in OPERATIONS.items()
        for operation in (Operation.ALL, *operations)
        for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
        if (kind, pattern) != (ResourceKind.CLUSTER, PatternType.PREFIXED)
        for permission in (Permission.ALLOW, Permission.DENY)
        for host in ("*", "::1")
    ]
    for acl in found:
        assert acl_of_words(words_of(acl)) == acl
        assert [other for other in found if filter_of(acl).selects(other)] == [acl]


def test_principal_host_and_cluster_name_of_a_written_acl_are_normalised() -> None:
    acl = acl_of_words({**WORDS, "principal": " alice ", "name": "t", "host": "[::0:1]"})
    assert acl.entry.principal == "User:alice" and acl.entry.host == "::1"
    cluster = {**WORDS, "resource": "cluster", "operation": "Alter", "principal": "User:a"}
    assert acl_of_words(cluster).pattern.name == CLUSTER_NAME


@pytest.mark.parametrize(
    "wrong",
    [{"operation": "fly"}, {"resource": ""}, {"name": ""}, {"host": "web-1"}, {"pattern": "any"}],
)
def test_invalid_acl_text_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        acl_of_words({**WORDS, "principal": "alice", "name": "t", **wrong})


@pytest.mark.parametrize(
    ("wrong", "cure"),
    [
        ({"name": "secret-*"}, r"give 'secret-' as a prefix \(--prefix\)"),
        ({"name": "secret-*", "pattern": "prefixed"}, r"give 'secret-' as a prefix \(--prefix\)"),
        ({"name": "*", "pattern": "prefixed"}, "give the literal name"),
        ({"name": "*-secret"}, "give the literal name"),
        ({"name": "t", "principal": "team-*"}, "for each user"),
    ],
)
def test_new_acl_with_a_star_inside_a_name_is_refused(wrong: dict[str, str], cure: str) -> None:
    """Only ``*`` alone is a wildcard, so a deny ACL for ``secret-*`` protected nothing.

    An existing ACL with such a name can still be deleted.
    """
    words = {**WORDS, "permission": "deny", "principal": "alice", **wrong}
    with pytest.raises(InvalidRequestError, match=cure):
        new_acl_of_words(words)
    assert acl_of_words(words).entry.permission is Permission.DENY


def test_star_alone_stands_for_all_names_and_users() -> None:
    acl = new_acl_of_words({**WORDS, "principal": "*", "name": "*"})
    assert (acl.entry.principal, acl.pattern.name) == ("User:*", "*")
