"""Start and call a Spark session in a separate process, which serves logbus and Kafka alternately.

``SparkHost`` starts ``spark_host.py`` and sends requests to it. Every session has Spark's Kafka
connector and the same ``settings`` for both.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyspark_logbus as logbus
from peers import fetch
from peers.row import FLOOR
from peers.servers import stop

SCRIPT = Path(__file__).with_name("spark_host.py")
LAUNCHER = Path(__file__).parents[2] / "pyspark_logbus" / "logbus-python"
TUNED_WORDS = "both settings of conf/spark-defaults.conf and PYSPARK_PYTHON=logbus-python"
CALL_SECONDS_MAX = 600.0
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.0",
    "org.apache.kafka:kafka-clients:3.9.1",
)
CONNECTOR_WORDS = "Spark's Kafka connector 4.2.0 (the newest that Maven has), kafka-clients 3.9.1"


def settings(tuned: bool = True) -> dict[str, str]:
    """Return the settings of Spark in all rows, which are the same for both sides.

    ``tuned`` adds the two settings of ``conf/spark-defaults.conf``. The one for checkpoints
    also helps Kafka's connector.
    """
    return {
        **(logbus.spark_conf() if tuned else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.jars": ",".join(
            map(str, sorted(fetch.artifacts("spark-kafka", CONNECTOR).glob("*.jar")))
        ),
    }


def ending(servers: Any, topic: str = "", **options: str) -> dict[str, Any]:
    """Return a topic, with the options of Spark's source or sink, as a ``source`` or ``target`` of
    ``spark_host.Host``.

    ``servers`` may be FLOOR, the side without brokers and topics.
    """
    is_floor = servers == FLOOR
    side, address = (FLOOR, "") if is_floor else (servers.peer, servers.bootstrap_servers)
    return {"side": side, "address": address, "topic": topic, "options": options}


class SparkHost:
    """A Spark session in a process of its own. It is a context manager. A failed call raises
    RuntimeError."""

    def __init__(self, tuned: bool = True) -> None:
        self._conf = settings(tuned)
        self._python = str(LAUNCHER) if tuned else sys.executable

    def __enter__(self) -> SparkHost:
        self._folder = tempfile.mkdtemp(prefix="logbus-bench-spark-")
        self._log = (Path(self._folder) / "log").open("w+b")
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
        modules = f"{SCRIPT.parents[1]}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), json.dumps(self._conf), self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"PYSPARK_PYTHON": self._python, "PATH": path, "PYTHONPATH": modules},
        )
        try:
            self._answer("start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def processes(self) -> dict[str, list[int]]:
        """Return the driver process, whose children are the JVM and all Python workers.

        The result is empty before the start.
        """
        return {"spark": [self._process.pid] if hasattr(self, "_process") else []}

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of ``spark_host.Host``; return its response."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"call": name, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer(name)

    def _answer(self, name: str) -> dict[str, Any]:
        assert self._process.stdout
        watchdog = threading.Timer(CALL_SECONDS_MAX, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._log.seek(0)
            said = self._log.read().decode("utf-8", "replace")[-1500:]
            raise RuntimeError(f"Spark ended during {name}: {said}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer
