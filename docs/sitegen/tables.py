"""Markdown tables and code spans of generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: object) -> str:
    """Return text as the content of a table cell: one line, with its bars escaped."""
    return " ".join(str(text).split()).replace("|", "\\|")


def code(text: object) -> str:
    """Return text as a code span of a table cell, or nothing for empty text."""
    return f"`{cell(text)}`" if str(text) else ""


def prose(text: str) -> str:
    """Return the text of a docstring as Markdown: double backticks become single ones."""
    return text.replace("``", "`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; every cell is Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"
