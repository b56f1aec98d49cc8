"""The client's requests DescribeClientQuotas and AlterClientQuotas, version 1, which read and
change quotas: limits on the rates of users and client ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from broker_lite.wire.api import ApiKey
from broker_lite.wire.layout import CodeAfterThrottle, DeclaredCall, Float64, Int16, Int32, codec_of
from broker_lite.wire.primitives import Reader, Writer

Parts = tuple[tuple[str, str | None], ...]
"""An entity that has quotas, such as a user, as pairs of type and name. The name None stands for
all entities of the type that have no quotas of their own."""
_Alterations = tuple[tuple[tuple[Parts, tuple[tuple[str, Float64, bool], ...]], ...], bool]
"""A request AlterClientQuotas: the changes of each entity (quota name, limit, whether to delete the
quota), and whether to only validate."""


class DescribedQuotas(NamedTuple):
    """The quotas of one entity. ``values`` are pairs of quota name and limit."""

    entity: Parts
    values: tuple[tuple[str, Float64], ...]


class DescribedClientQuotas(NamedTuple):
    error_code: CodeAfterThrottle
    error_message: str | None
    entries: tuple[DescribedQuotas, ...] | None


class AlteredQuotas(NamedTuple):
    error_code: Int16
    error_message: str | None
    entity: Parts


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasRequest(DeclaredCall[DescribedClientQuotas]):
    """Request all quotas of all entities. Without ``strict``, the answer includes entities with
    further types than those of ``components``, which are none."""

    API_KEY: ClassVar[int] = ApiKey.DESCRIBE_CLIENT_QUOTAS
    VERSION: ClassVar[int] = 1

    components: tuple[str, ...] = ()
    strict: bool = False


@dataclass(frozen=True, slots=True)
class AlterClientQuotasRequest(DeclaredCall[tuple[AlteredQuotas, ...]]):
    """Change quotas of one entity. ``changes`` are pairs of quota name and limit; None deletes the
    quota."""

    API_KEY: ClassVar[int] = ApiKey.ALTER_CLIENT_QUOTAS
    VERSION: ClassVar[int] = 1

    entity: Parts
    changes: tuple[tuple[str, float | None], ...]

    def encode(self, writer: Writer) -> None:
        changes = [(name, limit or 0.0, limit is None) for name, limit in self.changes]
        codec_of(_Alterations).put(writer, ([(self.entity, changes)], False))

    @classmethod
    def decode(cls, reader: Reader) -> tuple[AlteredQuotas, ...]:
        _, entries = codec_of(tuple[Int32, tuple[AlteredQuotas, ...]]).take(reader)
        altered: tuple[AlteredQuotas, ...] = entries
        return altered
