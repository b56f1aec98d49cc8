"""The results that are kept: what the report says of them, and the page that cites them.

Nothing is measured here.
"""

from __future__ import annotations

import importlib
import json
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
"""Of each number of the table: in which settings at least one of its rows runs."""


@pytest.fixture(autouse=True)
def found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def peers(name: str) -> Any:
    return importlib.import_module(f"peers.{name}")


def test_each_row_of_the_table_runs_on_defaults_and_as_its_users_set_it() -> None:
    variants: dict[int, set[str]] = {}
    for row in peers("rows").ROWS:
        variants.setdefault(row.number, set()).update(each.name for each in row.variants)
    assert variants.keys() == TABLE.keys()
    for number, names in TABLE.items():
        assert names <= variants[number], number


def test_no_goal_is_missed_without_what_bounds_it_beside_it() -> None:
    report, missed, cited = peers("report"), peers("missed"), peers("cited")
    rows = {row.name: row for row in peers("rows").ROWS}
    text = (FOLDER / "RESULTS.md").read_text("utf-8")
    lines = text.splitlines()
    assert missed.NO_BOUND not in text.lower()
    for found in report.results(FOLDER / "results"):
        row = rows[found["row"]]
        for variant in found["variants"]:
            assert variant["variant"] in {each.name for each in row.variants}, row.name
            for each in variant.get("compared", ()):
                if each["met"] is False:
                    assert row.bound, f"{row.name}: {each['measure']} is missed for no reason"
                    at = next(
                        number
                        for number, line in enumerate(lines)
                        if line.startswith(f"  - [{row.name}](#")
                    )
                    above = next(line for line in lines[at::-1] if line.startswith("- "))
                    bound = cited.updated(row.bound[1:], FOLDER)
                    assert bound in above, f"{row.name}: write the report again"


def test_the_pages_that_cite_results_say_what_they_say() -> None:
    """``python -m peers --report`` writes the numbers that a new record moved."""
    cited = peers("cited")
    for name, least in ((peers("report").CITING[0], 10), ("README.md", 5), ("RESULTS.md", 5)):
        text = (FOLDER / name).read_text("utf-8")
        assert text.count('.json "') > least, name
        assert cited.updated(text, FOLDER) == text, name


def test_the_second_page_says_where_cost_bends_and_what_an_acknowledgement_means() -> None:
    overview = peers("overview")
    sides = {
        size: {"median": {"restart_s": restart, "seek_ms": 10.0, "kb": kb}}
        for size, restart, kb in (("1", 0.5, 0.0), ("10", 0.9, 1.0), ("100", 7.0, 1.2))
    }
    grown = {"row": "growth-x", "variants": [{"variant": "defaults", "sides": sides}]}
    assert list(overview.lines([grown]))[-2] == (
        "| [growth-x](#growth-x) | 1 to 100 | seek_ms, kb | restart_s × 14 (from 100) |"
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


def test_a_cited_figure_is_that_of_its_file(tmp_path: Path) -> None:
    cited = peers("cited")
    (tmp_path / "results").mkdir()
    side = {"median": {"idle_percent": 0.12345, "reads": 2005.0}}
    row = {"variants": [{"variant": "defaults", "sides": {"1,000": side}}]}
    (tmp_path / "results" / "growth-x.json").write_text(json.dumps(row), "utf-8")
    (tmp_path / "results" / "own.json").write_text('{"percent": [14.0, 15.26]}', "utf-8")
    text = (
        '[9 %](results/growth-x.json "defaults/1,000/idle_percent") of '
        '[1 reads](results/growth-x.json "defaults/1,000/reads"), '
        '[some 4 %](results/own.json "percent/1"), [7 s](results/gone.json "x")'
    )
    assert cited.updated(text, tmp_path) == (
        '[0.12 %](results/growth-x.json "defaults/1,000/idle_percent") of '
        '[2,000 reads](results/growth-x.json "defaults/1,000/reads"), '
        '[some 15 %](results/own.json "percent/1"), [7 s](results/gone.json "x")'
    )
    with pytest.raises(KeyError):
        cited.updated('[1](results/own.json "cent")', tmp_path)
    with pytest.raises(ValueError, match="no number"):
        cited.updated('[some](results/own.json "percent/0")', tmp_path)
