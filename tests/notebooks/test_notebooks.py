"""Run every notebook from start to end; it must leave no process running."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sitegen.notebooks import Outputs, ipynb, page
from sitegen.running import checked_cells as cells
from sitegen.running import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parent.parent.parent / "notebooks"
CELLS_MAX = 25
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_its_page_has_every_output(path: Path, spark: SparkSession) -> None:
    before = {query.id for query in spark.streams.active}
    ran = run(path, spark)
    names = ran.names
    try:
        assert names["display"].results
        assert_rendered(path, ran.outputs)
        assert {query.id for query in spark.streams.active} == before
        assert not any(broker.is_running for broker in names["cluster"].brokers)
    finally:
        if names.get("cluster") is not None:
            names["cluster"].stop()


def assert_rendered(path: Path, outputs: Outputs) -> None:
    """Check that the ``.ipynb`` file has all outputs of the run, and the page all figures and
    code."""
    shown = page(path, outputs)
    book = json.loads(ipynb(path, outputs))
    kept = [output for cell in book["cells"] for output in cell.get("outputs", ())]
    assert len(kept) == sum(len(row) for row in outputs.values())
    figures = sum(output.kind == "image/png" for row in outputs.values() for output in row)
    assert shown.count("![Figure of cell ") == figures
    assert shown.count("```python") == sum(not cell.is_markdown for cell in cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_outside_databricks_defines_dbutils_spark_and_display(
    path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The test runs the first code cell, as ``python notebooks/01_quickstart.py`` does."""
    monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", "127.0.0.1:7")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    names: dict[str, Any] = {"__name__": "__main__"}
    first = next(cell for cell in cells(path) if not cell.is_markdown)
    exec(compile(first.source, str(path), "exec"), names)
    assert names["dbutils"].widgets.get("bootstrap_servers") == "127.0.0.1:7"
    assert names["spark"] is spark
    names["display"](spark.range(2))
    names["display"]([("t-0", 7, 0.0)])
    assert re.search(r"\| +id\|.*\| +1\|.*'t-0', 7", capsys.readouterr().out, re.DOTALL)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_short_and_begins_with_text(path: Path) -> None:
    found = cells(path)
    assert len(found) < CELLS_MAX
    assert found[0].is_markdown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print(1)\n", "does not begin with"),
        ("# Databricks notebook source\n# MAGIC %sql\n# MAGIC SELECT 1\n", "is not supported"),
    ],
)
def test_file_that_is_no_notebook_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        cells(path)


def test_error_of_a_cell_names_the_line_of_the_notebook(tmp_path: Path) -> None:
    path = tmp_path / "n.py"
    path.write_text("# Databricks notebook source\nx = 1\n\n# COMMAND ----------\n\n1 / 0\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(path, spark=None)
    assert caught.traceback[-1].lineno == 5
