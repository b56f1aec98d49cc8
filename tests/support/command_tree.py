"""Every command of the command line, with those of the programs that it runs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click

PROGRAMS = ("demo", "checkpoint")
"""Commands that run a program with its own options."""


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield the path and the command of every command and every group that is not hidden."""
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
    """Return the command of a program."""
    if name not in PROGRAMS:
        return None
    main = importlib.import_module(f"pyspark_logbus.{name}.__main__").main
    assert isinstance(main, click.Command)
    return main
