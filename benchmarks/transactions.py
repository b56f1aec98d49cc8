"""Transactions a second beside Apache Kafka, and the first commit after a coordinator's death.

    python benchmarks/transactions.py [--seconds 4] [--kills 20] [--only NAME,…]

Prints one JSON object. Each producer (librdkafka, a thread each) writes a record of 100 B to every
partition of a topic, flushes, and commits, without pause. Both sides run the same case in one
session, logbus first and Kafka second. ``ratio`` is logbus divided by Kafka. logbus flushes every
batch and the state of the coordinator to disk before it answers; Kafka does not.

``coordinator_killed``: the time from the kill of a producer's coordinator until its commit returns,
on three brokers, with kill and restart in turns. Without Maven the rows of Kafka are missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
from peers.fetch import Cannot
from peers.servers import KafkaServers, LogbusServers

from broker_lite.client.administration.admin import Admin
from broker_lite.client.administration.transactions import list_transactions
from broker_lite.local.cluster import LocalCluster

VALUE = b"v" * 100
WARM_S = 2.0
WAIT_S = 60.0
CASES = tuple(itertools.product((1, 3), (1, 10, 100), (1, 4)))
"""Replication factor, producers, partitions."""


def producer(servers: str, name: str) -> ck.Producer:
    made = ck.Producer(
        {"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    )
    made.init_transactions(WAIT_S)
    return made


def transact(sender: ck.Producer, topic: str, partitions: int) -> None:
    sender.begin_transaction()
    for number in range(partitions):
        sender.produce(topic, VALUE, partition=number)
    sender.commit_transaction(WAIT_S)


def rate(servers: str, topic: str, producers: int, partitions: int, seconds: float) -> Any:
    """Commit in every producer for so long; the first WARM_S do not count."""
    senders = [producer(servers, f"{topic}-{number}") for number in range(producers)]
    begin = time.perf_counter() + WARM_S
    end = begin + seconds
    took: list[list[float]] = [[] for _ in senders]
    failures: list[Exception] = []

    def run(number: int) -> None:
        try:
            while (started := time.perf_counter()) < end:
                transact(senders[number], topic, partitions)
                if started >= begin:
                    took[number].append(time.perf_counter() - started)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    every = sorted(itertools.chain.from_iterable(took))
    marks = statistics.quantiles(every, n=100)
    return {
        "per_s": round(len(every) / seconds, 1),
        "p50_ms": round(marks[49] * 1000, 2),
        "p99_ms": round(marks[98] * 1000, 2),
    }


def side_by_side(factor: int, seconds: float) -> dict[str, Any]:
    """Run all cases of a replication factor against both sides."""
    found: dict[str, Any] = {}
    kinds: tuple[Callable[[int], Any], ...] = (LogbusServers, KafkaServers)
    for kind in kinds:
        try:
            with kind(factor) as servers:
                for case in CASES:
                    _, producers, partitions = case
                    if case[0] != factor:
                        continue
                    topic = servers.new_topic(partitions, factor)
                    at = servers.bootstrap_servers
                    row = found.setdefault(
                        f"rf{factor}_{producers}_producers_{partitions}_partitions", {}
                    )
                    row[servers.peer] = rate(at, topic, producers, partitions, seconds)
        except Cannot as why:
            found["kafka"] = str(why)
    for row in found.values():
        if isinstance(row, dict) and "kafka" in row:
            row["ratio"] = round(row["logbus"]["per_s"] / row["kafka"]["per_s"], 2)
    return found


def coordinator_killed(kills: int) -> dict[str, Any]:
    """Time the commit of an open transaction whose coordinator has just been killed."""
    took = []
    with LocalCluster(3) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t", 4, 3)
        sender = producer(cluster.bootstrap_servers, "killed")
        for _ in range(kills):
            transact(sender, "t", 4)
            (row,) = admin.run(list_transactions)
            (victim,) = [broker for broker in cluster.brokers if broker.id == row.coordinator]
            sender.begin_transaction()
            for number in range(4):
                sender.produce("t", VALUE, partition=number)
            sender.flush(WAIT_S)
            victim.kill()
            began = time.perf_counter()
            sender.commit_transaction(WAIT_S)
            took.append(time.perf_counter() - began)
            victim.start()
            admin.run(list_transactions)
    took.sort()
    return {
        "kills": kills,
        "p50_ms": round(statistics.median(took) * 1000),
        "p99_ms": round(took[min(len(took) - 1, round(0.99 * len(took)))] * 1000),
        "most_ms": round(took[-1] * 1000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="transactions.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", default="rf1,rf3,coordinator_killed")
    options = parser.parse_args()
    wanted = options.only.split(",")
    result: dict[str, Any] = {}
    for factor in (1, 3):
        if f"rf{factor}" in wanted:
            result |= side_by_side(factor, options.seconds)
    if "coordinator_killed" in wanted:
        result["coordinator_killed"] = coordinator_killed(options.kills)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
