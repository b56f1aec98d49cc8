"""How long a partition takes nothing when a broker dies, hangs or is restarted; prints JSON.

    python benchmarks/failover.py [--kills 50] [--pauses 10] [--partitions 1000] [--only NAME,…]

Three brokers, RF 3, acks=all. One client sends 100 B records at 1,000/s to one partition; what
counts is the longest gap between two acknowledgements around each event, in ms, for the same client
and without an error reaching it. ``many_partitions``: from the kill of a third of the leaders until
a record for each partition is acknowledged. Everything shares the machine's cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from broker_lite.bus import Bus, connect
from broker_lite.client.operations.cluster import TopicMetadata
from broker_lite.client.producing.futures import RecordFuture
from broker_lite.errors import LogbusError
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster

RATE = 1000
SETTLED_S = 0.5
"""Acknowledgements must come as usual for so long before and after an event."""
WAIT_S = 60.0
REBALANCE_MS = "300"
_NUMBERS = itertools.count()


class Load:
    """One producer that sends to one partition at a pace; when each record was acknowledged."""

    def __init__(self, bus: Bus, topic: str, partition: int) -> None:
        self.acks: list[float] = []
        self.failures: list[LogbusError] = []
        self.sent = 0
        self._bus, self._topic, self._partition = bus, topic, partition
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        self.wait_flowing()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        value = os.urandom(100)
        with self._bus.producer(linger_ms=0) as producer:
            began = time.monotonic()
            while not self._over.is_set():
                due = int((time.monotonic() - began) * RATE)
                for _ in range(due - self.sent):
                    future = producer.send(self._topic, value, partition=self._partition)
                    future.add_done_callback(self._done)
                self.sent = max(due, self.sent)
                time.sleep(1 / RATE)

    def _done(self, future: RecordFuture) -> None:
        error = future.exception(0)
        if error is None:
            self.acks.append(time.monotonic())
        else:
            self.failures.append(error)

    def wait_flowing(self, since: float = 0.0) -> None:
        """Wait until acknowledgements come as usual, a second's worth of them after ``since``."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            now = time.monotonic()
            recent = self.acks[-RATE:]
            usual = sum(at > now - SETTLED_S for at in recent) > RATE * SETTLED_S / 2
            if usual and len(recent) == RATE and recent[0] > since:
                return
            time.sleep(0.02)
        raise AssertionError("nothing is acknowledged")

    def longest_gap_ms(self, since: float) -> float:
        """The longest time between two acknowledgements from ``since`` on."""
        times = [since, *(at for at in self.acks if at > since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times)) * 1000


class Bench:
    """A cluster whose partition n is led by broker n whenever all is well."""

    def __init__(self, session_ms: int) -> None:
        self.cluster = LocalCluster(
            3,
            config={
                "leader.rebalance.ms": REBALANCE_MS,
                "zookeeper.session.timeout.ms": str(session_ms),
            },
        )

    def __enter__(self) -> Bench:
        self.cluster.start()
        self.bus = connect(self.cluster.bootstrap_servers)
        self.topic = self.make_topic(3)
        return self

    def __exit__(self, *failure: object) -> None:
        self.bus.close()
        self.cluster.stop()

    def make_topic(self, partitions: int) -> str:
        """Of three replicas each; in sync on return."""
        name = f"failover-{next(_NUMBERS)}"
        self.bus.create_topic(name, partitions, 3)
        self.settle(name)
        return name

    def settle(self, topic: str) -> TopicMetadata:
        """Wait until all replicas are in sync and the preferred ones lead."""
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            rows = self.bus.admin.cluster([topic]).topics[topic]
            if all(
                row.leader == row.replicas[0] and set(row.isr) == set(row.replicas)
                for row in rows.partitions
            ):
                return rows
            time.sleep(0.05)
        raise AssertionError(f"{topic} does not settle: {rows}")

    def broker(self, number: int) -> LocalBroker:
        return next(broker for broker in self.cluster.brokers if broker.id == number)

    def victim(self, who: str) -> tuple[int, LocalBroker]:
        """A partition to send to, and the broker that is ``who`` to it."""
        partitions = self.settle(self.topic).partitions
        controller = self.bus.admin.describe_cluster().controller_id
        chosen = next(
            row for row in partitions if (row.leader == controller) == (who == "leader_controller")
        )
        number = chosen.leader
        if who == "follower":
            number = next(n for n in chosen.replicas if n not in (number, controller))
        return chosen.partition, self.broker(number)

    def gaps(self, who: str, count: int, strike: Callable[[LocalBroker], None]) -> dict[str, Any]:
        """``count`` events, each followed by what makes all well again."""
        gaps, failed = [], 0
        for _ in range(count):
            partition, broker = self.victim(who)
            with Load(self.bus, self.topic, partition) as load:
                since = time.monotonic()
                strike(broker)
                load.wait_flowing(since)
                gaps.append(load.longest_gap_ms(since))
            broker.resume()
            broker.start()
            failed += len(load.failures)
        return {"events": count, "failed_sends": failed, **percentiles(gaps)}

    def restarts(self, count: int) -> dict[str, Any]:
        """The leader is stopped in good order and started again; the gap covers both."""
        gaps, failed = [], 0
        for _ in range(count):
            partition, broker = self.victim("leader")
            with Load(self.bus, self.topic, partition) as load:
                since = time.monotonic()
                broker.stop()
                broker.start()
                self.settle(self.topic)
                load.wait_flowing(since)
                gaps.append(load.longest_gap_ms(since))
            failed += len(load.failures)
        return {"events": count, "failed_sends": failed, **percentiles(gaps)}

    def many_partitions(self, count: int) -> dict[str, Any]:
        """Seconds until all of so many partitions take records after a third was orphaned."""
        topic = self.make_topic(count)
        with self.bus.producer(linger_ms=0) as producer:
            for number in range(count):
                producer.send(topic, b"before", partition=number)
            producer.flush()
            since = time.monotonic()
            self.broker(0).kill()
            futures = [producer.send(topic, b"after", partition=n) for n in range(count)]
            failed = sum(future.exception(WAIT_S) is not None for future in futures)
            seconds = time.monotonic() - since
        self.broker(0).start()
        self.settle(topic)
        return {"partitions": count, "failed_sends": failed, "seconds": round(seconds, 2)}


def percentiles(samples: list[float]) -> dict[str, float]:
    ranked = sorted(samples)
    return {
        "p50_ms": round(statistics.median(ranked)),
        "p99_ms": round(ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]),
        "max_ms": round(ranked[-1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--pauses", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    results: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}
    with Bench(session_ms=6000) as bench:
        rows: dict[str, Callable[[], dict[str, Any]]] = {
            f"killed_{who}": lambda who=who: bench.gaps(who, options.kills, LocalBroker.kill)
            for who in ("leader", "leader_controller", "follower")
        }
        rows["graceful_restart"] = lambda: bench.restarts(options.pauses)
        rows["many_partitions"] = lambda: bench.many_partitions(options.partitions)
        for name, row in rows.items():
            if not only or name in only:
                results[name] = row()
                print(name, results[name], file=sys.stderr)
    if not only or "paused_leader_1s_session" in only:
        with Bench(session_ms=1000) as bench:
            found = bench.gaps("leader", options.pauses, LocalBroker.pause)
            results["paused_leader_1s_session"] = found
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
