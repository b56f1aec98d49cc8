"""Measure how long a partition accepts no record when a broker dies, hangs or is restarted.

    python benchmarks/failover.py [--kills 50] [--foreign-kills 12] [--pauses 10]
        [--partitions 1000] [--only NAME,…]

There are three brokers, three replicas and acks=all. One client sends 1,000 records of 100 B a
second to one partition. The figure is the longest gap in ms between two acknowledgements around
each event; the client must not report an error. ``many_partitions`` kills a broker that leads a
third of the partitions, and starts it again. Its figures are seconds: from the creation until all
replicas are in sync, from the kill until each partition acknowledges a record, and from the start
until the broker listens and until all replicas are in sync. Before the kill it also measures the
Metadata answer for all the topics, and the memory and processor time of brokers without load. A
topic has at most 1,800 partitions, so more partitions are in several topics. All processes share
the machine's cores. The script prints one JSON object.

librdkafka, Apache Kafka's Java client and franz-go send 600 records/s to 6 partitions while each
broker in turn is killed. Each partition that the broker led counts separately. ``quick`` rows set
the client's retry backoff and minimum metadata refresh to 20 ms. The Java client needs Maven and a
JDK, franz-go needs Go; without them their rows are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import clients
from peers.fetch import Cannot
from peers.meter import fine_cpu_seconds, peak_mb

from broker_lite.bus import Bus, connect
from broker_lite.client.operations.cluster import TopicMetadata
from broker_lite.client.producing.futures import RecordFuture
from broker_lite.local.broker import LocalBroker
from broker_lite.local.cluster import LocalCluster

RATE = 1000
FOREIGN_RATE = 100
"""Records a second to each partition, for clients of other projects."""
FOREIGN_PARTITIONS = 6
SETTLED_S = 0.5
"""Seconds for which acknowledgements must arrive regularly before and after an event."""
WAIT_S = 60.0
WAIT_A_PARTITION_S = 0.02
"""Seconds that each of many partitions adds to the maximum wait."""
TOPIC_PARTITIONS_MAX = 1_800
"""Number of partitions, with three replicas each, that one ZooKeeper write can create, rounded
down."""
IDLE_S = 10.0
"""Seconds for which idle brokers' processor time is measured."""
REBALANCE_MS = "300"
_NUMBERS = itertools.count()


class Acks:
    """The Unix times of all acknowledgements in one partition, and its failed records."""

    def __init__(self, rate: int) -> None:
        self.times: list[float] = []
        self.failures: list[str] = []
        self._rate = rate

    def wait_flowing(self, since: float = 0.0) -> None:
        """Wait until acknowledgements have arrived for one second after the time ``since``."""
        until = time.time() + WAIT_S
        while time.time() < until:
            now = time.time()
            recent = self.times[-self._rate :]
            usual = sum(at > now - SETTLED_S for at in recent) > self._rate * SETTLED_S / 2
            if usual and len(recent) == self._rate and recent[0] > since:
                return
            time.sleep(0.02)
        raise AssertionError(f"no record is acknowledged: {self.failures[-1:]}")

    def longest_gap_ms(self, since: float) -> float:
        """Return the longest time without an acknowledgement since ``since``, in ms."""
        times = [since, *(at for at in self.times if at > since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times)) * 1000


class Load:
    """A load of one logbus producer that sends to one partition at a fixed rate."""

    def __init__(self, bus: Bus, topic: str, partition: int) -> None:
        self.acks = Acks(RATE)
        self.sent = 0
        self._bus, self._topic, self._partition = bus, topic, partition
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        self.acks.wait_flowing()
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
            self.acks.times.append(time.time())
        else:
            self.acks.failures.append(str(error))


class ForeignLoad:
    """A load of another project's producer, at a fixed rate to each partition of a topic."""

    def __init__(self, client: str, servers: str, topic: str, settings: tuple[str, ...]) -> None:
        self.partitions = [Acks(FOREIGN_RATE) for _ in range(FOREIGN_PARTITIONS)]
        rate = FOREIGN_RATE * FOREIGN_PARTITIONS
        given = [servers, topic, str(FOREIGN_PARTITIONS), str(rate), *settings]
        self._command = [*clients.command(client), *given]

    def __enter__(self) -> ForeignLoad:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        self.wait_flowing()
        return self

    def __exit__(self, *failure: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, at, *error = line.split(maxsplit=2)
            acks = self.partitions[int(partition)]
            if error:
                acks.failures.append(error[0])
            else:
                acks.times.append(float(at))

    def wait_flowing(self, since: float = 0.0) -> None:
        """Wait until each partition gets regular acknowledgements after the time ``since``."""
        for acks in self.partitions:
            acks.wait_flowing(since)

    @property
    def failed(self) -> int:
        return sum(len(acks.failures) for acks in self.partitions)


class Bench:
    """A cluster in which broker n is the preferred leader of partition n."""

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

    def make_topic(self, partitions: int, wait_s: float = WAIT_S) -> str:
        """Create a topic with three replicas; return its name when all are in sync."""
        name = f"failover-{next(_NUMBERS)}"
        self.bus.create_topic(name, partitions, 3)
        self.settle(name, wait_s)
        return name

    def settle(
        self, topic: str, wait_s: float = WAIT_S, *, by_preferred: bool = True
    ) -> TopicMetadata:
        """Wait until all replicas are in sync.

        With ``by_preferred``, wait also until the preferred replicas lead.
        """
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            rows = self.bus.admin.cluster([topic]).topics[topic]
            if all(
                set(row.isr) == set(row.replicas)
                and (row.leader == row.replicas[0] or not by_preferred)
                for row in rows.partitions
            ):
                return rows
            time.sleep(0.05)
        late = [row for row in rows.partitions if set(row.isr) != set(row.replicas)]
        raise AssertionError(
            f"{len(late)} partitions of {topic} are not in sync after {wait_s:.0f} s: {late[:3]}"
        )

    def broker(self, number: int) -> LocalBroker:
        return next(broker for broker in self.cluster.brokers if broker.id == number)

    def victim(self, who: str) -> tuple[int, LocalBroker]:
        """Return a partition, and the broker that is its leader or follower, as ``who`` says."""
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
        """``count`` times, call ``strike`` with a broker and repair the cluster; return the gaps
        between acknowledgements."""
        gaps, failed = [], 0
        for _ in range(count):
            partition, broker = self.victim(who)
            with Load(self.bus, self.topic, partition) as load:
                since = time.time()
                strike(broker)
                load.acks.wait_flowing(since)
                gaps.append(load.acks.longest_gap_ms(since))
            broker.resume()
            broker.start()
            failed += len(load.acks.failures)
        return {"events": count, "failed_sends": failed, **percentiles(gaps)}

    def restarts(self, count: int) -> dict[str, Any]:
        """Stop and start the leader cleanly, ``count`` times; return the gaps between
        acknowledgements.

        A gap includes the stop and the start.
        """
        gaps, failed = [], 0
        for _ in range(count):
            partition, broker = self.victim("leader")
            with Load(self.bus, self.topic, partition) as load:
                since = time.time()
                broker.stop()
                broker.start()
                self.settle(self.topic)
                load.acks.wait_flowing(since)
                gaps.append(load.acks.longest_gap_ms(since))
            failed += len(load.acks.failures)
        return {"events": count, "failed_sends": failed, **percentiles(gaps)}

    def foreign_gaps(self, client: str, settings: tuple[str, ...], count: int) -> dict[str, Any]:
        """Kill ``count`` brokers, one after another, while a producer of another project sends.

        The gaps are those of the partitions that the killed broker led. ``others_max_ms`` is the
        longest gap of the other partitions, which lose a follower.
        """
        topic = self.make_topic(FOREIGN_PARTITIONS)
        gaps: list[float] = []
        others = [0.0]
        with ForeignLoad(client, self.cluster.bootstrap_servers, topic, settings) as load:
            for broker in itertools.islice(itertools.cycle(self.cluster.brokers), count):
                rows = self.settle(topic).partitions
                time.sleep(0 if settings else clients.REST_S.get(client, 0))
                load.wait_flowing(time.time())
                since = time.time()
                broker.kill()
                load.wait_flowing(since)
                for row, acks in zip(rows, load.partitions, strict=True):
                    found = gaps if row.leader == broker.id else others
                    found.append(acks.longest_gap_ms(since))
                broker.start()
        found = {"failed_sends": load.failed, "others_max_ms": round(max(others))}
        return {"events": count, **found, **percentiles(gaps)}

    def many_partitions(self, count: int) -> dict[str, Any]:
        """Kill the broker that leads a third of all partitions, and start it again; return the
        times."""
        wait_s = WAIT_S + count * WAIT_A_PARTITION_S
        topics: dict[str, int] = {}
        began = time.monotonic()
        for first in range(0, count, TOPIC_PARTITIONS_MAX):
            partitions = min(TOPIC_PARTITIONS_MAX, count - first)
            topics[self.make_topic(partitions, wait_s)] = partitions
            created = time.monotonic() - began
            print(f"{first + partitions} partitions in sync: {created:.1f} s", file=sys.stderr)
        idle = self.idle(list(topics))
        places = [(name, number) for name, size in topics.items() for number in range(size)]
        with self.bus.producer(linger_ms=0) as producer:
            for name, number in places:
                producer.send(name, b"before", partition=number)
            producer.flush()
            for name in topics:
                self.settle(name, wait_s)
            began = time.monotonic()
            self.broker(0).kill()
            futures = [producer.send(name, b"after", partition=n) for name, n in places]
            failed = sum(future.exception(wait_s) is not None for future in futures)
            seconds = time.monotonic() - began
        began = time.monotonic()
        self.broker(0).start()
        listens = time.monotonic() - began
        for name in topics:
            self.settle(name, wait_s, by_preferred=False)
        in_sync = time.monotonic() - began
        return {
            "partitions": count,
            "topics": len(topics),
            "created_in_sync_seconds": round(created, 2),
            **idle,
            "failed_sends": failed,
            "seconds": round(seconds, 2),
            "restart_listens_seconds": round(listens, 2),
            "restart_in_sync_seconds": round(in_sync, 2),
        }

    def idle(self, topics: list[str]) -> dict[str, float]:
        """Return the duration of a Metadata request for ``topics``, and the memory and processor
        time of a broker without load."""
        began = time.monotonic()
        self.bus.admin.cluster(topics)
        answered = time.monotonic() - began
        pids = [broker.pid for broker in self.cluster.brokers if broker.pid is not None]
        before = sum(map(fine_cpu_seconds, pids))
        time.sleep(IDLE_S)
        cores = (sum(map(fine_cpu_seconds, pids)) - before) / IDLE_S / len(pids)
        return {
            "metadata_seconds": round(answered, 2),
            "broker_peak_mb": round(max(map(peak_mb, pids))),
            "idle_broker_cores": round(cores, 3),
        }


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
    parser.add_argument("--foreign-kills", type=int, default=12)
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
        for client, quick in clients.QUICK.items():
            for name, settings in ((client, ()), (f"{client}_quick", quick)):
                rows[f"killed_leader_{name}"] = lambda client=client, settings=settings: (
                    bench.foreign_gaps(client, settings, options.foreign_kills)
                )
        for name, row in rows.items():
            if not only or name in only:
                try:
                    results[name] = row()
                except Cannot as error:
                    results[name] = {"skipped": str(error)}
                print(name, results[name], file=sys.stderr)
    if not only or "paused_leader_1s_session" in only:
        with Bench(session_ms=1000) as bench:
            found = bench.gaps("leader", options.pauses, LocalBroker.pause)
            results["paused_leader_1s_session"] = found
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
