"""What a command calls the settings that an error names, so that a cure is something to type here.

Clients' errors name settings by key (``linger.ms='x'``) or as options of Python (``linger_ms``). A
command's parameter that gives a setting bears its name, and what none gives is given by ``-X`` in
commands that have it; so the two are found by name, and no error needs a second text.
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
"""The parameter of ``-X``."""
_VALUE = r"""(?:=('[^']*'|[^\s,;:)]*[^\s,;:).]))?"""


class Spelling(NamedTuple):
    """An option as it is typed. ``flag``: the value that it stands for alone, as errors write it;
    ``joint`` is between it and any other value."""

    option: str
    flag: str | None = None
    joint: str = " "

    def of(self, value: str | None) -> str:
        """With the value that the error tells, if it tells one."""
        if value is None or value == self.flag:
            return self.option
        bare = value.strip("'")
        return f"{self.option}{self.joint}{bare if bare and ' ' not in bare else value}"


@contextmanager
def called(spellings: Mapping[str, Spelling]) -> Iterator[None]:
    """Errors that leave the block name these settings as they are typed."""
    try:
        yield
    except LogbusError as error:
        error.message = spelt(error.message, spellings)
        raise


def spelt(message: str, spellings: Mapping[str, Spelling]) -> str:
    """The message with each setting, and its value, as it is typed. A name that is a plain word
    counts only where a value follows."""

    def typed(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        if value is None and name.isalpha():
            return found[0]
        return spellings[name].of(value)

    if not spellings:
        return message
    names = "|".join(re.escape(name) for name in sorted(spellings, key=len, reverse=True))
    return re.sub(rf"(?<![\w.-])({names})(?![\w-]|\.\w){_VALUE}", typed, message)


def spellings_of(command: click.Command) -> dict[str, Spelling]:
    """Every name of a setting to what this command calls it."""
    options = {row.name: row for row in command.params if isinstance(row, click.Option)}
    found: dict[str, Spelling] = {}
    for names in _settings():
        given = next((options[name] for name in names if name in options), None)
        if given is not None:
            flag = repr(given.flag_value) if given.is_flag else None
            found |= dict.fromkeys(names, Spelling(max(given.opts, key=len), flag))
        elif SETTINGS in options and len(names) > 1:
            found |= dict.fromkeys(names, Spelling(f"-X {names[0]}", joint="="))
    return found


def _settings() -> Iterator[tuple[str, ...]]:
    """The names of each setting: its key first."""
    tables: tuple[Any, ...] = (ProducerConfig, MemberConfig)
    rows = {row.key: name for kind in tables for name, row in keys(kind).items()}
    for key, name in rows.items():
        yield tuple(dict.fromkeys((key, key.replace(".", "_"), name)))
    yield "bootstrap.servers", "bootstrap_servers"
    yield ("zookeeper",)
