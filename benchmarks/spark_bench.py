"""What the Spark benchmarks share: a session with logbus's settings, a filled topic, medians."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import pyspark_logbus as logbus


def session(name: str, **settings: str) -> Any:
    """A local session on two cores whose workers can import the floor."""
    here = str(Path(__file__).parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (here, os.environ.get("PYTHONPATH", "")) if part
    )
    from pyspark.sql import SparkSession
    from spark_floor import Floor

    conf = {
        **logbus.spark_conf(),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        **settings,
    }
    spark = SparkSession.builder.master("local[2]").appName(name).config(map=conf).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Floor)
    return spark


def fill(bus: Any, topic: str, rows: int, value_bytes: int, partitions: int) -> None:
    """Rows without keys, spread evenly."""
    from broker_lite.record.arrow import Columns

    step = 10_000
    values = pa.array([b"%0*d" % (value_bytes, n) for n in range(step)], pa.binary())
    with bus.producer() as producer:
        for number in range(rows // step):
            producer.send_columns(topic, Columns(step, None, values, None, None, None),
                                  number % partitions)  # fmt: skip


def timed(action: Callable[[], Any]) -> float:
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


def report(name: str, result: dict[str, Any], output: str | None) -> None:
    """Print the result as JSON, and keep it if asked to."""
    document = {
        "benchmark": name,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        **result,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if output:
        Path(output).write_text(text + "\n")


def folder() -> str:
    return tempfile.mkdtemp(prefix="logbus-bench-")
