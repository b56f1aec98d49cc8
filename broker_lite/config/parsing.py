"""Convert configurations from text and to text.

The text is a file of ``key=value`` lines, command-line options, or an answer to DescribeConfigs.
This module reads no environment variables and searches no directories."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from broker_lite.config.broker import LISTENER_PREFIX, BrokerConfig
from broker_lite.config.client import ConsumerConfig, ProducerConfig
from broker_lite.config.setting import LONG_MAX, keys, nearest, value_text
from broker_lite.config.topic import TopicConfig
from broker_lite.errors import InvalidConfigError

SHOWN_MAX = 60
"""Maximum characters of a wrong value that an error message shows."""

C = TypeVar("C", BrokerConfig, TopicConfig, ProducerConfig, ConsumerConfig)


def parse(kind: type[C], settings: Mapping[str, str], *, base: C | None = None) -> C:
    """Build a configuration from settings, which are texts by key. Absent settings have their value
    in ``base``, or their default without ``base``.

    Raises InvalidConfigError for an unknown key (and suggests the closest), for a value of the
    wrong type or out of bounds, and for settings that contradict each other."""
    names = {row.key: name for name, row in keys(kind).items()}
    types = {item.name: item.type for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    if kind is BrokerConfig:
        settings = _gather_listeners(settings)
    for key, text in settings.items():
        name = names.get(key)
        if name is None:
            raise InvalidConfigError(f"unknown setting {key!r}{nearest(key, names)}")
        values[name] = _convert(key, str(text), str(types[name]))
    return dataclasses.replace(base, **values) if base is not None else kind(**values)


def _gather_listeners(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Join all ``listener.name.*`` settings into one setting, because a configuration class cannot
    have a field for each listener's name. Its value has a line ``key=value`` for each of these."""
    whole = LISTENER_PREFIX.rstrip(".")
    rows = {key: value for key, value in settings.items() if key.startswith(LISTENER_PREFIX)}
    if not rows:
        return settings
    others = {key: value for key, value in settings.items() if key not in rows}
    return {**others, whole: "\n".join(f"{key}={value}" for key, value in rows.items())}


def text(config: Any) -> dict[str, str]:
    """Return all settings of a configuration as texts by key. ``parse`` does the opposite."""
    rows = keys(type(config))
    return {row.key: value_text(getattr(config, name)) for name, row in rows.items()}


def load(kind: type[C], path: str | Path) -> C:
    """Read a configuration from a file of ``key=value`` lines. A line that begins with ``#`` is a
    comment.

    Raises InvalidConfigError, which names the file, for a malformed line or an error of
    ``parse``."""
    settings: dict[str, str] = {}
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise InvalidConfigError(
            f"{path} is not UTF-8 text; save it as UTF-8, or name another file"
        ) from None
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals:
            raise InvalidConfigError(
                f"{path}:{number}: {stripped!r} is not key=value; correct the line"
            )
        settings[key.strip()] = value.strip()
    try:
        return parse(kind, settings)
    except InvalidConfigError as error:
        raise type(error)(f"{path}: {error.message}") from None


def _convert(key: str, value: str, kind: str) -> Any:
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{key}={value[:SHOWN_MAX]!r}: give true or false")
        return value.lower() == "true"
    if kind == "int":
        try:
            number = int(value)
        except ValueError:
            number = LONG_MAX + 1
        if abs(number) > LONG_MAX:
            raise InvalidConfigError(f"{key}={value[:SHOWN_MAX]!r}: give a whole number")
        return number
    return value
