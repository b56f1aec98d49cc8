"""The installed wheel: found by name from another folder, and through Spark Connect.

One Spark for both, in a process of its own: a session of the other kind cannot live beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from spark_processes import QUICK_JVM

import broker_lite

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys, time
import pyspark_logbus as logbus
from pyspark.sql import SparkSession
target, servers, source, sink, checkpoint = sys.argv[1:]
assert logbus.__file__.startswith(target), logbus.__file__
spark = (SparkSession.builder.remote("local[2]").config(map=logbus.spark_conf())
         .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1")
         .getOrCreate())
# No register: Spark finds the format by the package's name.
def read(reader, topic):
    return (reader.format("logbus").option("bootstrap.servers", servers)
            .option("subscribe", topic).option("startingOffsets", "earliest").load())

assert read(spark.read, source).count() == 5
(spark.range(5).selectExpr("concat('batch-', id) value").write.format("logbus").mode("append")
 .option("bootstrap.servers", servers).option("topic", source).save())
query = (read(spark.readStream, source).select("value").writeStream.format("logbus")
         .option("bootstrap.servers", servers).option("topic", sink)
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination(60)
assert query.exception() is None, query.exception()
rows = sorted(bytes(row.value).decode() for row in read(spark.read, sink).collect())
assert rows == sorted([str(n) for n in range(5)] + [f"batch-{n}" for n in range(5)]), rows
try:
    read(spark.read, "nowhere").count()
except Exception as error:
    assert "[LOGBUS_UNKNOWN_TOPIC_OR_PARTITION]" in str(error), error
else:
    raise AssertionError("a missing topic")
spark.stop()
print("connected")
"""


def build_wheel(folder: Path) -> Path:
    """The checkout as a wheel, built from a copy so that nothing is left beside the sources."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "setup.py"):
        if (ROOT / name).is_file():
            (source / name).write_bytes((ROOT / name).read_bytes())
    for package in ("broker_lite", "pyspark_logbus"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                target = source / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "-w", str(folder / "dist"), "."],
        check=True, cwd=source, timeout=100, capture_output=True,
    )  # fmt: skip
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def installed(folder: Path) -> Path:
    """Where the wheel is: in this Python if make has put it there, else one that is built now."""
    if os.environ.get("LOGBUS_TEST_INSTALLED") == "1":
        return Path(str(broker_lite.__file__)).parents[1]
    with zipfile.ZipFile(build_wheel(folder)) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.timeout(180)
def test_the_wheel_is_found_by_name_and_works_on_spark_connect(bus, tmp_path, queries):
    pytest.importorskip("grpc", reason="Spark Connect is not installed (pyspark[connect])")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = installed(tmp_path)
    source, sink = queries.topic(5), queries.topic(0)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "PYTHONPATH": str(target),
        "PYSPARK_PYTHON": sys.executable,
        **QUICK_JVM,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(target), bus.bootstrap_servers, source, sink,
         queries.checkpoint()],
        cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.stdout.strip().endswith("connected"), done.stdout + done.stderr
