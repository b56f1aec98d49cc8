"""Many faults, one after the other, under a workload whose history is checked.

    make chaos [KILLS=100] [CUTS=100] [FLIPS=0]    (python -m faults.chaos, tests on the path)

Each round makes a topic, writes and reads it through ten faults and then holds what is there
against what was promised. Kills: of the leader, a follower, the controller, all brokers, at random
moments, some while another is still coming back. Cuts: the power of one broker's or of all
brokers' machines. Results go to ``benchmarks/results/chaos.json``; it ends at the first anomaly.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faults import bit_flips
from faults.machine import why_no_disks
from faults.replicated import Replicated, on_disks

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
FAULTS_PER_TOPIC = 10
ONE_BROKER = ("leader", "follower", "controller")
ALL_EVERY = 5
"""Every so manieth fault hits all brokers at once."""


class Chaos:
    """A cluster, a seeded choice of faults, and what they cost."""

    def __init__(self, cluster: Replicated, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.gaps_ms: dict[str, list[float]] = {}
        self.acknowledged = self.read = 0

    def run(self, kind: str, count: int, strike: Callable[[str, str], None]) -> None:
        """``count`` faults; ``strike(topic, role)`` is one of them."""
        done = 0
        while done < count:
            topic = self.cluster.make_topic(segment_bytes=1 << 20, max_message_bytes=1 << 20)
            with self.cluster.workload(topic) as work:
                work.wait_acked()
                for _ in range(min(FAULTS_PER_TOPIC, count - done)):
                    role = "all" if done % ALL_EVERY == ALL_EVERY - 1 else ""
                    role = role or ONE_BROKER[done % len(ONE_BROKER)]
                    work.mark()
                    strike(topic, role)
                    gap_ms = work.wait_acked() * 1000
                    self.gaps_ms.setdefault(f"{kind} {role}", []).append(gap_ms)
                    self.cluster.start_all()
                    if self.random.random() < 0.8:
                        # Else the next fault meets a broker that is not in sync yet.
                        self.cluster.wait_in_sync(topic)
                        work.wait_acked()
                    done += 1
                    print(f"{kind} {done}/{count} {role}: {gap_ms:.0f} ms", file=sys.stderr)
                self.cluster.wait_in_sync(topic)
                history = work.finish()
            self.acknowledged += history.acknowledged
            self.read += sum(map(len, history.read.values()))
            self.cluster.admin.delete_topic(topic)

    def victims(self, topic: str, role: str) -> list[Any]:
        """Who is hit."""
        find = {
            "leader": lambda: [self.cluster.leader(topic, self.random.randrange(3))],
            "follower": lambda: [self.cluster.follower(topic, self.random.randrange(3))],
            "controller": lambda: [self.cluster.controller()],
            "all": lambda: list(self.cluster.brokers.values()),
        }
        found: list[Any] = find[role]()
        # At any moment of what the cluster does now and then: checkpoints, rolls, notices.
        time.sleep(self.random.random())
        return found

    def kill(self, topic: str, role: str) -> None:
        """kill -9."""
        victims = self.victims(topic, role)
        for broker in victims:
            broker.kill()
        if role == "all":
            self.cluster.start_all()

    def cut(self, topic: str, role: str) -> None:
        """The power of their machines goes."""
        victims = self.victims(topic, role)
        self.cluster.cut_power(victims, self.random)
        if role == "all":
            self.cluster.start_all()


def gap_figures(gaps_ms: dict[str, list[float]]) -> dict[str, Any]:
    """The longest time without an acknowledgement in any partition, by fault."""
    return {
        name: {
            "faults": len(gaps),
            "p50": round(statistics.median(gaps)),
            "max": round(max(gaps)),
        }
        for name, gaps in sorted(gaps_ms.items())
    }


def kills_and_cuts(cluster: Replicated, random: Random, kills: int, cuts: int) -> dict[str, Any]:
    """Kills, then power cuts where they are permitted; what they cost. Raises AssertionError."""
    began = time.monotonic()
    chaos = Chaos(cluster, random)
    chaos.run("kill -9", kills, chaos.kill)
    result: dict[str, Any] = {"kills": kills, "power_cuts": cuts}
    if cluster.disks:
        chaos.run("power cut", cuts, chaos.cut)
    else:
        result["power_cuts"] = f"not permitted here: {why_no_disks()}"
    return result | {
        "acknowledged": chaos.acknowledged,
        "read": chaos.read,
        "lost_doubled_reordered_or_read_uncommitted": 0,
        "longest_gap_ms": gap_figures(chaos.gaps_ms),
        "seconds": round(time.monotonic() - began),
    }


def keep(part: str, result: dict[str, Any]) -> None:
    """Write one part of the results; the other stays as it was found last."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    kept[part] = result
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    print(json.dumps({part: result}, indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--flips", type=int, default=0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    facts = {"seed": options.seed, "load_average": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory(prefix="logbus-chaos-") as directory:
        if options.kills or options.cuts:
            with on_disks(Path(directory) / "chaos") as cluster:
                random = Random(options.seed)
                found = kills_and_cuts(cluster, random, options.kills, options.cuts)
                keep("kills_and_cuts", facts | found)
        if options.flips:
            with on_disks(Path(directory) / "flips") as cluster:
                found = bit_flips.run(cluster, Random(options.seed), options.flips)
                keep("bit_flips", facts | found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
