"""Run seeds of each group simulation on all cores and report the results: ``make soak-groups``.

    python -m sim.soak_groups [--seeds N] [--processes N] [--first SEED] [--out FILE]

Each simulation runs the same seeds. The exit code is 1 if a seed failed; the result file has the
seed's number.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import platform
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from sim import either_kind, groups, kafka_groups, kafka_members
from sim.seeded import Violation

OUT = Path("benchmarks/results/soak-groups.json")
WORLDS = {
    "native_groups": groups.run,
    "kafka_groups": kafka_groups.run,
    "kafka_members": kafka_members.run,
    "either_kind": either_kind.run,
}


class Played(NamedTuple):
    """The result of one simulation with one seed."""

    world: str
    seed: int
    counts: Counter[str]
    processor_s: float
    found: str


def play(job: tuple[str, int]) -> Played:
    # Disable logging, because brokers under faults log thousands of errors.
    logging.disable(logging.ERROR)
    world, seed = job
    began, counts, found = time.process_time(), Counter[str](), ""
    try:
        counts = WORLDS[world](seed)
    except Violation as violation:
        found = str(violation)
    return Played(world, seed, counts, time.process_time() - began, found)


def report(played: list[Played], first: int, processes: int, wall_s: float) -> dict[str, Any]:
    """Return the report about all simulated runs as JSON values."""
    rows = {}
    for world in WORLDS:
        mine = [row for row in played if row.world == world]
        counts = sum((row.counts for row in mine), Counter[str]())
        rows[world] = {
            "seeds": len(mine),
            "processor_s": round(sum(row.processor_s for row in mine), 1),
            "failures": [{"seed": row.seed, "what": row.found} for row in mine if row.found],
            "counts": dict(sorted(counts.items())),
        }
    return {
        "what": "simulated groups: production code, virtual time, seeded faults",
        "first_seed": first,
        "wall_s": round(wall_s, 1),
        "processes": processes,
        "worlds": rows,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim.soak_groups", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=None, help="seed; a random one if not given")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    first = options.first
    if first is None:
        first = random.SystemRandom().randrange(1 << 31)
    jobs = [(world, first + n) for n in range(options.seeds) for world in WORLDS]
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        played = list(pool.map(play, jobs, chunksize=6))
    result = report(played, first, options.processes, time.monotonic() - began)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    failures = [row.found for row in played if row.found]
    print(f"{options.seeds} seeds of each from {first} on in {result['wall_s']} s")
    for found in failures:
        print(f"FAILED: {found}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
