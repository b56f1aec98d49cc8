"""Run notebooks cell by cell, as a headless Databricks cluster would, and keep their outputs.

Python cells run in one namespace with substitutes for what Databricks provides. Any magic command
but ``%md`` is an error, so that no cell is left out silently.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sitegen.notebooks import MAGIC, Cell, Output, cells
from sitegen.tables import cell as table_cell
from sitegen.tables import table

FIRST_LINE = "# Databricks notebook source"
ROWS_SHOWN = 12
"""Maximum rows of a table on a page. A reader wants the shape, not the data."""


@dataclass
class Widgets:
    """``dbutils.widgets``. A widget has the caller's value, else the notebook's default."""

    values: dict[str, str]

    def text(self, name: str, default: str, label: str = "") -> None:
        self.values.setdefault(name, default)

    def get(self, name: str) -> str:
        return self.values[name]


@dataclass
class Dbutils:
    widgets: Widgets


@dataclass
class Display:
    """``display``: stores an output for each call. A DataFrame is collected, as a front end would
    do."""

    results: list[Any] = field(default_factory=list)
    shown: list[Output] = field(default_factory=list)

    def __call__(self, value: Any) -> None:
        if hasattr(value, "savefig"):
            self.results.append(value)
            self.shown.append(Output("image/png", _png(value)))
            return
        head: tuple[str, ...] = ()
        if hasattr(value, "collect"):
            head, value = tuple(value.columns), value.collect()
        self.results.append(value)
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            self.shown.append(Output("text/markdown", _table(head, value)))
        else:
            self.shown.append(Output("text/plain", str(value)))


def _png(figure: Any) -> str:
    stored = io.BytesIO()
    figure.savefig(stored, format="png", dpi=130, bbox_inches="tight")
    return base64.b64encode(stored.getvalue()).decode("ascii")


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    names = head or tuple("&nbsp;" for _ in rows[0])
    shown = table(names, ([table_cell(value) for value in row] for row in rows[:ROWS_SHOWN]))
    more = len(rows) - ROWS_SHOWN
    return shown + (f"\n*… and {more:,} more rows*\n" if more > 0 else "")


@dataclass
class Run:
    """A notebook that ran: its namespace, and the outputs of each cell by number."""

    names: dict[str, Any]
    outputs: dict[int, list[Output]] = field(default_factory=dict)


def checked_cells(path: Path) -> list[Cell]:
    """Return a notebook's cells. Raises ValueError for text that Databricks would not run."""
    if not path.read_text("utf-8").startswith(f"{FIRST_LINE}\n"):
        raise ValueError(f"{path.name} does not begin with {FIRST_LINE!r}")
    found = cells(path)
    for each in found:
        magic = [line for line in each.source.splitlines() if line.startswith(MAGIC)]
        if magic and not each.is_markdown:
            raise ValueError(
                f"{path.name} cell {each.number}: the magic {magic[0]!r} is not supported"
            )
    return found


def run(path: Path, spark: Any, widgets: dict[str, str] | None = None) -> Run:
    """Run a notebook. An error names the notebook's own line."""
    display = Display()
    ran = Run(
        {
            "__name__": "__notebook__",
            "spark": spark,
            "dbutils": Dbutils(Widgets(dict(widgets or {}))),
            "display": display,
        }
    )
    for each in checked_cells(path):
        if each.is_markdown:
            continue
        code = compile("\n" * each.first_line + each.source, str(path), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, ran.names)
        text = [Output("text/plain", printed.getvalue())] if printed.getvalue() else []
        if text or display.shown:
            ran.outputs[each.number] = [*text, *display.shown]
        display.shown.clear()
    return ran


def run_all(notebooks: list[Path]) -> Iterator[tuple[Path, Run]]:
    """Run notebooks one after another in one Spark session of this machine."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import pyspark_logbus as logbus

    here = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").config(map=logbus.spark_conf() | here)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        for path in notebooks:
            print(f"running {path.name}", file=sys.stderr)
            yield path, run(path, spark)
    finally:
        spark.stop()
