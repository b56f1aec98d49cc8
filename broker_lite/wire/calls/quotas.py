"""The client's requests DescribeClientQuotas and AlterClientQuotas, version 1, which read and
change quotas: limits on the rates of users and client ids.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.primitives import Reader, Writer

Parts = tuple[tuple[str, str | None], ...]
"""An entity that has quotas, such as a user, as pairs of type and name. The name None stands for
all entities of the type that have no quotas of their own."""
_F64 = struct.Struct(">d")


class DescribedQuotas(NamedTuple):
    """The quotas of one entity. ``values`` are pairs of quota name and limit."""

    entity: Parts
    values: tuple[tuple[str, float], ...]


class DescribedClientQuotas(NamedTuple):
    error_code: int
    error_message: str | None
    entries: tuple[DescribedQuotas, ...]


class AlteredQuotas(NamedTuple):
    error_code: int
    error_message: str | None
    entity: Parts


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasRequest:
    """Request all quotas of all entities."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    VERSION: ClassVar[int] = 1

    def encode(self, writer: Writer) -> None:
        writer.array((), lambda _: None)
        writer.boolean(False)  # The field Strict: include entities with further types.
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> DescribedClientQuotas:
        def value(reader: Reader) -> tuple[str, float]:
            key, (number,) = reader.string(), reader.unpack(_F64)
            return reader.ended((key, number))

        def entry(reader: Reader) -> DescribedQuotas:
            return reader.ended(DescribedQuotas(reader.array(_part), reader.array(value)))

        reader.i32()  # throttle_time_ms
        code, message = reader.i16(), reader.nullable_string()
        entries = reader.nullable_array(entry) or ()
        return reader.ended(DescribedClientQuotas(code, message, entries))


@dataclass(frozen=True, slots=True)
class AlterClientQuotasRequest:
    """Change quotas of one entity. ``changes`` are pairs of quota name and limit; None deletes the
    quota."""

    API_KEY: ClassVar[int] = ApiKey.ALTER_CLIENT_QUOTAS
    VERSION: ClassVar[int] = 1

    entity: Parts
    changes: tuple[tuple[str, float | None], ...]

    def encode(self, writer: Writer) -> None:
        def put_part(part: tuple[str, str | None]) -> None:
            writer.string(part[0])
            writer.nullable_string(part[1])
            writer.tag_end()

        def put_change(change: tuple[str, float | None]) -> None:
            key, value = change
            writer.string(key)
            writer.buffer += _F64.pack(value or 0.0)
            writer.boolean(value is None)
            writer.tag_end()

        def put_entry(request: AlterClientQuotasRequest) -> None:
            writer.array(request.entity, put_part)
            writer.array(request.changes, put_change)
            writer.tag_end()

        writer.array((self,), put_entry)
        writer.boolean(False)  # validate_only
        writer.tag_end()

    @staticmethod
    def decode(reader: Reader) -> tuple[AlteredQuotas, ...]:
        def entry(reader: Reader) -> AlteredQuotas:
            code, message = reader.i16(), reader.nullable_string()
            return reader.ended(AlteredQuotas(code, message, reader.array(_part)))

        reader.i32()  # throttle_time_ms
        return reader.ended(reader.array(entry))


def _part(reader: Reader) -> tuple[str, str | None]:
    return reader.ended((reader.string(), reader.nullable_string()))
