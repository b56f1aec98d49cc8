"""Download third-party clients with package managers; skip the tests if a download fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FETCH_SECONDS = 240


def fetched(command: list[str], folder: Path, what: str) -> None:
    """Run a package manager; skip the test if the command fails."""
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed, and {what} come by it")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not download {what} within {FETCH_SECONDS} s")
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip() or "it said nothing").splitlines()
        pytest.skip(f"{command[0]} did not download {what} (is there a network?): {said[0][:200]}")
