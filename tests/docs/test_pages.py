"""Every block of the user pages runs, in order, on a cluster of the page.

A page that begins with ``<!-- after OTHER -->`` continues with the processes and files of another
page, so both run in one test.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sitegen import blocks, site

from broker_lite.local.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK_S = 60
"""Longest time of one shell block."""
OWN_TESTS = {"how-to/test-with-pytest.md": "tests/spark/test_testing_fixtures.py"}
"""Pages whose blocks another test runs."""


_AFTER = re.compile(r"<!-- after (\S+) -->")


def chains() -> list[tuple[str, ...]]:
    """Return the pages that have a block to run, those that continue another one behind it."""
    names = [path.relative_to(site.PAGES).as_posix() for path in sorted(site.PAGES.rglob("*.md"))]
    names = [name for name in names if name not in OWN_TESTS and any(to_run(name))]
    before = {name: found[1] for name in names if (found := _AFTER.match(text_of(name)))}
    after = {first: name for name, first in before.items()}
    return [tuple(_chain(name, after)) for name in names if name not in before]


def _chain(name: str | None, after: Mapping[str, str]) -> Iterator[str]:
    while name is not None:
        yield name
        name = after.get(name)


def text_of(name: str) -> str:
    return (site.PAGES / name).read_text("utf-8")


def to_run(name: str) -> list[blocks.Block]:
    """Return the blocks of a page that run."""
    found = blocks.blocks(text_of(name))
    return [each for each in found if each.language in ("python", "sh") and not each.reason]


@pytest.fixture
def groups() -> Iterator[list[int]]:
    """The process groups of the shell blocks. What they left running ends with the test."""
    started: list[int] = []
    yield started
    for group in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


@pytest.fixture
def reader(
    pages: tuple[str, ...], groups: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The folder and the environment of a reader. Pages that start no cluster get one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ".data"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    sources = "".join(block.source for name in pages for block in to_run(name))
    if re.search(r"logbus (up|broker --config|generate)", sources):
        try:
            yield
        finally:
            subprocess.run(["logbus", "down"], check=False, capture_output=True)
            for path in tmp_path.rglob("cluster.json"):
                down = ["logbus", "down", "--dir", str(path.parent)]
                subprocess.run(down, check=False, capture_output=True)
        return
    with LocalCluster(brokers=1) as cluster:
        monkeypatch.setenv("LOGBUS_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)
        yield


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pages", chains(), ids=lambda pages: pages[0])
@pytest.mark.usefixtures("reader")
def test_blocks_of_the_page_run(
    pages: tuple[str, ...], groups: list[int], request: pytest.FixtureRequest
) -> None:
    found = [(name, block) for name in pages for block in to_run(name)]
    spark: SparkSession | None = None
    if any("SparkSession" in block.source for _, block in found):
        spark = request.getfixturevalue("spark")
    names: dict[str, Any] = {"__name__": "__page__"}
    try:
        for name, block in found:
            place = f"docs/pages/{name}:{block.line}"
            if block.language == "sh":
                run_shell(place, block.source, groups)
            else:
                run_python(place, "\n" * block.line + block.source, names)
    finally:
        for query in spark.streams.active if spark is not None else ():
            query.stop()


def run_shell(place: str, source: str, groups: list[int]) -> None:
    """Run a shell block in a process group of its own. Its output goes to a file, because processes
    in the background keep a pipe open."""
    with tempfile.TemporaryFile() as output:
        shell = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", source],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        groups.append(shell.pid)
        code = shell.wait(BLOCK_S)
        output.seek(0)
        assert code == 0, f"{place}\n{source}\n{output.read().decode()[-3000:]}"


def run_python(place: str, source: str, names: dict[str, Any]) -> None:
    """Run a Python block in the page's namespace. A failure names the page and the line."""
    try:
        exec(compile(source, place, "exec"), names)
    except Exception:
        pytest.fail(f"{place}\n{traceback.format_exc()[-3000:]}", pytrace=False)
