"""Translate the names of settings in an error's message to the options of a command.

Errors of the client name a setting by its key (``linger.ms='x'``) or as a Python option
(``linger_ms``). A user of the command line has typed ``--linger-ms x``, so the message is
translated. A command's parameter has the same name as the setting that its option sets. A setting
without an option of its own is set with ``-X KEY=VALUE``, if the command has that option."""

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
    """The text with which the user sets a setting: an option, such as ``--linger-ms``.

    ``flag`` is the value that an option without an argument sets. ``joint`` is the text between the
    option and its argument."""

    option: str
    flag: str | None = None
    joint: str = " "

    def of(self, value: str | None) -> str:
        """Return the option and its value as the user would type them. ``value`` is the setting's
        value in the error message, or None if the message has only its name."""
        if value is None or value == self.flag:
            return self.option
        bare = value.strip("'")
        return f"{self.option}{self.joint}{bare if bare and ' ' not in bare else value}"


@contextmanager
def called(spellings: Mapping[str, Spelling]) -> Iterator[None]:
    """Run a block. If it raises a LogbusError, replace each setting in the message by the option
    that sets it (``spellings``)."""
    try:
        yield
    except LogbusError as error:
        error.message = spelt(error.message, spellings)
        raise


def spelt(message: str, spellings: Mapping[str, Spelling]) -> str:
    """Return the message with settings written as options: ``linger.ms=5`` as ``--linger-ms 5``.

    A name without dots and underscores (``acks``) may be a plain word of the sentence. It is
    replaced only if a value follows (``acks=2``)."""

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
    """Return the option for each client setting that the command can change, by each of the
    setting's names."""
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
    """Yield for each setting of producers and consumers its key (``linger.ms``), then its other
    names."""
    tables: tuple[Any, ...] = (ProducerConfig, MemberConfig)
    rows = {row.key: name for kind in tables for name, row in keys(kind).items()}
    for key, name in rows.items():
        yield tuple(dict.fromkeys((key, key.replace(".", "_"), name)))
    yield "bootstrap.servers", "bootstrap_servers"
    yield ("zookeeper",)
