"""Run queries on a secured cluster with the options of Kafka's connector, and search for secrets.

Executors are separate processes, as in a cluster. The password must not be in anything that Spark
writes, shows or sends. The driver sends executors a key that it derives from the password; that key
must not be in anything that Spark writes or shows.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.spark_processes import QUICK_JVM, arguments, children

from broker_lite.bus import connect
from broker_lite.client.client_config import security_of_file
from broker_lite.client.transport.pool import PooledConnection
from broker_lite.local.cluster import LocalCluster
from broker_lite.model import Endpoint
from broker_lite.security.scram import ScramKeys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROWS = 100
LOG_CONFIG = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c: %m%n%ex
"""
DRIVER = r"""
import contextlib, io, json, sys
from pathlib import Path
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
import pyspark_logbus as logbus

folder = Path(sys.argv[1])
# The password comes by a file, as in a program that reads it from a vault.
options = json.loads((folder / "options.json").read_text())
conf = SparkConf().setAll({
    **logbus.spark_conf(),
    "spark.master.rest.enabled": "false", "spark.ui.port": "0",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "1",
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "events").as_uri(),
    "spark.eventLog.compress": "false",
    "spark.executor.extraJavaOptions": f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
    "spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.worker.timeout": "600",
}.items())
SparkContext._ensure_initialized(conf=conf)
jvm, gateway = SparkContext._jvm, SparkContext._gateway
deploy, settings = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf()
master = getattr(deploy.master, "Master$").__getattr__("MODULE$").startRpcEnvAndEndpoint(
    "127.0.0.1", 0, 0, settings)._1()
masters = gateway.new_array(jvm.java.lang.String, 1)
masters[0] = f"spark://127.0.0.1:{master.address().port()}"
getattr(deploy.worker, "Worker$").__getattr__("MODULE$").startRpcEnvAndEndpoint(
    "127.0.0.1", 0, 0, 1, 1024, masters, str(folder / "worker"), jvm.scala.Option.apply(1),
    settings, jvm.scala.Option.apply(None))
spark = SparkSession(SparkContext(conf=conf.setMaster(masters[0])))

rows = spark.range(100).selectExpr("cast(id as string) value")
rows.write.format("logbus").options(**options).option("topic", "in").mode("append").save()
plans = io.StringIO()
with contextlib.redirect_stdout(plans):
    read = spark.read.format("logbus").options(**options).option("subscribe", "in").load()
    read.explain("extended")
    read.explain("formatted")
print("read", read.count(), flush=True)
listed = ", ".join(f"`{key}` '{value}'" for key, value in options.items())
spark.sql(f"CREATE TEMPORARY VIEW seen USING logbus OPTIONS (subscribe 'in', {listed})")
print("seen", spark.sql("SELECT count(*) FROM seen").first()[0], flush=True)

def stream(name, **more):
    found = spark.readStream.format("logbus").options(**options).option("subscribe", "in")
    found = found.option("startingOffsets", "earliest").load().select("value")
    query = (found.writeStream.format("logbus").options(**options).options(**more)
        .option("checkpointLocation", str(folder / "checkpoints" / name)).queryName(name)
        .trigger(availableNow=True).start())
    with contextlib.suppress(Exception):
        query.awaitTermination()
    with contextlib.redirect_stdout(plans):
        query.explain(True)
        print(query.lastProgress, query.exception())
    print(name, query.exception() is None, flush=True)

stream("exactly", topic="out", deliveryGuarantee="exactly_once")
stream("missing", topic="absent")
(folder / "plans.txt").write_text(plans.getvalue())
print("look", spark.sparkContext.uiWebUrl, flush=True)
sys.stdin.readline()
spark.stop()
"""


class Run:
    """A finished run of Spark: the lines it printed, and all places in which to search for the
    password."""

    def __init__(
        self, folder: Path, password: str, keys: ScramKeys, process: subprocess.Popen[str]
    ) -> None:
        assert process.stdout is not None and process.stdin is not None
        self.folder = folder
        self.password = password
        key = keys.client_key
        self.secrets = [password.encode(), key, base64.b64encode(key), key.hex().encode()]
        """The password and the key that logs in without it, as a file or page could show them."""
        self.lines: dict[str, str] = {}
        self.pages: dict[str, str] = {}
        self.memory: dict[str, bool] = {}
        """For each process, whether its memory contains the password."""
        for line in process.stdout:
            name, _, value = line.strip().partition(" ")
            self.lines[name] = value
            if name == "look":
                break
        if "look" in self.lines:
            self._look(process.pid)
        process.stdin.close()
        process.wait(60)

    def _look(self, driver: int) -> None:
        root = self.lines["look"]
        queries = [f"/SQL/execution/?id={number}" for number in range(6)]
        [application] = json.loads(_page(f"{root}/api/v1/applications"))
        api = f"/api/v1/applications/{application['id']}"
        rest = [f"{api}/{name}" for name in ("environment", "jobs", "stages")]
        rest.append(f"{api}/sql?details=true&planDescription=true")
        for path in ("/jobs/", "/environment/", "/SQL/", "/StreamingQuery/", *queries, *rest):
            with contextlib.suppress(urllib.error.HTTPError):
                self.pages[path] = _page(root + path)
        for pid in descendants(driver):
            command = " ".join(arguments(pid))
            if "CoarseGrainedExecutorBackend" in command:
                for inner in (pid, *descendants(pid)):
                    name = f"executor {inner}: {' '.join(arguments(inner))[-200:]}"
                    self.memory[name] = holds(inner, self.password)
        self.memory["driver"] = any(
            holds(pid, self.password) for pid in (driver, *children(driver))
        )


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def descendants(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def holds(pid: int, text: str) -> bool:
    """Return whether a process's memory, arguments or environment contain a text."""
    wanted = [text.encode(), text.encode("utf-16-le")]
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in ("cmdline", "environ"):
            if text.encode() in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in maps:
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
                if match is None:
                    continue
                start, end = int(match[1], 16), int(match[2], 16)
                for at in range(start, end, 1 << 24):
                    try:
                        memory.seek(at)
                        data = memory.read(min(1 << 24, end - at))
                    except OSError:
                        continue
                    if any(each in data for each in wanted):
                        return True
    return False


def derived_keys(cluster: LocalCluster) -> ScramKeys:
    """Return the keys, derived from the password, that the driver sends to executors."""
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    security = security_of_file(Path(str(cluster.client_config)))
    connection = PooledConnection(Endpoint(host, int(port)), "test", 30.0, security)
    connection.close()
    assert isinstance(connection.task_secret, ScramKeys)
    return connection.task_secret


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("secured")
    (folder / "events").mkdir()
    (folder / "log4j2.properties").write_text(LOG_CONFIG)
    with LocalCluster(1, directory=folder / "cluster", secure=True) as cluster:
        assert cluster.client_config is not None
        config = Path(cluster.client_config)
        with connect(cluster.bootstrap_servers, client_config=config) as bus:
            for topic in ("in", "out"):
                bus.create_topic(topic, partitions=2)
        # Pass each row of the file for Kafka's tools as an option of Spark's Kafka connector.
        rows = config.with_name("admin.properties").read_text().splitlines()
        options = {f"kafka.{row.split('=', 1)[0]}": row.split("=", 1)[1] for row in rows}
        match = re.search('password="([^"]+)"', options["kafka.sasl.jaas.config"])
        assert match is not None
        (folder / "options.json").write_text(json.dumps(options))
        environment = {name: value for name, value in os.environ.items() if name[:6] != "SPARK_"}
        java = (
            f"{QUICK_JVM['JDK_JAVA_OPTIONS']} -Dlog4j2.configurationFile={folder}/log4j2.properties"
        )
        with (folder / "driver.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", DRIVER, str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
                env=environment | {"JDK_JAVA_OPTIONS": java},
            )  # fmt: skip
            with process:
                made = Run(folder, match[1], derived_keys(cluster), process)
        assert "look" in made.lines, (folder / "driver.log").read_text()[-4000:]
        with (
            connect(cluster.bootstrap_servers, client_config=config) as bus,
            bus.consumer("out", start="earliest") as consumer,
        ):
            values: set[bytes | None] = set()
            while len(values) < ROWS:
                values |= {record.value for record in consumer.poll(10)}
        made.lines["written"] = str(len(values))
        (folder / "options.json").unlink()
        yield made


def test_query_with_the_login_options_of_kafkas_connector_reads_and_writes(run: Run) -> None:
    assert run.lines["read"] == run.lines["seen"] == run.lines["written"] == str(ROWS)
    assert run.lines["exactly"] == "True"
    assert run.lines["missing"] == "False"


def test_password_reaches_no_executor(run: Run) -> None:
    executors = {name: found for name, found in run.memory.items() if name != "driver"}
    assert len(executors) >= 2, run.memory
    assert not any(executors.values()), executors
    # Check the search itself: it must find the password in the driver.
    assert run.memory["driver"]


def test_spark_never_shows_the_password_or_the_derived_key(run: Run) -> None:
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    files = [path for path in files if run.folder / "cluster/security" not in path.parents]
    read = {path.relative_to(run.folder).as_posix(): path.read_bytes() for path in files}
    for part in (
        "events/",
        "checkpoints/exactly/",
        "worker/",
        "driver.log",
        "plans.txt",
        "cluster/",
    ):
        assert any(name.startswith(part) and data for name, data in read.items()), part
    assert b"sasl.jaas.config" in b"".join(
        data for name, data in read.items() if name.startswith("events/")
    )
    assert len(run.pages) >= 8, run.pages.keys()
    pages = {path: text.encode() for path, text in run.pages.items()}
    for secret in run.secrets:
        assert not [name for name, data in (read | pages).items() if secret in data]
