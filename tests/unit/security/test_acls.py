"""Tests of access control lists: which entries are valid, and which entries a filter selects."""

from __future__ import annotations

import pytest

from broker_lite.errors import InvalidRequestError
from broker_lite.security.acls import (
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
    check_acl,
)

ENTRY = Entry("User:alice", "*", Operation.READ, Permission.ALLOW)
LITERAL = Pattern(ResourceKind.TOPIC, PatternType.LITERAL, "events")
PREFIX = Pattern(ResourceKind.TOPIC, PatternType.PREFIXED, "eve")
ALL_TOPICS = Pattern(ResourceKind.TOPIC, PatternType.LITERAL, "*")
GROUP = Pattern(ResourceKind.GROUP, PatternType.LITERAL, "events")


@pytest.mark.parametrize(
    "acl",
    [
        Acl(LITERAL, ENTRY),
        Acl(PREFIX, ENTRY._replace(host="10.1.2.3", permission=Permission.DENY)),
        Acl(ALL_TOPICS, ENTRY._replace(operation=Operation.ALL, host="fe80::1")),
    ],
)
def test_valid_acl_is_accepted(acl: Acl) -> None:
    check_acl(acl)


@pytest.mark.parametrize(
    ("acl", "words"),
    [
        (Acl(LITERAL._replace(name=""), ENTRY), "name '' is empty"),
        (Acl(LITERAL._replace(name="a\nb"), ENTRY), "control characters"),
        (Acl(LITERAL._replace(type=PatternType.MATCH), ENTRY), "use LITERAL or PREFIXED"),
        (Acl(LITERAL._replace(kind=ResourceKind.ANY), ENTRY), "kind ANY"),
        (
            Acl(LITERAL._replace(kind=ResourceKind.CLUSTER), ENTRY),
            "give the literal name 'kafka-cluster'",
        ),
        (Acl(LITERAL, ENTRY._replace(principal="alice")), "form User:name"),
        (Acl(LITERAL, ENTRY._replace(principal="Group:admins")), "form User:name"),
        (Acl(LITERAL, ENTRY._replace(principal="User:" + "x" * 2000)), "longer than 1024"),
        (Acl(LITERAL, ENTRY._replace(host="example.org")), "not an IP address"),
        (Acl(LITERAL, ENTRY._replace(operation=Operation.CLUSTER_ACTION)), "on a topic"),
        (Acl(LITERAL, ENTRY._replace(operation=Operation.ANY)), "use ALL, READ"),
        (Acl(LITERAL, ENTRY._replace(permission=Permission.ANY)), "use ALLOW or DENY"),
    ],
)
def test_acl_that_could_never_apply_is_refused(acl: Acl, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        check_acl(acl)


@pytest.mark.parametrize(
    ("acl_filter", "selected"),
    [
        (AclFilter(), {LITERAL, PREFIX, ALL_TOPICS, GROUP}),
        (AclFilter(kind=ResourceKind.TOPIC), {LITERAL, PREFIX, ALL_TOPICS}),
        (AclFilter(ResourceKind.TOPIC, PatternType.LITERAL, "events"), {LITERAL}),
        (AclFilter(ResourceKind.TOPIC, PatternType.ANY, "eve"), {PREFIX}),
        (AclFilter(ResourceKind.TOPIC, PatternType.MATCH, "events"),
         {LITERAL, PREFIX, ALL_TOPICS}),
        (AclFilter(ResourceKind.TOPIC, PatternType.MATCH, "even"), {PREFIX, ALL_TOPICS}),
        (AclFilter(ResourceKind.TOPIC, PatternType.PREFIXED, None), {PREFIX}),
        (AclFilter(principal="User:bob"), set()),
        (AclFilter(operation=Operation.WRITE), set()),
        (AclFilter(permission=Permission.DENY), set()),
        (AclFilter(host="10.0.0.1"), set()),
    ],
)  # fmt: skip
def test_acl_filter_selects_matching_patterns(
    acl_filter: AclFilter, selected: set[Pattern]
) -> None:
    patterns = (LITERAL, PREFIX, ALL_TOPICS, GROUP)
    found = {pattern for pattern in patterns if acl_filter.selects(Acl(pattern, ENTRY))}
    assert found == selected
