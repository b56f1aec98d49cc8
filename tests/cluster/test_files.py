"""Check that the page about files names every file that logbus leaves on a machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sitegen import site

Shell = Callable[..., str]
PAGE = site.PAGES / "operations" / "files.md"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create a home folder with a folder for temporary files and a working folder."""
    for name in ("home", "tmp", "work"):
        (tmp_path / name).mkdir()
    return tmp_path / "home"


@pytest.fixture
def logbus(home: Path) -> Iterator[Shell]:
    """Yield a function that runs a command as a user with this home folder."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XDG_", "LOGBUS_", "COMP_"))
    }
    environment |= {"HOME": str(home), "TMPDIR": str(home.parent / "tmp")}

    def run(*words: str, given: str = "", **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", *words],
            env=environment | variables,
            input=given,
            capture_output=True,
            text=True,
            cwd=home.parent / "work",
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    run("down")


@pytest.mark.real
def test_documentation_page_lists_every_file_that_commands_write(logbus: Shell, home: Path) -> None:
    logbus("up", "-d", "--port", "0", "--ephemeral")
    logbus("down")
    logbus("up", "-d", "--port", "0", "--secure")
    logbus("topic", "create", "t")
    logbus("produce", "t", given="x\n")
    assert logbus("consume", "t", "-e", "-g", "readers") == "x\n"
    logbus("context", "create", "prod", "-b", "127.0.0.1:9092")
    completion = {"COMP_WORDS": "logbus topic describe ", "COMP_CWORD": "3"}
    logbus(_LOGBUS_COMPLETE="bash_complete", **completion)
    logbus("status")
    page = PAGE.read_text("utf-8")
    outside, _, inside = page.partition("## Inside a cluster's folder")
    places = [home / name for name in re.findall(r"`~/([^`]+)`", outside)]
    written = [path for path in home.parent.rglob("*") if not path.is_dir()]
    left = [
        path for path in written
        if not any(path == place or place in path.parents for place in places)
    ]  # fmt: skip
    assert left == []
    assert home / ".config/logbus/contexts.toml" in written
    cluster = home / ".local/share/logbus/cluster"
    named = re.findall(r"^\| `([\w.-]+)/?`", inside, re.MULTILINE)
    found = {re.sub(r"-\d+$", "-N", path.name) for path in cluster.iterdir()}
    assert found == set(named)
