"""Run the code blocks of README.md unchanged, and compare their output with the README."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.patience import until

from broker_lite.bus import Bus
from broker_lite.local.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = 200
"""Maximum seconds for the start of Spark and a first batch.

Both take ten seconds of processor time, and a busy machine needs longer.
"""
README = Path(__file__).parent.parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)


def commands(*words: str) -> list[list[str]]:
    """Return the README's ``logbus`` commands that begin with these words."""
    lines = [
        shlex.split(line, comments=True) for block in blocks("sh") for line in block.split("\n")
    ]
    return [line[1:] for line in lines if line[: len(words) + 1] == ["logbus", *words]]


def script(marker: str, folder: Path, **replaced: str) -> Path:
    (found,) = [block for block in blocks("python") if marker in block]
    for old, new in replaced.values():
        assert old in found
        found = found.replace(old, new)
    path = folder / "readme.py"
    path.write_text(found)
    return path


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYSPARK_PYTHON": sys.executable} | more


def test_readme_python_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script("LocalCluster", tmp_path))],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    acknowledged, record = done.stdout.splitlines()
    assert acknowledged == "0"
    assert re.fullmatch(r"\d 0 b'k' b'hello'", record)


def feed(bus: Bus, spark: SparkSession) -> list[tuple[bytes | None, bytes | None]]:
    """Send a record, check what the running script prints, then stop its query."""
    try:
        until(lambda: spark.streams.active)
        with bus.producer() as producer:
            producer.send("events", b"hello", key=b"k").result(30)
        deadline = time.monotonic() + START_S
        with bus.consumer("upper", start="earliest") as consumer:
            while time.monotonic() < deadline and spark.streams.active:
                if found := consumer.poll(0.5):
                    return [(record.key, record.value) for record in found]
        return []
    finally:
        for query in spark.streams.active:
            query.stop()


@pytest.mark.timeout(300)
def test_readme_spark_example_runs(
    spark: SparkSession, cluster: LocalCluster, bus: Bus, tmp_path: Path
) -> None:
    for words in commands("topic", "create"):
        subprocess.run(
            [sys.executable, "-P", "-m", "broker_lite", *words],
            check=True,
            timeout=60,
            env=environment(LOGBUS_BOOTSTRAP_SERVERS=cluster.bootstrap_servers),
        )
    path = script(
        "writeStream",
        tmp_path,
        address=("127.0.0.1:9092", cluster.bootstrap_servers),
        checkpoint=('"checkpoint"', f'"{tmp_path}/checkpoint"'),
    )
    names: dict[str, object] = {}
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(feed, bus, spark)
        # The script waits for its query, so it returns when ``feed`` stops the query.
        exec(compile(path.read_text(), str(path), "exec"), names)
        assert fed.result() == [(b"k", b"HELLO")]
    assert names["spark"] is spark
    for words in commands("topic", "create"):
        bus.delete_topic(words[2])
