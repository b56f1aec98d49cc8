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
import statistics
import sys
import tempfile
import time
from collections import Counter
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--flips", type=int, default=0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    began = time.monotonic()
    result: dict[str, Any] = {"seed": options.seed, "verdict": "as promised"}
    random = Random(options.seed)
    with (
        tempfile.TemporaryDirectory(prefix="logbus-chaos-") as directory,
        on_disks(Path(directory)) as cluster,
    ):
        chaos = Chaos(cluster, random)
        if options.kills:
            chaos.run("kill -9", options.kills, chaos.kill)
        if options.cuts and not cluster.disks:
            result["power_cuts"] = f"not permitted here: {why_no_disks()}"
        elif options.cuts:
            chaos.run("power cut", options.cuts, chaos.cut)
        faults: Counter[str] = Counter()
        for name, gaps in chaos.gaps_ms.items():
            faults[name.rpartition(" ")[0]] += len(gaps)
        result |= {
            "faults": dict(faults),
            "acknowledged": chaos.acknowledged,
            "read": chaos.read,
            "lost_doubled_reordered_uncommitted_read": 0,
            "longest_gap_ms": gap_figures(chaos.gaps_ms),
        }
        if options.flips:
            result["bit_flips"] = bit_flips.run(cluster, random, options.flips)
    result["seconds"] = round(time.monotonic() - began)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
