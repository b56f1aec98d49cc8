"""Check statements of the benchmark report, and of the page that cites it, against stored results.

These tests run no benchmarks.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
TABLE: Mapping[int, set[str]] = {
    1: {"as advised", "lz4"},
    2: {"as advised", "lz4"},
    3: {"as advised"},
    4: {"as advised", "lz4", "tuned"},
    5: {"as advised", "lz4"},
    6: {"defaults", "tuned"},
    7: {"defaults", "tuned", "tuned, lz4"},
    8: {"defaults", "lz4", "tuned"},
    9: {"defaults", "tuned"},
    10: {"defaults", "tuned", "lz4"},
    11: {"defaults", "tuned", "lz4"},
    12: {"defaults", "fetched", "lz4", "tuned", "tuned, fetched"},
    13: {"defaults", "tuned"},
    14: {"defaults", "tuned", "tuned, lz4", "tuned, small heap"},
    15: {"first start", "started again", "started again, tuned"},
    16: {"none", "lz4", "zstd"},
    17: {"single messages", "batches of 50"},
    18: {"defaults"},
}
"""For each number of the report's table, settings with which one of its rows must run."""


@pytest.fixture(autouse=True)
def found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def peers(name: str) -> Any:
    return importlib.import_module(f"peers.{name}")


def test_each_row_of_the_benchmark_table_has_its_required_variants() -> None:
    variants: dict[int, set[str]] = {}
    for row in peers("rows").ROWS:
        variants.setdefault(row.number, set()).update(each.name for each in row.variants)
    assert variants.keys() == TABLE.keys()
    for number, names in TABLE.items():
        assert names <= variants[number], number


def test_benchmark_report_explains_what_limits_each_missed_goal() -> None:
    report, missed = peers("report"), peers("missed")
    rows = {row.name: row for row in peers("rows").ROWS}
    text = (FOLDER / "RESULTS.md").read_text("utf-8")
    for found in report.results(FOLDER / "results"):
        row = rows[found["row"]]
        for variant in found["variants"]:
            assert variant["variant"] in {each.name for each in row.variants}, row.name
            if any(each["met"] is False for each in variant.get("compared", ())):
                assert row.bound and row.bound[1:] in text, f"{row.name}: write the report again"
    assert f"- {missed.NO_BOUND}" not in text.lower()


def test_benchmark_summary_in_the_repository_is_short_and_agrees_with_the_results(
    tmp_path: Path,
) -> None:
    """``python -m peers --report`` writes the summary from the results."""
    shutil.copytree(FOLDER / "results", tmp_path / "results")
    peers("report").write(tmp_path / "results", quick=False)
    text = (tmp_path / "RESULTS.md").read_text("utf-8")
    assert text == (FOLDER / "RESULTS.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150


def test_benchmark_report_says_which_costs_grow_with_the_size_of_the_benchmark() -> None:
    overview = peers("overview")
    sides = {
        size: {"median": {"restart_s": restart, "seek_ms": 10.0, "kb": kb}}
        for size, restart, kb in (("1", 0.5, 0.0), ("10", 0.9, 1.0), ("100", 7.0, 1.2))
    }
    grown = {"row": "growth-x", "variants": [{"variant": "defaults", "sides": sides}]}
    assert list(overview.lines([grown]))[-2] == (
        "| growth-x | 1 to 100 | seek_ms, kb | restart_s × 14 (from 100) |"
    )
    rates = {"median": {"produced_per_s": 1234.0, "consumed_per_s": 5.0}}
    paper = {
        "row": "netdb11",
        "variants": [
            {"variant": "batches of 50", "sides": {"logbus": rates}, "absent": {"rabbitmq": "no"}}
        ],
    }
    text = "\n".join(overview.lines([paper]))
    assert "| logbus | acks=all: flushed to disk before each acknowledgement | 1,234 | 5 |" in text
    assert "| missing | missing |" in text
    assert not list(overview.lines([]))


def test_benchmark_report_compares_lz4_with_the_default_without_compression() -> None:
    compression = peers("compression")

    def found(row: str, **seconds: float) -> dict[str, Any]:
        variants = [
            {"variant": name.replace("_", " "), "sides": {"logbus": {"median": {"run_s": value}}}}
            for name, value in seconds.items()
        ]
        return {"row": row, "variants": variants}

    rows = [found("spark-write", as_advised=2.0, lz4=3.0), found("spark-read", lz4=1.0)]
    _, line, *_ = compression.lines(rows)
    assert line == "Results with lz4 divided by those without: time of Spark's write 1.50."
    assert not list(compression.lines(rows[1:]))
