"""Check the wheel: equal bytes from two checkouts, bill of materials, size and content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import broker_lite

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
SOURCES = ("broker_lite", "pyspark_logbus", "conf", "distribution", "setup.cfg", "pyproject.toml",
           "README.md", "LICENSE")  # fmt: skip
WHEEL_BYTES_MAX = 13 << 17
"""1.625 MiB."""


def built(folder: Path, *, umask: int, mtime: int) -> Path:
    """Build the wheel from a copy of the sources with this modification time and umask."""
    checkout = folder / "checkout"
    checkout.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, checkout / name)
    for path in checkout.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~umask)
            os.utime(path, (mtime, mtime))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "--disable-pip-version-check", "-w", str(folder), "."],
        cwd=checkout,
        check=True,
        umask=umask,
        env={**os.environ, "PYTHONHASHSEED": str(mtime % 1000)},
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    # Only look for setuptools: its import fails in a process that has the standard library's
    # distutils.
    for module in ("pip", "setuptools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    return [
        built(tmp_path_factory.mktemp("one"), umask=0o022, mtime=1_700_000_000),
        built(tmp_path_factory.mktemp("two"), umask=0o077, mtime=1_760_000_123),
    ]


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_two_builds_of_the_wheel_from_one_commit_are_equal(wheels: list[Path]) -> None:
    one, two = (contents(wheel) for wheel in wheels)
    assert {name for name in one | two if one.get(name) != two.get(name)} == set()
    first, second = (hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels)
    assert first == second
    assert wheels[0].stat().st_size <= WHEEL_BYTES_MAX


def test_make_builds_the_wheel_again_after_a_change_of_any_file_in_it(
    wheels: list[Path],
) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    database = subprocess.run(
        ["make", "-p", "-n", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    (sources,) = (
        line.split()[2:] for line in database.splitlines() if line.startswith("SOURCES := ")
    )
    packaged = {name for name in contents(wheels[0]) if (ROOT / name).is_file()}
    assert {"broker_lite/conf/broker.conf", "broker_lite/console/static/console.js"} < packaged
    assert packaged - set(sources) == set()


def test_bill_of_materials_in_the_wheel_names_its_dependencies(wheels: list[Path]) -> None:
    files = contents(wheels[0])
    (name,) = (each for each in files if each.endswith(".cdx.json"))
    assert "dist-info/sboms/" in name
    document: dict[str, Any] = json.loads(files[name])
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    own = document["metadata"]["component"]
    assert own["purl"] == f"pkg:pypi/pyspark-logbus@{broker_lite.__version__}"
    assert own["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    scopes = {part["name"]: part["scope"] for part in document["components"]}
    always = {name for name, scope in scopes.items() if scope == "required"}
    assert always == {"click", "crcmod", "google-crc32c", "kazoo", "numpy", "pyarrow"}
    assert {"pyspark", "uvloop", "prometheus-client", "pytest"} <= set(scopes)
    (edges,) = document["dependencies"]
    assert edges["dependsOn"] == [part["bom-ref"] for part in document["components"]]


def test_wheel_holds_the_settings_files_and_the_templates(wheels: list[Path]) -> None:
    names = set(contents(wheels[0]))
    assert {f"broker_lite/conf/{path.name}" for path in (ROOT / "conf").iterdir()} <= names
    templates = {path.name for path in (ROOT / "broker_lite/cli/templates").iterdir()}
    assert {f"broker_lite/cli/templates/{name}" for name in templates} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
