"""Print rows to stdout: a table for a person, JSON or CSV for a program. Notes for the person go to
stderr, so that stdout carries only data."""

from __future__ import annotations

import csv
import json
import os
import select
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

import click

from broker_lite.config.time_text import iso as iso

F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]

FORMATS = ("table", "json", "jsonl", "csv")
COLOURS = {
    "ok": "green",
    "warning": "yellow",
    "critical": "red",
    "under-replicated": "yellow",
    "too few in sync": "red",
    "no leader": "red",
}
"""The colour of each state. click omits colours unless stdout is a terminal."""


def output_option(command: F) -> F:
    """Add ``-o``, the output format: by default a table on a terminal and one JSON object a line in
    a pipe."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMATS),
        help="How to print. Default: table on a terminal, jsonl in a pipe.",
    )(command)


def is_table(form: str | None) -> bool:
    """Return whether ``show`` prints a table for this value of ``-o``."""
    return form == "table" or (form is None and sys.stdout.isatty())


def show(rows: Iterable[Row], form: str | None, columns: Sequence[str] | None = None) -> None:
    """Print rows. ``columns`` selects and orders the columns of a table or of CSV; JSON shows
    all."""
    listed = list(rows)
    chosen = "table" if is_table(form) else form or "jsonl"
    if chosen == "json":
        click.echo(json.dumps(listed, ensure_ascii=False, indent=2))
    elif chosen == "jsonl":
        for row in listed:
            click.echo(json.dumps(row, ensure_ascii=False))
    elif chosen == "csv":
        names = list(columns or (listed[0] if listed else ()))
        writer = csv.writer(sys.stdout)
        if names:
            writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in listed)
    else:
        _table(listed, columns)


def show_one(value: Row, form: str | None) -> None:
    """Print one object: aligned lines for a person, one JSON object for a machine."""
    chosen = "table" if is_table(form) else form or "jsonl"
    if chosen == "json":
        click.echo(json.dumps(value, ensure_ascii=False, indent=2))
    elif chosen in ("jsonl", "csv"):
        show([value], chosen)
    else:
        width = max((len(name) for name in value), default=0)
        for name, item in value.items():
            click.echo(f"{name:<{width}}  {printable(_cell(item))}")


class ChangeReport:
    """Reports the changes that a command makes: each as a sentence on stderr at once or, with
    ``-o``, all as rows on stdout at the end, even after an error."""

    def __init__(self, form: str | None) -> None:
        self._form = form
        self._rows: list[Row] = []

    def add(self, row: Row, text: str) -> None:
        """Report a change: print ``text`` now or, with ``-o``, print ``row`` at the end."""
        self._rows.append(row)
        if self._form is None:
            say(text)

    def __enter__(self) -> ChangeReport:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._form is not None and (self._rows or kind is None):
            show(self._rows, self._form)


def report_change(row: Row, form: str | None, text: str) -> None:
    """Report one change with a ``ChangeReport``."""
    with ChangeReport(form) as report:
        report.add(row, text)


def raise_if_unread() -> None:
    """Raise BrokenPipeError if the program that reads stdout has closed the pipe. Without this
    check, a command that prints nothing for a while would not end, for example ``logbus consume t |
    head -1``."""
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError):
        return  # stdout is not a file, for example in a test, so there is no pipe to check.
    watched = select.poll()
    watched.register(number, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0)):
        raise BrokenPipeError


class ProgressBar:
    """A progress bar on stderr for long work, shown until ``close``.

    The bar is shown only if stderr is a terminal and stdout is a file. Otherwise the command's
    records, or the output of the program that reads them from a pipe, would appear in the middle of
    the bar."""

    def __init__(self, label: str, *, is_alone: bool = False) -> None:
        """``is_alone``: the command prints no records to stdout, so none can break the bar. The bar
        is then shown whenever stderr is a terminal."""
        self._label = label
        self._bar: Any = None
        self._left: int | None = None
        self._is_shown = sys.stderr.isatty() and (is_alone or _is_file(sys.stdout))

    def advance(self, done: int, left: int) -> None:
        """Count ``done`` further items as processed. The first call sets the bar's length to
        ``done`` plus ``left``."""
        if not self._is_shown:
            return
        if self._bar is None:
            self._bar = click.progressbar(length=done + left, label=self._label, file=sys.stderr)
            self._bar.__enter__()
        self._bar.update(done)

    def reach(self, left: int) -> None:
        """Show that ``left`` items are not processed yet. The first call sets the bar's length."""
        self.advance(0 if self._left is None else self._left - left, left)
        self._left = left

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop showing the progress bar, and end its line on stderr."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


def _is_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError):
        return False


def say(text: str) -> None:
    """Print a note for the user to stderr."""
    click.echo(text, err=True)


def size(count: int | None) -> str:
    """Return a number of bytes as text for people, such as 1.2 GB."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def printable(text: str) -> str:
    """Return a text of another program, such as a group's name, with its control characters
    escaped. Control characters could move the cursor of a terminal, or begin a new line of a
    table."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def coloured(state: str) -> str:
    """Return a state of ``COLOURS`` with its colour, and any other text unchanged."""
    return click.style(state, fg=COLOURS[state]) if state in COLOURS else state


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(_cell(item) for item in value) or "-"
    return str(value)


def _table(rows: Sequence[Row], columns: Sequence[str] | None) -> None:
    if not rows:
        return
    names = list(columns or rows[0])
    lines = [[name.upper().replace("_", " ") for name in names]]
    lines += [[printable(_cell(row.get(name))) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    numeric = [all(isinstance(row.get(n), int | float | None) for row in rows) for n in names]
    for line in lines:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        if "state" in names:
            at = names.index("state")
            cells[at] = coloured(line[at]) + cells[at][len(line[at]) :]
        click.echo("  ".join(cells).rstrip())
