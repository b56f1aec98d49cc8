"""What a setting is: key, type, default, unit, bounds, effect; and that values are held to it.

A configuration is a frozen dataclass whose fields are made by ``setting``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from broker_lite.errors import InvalidConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000
LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Key:
    """One setting's row: what people see of it and what a value must be."""

    key: str
    doc: str
    unit: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[Any, ...] = ()


def setting(
    key: str,
    default: Any,
    doc: str,
    unit: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[Any, ...] = (),
) -> Any:
    """A configuration's field; its type is the field's annotation."""
    row = Key(key, doc, unit, at_least, at_most, choices)
    return field(default=default, metadata={"key": row})


def fixed(key: str, value: Any, why: str) -> Any:
    """A setting of Kafka that takes its default alone; ``why`` tells users the reason."""
    return setting(key, value, why, choices=(value,))


class Config:
    """What the four configurations share: their values are checked when they are made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            row: Key = item.metadata["key"]
            _check(row, getattr(self, item.name))
        self.validate()

    def validate(self) -> None:
        """Check relations between settings; each message names both keys."""


def value_text(value: object) -> str:
    """A value as files and DescribeConfigs spell it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _check(row: Key, value: Any) -> None:
    if len(row.choices) == 1 and value not in row.choices:
        raise InvalidConfigError(
            f"{row.key}={str(value)[:60]!r} is not built: {row.doc}; "
            f"leave it at {value_text(row.choices[0])!r}"
        )
    if row.choices and value not in row.choices:
        raise InvalidConfigError(
            f"{row.key}={str(value)[:60]!r}: give one of {', '.join(row.choices)}"
        )
    if row.minimum is not None and value < row.minimum:
        raise InvalidConfigError(f"{row.key}={value}: give at least {row.minimum}")
    if row.maximum is not None and value > row.maximum:
        raise InvalidConfigError(f"{row.key}={value}: give at most {row.maximum}")
