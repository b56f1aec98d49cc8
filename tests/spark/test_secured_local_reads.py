"""Test that a Spark query reads the files of a secured broker on its machine."""

from __future__ import annotations

import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from broker_lite.bus import connect
from broker_lite.local.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROWS = 50_000


def test_batch_query_reads_the_files_of_a_secured_broker(spark: SparkSession) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            1, directory=f"{folder}/c", secure=True, config={"metrics.port": "0"}
        ) as cluster,
        connect(cluster.bootstrap_servers, client_config=cluster.client_config) as bus,
    ):
        bus.create_topic("in", partitions=2)
        table = pa.table({"value": pa.array([b"%0100d" % n for n in range(ROWS)], pa.binary())})
        with bus.producer() as producer:
            for partition in (0, 1):
                producer.send_arrow("in", table, partition=partition)
        rows = Path(str(cluster.client_config)).with_name("admin.properties").read_text("utf-8")
        reader = spark.read.format("logbus").option("bootstrap.servers", cluster.bootstrap_servers)
        for row in rows.splitlines():
            key, _, value = row.partition("=")
            reader = reader.option(f"kafka.{key}", value)
        found = reader.option("subscribe", "in").load()
        assert found.selectExpr("sum(cast(cast(value as string) as bigint))").first() == (
            ROWS * (ROWS - 1),
        )
        url = f"http://127.0.0.1:{cluster.brokers[0].metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        (line,) = [each for each in text.splitlines() if 'outcome="descriptor"' in each]
        assert float(line.rsplit(" ", 1)[1]) >= 2, "each partition has a file"
