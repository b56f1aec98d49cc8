"""Runs a notebook in Databricks' source format as a headless cluster would: cell by cell.

Python cells run in one namespace with shims of what Databricks provides; ``%md`` cells are checked
for their form only. Any other magic is an error: nothing is left out silently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIRST_LINE = "# Databricks notebook source"
SEPARATOR = "# COMMAND ----------"
MAGIC = "# MAGIC"
CELLS_MAX = 25


@dataclass
class Widgets:
    """``dbutils.widgets``: defaults, unless the runner was given a value."""

    values: dict[str, str]

    def text(self, name: str, default: str, label: str = "") -> None:
        self.values.setdefault(name, default)

    def get(self, name: str) -> str:
        return self.values[name]


@dataclass
class Dbutils:
    widgets: Widgets


@dataclass
class Shown:
    """``display``: computes what it is given, as the notebook's front end would."""

    results: list[Any] = field(default_factory=list)

    def __call__(self, value: Any) -> None:
        self.results.append(value.collect() if hasattr(value, "collect") else value)


@dataclass(frozen=True)
class Cell:
    number: int
    first_line: int
    source: str

    @property
    def is_markdown(self) -> bool:
        return self.source.lstrip().startswith(f"{MAGIC} %md")


def cells(path: Path) -> list[Cell]:
    """The notebook's cells. Raises ValueError for what Databricks would not read."""
    lines = path.read_text("utf-8").splitlines()
    if lines[0] != FIRST_LINE:
        raise ValueError(f"{path.name} does not begin with {FIRST_LINE!r}")
    found: list[Cell] = []
    start = 1
    for number in [*(i for i, line in enumerate(lines) if line == SEPARATOR), len(lines)]:
        found.append(Cell(len(found) + 1, start, "\n".join(lines[start:number])))
        start = number + 1
    for cell in found:
        magic = [line for line in cell.source.splitlines() if line.startswith(MAGIC)]
        if magic and not cell.is_markdown:
            raise ValueError(f"{path.name} cell {cell.number}: {magic[0]!r} is not run by anyone")
    return found


def run(path: Path, spark: Any, widgets: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the notebook; gives its namespace. An error names the notebook's own line."""
    names: dict[str, Any] = {
        "__name__": "__notebook__",
        "spark": spark,
        "dbutils": Dbutils(Widgets(dict(widgets or {}))),
        "display": Shown(),
    }
    for cell in cells(path):
        if not cell.is_markdown:
            padded = "\n" * cell.first_line + cell.source
            exec(compile(padded, str(path), "exec"), names)
    return names
