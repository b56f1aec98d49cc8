"""The client's requests for access control lists (ACLs): DescribeAcls, CreateAcls and DeleteAcls,
version 3.

The numbers of resource types, patterns, operations and permissions are Kafka's (``security.acls``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import CodeAfterThrottle, DeclaredCall, Int8, Int16, Int32, codec_of
from broker_lite.wire.primitives import Reader, Writer


class AclRow(NamedTuple):
    """An ACL, or a filter that selects ACLs. In a filter, a text of None and a number of 1 select
    every value."""

    kind: Int8
    name: str | None
    pattern_type: Int8
    principal: str | None
    host: str | None
    operation: Int8
    permission: Int8


_Entry = tuple[str, str, Int8, Int8]
_DescribedResources = tuple[
    CodeAfterThrottle,
    str | None,
    tuple[tuple[Int8, str, Int8, tuple[_Entry, ...]], ...],
]
"""The answer to DescribeAcls: error code, message, and for each resource pattern (kind, name, type
of the pattern) its entries (principal, host, operation, permission)."""
_DeletedAcl = tuple[Int16, str | None, Int8, str, Int8, str, str, Int8, Int8]
_DeletedByFilter = tuple[Int16, str | None, tuple[_DeletedAcl, ...]]
"""The result of one filter of DeleteAcls: error code, message and the deleted ACLs, each with an
error code and a message of its own before the fields of ``AclRow``."""


class DescribedAcls(NamedTuple):
    error_code: int
    error_message: str | None
    acls: tuple[AclRow, ...]


class AclResult(NamedTuple):
    """The result of creating one ACL, or of deleting the ACLs that one filter selects. ``deleted``
    is empty for a created ACL."""

    error_code: int
    error_message: str | None
    deleted: tuple[AclRow, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeAclsRequest(DeclaredCall[DescribedAcls]):
    """Request the ACLs that a filter selects."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_ACLS
    VERSION: ClassVar[int] = 3

    filter: AclRow

    def encode(self, writer: Writer) -> None:
        codec_of(AclRow).put(writer, self.filter)

    @classmethod
    def decode(cls, reader: Reader) -> DescribedAcls:
        code, message, resources = codec_of(_DescribedResources).take(reader)
        rows = [AclRow(*pattern, *entry) for *pattern, entries in resources for entry in entries]
        return DescribedAcls(code, message, tuple(rows))


@dataclass(frozen=True, slots=True)
class CreateAclsRequest(DeclaredCall[tuple[AclResult, ...]]):
    """Create ACLs. The answer has a result for each ACL."""

    API_KEY: ClassVar[int] = ApiKey.CREATE_ACLS
    VERSION: ClassVar[int] = 3

    creations: tuple[AclRow, ...]

    @classmethod
    def decode(cls, reader: Reader) -> tuple[AclResult, ...]:
        _, results = codec_of(tuple[Int32, tuple[tuple[Int16, str | None], ...]]).take(reader)
        return tuple(AclResult(*row) for row in results)


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest(DeclaredCall[tuple[AclResult, ...]]):
    """Delete the ACLs that the filters select. The answer has a result for each filter."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_ACLS
    VERSION: ClassVar[int] = 3

    filters: tuple[AclRow, ...]

    @classmethod
    def decode(cls, reader: Reader) -> tuple[AclResult, ...]:
        _, results = codec_of(tuple[Int32, tuple[_DeletedByFilter, ...]]).take(reader)
        return tuple(
            AclResult(code, message, tuple(AclRow(*acl) for _, _, *acl in deleted))
            for code, message, deleted in results
        )
