"""Kafka's access control lists as values: resources, patterns, operations, entries and filters.

The enumerations have the numbers of Kafka's protocol (``AclOperation``, ``ResourceType``,
``PatternType``, ``AclPermissionType``). An entry grants or denies one operation, on the resources
of one pattern, to one principal from one host. ``authorizer`` decides requests with the entries."""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from typing import Any, NamedTuple

from broker_lite.errors import InvalidRequestError

WILDCARD = "*"
"""The wildcard ``*``: as the name of a literal pattern it means every resource of the kind, as a
host every address."""
ANYONE = "User:*"
"""The principal of an entry that applies to every user."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of kind CLUSTER, as in Kafka."""
TEXT_LENGTH_MAX = 1024
"""Maximum characters of an ACL's principal, host or resource name."""


class ResourceKind(IntEnum):
    """The type of resource that an entry protects."""

    # Hash like int: the hash method of Enum, Python code, would double the time of a decision.
    __hash__ = int.__hash__

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    """The way in which a pattern's name selects resources. ANY and MATCH are for filters only:
    MATCH selects every pattern, literal or prefixed, that covers the resource which the filter
    names."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """An operation on a resource. ANY is for filters only, and ALL is for entries."""

    # Hash like int: the hash method of Enum, Python code, would double the time of a decision.
    __hash__ = int.__hash__

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Whether an entry denies or allows. ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


IMPLIED_BY: dict[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""For each operation, the operations that imply it: an entry that allows one of these allows the
operation too. A denied operation implies nothing."""

OPERATIONS: dict[ResourceKind, tuple[Operation, ...]] = {
    ResourceKind.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceKind.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceKind.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
"""The operations that exist on each kind of resource (Kafka's ``AclEntry.supportedOperations``)."""


class Pattern(NamedTuple):
    """The resources of ``kind`` that a pattern selects.

    A LITERAL pattern selects the resource with this ``name``, or all resources for the name ``*``.
    A PREFIXED pattern selects resources whose name begins with ``name``."""

    kind: ResourceKind
    type: PatternType
    name: str

    def covers(self, kind: ResourceKind, name: str) -> bool:
        """Return whether the pattern matches the resource of this kind and name."""
        if kind is not self.kind:
            return False
        if self.type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def __str__(self) -> str:
        prefix = "prefix " if self.type is PatternType.PREFIXED else ""
        return f"{self.kind.name.lower()} {prefix}{self.name!r}"


class Entry(NamedTuple):
    """The part of an ACL that allows or denies one operation to one principal from one host (an IP
    address, or ``*``)."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        host = "" if self.host == WILDCARD else f" from {self.host}"
        operation = self.operation.name.lower()
        return f"{self.permission.name.lower()} {self.principal}{host} to {operation}"


class Acl(NamedTuple):
    """An entry and its resource pattern. Kafka's APIs call this pair an ACL."""

    pattern: Pattern
    entry: Entry

    def __str__(self) -> str:
        return f"{self.entry} {self.pattern}"


def check_acl(acl: Acl) -> None:
    """Raise InvalidRequestError if an ACL may not be stored. The message names the wrong field and
    its value."""
    (kind, pattern_type, name), (principal, host, operation, permission) = acl
    texts = {"name": name, "principal": principal, "host": host}
    for field, text in texts.items():
        if not text or len(text) > TEXT_LENGTH_MAX or not text.isprintable():
            raise InvalidRequestError(
                f"the ACL's {field} {text[:80]!r} is empty, longer than {TEXT_LENGTH_MAX} "
                "characters, or has control characters"
            )
    if kind not in OPERATIONS:
        raise InvalidRequestError(f"resource kind {kind.name} is not allowed in an ACL")
    if pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequestError(
            f"pattern type {pattern_type.name} is not allowed in an ACL; use LITERAL or PREFIXED"
        )
    if kind is ResourceKind.CLUSTER and (pattern_type, name) != (PatternType.LITERAL, CLUSTER_NAME):
        raise InvalidRequestError(
            f"an ACL of the cluster has the name {name!r}; give the literal name {CLUSTER_NAME!r}"
        )
    if permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidRequestError(
            f"permission {permission.name} is not allowed in an ACL; use ALLOW or DENY"
        )
    if operation is not Operation.ALL and operation not in OPERATIONS[kind]:
        known = ", ".join(each.name for each in OPERATIONS[kind])
        raise InvalidRequestError(
            f"operation {operation.name} does not exist on a {kind.name.lower()}; use ALL, {known}"
        )
    kind_of_principal, separator, user = principal.partition(":")
    if kind_of_principal != "User" or not separator or not user:
        raise InvalidRequestError(f"principal {principal!r} does not have the form User:name")
    if host != WILDCARD:
        check_host(host)


def check_host(host: str) -> None:
    """Raise InvalidRequestError for a host that is not an IP address. Kafka compares addresses, so
    an entry with a host name would never apply."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise InvalidRequestError(
            f"host {host!r} is not an IP address; ACLs compare addresses, not host names"
        ) from None


def acl_of(*fields: Any) -> Acl:
    """Return an ACL from Kafka's numbers and texts: resource kind, pattern type, name,
    principal, host, operation, permission. Raises InvalidRequestError for a number that Kafka
    does not define."""
    kind, pattern_type, name, principal, host, operation, permission = fields
    try:
        return Acl(
            Pattern(ResourceKind(kind), PatternType(pattern_type), name),
            Entry(principal, canonical_host(host), Operation(operation), Permission(permission)),
        )
    except ValueError as error:
        raise InvalidRequestError(f"the ACL cannot be read: {error}") from None


def new_acl(*fields: Any) -> Acl:
    """Return an ACL from the fields that ``acl_of`` lists. Raises InvalidRequestError for a number
    that Kafka does not define, and for an ACL that may not be stored (``check_acl``)."""
    acl = acl_of(*fields)
    check_acl(acl)
    return acl


def acl_filter(*fields: Any) -> AclFilter:
    """Return a filter of ACLs from the fields that ``acl_of`` lists. A text field of None matches
    every value. Raises InvalidRequestError for a number that Kafka does not define."""
    kind, pattern_type, name, principal, host, operation, permission = fields
    try:
        return AclFilter(
            ResourceKind(kind),
            PatternType(pattern_type),
            name,
            principal,
            None if host is None else canonical_host(host),
            Operation(operation),
            Permission(permission),
        )
    except ValueError as error:
        raise InvalidRequestError(f"the filter of ACLs cannot be read: {error}") from None


def canonical_host(address: str) -> str:
    """Return an IP address in the form in which logbus stores and compares hosts.

    An IPv6 address is shortened and loses its scope. An IPv4 address that is mapped into IPv6
    becomes IPv4. A text that is no address is returned unchanged."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0].strip("[]"))
    except ValueError:
        return address
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip)


class AclFilter(NamedTuple):
    """A filter over ACLs, as in Kafka's DescribeAcls and DeleteAcls. A field of None selects every
    value."""

    kind: ResourceKind = ResourceKind.ANY
    type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def selects(self, acl: Acl) -> bool:
        """Return whether the filter selects the ACL."""
        pattern, entry = acl
        return (
            self.kind in (ResourceKind.ANY, pattern.kind)
            and self._selects_name(pattern)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def _selects_name(self, pattern: Pattern) -> bool:
        if self.type is PatternType.MATCH:
            return self.name is None or pattern.covers(pattern.kind, self.name)
        return self.type in (PatternType.ANY, pattern.type) and self.name in (None, pattern.name)
