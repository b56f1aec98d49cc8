"""Inject many faults, one after the other, under a workload whose history is checked.

    make chaos [KILLS=100] [CUTS=100] [PAUSES=0] [FULL_DISKS=0] [ISOLATIONS=0] [FLIPS=0]
        [SINK_KILLS=0] [LOOP_KILLS=0] [SECURE=1]
    (``python -m faults.chaos`` with tests on the path)

Each round creates a topic and injects ten faults while a workload writes and reads the topic. Then
the round checks the log of each replica against the history. The kinds of faults:

* Kills of the leader, a follower, the controller, all brokers, or ZooKeeper and a leader, at random
  times; some while another broker is still starting.
* Power cuts: of one broker's machine, or of all machines.
* Pauses: SIGSTOP for a while.
* Full disks: one broker's disk has no space until the controller has replaced the broker.
* Isolations: a broker reaches no other broker, no client and not ZooKeeper, whose session timeout
  is one second.
* Flipped bits on disks (module ``bit_flips``).
* Kills of the exactly-once sink (``sink_chaos``), or of a loop that copies in transactions
  (``loop_chaos``).

With SECURE=1, kills, cuts and pauses hit a cluster of ``logbus up --secure``, with logins over TLS,
ACLs, and certificates between brokers. The results are written to
``benchmarks/results/chaos.json``. The first anomaly ends the run, which keeps and prints the folder
of the cluster's logs and data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from faults import bit_flips, sink_chaos
from faults.loop_chaos import LoopChaos
from faults.machine import Network, why_no_disks, why_no_networks
from faults.replicated import Replicated, on_disks, on_network

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
FAULTS_PER_TOPIC = 10
ONE_BROKER = ("leader", "follower", "controller")
ALL_EVERY = 5
"""One fault in this many hits all brokers together."""
ISOLATED, FULL_DISK = "isolated", "full disk"
ONE_AT_A_TIME = (ISOLATED, FULL_DISK)
"""Kinds of faults that never hit all brokers together: no record would be acknowledged until the
fault is undone."""
ISOLATED_SESSION_MS = "1000"
WITH_ZOOKEEPER = "leader and ZooKeeper"
ZOOKEEPER_EVERY = 7
"""One kill in this many also kills ZooKeeper, just before the broker."""
PAUSE_S_MAX = 8.0
"""Longest pause in seconds; it exceeds the ZooKeeper session timeout."""


Strike = Callable[[str, str], Callable[[], None] | None]
"""A function that injects a fault: it takes a topic and the role of the brokers to hit.

It may return a callback that undoes the fault.
"""


class Chaos:
    """Injects random faults into a cluster, and measures for how long no record was
    acknowledged."""

    def __init__(self, cluster: Replicated, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.gaps_ms: dict[str, list[float]] = {}
        self.acknowledged = self.read = 0

    def run(self, kind: str, count: int, strike: Strike) -> None:
        """Inject ``count`` faults of one kind."""
        done = 0
        while done < count:
            topic = self.cluster.make_topic(segment_bytes=1 << 20, max_message_bytes=1 << 20)
            with self.cluster.workload(topic) as work:
                work.wait_acked()
                for _ in range(min(FAULTS_PER_TOPIC, count - done)):
                    role = ONE_BROKER[done % len(ONE_BROKER)]
                    if done % ALL_EVERY == ALL_EVERY - 1 and kind not in ONE_AT_A_TIME:
                        role = "all"
                    elif strike == self.kill and done % ZOOKEEPER_EVERY == ZOOKEEPER_EVERY - 1:
                        role = WITH_ZOOKEEPER
                    work.mark()
                    mend = strike(topic, role)
                    gap_ms = work.wait_acked() * 1000
                    if mend is not None:
                        mend()
                    self.gaps_ms.setdefault(f"{kind} {role}", []).append(gap_ms)
                    self.cluster.start_all()
                    if self.random.random() < 0.8:
                        # Wait until all replicas are in sync, so that the next fault hits an
                        # in-sync broker.
                        self.cluster.wait_in_sync(topic)
                        work.wait_acked()
                    done += 1
                    print(f"{kind} {done}/{count} {role}: {gap_ms:.0f} ms", file=sys.stderr)
                history = self.cluster.finish(work)
            self.acknowledged += history.acknowledged
            self.read += sum(map(len, history.read.values()))
            self.cluster.admin.delete_topic(topic)

    def victims(self, topic: str, role: str) -> list[Any]:
        """Return the brokers that have this role for the topic at present, such as leader."""
        find = {
            "leader": lambda: [self.cluster.leader(topic, self.random.randrange(3))],
            "follower": lambda: [self.cluster.follower(topic, self.random.randrange(3))],
            "controller": lambda: [self.cluster.controller()],
            "all": lambda: list(self.cluster.brokers.values()),
        }
        found: list[Any] = find[role.partition(" ")[0]]()
        # Wait for a random time, so that faults also hit checkpoints, segment rolls and elections.
        time.sleep(self.random.random())
        return found

    def kill(self, topic: str, role: str) -> None:
        """Send SIGKILL to the brokers that have this role for the topic, such as leader or
        controller.
        """
        victims = self.victims(topic, role)
        if role == WITH_ZOOKEEPER:
            self.cluster.zookeeper.kill()
        for broker in victims:
            broker.kill()
        self.cluster.zookeeper.start()
        if role == "all":
            self.cluster.start_all()

    def cut(self, topic: str, role: str) -> None:
        """Cut the power of the machines of the brokers that have this role for the topic."""
        victims = self.victims(topic, role)
        self.cluster.cut_power(victims, self.random)
        if role == "all":
            self.cluster.start_all()

    def pause(self, topic: str, role: str) -> None:
        """Send SIGSTOP to the brokers that have this role for the topic, and SIGCONT after a
        while.
        """
        victims = self.victims(topic, role)
        for broker in victims:
            broker.pause()
        time.sleep(self.random.random() * PAUSE_S_MAX)
        for broker in victims:
            broker.resume()

    def fill(self, topic: str, role: str) -> Callable[[], None]:
        """Fill the disk of the broker with this role for the topic, such as leader; wait until it
        is in no ISR."""
        (victim,) = self.victims(topic, role)
        disk = self.cluster.disks[victim.id]
        disk.fill()
        self.cluster.wait_out_of_sync(topic, victim)
        return disk.free


def gap_figures(gaps_ms: dict[str, list[float]]) -> dict[str, Any]:
    """Return the count, median and maximum of the times without acknowledgement, by kind of
    fault."""
    return {
        name: {
            "faults": len(gaps),
            "p50": round(statistics.median(gaps)),
            "max": round(max(gaps)),
        }
        for name, gaps in sorted(gaps_ms.items())
    }


def kills_and_cuts(
    cluster: Replicated, random: Random, kills: int, cuts: int, pauses: int
) -> dict[str, Any]:
    """Run kills, then power cuts if this machine permits them, then pauses; return the results.

    Raises AssertionError for an anomaly.
    """
    began = time.monotonic()
    chaos = Chaos(cluster, random)
    chaos.run("kill -9", kills, chaos.kill)
    result: dict[str, Any] = {"kills": kills, "power_cuts": cuts, "pauses": pauses}
    if cluster.disks:
        chaos.run("power cut", cuts, chaos.cut)
    else:
        result["power_cuts"] = f"not permitted here: {why_no_disks()}"
    chaos.run("pause", pauses, chaos.pause)
    return result | {
        "acknowledged": chaos.acknowledged,
        "read": chaos.read,
        "lost_doubled_reordered_or_read_uncommitted": 0,
        "longest_gap_ms": gap_figures(chaos.gaps_ms),
        "seconds": round(time.monotonic() - began),
    }


def isolations(cluster: Replicated, wires: Network, random: Random, count: int) -> dict[str, Any]:
    """Isolate one broker after the other, each until the cluster has replaced it.

    Raises AssertionError for an anomaly.
    """
    chaos = Chaos(cluster, random)

    def isolate(topic: str, role: str) -> Callable[[], None]:
        (victim,) = chaos.victims(topic, role)
        wires.isolate(victim.id)
        return lambda: wires.join(victim.id)

    chaos.run(ISOLATED, count, isolate)
    return {
        "isolations": count,
        "session_ms": int(ISOLATED_SESSION_MS),
        "acknowledged": chaos.acknowledged,
        "lost_doubled_reordered_or_read_uncommitted": 0,
        "longest_gap_ms": gap_figures(chaos.gaps_ms),
    }


def full_disks(cluster: Replicated, random: Random, count: int) -> dict[str, Any]:
    """Fill brokers' disks one at a time. Raises AssertionError for an anomaly."""
    chaos = Chaos(cluster, random)
    chaos.run(FULL_DISK, count, chaos.fill)
    return {
        "full_disks": count,
        "acknowledged": chaos.acknowledged,
        "lost_doubled_reordered_or_read_uncommitted": 0,
        "longest_gap_ms": gap_figures(chaos.gaps_ms),
    }


def keep(part: str, result: dict[str, Any]) -> None:
    """Replace the entry ``part`` of the results file, and leave the others unchanged."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    kept[part] = result | {"load_average_after": round(os.getloadavg()[0], 1)}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    print(json.dumps({part: kept[part]}, indent=2))


@contextlib.contextmanager
def _folder_kept_after_failure() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="logbus-chaos-")
    try:
        yield directory
    except BaseException:
        print(f"the logs and data are in {directory}", file=sys.stderr)
        raise
    shutil.rmtree(directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--pauses", type=int, default=0)
    parser.add_argument("--full-disks", type=int, default=0)
    parser.add_argument("--isolations", type=int, default=0)
    parser.add_argument("--flips", type=int, default=0)
    parser.add_argument("--sink-kills", type=int, default=0, help="of each kind")
    parser.add_argument("--loop-kills", type=int, default=0, help="of each kind")
    parser.add_argument("--secure", action="store_true", help="kills, cuts and pauses: with TLS")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    facts = {"seed": options.seed, "load_average": round(os.getloadavg()[0], 1)}
    with _folder_kept_after_failure() as directory:
        if options.kills or options.cuts or options.pauses:
            with on_disks(Path(directory) / "chaos", secure=options.secure) as cluster:
                counts = (options.kills, options.cuts, options.pauses)
                found = kills_and_cuts(cluster, Random(options.seed), *counts)
                part = "kills_and_cuts_secured" if options.secure else "kills_and_cuts"
                keep(part, facts | found)
        if options.full_disks:
            assert not why_no_disks(), why_no_disks()
            with on_disks(Path(directory) / "full") as cluster:
                found = full_disks(cluster, Random(options.seed), options.full_disks)
                keep("full_disks", facts | found)
        if options.isolations:
            place = Path(directory) / "network"
            place.mkdir()
            assert not why_no_networks(), why_no_networks()
            with on_network(place, zookeeper_session_timeout_ms=ISOLATED_SESSION_MS) as on:
                found = isolations(*on, Random(options.seed), options.isolations)
                keep("isolations", facts | found)
        if options.flips:
            with on_disks(Path(directory) / "flips") as cluster:
                found = bit_flips.run(cluster, Random(options.seed), options.flips)
                keep("bit_flips", facts | found)
        if options.sink_kills:
            place = Path(directory) / "sink"
            place.mkdir()
            found = sink_chaos.run(place, Random(options.seed), options.sink_kills)
            keep("exactly_once_sink", facts | found)
        if options.loop_kills:
            place = Path(directory) / "loop"
            place.mkdir()
            found = sink_chaos.run(place, Random(options.seed), options.loop_kills, LoopChaos)
            keep("transaction_loop", facts | found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
