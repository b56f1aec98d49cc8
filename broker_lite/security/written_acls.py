"""Convert ACLs to words and back, as the command line and the console read and show them.

An ACL has seven words: principal, permission, operation, resource, name, pattern and host. For
example, an ACL of the words ``User:alice``, ``allow``, ``read``, ``topic``, ``events``, ``literal``
and ``*`` lets alice read the topic events from every host.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_lite.errors import InvalidRequestError
from broker_lite.security.acls import (
    ANYONE,
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceKind,
    canonical_host,
    check_acl,
)

OPERATION_WORDS = tuple(each.name.lower() for each in Operation if each is not Operation.ANY)


def principal_of(user: str) -> str:
    """Return the principal of a user, such as ``User:alice``. ``user`` may be the principal
    already."""
    return user if ":" in user else f"User:{user}"


def acl_of_words(words: Mapping[str, str]) -> Acl:
    """Return the ACL with these words, such as ``{"principal": "User:alice", …}``. An ACL of the
    cluster needs no name, and ``host`` is ``*`` by default.

    Raises InvalidRequestError for an unknown word, such as a misspelt operation, and for an ACL
    that may not be stored (``check_acl``)."""
    try:
        kind = ResourceKind[words.get("resource", "").upper()]
        pattern_type = PatternType[words.get("pattern", "").upper()]
        operation = Operation[words.get("operation", "").upper()]
        permission = Permission[words.get("permission", "").upper()]
    except KeyError as error:
        raise InvalidRequestError(
            f"{error} is no resource, pattern, operation or permission of an ACL; see: "
            "logbus acl add -h"
        ) from None
    name = CLUSTER_NAME if kind is ResourceKind.CLUSTER else words.get("name", "").strip()
    host = canonical_host(words.get("host", WILDCARD).strip())
    principal = principal_of(words.get("principal", "").strip())
    acl = Acl(Pattern(kind, pattern_type, name), Entry(principal, host, operation, permission))
    check_acl(acl)
    return acl


def new_acl_of_words(words: Mapping[str, str]) -> Acl:
    """Convert words (``acl_of_words``) to an ACL that a user wants to add.

    Also raises InvalidRequestError for a ``*`` inside a name. Such an ACL would be valid, but would
    not apply as the user expects: a denial of the topic 'secret-*' would protect no topic."""
    acl = acl_of_words(words)
    name, is_prefix = acl.pattern.name, acl.pattern.type is PatternType.PREFIXED
    if WILDCARD in name and (is_prefix or name != WILDCARD):
        prefix = name.partition(WILDCARD)[0]
        cure = f"{prefix[:80]!r} as a prefix (--prefix)" if prefix else "the literal name '*'"
        raise InvalidRequestError(
            f"the name {name[:80]!r} has a *, which is a wildcard only if it is the whole name and "
            f"the pattern is literal; give {cure}"
        )
    if WILDCARD in acl.entry.principal and acl.entry.principal != ANYONE:
        raise InvalidRequestError(
            f"the principal {acl.entry.principal[:80]!r} has a *, which stands for all users only "
            "alone; add an ACL for each user"
        )
    return acl


def words_of(acl: Acl) -> dict[str, str]:
    """Convert an ACL to words, as ``acl_of_words`` reads them."""
    (kind, pattern_type, name), (principal, host, operation, permission) = acl
    return {
        "principal": principal,
        "permission": permission.name.lower(),
        "operation": operation.name.lower(),
        "resource": kind.name.lower(),
        "name": name,
        "pattern": pattern_type.name.lower(),
        "host": host,
    }


def filter_of(acl: Acl) -> AclFilter:
    """Return the filter that selects this ACL alone."""
    pattern, entry = acl
    return AclFilter(*pattern, entry.principal, entry.host, entry.operation, entry.permission)
