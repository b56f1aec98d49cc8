"""Run commands whose extra is not installed: one line names the package and its pip command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from support.hidden_packages import without

from broker_lite.cli.main import EXIT_UNREACHABLE, EXTRAS

NOWHERE = ("-b", "127.0.0.1:1")


def ran(
    folder: Path, packages: Collection[str], *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of logbus as if ``packages`` were not installed."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "broker_lite", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=60,
        env=os.environ | without(folder / "hidden", *packages) | more,
    )


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("rich", "cli", ("top", "--once", *NOWHERE)),
        ("starlette", "console", ("console", *NOWHERE)),
        ("uvicorn", "console", ("console", *NOWHERE)),
        ("jinja2", "console", ("console", *NOWHERE)),
        ("h11", "console", ("console", *NOWHERE)),
        ("prometheus_client", "console", ("console", "--no-pages", *NOWHERE)),
        ("cryptography", "broker", ("cert", "list")),
        ("kafka", "broker", ("broker", "--config", "broker.conf")),
        ("scramp", "broker", ("broker", "--config", "broker.conf")),
        ("pyspark", "all", ("demo",)),
    ],
)
def test_command_without_its_extra_names_the_pip_command_in_one_line(
    tmp_path: Path, package: str, extra: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "broker.conf").touch()
    done = ran(tmp_path, [package], *words)
    assert done.returncode == 1 and not done.stdout, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: [LOGBUS_MISSING_DEPENDENCY] ") and package in line
    assert line.endswith(f"pip install 'pyspark-logbus[{extra}]'")


@pytest.mark.parametrize("words", [("broker", "retire", "1"), ("topic", "list")])
def test_command_of_the_core_runs_without_any_extra(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = ran(tmp_path, EXTRAS, *words, *NOWHERE)
    assert done.returncode == EXIT_UNREACHABLE and "LOGBUS_NO_BROKERS" in done.stderr, done


def test_shell_completion_of_a_command_without_its_extra_prints_no_error(tmp_path: Path) -> None:
    typed = {"_LOGBUS_COMPLETE": "bash_complete", "COMP_WORDS": "logbus top --o", "COMP_CWORD": "2"}
    done = ran(tmp_path, ["rich"], **typed)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", ""), done
