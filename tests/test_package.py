"""Test the installed package: its files, and that Spark finds the format from any folder."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import broker_lite
from broker_lite.cli import machine_checks

ROOT = Path(__file__).parent.parent


def elsewhere(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=folder
    )
    return done.stdout.strip()


def test_spark_finds_format_logbus_from_any_working_directory(tmp_path: Path) -> None:
    assert elsewhere(machine_checks._LOOKUP, tmp_path) == "seen"


def test_pyspark_logbus_can_be_imported_without_spark(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'pyspark':\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import pyspark_logbus\n"
        "print(hasattr(pyspark_logbus, 'DefaultSource'), 'asyncio' in sys.modules)\n"
    )
    assert elsewhere(code, tmp_path) == "False False"


def launched(bin_: Path, path: str) -> str:
    """Return the PYTHONPATH of a Python process that a copy of the launcher ``logbus-python``
    has started."""
    bin_.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "pyspark_logbus" / "logbus-python", bin_)
    python = bin_ / "python3"
    python.write_text('#!/bin/sh\necho "${PYTHONPATH-unset} $*"\n', "ascii")
    python.chmod(0o755)
    command = [str(bin_ / "logbus-python"), "-m", "pyspark.daemon", "two words"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    return done.stdout.strip().removesuffix(" -m pyspark.daemon two words")


def test_launcher_removes_sparks_zips_from_pythonpath_if_their_packages_are_installed(
    tmp_path: Path,
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    zips = f"{packages}/pyspark/python/lib/pyspark.zip:{packages}/pyspark/python/lib/py4j-1-src.zip"
    bin_ = tmp_path / "bin"
    assert launched(bin_, f"{zips}:/job") == f"{zips}:/job", "this Python has no py4j"
    (packages / "py4j").mkdir(parents=True)
    assert launched(bin_, f"{zips}:/job/my files:/more") == "/job/my files:/more"
    assert launched(bin_, f"/first:{zips}") == "/first"
    assert launched(bin_, zips) == "unset"
    assert launched(bin_, "") == "unset"
    foreign = "/opt/spark/python/lib/pyspark.zip:/opt/spark/python/lib/py4j-1-src.zip"
    assert launched(bin_, foreign) == foreign, "the zip's version may differ"
    assert launched(tmp_path / "elsewhere" / "bin", zips) == zips, "PYTHONPATH is of another Python"


def test_templates_are_installed() -> None:
    package = Path(str(broker_lite.__file__)).parent
    files: list[Path] = []
    for folder in ("console/templates", "console/static", "cli/templates"):
        files += [path for path in (ROOT / "broker_lite" / folder).iterdir() if path.is_file()]
    for path in files:
        assert (package / path.relative_to(ROOT / "broker_lite")).is_file(), path


def test_wheel_has_the_expected_metadata_and_files() -> None:
    try:
        found = importlib.metadata.distribution("pyspark-logbus")
    except importlib.metadata.PackageNotFoundError:
        if os.environ.get("LOGBUS_TEST_INSTALLED") == "1":
            raise
        pytest.skip("runs against an installed package only")
    assert found.version == broker_lite.__version__
    assert {(entry.group, entry.name, entry.value) for entry in found.entry_points} == {
        ("console_scripts", "logbus", "broker_lite.cli.main:main"),
        ("pytest11", "logbus", "pyspark_logbus.testing"),
    }
    assert set(found.metadata.get_all("Provides-Extra") or ()) == {
        "all",
        "bench",
        "broker",
        "check",
        "cli",
        "compat",
        "console",
        "docs",
        "notebooks",
        "oauth",
        "spark",
        "test",
    }
    tops = {Path(str(file)).parts[0] for file in found.files or ()}
    packages = {top for top in tops if not top.endswith(".dist-info") and top != ".."}
    assert packages == {"broker_lite", "pyspark_logbus"}


def test_make_installs_the_build_tools_into_a_handmade_virtual_environment(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    words = ["make", "-n", "wheel", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    tools, wheel = done.stdout.find("install -q"), done.stdout.find("pip wheel")
    assert -1 < tools < wheel and "-m venv" not in done.stdout
    assert "'setuptools>=68' wheel" in done.stdout
