"""Slow tests of the Spark source. To save time, another cluster is without ZooKeeper for 20 s
while other tests run.

A new Spark process finds the installed wheel. A query reads on while topics are created and
deleted. A source is joined with itself. The behaviours are those of Spark's KafkaSourceStressSuite,
KafkaDontFailOnDataLossSuite and KafkaMicroBatchSourceSuite.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.patience import until
from support.spark_processes import QUICK_JVM
from support.spark_queries import Queries
from support.spark_stress import Life, Seen

import broker_lite
from broker_lite.bus import connect
from broker_lite.errors import LogbusError
from broker_lite.local.cluster import LocalCluster

ROOT = Path(__file__).parents[2]
STRESS_S = float(os.environ.get("LOGBUS_STRESS_SECONDS", "5"))
"""Duration of the stress test in seconds; ``make stress`` sets some minutes."""
RESTART_S = 20.0
AWAY_S = 20.0

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
for _ in range(2):
    (spark.range(5).selectExpr("concat('once-', id) value").write.format("logbus").mode("append")
     .option("bootstrap.servers", servers).option("topic", source)
     .option("deliveryGuarantee", "exactly_once").option("transactionalId", "connect")
     .option("transactionVersion", "1").save())
query = (read(spark.readStream, source).select("value").writeStream.format("logbus")
         .option("bootstrap.servers", servers).option("topic", sink)
         .option("deliveryGuarantee", "exactly_once")
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination(60)
assert query.exception() is None, query.exception()
rows = sorted(bytes(row.value).decode() for row in read(spark.read, sink).collect())
assert rows == sorted(word + str(n) for word in ("", "batch-", "once-") for n in range(5)), rows
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
    """Build a wheel from a copy of the checkout; the build leaves no files in the checkout."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "setup.py"):
        if (ROOT / name).is_file():
            (source / name).write_bytes((ROOT / name).read_bytes())
    for package in ("broker_lite", "pyspark_logbus", "conf", "distribution"):
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
    """Return the folder of the installed logbus, or of a newly built and unpacked wheel."""
    if os.environ.get("LOGBUS_TEST_INSTALLED") == "1":
        return Path(str(broker_lite.__file__)).parents[1]
    with zipfile.ZipFile(build_wheel(folder)) as wheel:
        wheel.extractall(folder / "installed")
    return folder / "installed"


class Outage:
    """A query on its own cluster, whose ZooKeeper is down until the future ``over`` completes."""

    def __init__(self, queries, server, thread):
        self.queries, self.bus, self.server = queries, queries.bus, server
        self.source, self.target = self.queries.topic(5), self.queries.topic(0)
        frame = self.queries.stream(
            subscribe=self.source, startingOffsets="earliest", **{"group.id": "steady"}
        )
        self.query = self.queries.start(frame.select("value"), topic=self.target)
        self.wait_for("", 5)
        until(lambda: self.committed() == 5)
        self.server.stop()
        self.began = time.monotonic()
        self.queries.fill(self.source, 5, word="during-")
        self.wait_for("during-", 5)
        self.over = thread.submit(self.end)

    def end(self):
        """Wait until ZooKeeper was down for 20 s; check that the query still reads; restart
        ZooKeeper."""
        while (left := self.began + AWAY_S - time.monotonic()) > 0:
            time.sleep(left)
        self.queries.fill(self.source, 2, word="late-")
        self.wait_for("late-", 2)
        self.server.start()

    def committed(self):
        return self.queries.committed("steady").get(f"{self.source}-0")

    def wait_for(self, word, count):
        wanted = {f"{word}{number}" for number in range(count)}
        until(lambda: not self.query.isActive or wanted <= set(self.queries.values(self.target)))
        assert self.query.isActive, self.query.exception()


@pytest.fixture(scope="module")
def outage(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outage")
    with (
        LocalCluster(1, directory=folder / "cluster") as alone,
        connect(alone.bootstrap_servers) as bus,
        ThreadPoolExecutor(1) as thread,
    ):
        queries = Queries(spark, bus, folder)
        try:
            yield Outage(queries, alone.zookeeper_server, thread)
        finally:
            queries.stop()


@pytest.mark.timeout(180)
def test_spark_connect_client_finds_the_logbus_format_in_the_installed_wheel(
    bus, tmp_path, queries, outage
):
    """A Spark Connect client in another folder uses the wheel.

    Spark runs as a separate process, because classic and Connect sessions cannot share one. The
    ZooKeeper ``outage`` lasts meanwhile.
    """
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


@pytest.mark.timeout(STRESS_S + 300)
def test_pattern_query_reads_each_record_once_while_topics_are_created_and_deleted(queries, bus):
    seed = int(os.environ.get("LOGBUS_STRESS_SEED", random.randrange(1 << 32)))
    life, seen = Life(bus, f"{queries.topic(0)}-", seed), Seen(seed)
    checkpoint = queries.checkpoint()

    def start():
        limits = {
            "maxOffsetsPerTrigger": ("100", "1000"),
            "maxBytesPerTrigger": ("9000", "90000"),
        }
        name = life.random.choice(sorted(limits))
        chosen = {name: life.random.choice(limits[name])}
        if life.random.random() < 0.5:
            chosen["minPartitions"] = "3"
        frame = queries.stream(
            subscribePattern=f"{life.prefix}.*", startingOffsets="earliest", maxPartitions="4",
            failOnDataLoss="false", **chosen, **{"metadata.max.age.ms": "100"},
        )  # fmt: skip
        return queries.start(frame, checkpoint=checkpoint, each=seen)

    def tell():
        return f"LOGBUS_STRESS_SEED={seed}; {'; '.join(life.told[-60:])}"

    query = start()
    until(lambda: query.lastProgress or query.exception())
    began = time.monotonic()
    restart_at = began + min(STRESS_S / 2, RESTART_S)
    while time.monotonic() < began + STRESS_S:
        life.act()
        if time.monotonic() > restart_at:
            query.stop()
            life.act()
            query, restart_at = start(), time.monotonic() + RESTART_S
        assert query.isActive, f"{query.exception()}; {tell()}"
        time.sleep(life.random.choice((0, 0.01, 0.05)))
    for _ in range(3):
        life.told.append(life.send())
    try:
        until(lambda: query.exception() or life.required() <= set(seen.values()))
    except AssertionError:
        raise AssertionError(f"{sorted(life.required() - set(seen.values()))}: {tell()}") from None
    assert query.isActive, f"{query.exception()}; {tell()}"
    assert not [value for value, times in seen.values().items() if times > 1], tell()


def test_source_joined_with_itself_reads_both_sides_up_to_the_same_offset(queries):
    source = queries.topic(10, 5)
    frame = queries.stream(subscribe=source, startingOffsets="earliest")
    left = frame.selectExpr("cast(value as string) value", "partition one")
    right = frame.selectExpr("cast(value as string) value", "partition other")
    checkpoint, seen = queries.checkpoint(), []
    query = queries.start(
        left.join(right, "value"), checkpoint=checkpoint, trigger={"availableNow": True},
        each=lambda joined, batch: seen.extend(tuple(row) for row in joined.collect()),
    )  # fmt: skip
    query.awaitTermination(60)
    # Values 0 to 4 are in both partitions, values 5 to 9 in one partition.
    assert sorted(seen) == sorted(
        [(str(v), a, b) for v in range(5) for a in (0, 1) for b in (0, 1)]
        + [(str(v), 0, 0) for v in range(5, 10)]
    )
    # Spark's offset log has a line for each side of the join, and both have the same offset.
    lines = Path(f"{checkpoint}/offsets/0").read_text().splitlines()[2:]
    [offset] = {json.dumps(json.loads(line)["topics"][source]["offsets"]) for line in lines}
    assert json.loads(offset) == {"0": 10, "1": 5}
    assert {len(progress.sources) for progress in query.recentProgress} == {1}
    assert sum(progress.numInputRows for progress in query.recentProgress) == 15


@pytest.mark.timeout(300)
def test_query_recovers_from_zookeeper_outage(outage):
    """The fixture ``outage`` has checked that the query reads records during the outage.

    Once ZooKeeper is back, the query commits group offsets, and operations that need ZooKeeper
    succeed.
    """
    queries, source = outage.queries, outage.source
    outage.over.result()
    until(lambda: outage.committed() == 12)

    def grown():
        try:
            outage.bus.admin.create_partitions(source, 2)
        except LogbusError as error:
            assert error.retriable, error
            return False
        return True

    until(grown)
    queries.fill(source, 0, 3, word="new-")
    outage.wait_for("new-", 3)
    until(lambda: queries.committed("steady") == {f"{source}-0": 12, f"{source}-1": 3})
