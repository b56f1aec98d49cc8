"""What is paid before anything is done: start-up, memory, imports. Prints one JSON object.

    python benchmarks/local.py [--gigabytes 5]

``limits`` are what the project allows itself; ``exceeded`` names the figures above them. Memory is
resident memory in MB of the one broker that took all the produced bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import pyarrow as pa

from broker_lite.client import connect
from broker_lite.local.cluster import LocalCluster
from broker_lite.local.process import memory_bytes

ROUNDS = 5
VALUE_BYTES = 1000
ROWS = 4000
LIMITS = {
    "cluster_ready_s": 4.0,
    "broker_idle_mb": 60.0,
    "broker_after_produce_mb": 180.0,
    "import_pyspark_logbus_ms": 50.0,
    "logbus_help_s": 0.2,
}


def seconds_of(command: list[str]) -> float:
    """Median wall time of a command."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def import_ms(module: str) -> float:
    """Median time that an import takes beyond the bare interpreter."""
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    times = [
        float(subprocess.check_output([sys.executable, "-P", "-c", code.format(module)]))
        for _ in range(ROUNDS)
    ]
    return statistics.median(times) * 1000


def cluster_figures(gigabytes: float) -> dict[str, float]:
    started = time.perf_counter()
    with LocalCluster(brokers=3) as cluster:
        ready = time.perf_counter() - started
        pids = [broker.pid or 0 for broker in cluster.brokers]
        idle = max(memory_bytes(pid) or 0 for pid in pids)
        table = pa.table({"value": pa.array([b"x" * VALUE_BYTES] * ROWS, pa.binary())})
        with connect(cluster.bootstrap_servers) as bus:
            # Small segments, so that the disk holds little of what goes through.
            config = {"segment.bytes": str(64 << 20), "retention.bytes": str(128 << 20)}
            bus.create_topic("bench", partitions=1, config=config)
            with bus.producer() as producer:
                for _ in range(int(gigabytes * 1e9 / (VALUE_BYTES * ROWS))):
                    producer.send_arrow("bench", table)
        after = max(memory_bytes(pid) or 0 for pid in pids)
        stopping = time.perf_counter()
    return {
        "cluster_ready_s": round(ready, 2),
        "cluster_stopped_s": round(time.perf_counter() - stopping, 2),
        "broker_idle_mb": round(idle / 1e6, 1),
        "broker_after_produce_mb": round(after / 1e6, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="through one broker")
    arguments = parser.parse_args()
    figures = cluster_figures(arguments.gigabytes)
    figures["import_pyspark_logbus_ms"] = round(import_ms("pyspark_logbus"), 1)
    figures["import_client_ms"] = round(import_ms("broker_lite.client"), 1)
    help_command = [sys.executable, "-P", "-m", "broker_lite", "--help"]
    figures["logbus_help_s"] = round(seconds_of(help_command), 3)
    exceeded = [name for name, limit in LIMITS.items() if figures[name] > limit]
    print(
        json.dumps(
            {
                "benchmark": "local",
                "gigabytes": arguments.gigabytes,
                **figures,
                "limits": LIMITS,
                "exceeded": exceeded,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
