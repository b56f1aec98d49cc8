"""Tests that Spark's Python workers, and no other process, keep freed memory for later rows."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = """
import resource, sys
from importlib.machinery import ModuleSpec
from pyspark_logbus.worker_memory import keep_for_next_rows

def rows():
    held = [b"%d" % n * (3 << 20) for n in range(10)]

def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
keep_for_next_rows()
rows()
before = pages()
for _ in range(10):
    rows()
print(pages() - before)
"""


def pages_of_ten_rounds(name: str) -> int:
    """Run a process with the main module ``name`` that allocates and frees 30 MB of rows eleven
    times.

    Return the number of page faults in the last ten rounds.
    """
    program = [sys.executable, "-c", ROUNDS.format(name=name)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_worker_reuses_memory_of_freed_rows() -> None:
    assert pages_of_ten_rounds("pyspark.daemon") < 10 * 30 * 256 // 20


def test_malloc_settings_change_only_in_spark_workers() -> None:
    """In any other process, freed memory returns to the system, so its next use causes page
    faults."""
    assert pages_of_ten_rounds("some.program") > 10 * 30 * 256 // 2
