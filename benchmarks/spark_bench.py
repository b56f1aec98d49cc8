"""What the Spark benchmarks share: a session with logbus's settings, a filled topic, medians."""

from __future__ import annotations

import argparse
import contextlib
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

TICKS = os.sysconf("SC_CLK_TCK")
Cpu = dict[str, tuple[float, float]]
"""Processor seconds in user's and in kernel mode, by who spent them."""


def parser(said: str | None, rows: int) -> argparse.ArgumentParser:
    """The options that all of them have. ``said``: the script's docstring; ``rows``: of a run."""
    found = argparse.ArgumentParser(description=(said or "").splitlines()[0])
    found.add_argument("--rows", type=int, default=rows)
    found.add_argument("--value-bytes", type=int, default=200)
    found.add_argument("--partitions", type=int, default=4)
    found.add_argument("--rounds", type=int, default=7)
    found.add_argument("--output", metavar="FILE", help="keep the result there, too")
    return found


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


def _stat(pid: int | str) -> list[str]:
    """The name of a process, its state, parent, …: /proc/PID/stat from the second field on."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text("utf-8").partition(" (")[2].rpartition(")")
    return [name, *rest.split()]


def processor_s(pid: int | str) -> tuple[float, float]:
    """Of a process and all its threads: user's mode, kernel mode."""
    fields = _stat(pid)
    return int(fields[12]) / TICKS, int(fields[13]) / TICKS


def _ended_s(pid: int | str) -> tuple[float, float]:
    """Of a process's children that have ended."""
    fields = _stat(pid)
    return int(fields[14]) / TICKS, int(fields[15]) / TICKS


def _spent(cluster: logbus.LocalCluster) -> Cpu:
    """What Spark's JVM, its Python workers and the brokers have spent so far. ``workers`` are all
    Python processes that the JVM started, also those that ended with their query."""
    known = {broker.pid: "brokers" for broker in cluster.brokers}
    server = cluster.zookeeper_server
    known[server.pid if server else None] = ""
    parents: dict[int, tuple[int, str]] = {}
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = _stat(each.name)
            parents[int(each.name)] = (int(fields[2]), fields[0])
    found: Cpu = {}
    for pid, (parent, name) in parents.items():
        above = [parent]
        while above[-1] in parents and above[-1] != os.getpid():
            above.append(parents[above[-1]][0])
        if above[-1] != os.getpid():
            continue
        who = known.get(pid, "spark" if name == "java" else "workers" if len(above) > 1 else "")
        if who:
            with contextlib.suppress(OSError):
                _add(found, who, processor_s(pid))
        if who == "spark":
            with contextlib.suppress(OSError):
                _add(found, "workers", _ended_s(pid))
    return found


def _add(found: Cpu, who: str, more: tuple[float, float]) -> None:
    user, kernel = found.get(who, (0.0, 0.0))
    found[who] = (user + more[0], kernel + more[1])


def spent(cluster: logbus.LocalCluster, action: Callable[[], float]) -> tuple[float, Cpu]:
    """Run ``action``: what it returns, and what it cost each."""
    before = _spent(cluster)
    result = action()
    after = _spent(cluster)
    zero = (0.0, 0.0)
    cost = {
        who: (now[0] - before.get(who, zero)[0], now[1] - before.get(who, zero)[1])
        for who, now in after.items()
    }
    return result, cost


def median_cpu(costs: list[Cpu]) -> dict[str, dict[str, float]]:
    return {
        who: {
            mode: median([cost.get(who, (0.0, 0.0))[n] for cost in costs])
            for n, mode in enumerate(("user_s", "kernel_s"))
        }
        for who in sorted({who for cost in costs for who in cost})
    }


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
