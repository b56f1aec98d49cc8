"""Define settings and check their values. A configuration is a frozen dataclass whose fields are
made by ``setting``."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_lite.errors import InvalidConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000
LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Key:
    """A setting's key, description, unit and allowed values."""

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
    """Return a dataclass field for a setting. The field's annotation is the setting's type, and
    ``doc`` says what the setting does."""
    row = Key(key, doc, unit, at_least, at_most, choices)
    return field(default=default, metadata={"key": row})


def fixed(key: str, value: Any, why: str) -> Any:
    """Return a field for one of Kafka's settings that can have only its default ``value`` in
    logbus. ``why`` is the reason, for the error about another value."""
    return setting(key, value, why, choices=(value,))


class Config:
    """Base of the configurations. The constructor checks all values and raises
    InvalidConfigError."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            row: Key | None = item.metadata.get("key")
            if row is not None:
                _check(row, getattr(self, item.name))
        self.validate()

    def validate(self) -> None:
        """Raise InvalidConfigError, which names both keys, if two settings contradict each
        other."""


def value_text(value: object) -> str:
    """Return a setting's value as the text that files and DescribeConfigs contain."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _check(row: Key, value: Any) -> None:
    if len(row.choices) == 1 and value not in row.choices:
        raise InvalidConfigError(
            f"{row.key}={str(value)[:60]!r} is not supported: {row.doc}; "
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


def keys(kind: type[Any]) -> Mapping[str, Key]:
    """Return the ``Key`` of each setting of a configuration class, by field name."""
    rows = ((item.name, item.metadata.get("key")) for item in dataclasses.fields(kind))
    return {name: row for name, row in rows if row is not None}


def nearest(word: str, known: Mapping[str, Any] | list[str]) -> str:
    """Return ``"; did you mean 'X'?"`` with the known word that is most similar to ``word``, or
    ``""`` without a similar one."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""
