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
    processes = {"broker": {"cpu_s": 1.25}, "clients": {"cpu_s": 4.25}}
    side = {"median": {"idle_percent": 0.12345, "reads": 2005.0}, "processes": processes}
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
    text = (
        '[0 MB](results/own.json "percent/1 - percent/0 * 2"), '
        '[0](results/growth-x.json "100 / defaults/1,000/reads"), '
        '[3 s](results/growth-x.json "defaults/1,000/cpu_s"), '
        '[2 %](results/growth-x.json "defaults/9/reads")'
    )
    assert cited.updated(text, tmp_path) == (
        '[2.5 MB](results/own.json "percent/1 - percent/0 * 2"), '
        '[0.05](results/growth-x.json "100 / defaults/1,000/reads"), '
        '[5.5 s](results/growth-x.json "defaults/1,000/cpu_s"), '
        '[2 %](results/growth-x.json "defaults/9/reads")'
    ), "what has no such size stays"
    with pytest.raises(KeyError):
        cited.updated('[1](results/own.json "cent")', tmp_path)
    with pytest.raises(ValueError, match="no number"):
        cited.updated('[some](results/own.json "percent/0")', tmp_path)


def test_what_the_growth_rows_conclude_follows_from_their_figures() -> None:
    def concluded(name: str, medians: Mapping[str, Mapping[str, float]]) -> str:
        row = next(row for row in peers("rows").ROWS if row.name == name)
        spent = {"clients": {"cpu_s": 9.0}}
        sides = {
            size: {"median": values, "processes": spent if at == 0 else {"clients": {"cpu_s": 1.0}}}
            for at, (size, values) in enumerate(medians.items())
        }
        said: str = row.concludes({"variants": [{"sides": sides}, {"cannot": "no room"}]})
        return said

    sizes = {"10 B": (9e5, 10.0), "100 B": (6e5, 60.0), "10 kB": (3e4, 300.0), "1 MB": (400, 400.0)}
    rates = {
        name: {"send_records_per_s": records, "send_mb_per_s": megabytes}
        for name, (records, megabytes) in sizes.items()
    }
    assert "900,000 records a second of 10 B and 600,000 of 100 B; from 10 kB on" in concluded(
        "growth-record-size", rates
    )
    batches = {"1": 100.0, "100": 150.0, "1,000": 600.0}
    assert "costs the broker 0.1 ms, each record more 0.5 us in small" in concluded(
        "growth-batch-size", {size: {"broker_us_a_batch": us} for size, us in batches.items()}
    )
    assert "9 s, has what the servers of the row before" in concluded(
        "growth-sessions", {"1": {}, "10": {}}
    )
    assert not concluded("growth-sessions", {"1": {}})
    assert not concluded("growth-sessions", {"3": {}, "10": {}}), "no such size"


def test_the_default_compression_stands_beside_what_it_rests_on() -> None:
    compression = peers("compression")

    def found(row: str, **seconds: float) -> dict[str, Any]:
        variants = [
            {"variant": name.replace("_", " "), "sides": {"logbus": {"median": {"run_s": value}}}}
            for name, value in seconds.items()
        ]
        return {"row": row, "variants": variants}

    rows = [found("spark-write", as_advised=2.0, lz4=3.0), found("spark-read", lz4=1.0)]
    _, line, *_ = compression.lines(rows)
    assert line == "With lz4, by logbus's medians: Spark writes in 1.50 times the time."
    assert not list(compression.lines(rows[1:]))
