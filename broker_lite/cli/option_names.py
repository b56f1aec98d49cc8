"""Setting names in errors, translated to the options of a command.

Client errors name settings by key (``linger.ms='x'``) or as Python options (``linger_ms``). One
error text thus serves Python and, after this translation, the command line. A command's parameter
has the name of its setting; ``-X`` sets the settings without a parameter, if the command has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from broker_lite.client.membership.settings import MemberConfig
from broker_lite.config import ProducerConfig, keys
from broker_lite.errors import LogbusError

SETTINGS = "settings"
"""Name of the parameter that ``-X`` sets."""
_VALUE = r"""(?:=('[^']*'|[^\s,;:)]*[^\s,;:).]))?"""
"""Pattern of the value after a setting's name in an error text, such as ``='x'``."""


class Spelling(NamedTuple):
    """An option as the user types it. ``flag`` is the value that the option has without an
    argument; ``joint`` stands between the option and any other value."""

    option: str
    flag: str | None = None
    joint: str = " "

    def of(self, value: str | None) -> str:
        """Return the option as the user types it, with ``value``, which an error text names."""
        if value is None or value == self.flag:
            return self.option
        bare = value.strip("'")
        return f"{self.option}{self.joint}{bare if bare and ' ' not in bare else value}"


@contextmanager
def called(spellings: Mapping[str, Spelling]) -> Iterator[None]:
    """Reword errors that leave the block, so that they name these settings as options."""
    try:
        yield
    except LogbusError as error:
        error.message = spelt(error.message, spellings)
        raise


def spelt(message: str, spellings: Mapping[str, Spelling]) -> str:
    """Return the message with each setting and value as the user types them. A name without dots
    and underscores (``acks``) may be a plain word, so it must have a value."""

    def typed(match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if value is None and name.isalpha():
            return match[0]
        return spellings[name].of(value)

    if not spellings:
        return message
    names = "|".join(re.escape(name) for name in sorted(spellings, key=len, reverse=True))
    return re.sub(rf"(?<![\w.-])({names})(?![\w-]|\.\w){_VALUE}", typed, message)


def spellings_of(command: click.Command) -> dict[str, Spelling]:
    """Return the options of a command by every name of their settings."""
    options = {row.name: row for row in command.params if isinstance(row, click.Option)}
    spellings: dict[str, Spelling] = {}
    for names in _settings():
        option = next((options[name] for name in names if name in options), None)
        if option is not None:
            flag = repr(option.flag_value) if option.is_flag else None
            spellings |= dict.fromkeys(names, Spelling(max(option.opts, key=len), flag))
        elif SETTINGS in options and len(names) > 1:
            spellings |= dict.fromkeys(names, Spelling(f"-X {names[0]}", joint="="))
    return spellings


def _settings() -> Iterator[tuple[str, ...]]:
    """Yield all names of each setting, with its key first."""
    tables: tuple[Any, ...] = (ProducerConfig, MemberConfig)
    rows = {row.key: name for kind in tables for name, row in keys(kind).items()}
    for key, name in rows.items():
        yield tuple(dict.fromkeys((key, key.replace(".", "_"), name)))
    yield "bootstrap.servers", "bootstrap_servers"
    yield ("zookeeper",)
