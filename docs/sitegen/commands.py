"""The reference of the command line, from click's own objects."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import click

from broker_lite.cli.main import COMMANDS, EXIT_CODES, cli
from sitegen.tables import cell, code, table

_TOP = """# Command line

Every command prints its help with `-h`. A command finds its cluster by the first of these that is given: `-b HOST:PORT,…` or `--zookeeper`,
`--context NAME`, `bootstrap.servers` in the file of `-F`, `LOGBUS_CONTEXT`, `LOGBUS_BOOTSTRAP_SERVERS` or `LOGBUS_ZOOKEEPER`, `bootstrap.servers` in the file of
`LOGBUS_CLIENT_CONFIG`, the context of `logbus context use`, the cluster that `logbus up` last started.

## Exit codes

"""
_PROGRAMS = ("demo", "checkpoint")
"""Commands that run a program with its own options."""
COLUMNS = 90
"""Maximum columns of a usage line."""


def page() -> str:
    """Return the page: a table of all commands, then each command with its options."""
    # click caches a command's help option in the command's first context: without these settings -h
    # would be missing.
    context = click.Context(cli, info_name="logbus", **cli.context_settings)
    parts = [
        _TOP,
        table(("code", "meaning"), ((str(code), cell(text)) for code, text in EXIT_CODES.items())),
        "## Commands\n",
        table(
            ("command", "purpose"),
            ((_link(name), cell(text)) for name, (_, text) in COMMANDS.items()),
        ),
    ]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if name in _PROGRAMS:
            command = importlib.import_module(f"pyspark_logbus.{name}.__main__").main
            assert isinstance(command, click.Command)
        parts.extend(_command(command, click.Context(command, context, info_name=name)))
    return "\n".join(parts)


def _link(name: str) -> str:
    return f"[`logbus {name}`](#logbus-{name})"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    path = context.command_path
    level = "##" + "#" * path.count(" ") if path.count(" ") > 1 else "##"
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"{level} {path} {{#{path.replace(' ', '-')}}}\n"
    yield f"```text\n{_wrapped(usage)}\n```\n"
    yield _help(command.help or "")
    rows = [
        _option(option, context)
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    if rows:
        yield table(("option", "meaning", "default"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, click.Context(inner, context, info_name=name))


def _wrapped(usage: str) -> str:
    """Return a usage line in lines of at most ``COLUMNS``, broken at spaces and between choices."""
    lines = [""]
    for piece in re.findall(r"[^ |]+[ |]*", usage):
        if len(lines[-1]) + len(piece.rstrip()) > COLUMNS:
            lines.append(" " * 4)
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _help(text: str) -> str:
    """Return a help text as Markdown; a paragraph that click leaves unwrapped (``\b``) becomes a
    code block."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.lstrip().startswith("\b"):
            kept = paragraph.replace("\b", "").strip("\n")
            parts.append(f"```text\n{kept}\n```")
        else:
            parts.append(paragraph.replace("<", "&lt;").replace("*", "\\*"))
    return "\n\n".join(parts) + "\n"


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag:
        names += f" {code(option.make_metavar(context))}"
    shown = option.show_default and option.default not in (None, False)
    default = option.default if not callable(option.default) else ""
    return names, cell(option.help or "").replace("<", "&lt;"), code(default) if shown else ""
