"""Compare transactions with Apache Kafka's, and the exactly-once Spark sink with the default.

    python benchmarks/transactions.py [--seconds 4] [--kills 20] [--rounds 7] [--only NAME,…]

The script prints one JSON object. Each producer (librdkafka, in its own thread) writes a record of
100 B to every partition of a topic, flushes, and commits, without pause. For each number of
replicas, all cases run on logbus, then on Kafka. ``ratio`` is logbus divided by Kafka. logbus
flushes every batch and the state of the coordinator to disk before it answers; Kafka does not.

``coordinator_killed``: the time from the kill of a producer's coordinator until its commit returns,
on three brokers. The broker restarts after each kill. Without Maven, Kafka's figures are missing.

``idle_ids``: one broker starts with IDS_CONNECTIONS transactional ids, later with IDS idle ids.
``few_ms`` is the time after the first start until all its ids are described; ``load_ms`` is how
much longer the same ids take after the later start.

``sink``: one broker and one Spark session run both guarantees, each round in the reverse order of
the round before. ``stream`` is one micro-batch of SINK_ROWS rows, from a topic to a topic.
``ratio`` is the median of the rounds' ratios of exactly_once to at_least_once rates.
``trigger`` has one record for each trigger. ``more_ms`` is the median of the rounds' differences of
the p50.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from peers.fetch import Cannot
from peers.figures import in_turns, main, median, ratio, spread_ms, timed
from peers.rows.spark_latency import Probe
from peers.servers import KafkaServers, LogbusServers, Servers
from peers.spark import PARTITIONS, write_parquet
from peers.spark_session import SparkHost, ending

from broker_lite.client.administration.transactions import (
    describe_transaction,
    list_transactions,
)
from broker_lite.wire.api import decode_call, encode_call
from broker_lite.wire.calls.producers import InitProducerIdRequest

VALUE = b"v" * 100
WARM_S = 2.0
WAIT_S = 60.0
SINK_ROWS = 1_200_000
SINK_ROW = b"%0200d"
IDS, IDS_CONNECTIONS = 100_000, 64
STARTS = 3
TRIGGERS, TRIGGERS_WARM = 40, 10
GUARANTEES = ("at_least_once", "exactly_once")
CASES = tuple(itertools.product((1, 10, 100), (1, 4)))
"""The cases: number of producers, number of partitions."""


def producer(servers: str, name: str) -> ck.Producer:
    made = ck.Producer(
        {"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    )
    made.init_transactions(WAIT_S)
    return made


def send(sender: ck.Producer, topic: str, partitions: int) -> None:
    """Begin a transaction and send a record to each partition."""
    sender.begin_transaction()
    for number in range(partitions):
        sender.produce(topic, VALUE, partition=number)


def rate(servers: Servers, topic: str, producers: int, partitions: int, seconds: float) -> Any:
    """Commit transactions with ``producers`` at once for ``seconds``; return commits per second
    and latencies.

    The first WARM_S seconds do not count.
    """
    at = servers.bootstrap_servers
    senders = [producer(at, f"{topic}-{number}") for number in range(producers)]
    begin = time.perf_counter() + WARM_S

    def run(sender: ck.Producer) -> list[float]:
        took = []
        while (started := time.perf_counter()) < begin + seconds:
            send(sender, topic, partitions)
            sender.commit_transaction(WAIT_S)
            if started >= begin:
                took.append(1000 * (time.perf_counter() - started))
        return took

    with ThreadPoolExecutor(producers) as pool:
        every = list(itertools.chain.from_iterable(pool.map(run, senders)))
    return {"per_s": round(len(every) / seconds, 1), **spread_ms(every, 2)}


def side_by_side(factor: int, seconds: float) -> dict[str, Any]:
    """Run all CASES with ``factor`` replicas on logbus, then on Kafka; return the figures."""
    found: dict[str, Any] = {}
    for kind in (LogbusServers, KafkaServers):
        try:
            with kind(factor) as servers:
                for producers, partitions in CASES:
                    topic = servers.new_topic(partitions, factor)
                    name = f"rf{factor}_{producers}_producers_{partitions}_partitions"
                    row = rate(servers, topic, producers, partitions, seconds)
                    found.setdefault(name, {})[servers.peer] = row
        except Cannot as why:
            return {**found, "kafka": str(why)}
    for row in found.values():
        row["ratio"] = round(row["logbus"]["per_s"] / row["kafka"]["per_s"], 2)
    return found


def coordinator_killed(kills: int) -> dict[str, Any]:
    """Measure the commit of a transaction whose coordinator was just killed."""
    took = []
    with LogbusServers(3) as servers:
        topic, admin = servers.new_topic(4, 3), servers.bus.admin
        sender = producer(servers.bootstrap_servers, "killed")
        for _ in range(kills):
            send(sender, topic, 4)
            sender.commit_transaction(WAIT_S)
            (row,) = admin.run(list_transactions)
            (victim,) = (each for each in servers.cluster.brokers if each.id == row.coordinator)
            send(sender, topic, 4)
            sender.flush(WAIT_S)
            victim.kill()
            took.append(1000 * timed(sender.commit_transaction, WAIT_S))
            victim.start()
            admin.run(list_transactions)
    return {"kills": kills, **spread_ms(took)}


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


def idle_ids() -> dict[str, Any]:
    """Measure the start of a coordinator with few transactional ids and with many ids."""
    few = [f"idle-{number}" for number in range(IDS_CONNECTIONS)]
    many = [f"idle-{number}" for number in range(len(few), IDS)]
    with LogbusServers() as servers:
        (broker,) = servers.cluster.brokers
        # Start a transactional producer before the measurement: the first one creates the topic
        # __transaction_state.
        producer(servers.bootstrap_servers, "first")

        def start() -> float:
            broker.stop()
            broker.start()
            began = time.perf_counter()
            for name in few:
                servers.bus.admin.run(describe_transaction, name)
            return 1000 * (time.perf_counter() - began)

        took = []
        for names in (few, many):
            asyncio.run(begin_ids(broker.host, broker.port, names))
            took.append(statistics.median(start() for _ in range(STARTS)))
    return {"ids": IDS, "load_ms": round(took[1] - took[0]), "few_ms": round(took[0])}


class SinkBench:
    """Measures Spark's sink with each ``deliveryGuarantee``: same broker, Spark session and
    input."""

    def __init__(self, servers: LogbusServers, spark: SparkHost, folder: Path) -> None:
        self._servers = servers
        self._spark = spark
        write_parquet(folder / "rows", [SINK_ROW % row for row in range(SINK_ROWS)])
        self._source = servers.new_topic(PARTITIONS)
        target = ending(servers, self._source)
        spark.call("write", folder=str(folder / "rows"), target=target)

    def stream(self, guarantee: str) -> float:
        """Run one micro-batch; return the rows per second."""
        with self._servers.topic(PARTITIONS) as topic:
            target = ending(self._servers, topic, deliveryGuarantee=guarantee)
            source = ending(self._servers, self._source)
            return float(
                SINK_ROWS / self._spark.call("copy", source=source, target=target)["seconds"]
            )

    def trigger(self, guarantee: str) -> float:
        """Run triggers with one row each; return the p50 of their durations in ms."""
        source, topic = self._servers.new_topic(), self._servers.new_topic()
        target = ending(self._servers, topic, deliveryGuarantee=guarantee)
        self._spark.call("loop_start", source=ending(self._servers, source), target=target)
        with contextlib.closing(Probe(self._servers.bootstrap_servers, source, topic)) as probe:
            for number in range(TRIGGERS_WARM + TRIGGERS):
                probe.turn_ms(b"%d" % number)
        took = self._spark.call("loop_stop")["triggers_ms"]
        return float(statistics.median(took[TRIGGERS_WARM:]))


def sink(rounds: int) -> dict[str, Any]:
    """Compare the sink of Spark with exactly-once and with at-least-once delivery."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LogbusServers() as servers,
        SparkHost() as spark,
    ):
        bench = SinkBench(servers, spark, Path(folder))
        stream = in_turns(GUARANTEES, bench.stream, rounds)
        trigger = in_turns(GUARANTEES, bench.trigger, rounds)
    more_ms = (b - a for a, b in zip(*(trigger[name] for name in GUARANTEES)))
    return {
        "sink_stream": {name: median(runs) for name, runs in stream.items()}
        | {"ratio": ratio(stream["exactly_once"], stream["at_least_once"], 3)},
        "sink_trigger": {name: median(runs) for name, runs in trigger.items()}
        | {"more_ms": median(more_ms)},
    }


def measure(
    seconds: float = 4.0,
    kills: int = 20,
    rounds: int = 7,
    only: str = "rf1,rf3,coordinator_killed,idle_ids,sink",
) -> dict[str, Any]:
    wanted = only.split(",")
    result: dict[str, Any] = {}
    for factor in (1, 3):
        if f"rf{factor}" in wanted:
            result |= side_by_side(factor, seconds)
    if "coordinator_killed" in wanted:
        result["coordinator_killed"] = coordinator_killed(kills)
    if "idle_ids" in wanted:
        result["idle_ids"] = idle_ids()
    if "sink" in wanted:
        result |= sink(rounds)
    return result


if __name__ == "__main__":
    main(measure)
