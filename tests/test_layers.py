"""Check the import contracts in setup.cfg with import-linter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_imports_follow_the_contracts_in_setup_cfg() -> None:
    linter = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if linter is None:
        missing = "import-linter comes with the extra [check]"
        # In an environment that make has created, import-linter must be installed.
        if os.environ.get("LOGBUS_TEST_INSTALLED") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    run = subprocess.run(
        [linter, "--config", "setup.cfg", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
