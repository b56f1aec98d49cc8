"""Tests that PySpark's daemon and its workers exclude imported modules from garbage collection."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLS = """
import gc, sys
from importlib.machinery import ModuleSpec
from pyspark_logbus.worker_process import modules_are_no_garbage
sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
counts = []
modules_are_no_garbage()
counts.append(gc.get_freeze_count())
kept = [[] for _ in range(1000)]
modules_are_no_garbage()
counts.append(gc.get_freeze_count())
import decimal, fractions
modules_are_no_garbage()
counts.append(gc.get_freeze_count())
print(*counts)
"""


def counts(name: str) -> list[int]:
    """Run a process with the main module ``name``; return its counts of frozen objects
    (``gc.get_freeze_count()``).

    The counts are taken after the first call of ``modules_are_no_garbage``, after a call without
    new imports, and after a call with new imports.
    """
    program = [sys.executable, "-c", CALLS.format(name=name)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    return [int(word) for word in done.stdout.split()]


def test_objects_are_excluded_from_garbage_collection_only_after_new_imports() -> None:
    first, second, third = counts("pyspark.daemon")
    assert first > 0
    assert abs(second - first) < 500, "objects were frozen though no module was imported"
    assert third > first + 1000


@pytest.mark.parametrize("name", ["notebook", "pyspark.worker"])
def test_processes_not_forked_by_the_pyspark_daemon_keep_full_garbage_collection(name: str) -> None:
    assert counts(name) == [0, 0, 0]
