"""Test Spark's own Kafka connector, unchanged, from the user's Maven.

The test runs batch queries and a stream against logbus, also in a session that uses
``format("logbus")``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.client_programs import Note

from broker_lite.bus import Bus, connect
from broker_lite.local.cluster import LocalCluster

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "spark" / "job.py"
RUN_SECONDS = 400


def test_kafka_connector_of_spark_writes_reads_and_streams(
    jars: list[str],
    cluster: LocalCluster,
    bus: Bus,
    tmp_path: Path,
    answered: Note,
    versions: dict[str, str],
) -> None:
    prefix = f"connector-{os.getpid()}"
    for topic in ("rows", "columns", "copy"):
        bus.create_topic(f"{prefix}-{topic}", partitions=2)
    command = [sys.executable, str(JOB), cluster.bootstrap_servers, prefix, str(tmp_path), *jars]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-5000:]
    steps: dict[str, Any] = {
        row["step"]: row["answer"] for row in map(json.loads, done.stdout.splitlines())
    }
    assert steps == {
        "written": 500,
        "as columns": 0,
        "columns": 300,
        "as rows": 0,
        "cut rows": [150, 0],
        "cut columns": [150, 0],
        "by time": 500,
        "tasks": 6,
        "stream": 500,
        "stream again": 100,
        "copied": [600, 0],
    }
    for asked, answer in (
        ("batches: none, gzip, snappy, lz4, zstd; offsets, times, minPartitions", "served"),
        ("a stream from topic to topic, and on from its checkpoint", "served"),
        ('its rows read by format("logbus"), logbus\'s columns by format("kafka")', "the same"),
    ):
        answered(versions["spark"], asked, answer)


def test_kafka_connector_of_spark_uses_a_secured_cluster(
    jars: list[str], tmp_path: Path, answered: Note, versions: dict[str, str]
) -> None:
    with LocalCluster(1, directory=tmp_path / "cluster", secure=True) as secured:
        file = Path(str(secured.client_config))
        with connect(secured.bootstrap_servers, client_config=file) as bus:
            bus.create_topic("rows", partitions=2)
        properties = str(file.with_suffix(".properties"))
        command = [sys.executable, str(JOB.with_name("secured_job.py")), properties, "rows"]
        done = subprocess.run(
            [*command, str(tmp_path), *jars],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr[-5000:]
    steps = {row["step"]: row["answer"] for row in map(json.loads, done.stdout.splitlines())}
    assert steps == {"kafka": [200, 100], "logbus": [200, 100], "streamed": 400}
    asked = 'SASL_SSL with SCRAM-SHA-256: batches and a stream, with format("logbus")\'s options'
    answered(versions["spark"], asked, "served")
