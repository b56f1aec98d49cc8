"""Check that each benchmark can be imported, and that the lists of benchmarks are complete."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


def runner() -> ModuleType:
    """Import benchmarks/all.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("benchmarks_all", FOLDER / "all.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RUNNER = runner()
SEEDED = {"chaos", "fuzz", "soak", "soak-transactions", "soak-groups"}
"""Names of the results that make chaos, make fuzz, make soak and make soak-groups write."""


@functools.cache
def peers_rows() -> Any:
    """Return the benchmarks of ``make bench``."""
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module("peers.rows").ROWS
    finally:
        sys.path.remove(str(FOLDER))


@pytest.mark.parametrize("name", RUNNER.BENCHMARKS)
def test_each_benchmark_can_be_imported_and_prints_its_help(name: str) -> None:
    done = RUNNER.start(name, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: {name}.py")


def test_every_result_file_is_tracked_and_described() -> None:
    """``make figures`` overwrites results, and git can restore only those in tracked
    files."""
    readme = (FOLDER / "README.md").read_text("utf-8")
    for name in RUNNER.BENCHMARKS:
        assert f"`{name}`" in readme, f"README.md does not describe {name}"
        result = f"benchmarks/results/{name}.json"
        ignored = subprocess.run(
            ["git", "check-ignore", "-q", "--no-index", result], cwd=FOLDER.parent, check=False
        )
        assert ignored.returncode != 0, f"{result} is ignored"
    kept = {path.stem for path in (FOLDER / "results").glob("*.json")}
    assert kept <= {*RUNNER.BENCHMARKS, *(row.name for row in peers_rows()), *SEEDED}


def test_unknown_benchmark_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-P", str(FOLDER / "all.py"), "no_such"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "there are broker, console, failover" in done.stderr


def test_every_benchmark_goal_names_an_existing_variant_of_the_benchmark() -> None:
    rows = peers_rows()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert not set(names) & {*RUNNER.BENCHMARKS, *SEEDED}
    assert [row.number for row in rows] == sorted(row.number for row in rows)
    for row in rows:
        variants = [variant.name for variant in row.variants]
        assert variants
        assert {goal.variant for goal in row.goals} <= {"", *variants}, row.name
