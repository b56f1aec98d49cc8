"""Compare transactions with Apache Kafka's, and the exactly-once Spark sink with the default.

    python benchmarks/transactions.py [--seconds 4] [--kills 20] [--rounds 7] [--only NAME,…]

The script prints one JSON object. Each producer (librdkafka, in its own thread) writes a record of
100 B to every partition of a topic, flushes, and commits, without pause. Both sides run the same
case in one session, logbus first and Kafka second. ``ratio`` is logbus divided by Kafka. logbus
flushes every batch and the state of the coordinator to disk before it answers; Kafka does not.

``coordinator_killed``: the time from the kill of a producer's coordinator until its commit returns,
on three brokers. The broker restarts after each kill. Without Maven, Kafka's figures are missing.

``idle_ids``: one broker starts with few transactional ids, with IDS idle ids, and after CHANGES
changes of the few ids. ``load_ms`` and ``changed_ms`` are how much later than at the first start
the broker can describe an id of every state partition.

``sink``: one broker and one Spark session run both guarantees, each round in the reverse order of
the round before. ``stream`` is one micro-batch of SINK_ROWS rows, from a topic to a topic.
``ratio`` is the median of the rounds' ratios of exactly_once to at_least_once rates.
``trigger`` has one record for each trigger. ``more_ms`` is the median of the rounds' differences of
the p50.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pyarrow.parquet as pq
from peers.fetch import Cannot
from peers.servers import KafkaServers, LogbusServers
from peers.spark_session import SparkHost

from broker_lite.client.administration.admin import Admin
from broker_lite.client.administration.transactions import (
    describe_transaction,
    list_transactions,
)
from broker_lite.local.cluster import LocalCluster
from broker_lite.wire.api import decode_call, encode_call
from broker_lite.wire.calls.producers import InitProducerIdRequest

VALUE = b"v" * 100
WARM_S = 2.0
WAIT_S = 60.0
SINK_ROWS, SINK_PARTITIONS = 1_200_000, 4
SINK_ROW = b"%0200d"
IDS, IDS_CONNECTIONS, CHANGES = 100_000, 64, 128_000
STARTS = 3
TRIGGERS, TRIGGERS_WARM = 40, 10
GUARANTEES = ("at_least_once", "exactly_once")
CASES = tuple(itertools.product((1, 3), (1, 10, 100), (1, 4)))
"""The cases: replication factor, number of producers, number of partitions."""


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
    """Commit transactions with all producers for ``seconds``; return commits per second and
    latencies.

    The first WARM_S seconds do not count.
    """
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
    """Run all cases of a replication factor with logbus and with Kafka; return the figures."""
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
    """Measure, for logbus and for Kafka, the commit of a transaction whose coordinator was just
    killed."""
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


async def begin_ids(host: str, port: int, names: list[str]) -> None:
    """Initialise transactional ids over several connections, one id after the other on each."""

    async def run(part: list[str]) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for name in part:
            request = InitProducerIdRequest(name)
            writer.write(encode_call(request, 1, "bench"))
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = decode_call(request, memoryview(await reader.readexactly(size)))
            assert not answer.error_code, answer
        writer.close()

    parts = (names[number::IDS_CONNECTIONS] for number in range(IDS_CONNECTIONS))
    await asyncio.gather(*map(run, parts))


def idle_ids(count: int) -> dict[str, Any]:
    """Measure the start of a coordinator: with few transactional ids, with many ids, and after many
    changes of the few ids.
    """
    few = [f"idle-{number}" for number in range(IDS_CONNECTIONS)]
    names = few + [f"idle-{number}" for number in range(len(few), count)]
    changes = few * (CHANGES // len(few))
    with LocalCluster(1) as cluster, Admin(cluster.bootstrap_servers) as admin:
        (broker,) = cluster.brokers
        # Start a transactional producer before the measurement: the first one creates the topic
        # __transaction_state.
        producer(cluster.bootstrap_servers, "first")

        def start() -> float:
            broker.stop()
            broker.start()
            began = time.perf_counter()
            for name in few:
                admin.run(describe_transaction, name)
            return time.perf_counter() - began

        took = []
        for rows in (few, names, changes):
            asyncio.run(begin_ids(broker.host, broker.port, rows))
            took.append(statistics.median(start() for _ in range(STARTS)))
    return {
        "ids": count,
        "load_ms": round(1000 * (took[1] - took[0])),
        "changed_ms": round(1000 * (took[2] - took[0])),
        "few_ms": round(1000 * took[0]),
    }


class SinkBench:
    """A cluster of one broker, a Spark session, and the input for both delivery guarantees."""

    def __init__(self, cluster: LocalCluster, spark: SparkHost, folder: Path) -> None:
        self._servers = cluster.bootstrap_servers
        self._spark = spark
        self._admin = Admin(self._servers)
        self._names = (f"sink-{number}" for number in itertools.count())
        self._folder = folder / "rows"
        self._folder.mkdir()
        step = SINK_ROWS // SINK_PARTITIONS
        for number in range(SINK_PARTITIONS):
            first = number * step
            values = pa.array([SINK_ROW % row for row in range(first, first + step)], pa.binary())
            pq.write_table(pa.table({"value": values}), self._folder / f"{number}.parquet")
        self._source = self._topic(SINK_PARTITIONS)
        spark.call("write", folder=str(self._folder), target=self._end(self._source))

    def _topic(self, partitions: int) -> str:
        name = next(self._names)
        self._admin.create_topic(name, partitions, 1)
        return name

    def _end(self, topic: str, **options: str) -> dict[str, Any]:
        return {"side": "logbus", "address": self._servers, "topic": topic, "options": options}

    def stream(self, guarantee: str) -> float:
        """Run one micro-batch; return the rows per second."""
        topic = self._topic(SINK_PARTITIONS)
        target = self._end(topic, deliveryGuarantee=guarantee)
        source = self._end(self._source)
        took = self._spark.call("copy", source=source, target=target, needle="none")["seconds"]
        self._admin.delete_topic(topic)
        return float(SINK_ROWS / took)

    def trigger(self, guarantee: str) -> float:
        """Run triggers with one row each; return the p50 of their durations in ms."""
        source, topic = self._topic(1), self._topic(1)
        target = self._end(topic, deliveryGuarantee=guarantee)
        self._spark.call("loop_start", source=self._end(source), target=target)
        sender = ck.Producer({"bootstrap.servers": self._servers, "linger.ms": 0})
        reader = ck.Consumer({"bootstrap.servers": self._servers, "group.id": topic})
        reader.assign([ck.TopicPartition(topic, 0, 0)])
        for number in range(TRIGGERS_WARM + TRIGGERS):
            sender.produce(source, b"%d" % number, partition=0)
            sender.flush(WAIT_S)
            while (row := reader.poll(WAIT_S)) is None or row.error():
                pass
        reader.close()
        took = self._spark.call("loop_stop")["triggers_ms"]
        return float(statistics.median(took[TRIGGERS_WARM:]))


def sink(rounds: int) -> dict[str, Any]:
    """Compare the sink of Spark with exactly-once and with at-least-once delivery. The first round
    warms the session and does not count."""
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(1) as cluster,
        SparkHost() as spark,
    ):
        bench = SinkBench(cluster, spark, Path(folder))
        for run in (bench.stream, bench.trigger):
            pairs = []
            for number in range(rounds + 1):
                order = GUARANTEES[:: 1 if number % 2 else -1]
                pairs.append({guarantee: run(guarantee) for guarantee in order})
            del pairs[0]
            middles = {name: statistics.median(pair[name] for pair in pairs) for name in GUARANTEES}
            row = found[f"sink_{run.__name__}"] = {k: round(v, 1) for k, v in middles.items()}
            many, once = ([pair[name] for pair in pairs] for name in GUARANTEES)
            if run == bench.trigger:
                row["more_ms"] = round(statistics.median(b - a for a, b in zip(many, once)), 1)
            else:
                row["ratio"] = round(statistics.median(b / a for a, b in zip(many, once)), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="transactions.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="rf1,rf3,coordinator_killed,idle_ids,sink")
    options = parser.parse_args()
    wanted = options.only.split(",")
    result: dict[str, Any] = {}
    for factor in (1, 3):
        if f"rf{factor}" in wanted:
            result |= side_by_side(factor, options.seconds)
    if "coordinator_killed" in wanted:
        result["coordinator_killed"] = coordinator_killed(options.kills)
    if "idle_ids" in wanted:
        result["idle_ids"] = idle_ids(IDS)
    if "sink" in wanted:
        result |= sink(options.rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
