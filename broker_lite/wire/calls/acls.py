"""The client's requests for access control lists (ACLs): DescribeAcls, CreateAcls and DeleteAcls,
version 3.

The numbers of resource types, patterns, operations and permissions are Kafka's (``security.acls``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer


class AclRow(NamedTuple):
    """An ACL, or a filter that selects ACLs. In a filter, a text of None and a number of 1 select
    every value."""

    kind: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


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
class DescribeAclsRequest:
    """Request the ACLs that a filter selects."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_ACLS
    VERSION: ClassVar[int] = 3

    filter: AclRow

    def encode(self, writer: Writer) -> None:
        _put_filter(writer, self.filter)

    @staticmethod
    def decode(reader: Reader) -> DescribedAcls:
        def resource(reader: Reader) -> tuple[AclRow, ...]:
            kind, name, pattern_type = reader.i8(), reader.string(), reader.i8()

            def entry(reader: Reader) -> AclRow:
                principal, host = reader.string(), reader.string()
                operation, permission = reader.i8(), reader.i8()
                return reader.ended(
                    AclRow(kind, name, pattern_type, principal, host, operation, permission)
                )

            return reader.ended(reader.array(entry))

        reader.i32()  # throttle_time_ms
        code, message = reader.i16(), reader.nullable_string()
        rows = tuple(row for rows in reader.array(resource) for row in rows)
        return reader.ended(DescribedAcls(code, message, rows))


@dataclass(frozen=True, slots=True)
class CreateAclsRequest:
    """Create ACLs. The answer has a result for each ACL."""

    API_KEY: ClassVar[int] = ApiKey.CREATE_ACLS
    VERSION: ClassVar[int] = 3

    creations: tuple[AclRow, ...]

    def encode(self, writer: Writer) -> None:
        def put(row: AclRow) -> None:
            writer.i8(row.kind)
            writer.string(row.name or "")
            writer.i8(row.pattern_type)
            writer.string(row.principal or "")
            writer.string(row.host or "")
            writer.i8(row.operation)
            writer.i8(row.permission)
            writer.tag_end()

        writer.array(self.creations, put)
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> tuple[AclResult, ...]:
        def result(reader: Reader) -> AclResult:
            return reader.ended(AclResult(reader.i16(), reader.nullable_string()))

        reader.i32()  # throttle_time_ms
        return reader.ended(reader.array(result))


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest:
    """Delete the ACLs that the filters select. The answer has a result for each filter."""

    API_KEY: ClassVar[int] = ApiKey.DELETE_ACLS
    VERSION: ClassVar[int] = 3

    filters: tuple[AclRow, ...]

    def encode(self, writer: Writer) -> None:
        writer.array(self.filters, lambda row: _put_filter(writer, row))
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> tuple[AclResult, ...]:
        def deleted(reader: Reader) -> AclRow:
            reader.i16(), reader.nullable_string()  # error_code, error_message
            row = AclRow(
                reader.i8(), reader.string(), reader.i8(), reader.string(), reader.string(),
                reader.i8(), reader.i8(),
            )  # fmt: skip
            return reader.ended(row)

        def result(reader: Reader) -> AclResult:
            code, message = reader.i16(), reader.nullable_string()
            return reader.ended(AclResult(code, message, reader.array(deleted)))

        reader.i32()  # throttle_time_ms
        return reader.ended(reader.array(result))


def _put_filter(writer: Writer, row: AclRow) -> None:
    writer.i8(row.kind)
    writer.nullable_string(row.name)
    writer.i8(row.pattern_type)
    writer.nullable_string(row.principal)
    writer.nullable_string(row.host)
    writer.i8(row.operation)
    writer.i8(row.permission)
    writer.tag_end()
