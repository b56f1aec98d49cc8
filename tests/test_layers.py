"""Check the import contracts in setup.cfg with import-linter."""

from __future__ import annotations

import ast
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


def test_no_api_handler_imports_the_handler_of_another_api() -> None:
    folder = ROOT / "broker_lite" / "server" / "handlers"
    trees = {path.stem: ast.parse(path.read_text()) for path in folder.glob("*.py")}
    handlers = {
        name
        for name, tree in trees.items()
        if any(isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and node.name == "handle"
               for node in tree.body)
    }  # fmt: skip
    assert len(handlers) > 50
    imports = {
        (name, target)
        for name in handlers
        for node in ast.walk(trees[name])
        if isinstance(node, ast.ImportFrom) and node.module
        for target in (node.module.rpartition(".")[2], *(alias.name for alias in node.names))
        if node.module.startswith("broker_lite.server.handlers") and target in handlers
    }
    assert not imports
