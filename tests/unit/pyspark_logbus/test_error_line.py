"""Tests that Spark's Python processes report a logbus error as one line without traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import io, sys
from importlib.machinery import ModuleSpec
from pyspark.util import handle_worker_exception
from pyspark_logbus.batch_reader import LogbusReader
from pyspark_logbus.datasource import DefaultSource
from pyspark_logbus.options import parse, read_options
from pyspark_logbus.read_task import ReadPlan, ReadTask
from pyspark_logbus.schema import source_schema

sys.modules["__main__"].__spec__ = {spec}
options = read_options(parse({{"subscribe": "t"}}), "h:1", streaming=False)
plan = ReadPlan(options, source_schema(False), False)
try:
    {call}
except BaseException as error:
    sent = io.BytesIO()
    handle_worker_exception(error, sent)
    print(sent.getvalue()[8:].decode(), end="")
"""
DAEMON = "pyspark.daemon"
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
REFUSED = 'DefaultSource({"subscribe": "t", "zzz": "1"})'
READ_FAILS = """
    import pyspark_logbus.partition_reader as module
    from broker_lite.errors import DataLossError
    def read_ranges(ranges, plan):
        yield 1
        raise DataLossError("gone")
    module.read_ranges = read_ranges
    list(LogbusReader(None, plan).read(ReadTask(())))
"""


def sent(call: str, main: str | None) -> list[str]:
    """Return the lines that a Python process of Spark sends to the JVM after ``call`` failed.

    ``main`` is the name of the process's main module.
    """
    spec = "None" if main is None else f"ModuleSpec({main!r}, None)"
    program = [sys.executable, "-c", PROGRAM.format(call=call.strip(), spec=spec)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("call", "main", "line"),
    [
        (REFUSED, RUNNER, "InvalidConfigError: [LOGBUS_INVALID_CONFIG] unknown option 'zzz'"),
        (READ_FAILS, DAEMON, "DataLossError: [LOGBUS_DATA_LOSS] gone"),
    ],
)
def test_logbus_error_is_one_line_in_worker_output(call: str, main: str, line: str) -> None:
    assert sent(call, main) == [f"broker_lite.errors.{line}"]


def test_unexpected_error_keeps_its_traceback() -> None:
    lines = sent("DefaultSource(3)", DAEMON)
    assert lines[0].startswith("Traceback")
    assert len(lines) > 3


def test_error_keeps_its_traceback_outside_spark_workers() -> None:
    assert sent(REFUSED, None)[0].startswith("Traceback")
