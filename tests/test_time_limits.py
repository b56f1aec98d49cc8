"""Check that a hanging test fails, and that a fixture that hangs after the test fails too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import time_limits

CODE = """
import threading
import pytest

@pytest.fixture
def hangs_in_teardown():
    yield
    threading.Event().wait()

def test_failed_before_its_teardown_hangs(hangs_in_teardown):
    assert False

def test_hangs_in_its_clean_up():
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()

def test_passes():
    pass
"""


@pytest.mark.real
def test_hanging_test_and_hanging_clean_up_of_a_fixture_end_at_the_time_limit(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_hanging.py").write_text(CODE)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 1\n")
    folder = str(Path(time_limits.__file__).parent.parent)
    command = [sys.executable, "-m", "pytest", "-p", "support.time_limits", "-q"]
    ran = subprocess.run(
        [*command, "-p", "no:logbus", "-p", "no:cacheprovider", "-o", f"pythonpath={folder}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "2 failed, 1 passed, 1 error" in ran.stdout
