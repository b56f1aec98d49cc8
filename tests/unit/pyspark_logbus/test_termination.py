"""Tests of SIGTERM, by which Spark stops the Python process that runs a source."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, time
from pyspark_logbus.termination import stop_on_terminate, termination_waits
stop_on_terminate()
try:
    {first}
finally:
    with termination_waits():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        print("gave the lease back", flush=True)
"""


def ended(first: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_source_process_that_receives_sigterm_runs_its_cleanup() -> None:
    assert ended("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)") == (
        0,
        "gave the lease back\n",
    )


def test_sigterm_does_not_interrupt_the_cleanup_of_a_source_process() -> None:
    assert ended("pass") == (0, "gave the lease back\n")
