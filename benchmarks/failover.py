"""Measure how long a partition accepts no record when a broker dies, hangs or is restarted.

    python benchmarks/failover.py [--kills 50] [--foreign-kills 12] [--pauses 10] [--only NAME,…]

There are three brokers, three replicas and acks=all. One client sends 1,000 records of 100 B a
second to one partition. The figure is the longest gap in ms between two acknowledgements around
each event; the client must not report an error. ``many_partitions`` kills a broker that leads a
third of the partitions, and starts it again. Its figures are seconds: from the creation until all
replicas are in sync, from the kill until each partition acknowledges a record, and from the start
until the broker listens and until all replicas are in sync. All processes share the machine's
cores. The script prints one JSON object.

librdkafka, Apache Kafka's Java client and franz-go send 600 records/s to 6 partitions while each
broker in turn is killed. Each partition that the broker led counts separately. In figures
named ``…_quick``, the client's retry backoff and minimum metadata refresh are 20 ms. The Java
client needs Maven and a JDK, franz-go needs Go; without them their figures are missing.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import clients
from peers.fetch import Cannot
from peers.figures import main, spread_ms
from peers.servers import LogbusServers

from broker_lite.bus import Bus
from broker_lite.client.operations.cluster import TopicMetadata
from broker_lite.client.producing.futures import RecordFuture
from broker_lite.local.broker import LocalBroker

RATE = 1000
FOREIGN_RATE = 100
"""Records a second to each partition, for clients of other projects."""
FOREIGN_PARTITIONS = 6
SETTLED_S = 0.5
"""Acknowledgements flow if more than half of those due in this many seconds have arrived."""
WAIT_S = 80.0
PARTITIONS = 1_000
REBALANCE_MS = "300"


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
        """Return the longest gap between acknowledgements after the time ``since``, in ms."""
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
        """Wait until acknowledgements of each partition have arrived for one second after
        ``since``."""
        for acks in self.partitions:
            acks.wait_flowing(since)

    @property
    def failed(self) -> int:
        return sum(len(acks.failures) for acks in self.partitions)


class Bench:
    """A cluster in which broker n is the preferred leader of partition n."""

    def __init__(self, session_ms: int) -> None:
        session = {"zookeeper.session.timeout.ms": str(session_ms)}
        self._servers = LogbusServers(3, {"leader.rebalance.ms": REBALANCE_MS, **session})

    def __enter__(self) -> Bench:
        self._servers.__enter__()
        self.bus, self.brokers = self._servers.bus, self._servers.cluster.brokers
        self.topic = self.make_topic(3)
        return self

    def __exit__(self, *failure: object) -> None:
        self._servers.__exit__()

    def make_topic(self, partitions: int) -> str:
        """Create a topic with three replicas; return its name when all are in sync."""
        name = self._servers.new_topic(partitions, 3)
        self.settle(name)
        return name

    def settle(self, topic: str, *, by_preferred: bool = True) -> TopicMetadata:
        """Wait until all replicas are in sync.

        With ``by_preferred``, wait also until the preferred replicas lead.
        """
        until = time.monotonic() + WAIT_S
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
            f"{len(late)} partitions of {topic} are not in sync after {WAIT_S:.0f} s: {late[:3]}"
        )

    def broker(self, number: int) -> LocalBroker:
        return next(broker for broker in self.brokers if broker.id == number)

    def victim(self, who: str) -> tuple[int, LocalBroker]:
        """Return a partition, and the broker that is its leader (``who`` may require that it is the
        controller too) or its follower."""
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
        """Disturb a broker with ``strike``, then start it again, ``count`` times; return the spread
        of the longest gaps between acknowledgements. ``who`` chooses the broker (``victim``)."""
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
        return {"events": count, "failed_sends": failed, **spread_ms(gaps)}

    def restart(self, broker: LocalBroker) -> None:
        """Stop a broker cleanly and start it. The gap between acknowledgements covers both."""
        broker.stop()
        broker.start()
        self.settle(self.topic)

    def foreign_gaps(self, client: str, settings: tuple[str, ...], count: int) -> dict[str, Any]:
        """Kill ``count`` brokers, one after another, while a producer of another project sends.

        Return the spread of the longest gaps between acknowledgements in partitions that the killed
        broker led. ``others_max_ms`` is the longest gap in partitions that lost only a follower.
        """
        topic = self.make_topic(FOREIGN_PARTITIONS)
        gaps: list[float] = []
        others = [0.0]
        with ForeignLoad(client, self._servers.bootstrap_servers, topic, settings) as load:
            for broker in itertools.islice(itertools.cycle(self.brokers), count):
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
        return {"events": count, **found, **spread_ms(gaps)}

    def many_partitions(self) -> dict[str, Any]:
        """Kill the broker that leads a third of PARTITIONS partitions, and start it again; return
        the seconds of each step."""
        began = time.monotonic()
        topic = self.make_topic(PARTITIONS)
        created = time.monotonic() - began
        with self.bus.producer(linger_ms=0) as producer:
            for number in range(PARTITIONS):
                producer.send(topic, b"before", partition=number)
            producer.flush()
            self.settle(topic)
            began = time.monotonic()
            self.broker(0).kill()
            futures = [producer.send(topic, b"after", partition=n) for n in range(PARTITIONS)]
            failed = sum(future.exception(WAIT_S) is not None for future in futures)
            seconds = time.monotonic() - began
        began = time.monotonic()
        self.broker(0).start(wait=False)
        self.broker(0).wait_ready(WAIT_S)
        listens = time.monotonic() - began
        self.settle(topic, by_preferred=False)
        return {
            "partitions": PARTITIONS,
            "created_in_sync_seconds": round(created, 2),
            "failed_sends": failed,
            "seconds": round(seconds, 2),
            "restart_listens_seconds": round(listens, 2),
            "restart_in_sync_seconds": round(time.monotonic() - began, 2),
        }


def measure(
    kills: int = 50, foreign_kills: int = 12, pauses: int = 10, only: str = ""
) -> dict[str, Any]:
    wanted = set(filter(None, only.split(",")))
    results: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1)}

    def run(name: str, row: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        if not wanted or name in wanted:
            try:
                results[name] = row(*arguments)
            except Cannot as error:
                results[name] = {"skipped": str(error)}
            print(name, results[name], file=sys.stderr)

    with Bench(session_ms=6000) as bench:
        for who in ("leader", "leader_controller", "follower"):
            run(f"killed_{who}", bench.gaps, who, kills, LocalBroker.kill)
        run("graceful_restart", bench.gaps, "leader", pauses, bench.restart)
        run("many_partitions", bench.many_partitions)
        for client, quick in clients.QUICK.items():
            run(f"killed_leader_{client}", bench.foreign_gaps, client, (), foreign_kills)
            run(f"killed_leader_{client}_quick", bench.foreign_gaps, client, quick, foreign_kills)
    with Bench(session_ms=1000) as bench:
        run("paused_leader_1s_session", bench.gaps, "leader", pauses, LocalBroker.pause)
    return results


if __name__ == "__main__":
    main(measure)
