"""List all ``logbus`` commands, including those of ``logbus demo`` and ``logbus checkpoint``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click

PROGRAMS = ("demo", "checkpoint")
"""Commands of ``logbus`` that run a program with its own options."""


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each visible command and group of commands with its path."""
    if path:
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield from commands(program(name) or inner, *path, name)


def program(name: str) -> click.Command | None:
    """Return the click command of a program, or None if ``name`` is no program."""
    if name not in PROGRAMS:
        return None
    main = importlib.import_module(f"pyspark_logbus.{name}.__main__").main
    assert isinstance(main, click.Command)
    return main
