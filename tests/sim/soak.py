"""Run seeds on all cores for some time and report the results: ``make soak [SECONDS=600]``.

    python -m sim.soak [--seconds N] [--processes N] [--first SEED] [--out FILE]
    python -m sim.soak --transactions  seeds with transactions and a Spark sink; its own result file
    python -m sim.soak --plants N      print after how many seeds N runs detect each removed rule
    python -m sim.soak --plants N --transactions  only the rules of transactions

One seed in a hundred is run twice, and the two traces are compared. The exit code is 1 if a seed
failed; the result file has its number. Speeds are per second of processor time, so that other load
on the machine does not count.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from sim import scenario
from sim.damage_plants import under
from sim.plants import Patch, Plant
from sim.transaction_plants import PLANTS, TRANSACTION_PLANTS

OUT = Path("benchmarks/results/soak.json")
TRANSACTIONS_OUT = Path("benchmarks/results/soak-transactions.json")
TRANSACTIONS: Mapping[str, Any] = {
    "safety_s": 20.0,
    "transacts": True,
    "sinks": True,
    "producers": 1,
    "row_producers": 0,
    "readers": 0,
    "loses": False,
}
"""Options of seeds with transactions.

These seeds have few plain clients, which would double the running time; other seeds test them.
"""
AT_ONCE = 10
"""Number of seeds that a worker process runs in one task."""
TWICE_EVERY = 100
PLANT_SEEDS_MAX = 1000
PLANT_SAFETY_S = 40.0


@dataclass
class Seeds:
    """The summed results of several simulated runs."""

    seeds: int = 0
    virtual_s: float = 0.0
    processor_s: float = 0.0
    steps: int = 0
    callbacks: int = 0
    run_twice: int = 0
    speeds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Seeds) -> None:
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.processor_s += other.processor_s
        self.steps += other.steps
        self.callbacks += other.callbacks
        self.run_twice += other.run_twice
        self.speeds += other.speeds
        self.counts += other.counts
        self.failures += other.failures


def run_some(first: int, overrides: Mapping[str, Any]) -> Seeds:
    """Run AT_ONCE seeds from ``first`` on with the options ``overrides``; return their results."""
    found = Seeds()
    for seed in range(first, first + AT_ONCE):
        began = time.process_time()
        try:
            outcome = scenario.run(seed, **overrides)
        except scenario.Failed as failed:
            lines = str(failed).splitlines()
            found.failures.append({"seed": seed, "what": lines[0], "last": lines[2:]})
            found.seeds += 1
            continue
        took_s = time.process_time() - began
        found.seeds += 1
        found.virtual_s += outcome.virtual_s
        found.processor_s += took_s
        found.steps += outcome.steps
        found.callbacks += outcome.callbacks
        found.speeds.append(outcome.virtual_s / took_s)
        found.counts.update(outcome.counts)
        if seed % TWICE_EVERY == 0:
            found.run_twice += 1
            if scenario.run(seed, **overrides).digest != outcome.digest:
                found.failures.append({"seed": seed, "what": "two runs differ", "last": []})
    return found


def soak(
    seconds: float,
    processes: int,
    first: int,
    overrides: Mapping[str, Any],
    keep: Callable[[Seeds], None],
) -> None:
    """Run seeds for ``seconds``; call ``keep`` with all results after every AT_ONCE seeds."""
    everything = Seeds()
    end = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting: set[Future[Seeds]] = set()
        for number in _firsts(first, end):
            waiting.add(pool.submit(run_some, number, overrides))
            if len(waiting) > processes:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for task in done:
                    everything.add(task.result())
                    keep(everything)
        for task in waiting:
            everything.add(task.result())
            keep(everything)


def _firsts(first: int, end: float) -> Iterator[int]:
    for number in count(first, AT_ONCE):
        if time.monotonic() > end:
            return
        yield number


def report(found: Seeds, wall_s: float, processes: int, first: int) -> dict[str, Any]:
    """Return the report about all simulated runs as JSON values."""
    return {
        "what": "simulated clusters: production code, virtual time, seeded faults",
        "seeds": found.seeds,
        "first_seed": first,
        "commit": _commit(),
        "virtual_hours": round(found.virtual_s / 3600, 2),
        "wall_s": round(wall_s, 1),
        "processes": processes,
        "virtual_s_per_s_and_core": {
            "all": round(found.virtual_s / found.processor_s) if found.processor_s else 0,
            "median_seed": round(statistics.median(found.speeds)) if found.speeds else 0,
        },
        "steps_checked": found.steps,
        "callbacks": found.callbacks,
        "seeds_run_twice_with_equal_traces": found.run_twice,
        "failures": found.failures,
        "counts": dict(sorted(found.counts.items())),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


@functools.cache
def _commit() -> str:
    """Return the commit of the code, with -dirty if it was changed; empty outside a git clone.

    Only the first call looks at the clone: the result file that is written later makes the clone
    dirty.
    """
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


_INHERITED = object()


class _Patches:
    """A replacement for pytest's monkeypatch outside pytest."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        self._before.append((target, name, vars(target).get(name, _INHERITED)))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._before:
            target, name, before = self._before.pop()
            if before is _INHERITED:
                delattr(target, name)
            else:
                setattr(target, name, before)


def seeds_until_found(plant: Plant, first: int, most: int) -> tuple[int, str] | None:
    """Run seeds from ``first`` on until one detects the fault.

    Return the number of seeds and the failure's message, or None after ``most`` seeds.
    """
    patches = _Patches()
    patch: Patch = patches
    plant(patch)
    try:
        for number in range(most):
            try:
                scenario.run(first + number, PLANT_SAFETY_S, **under(plant))
            except scenario.Failed as failed:
                return number + 1, str(failed).splitlines()[0].partition(" s: ")[2]
    finally:
        patches.undo()
    return None


def _plant_row(job: tuple[str, int]) -> tuple[str, int, str]:
    name, first = job
    plant = next(plant for plant in PLANTS if plant.__name__ == name)
    found = seeds_until_found(plant, first, PLANT_SEEDS_MAX)
    return (plant.__name__, PLANT_SEEDS_MAX, "") if found is None else (plant.__name__, *found)


def planted(plants: Sequence[Plant], beginnings: int, processes: int) -> bool:
    """Print a table row and the first failure for each removed rule (*plant*); return whether the
    seeds detected all removals.
    """
    jobs = [(plant.__name__, 10_000 * b) for plant in plants for b in range(beginnings)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        rows = list(pool.map(_plant_row, jobs))
    medians = []
    failures = []
    print("| behaviour without the rule | seeds, median | most |\n|---|---|---|")
    for number, plant in enumerate(plants):
        some = rows[number * beginnings : (number + 1) * beginnings]
        seeds = sorted(row[1] for row in some)
        medians.append(statistics.median(seeds))
        text = (plant.__doc__ or "").partition("\n")[0].removeprefix("Plant a fault: ").rstrip(".")
        failures.append(f"{text}: {next((row[2] for row in some if row[2]), 'not detected')}")
        print(f"| {text} | {medians[-1]:g} | {seeds[-1]} |")
    print("\nThe first failure without each rule:", *failures, sep="\n")
    print(f"\n{len(plants)} rules; the median of the medians is {statistics.median(medians):g}")
    return all(row[2] for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=None, help="seed; a random one if not given")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--transactions", action="store_true")
    parser.add_argument("--plants", type=int, default=0)
    options = parser.parse_args()
    if options.plants:
        plants = TRANSACTION_PLANTS if options.transactions else PLANTS
        return 0 if planted(plants, options.plants, options.processes) else 1
    first = options.first
    if first is None:
        first = random.SystemRandom().randrange(1 << 31) // TWICE_EVERY * TWICE_EVERY
    out = options.out or (TRANSACTIONS_OUT if options.transactions else OUT)
    overrides: Mapping[str, Any] = TRANSACTIONS if options.transactions else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    result: dict[str, Any] = {}

    def keep(found: Seeds) -> None:
        """Write the results so far, so that an interrupted run does not lose them."""
        result.update(report(found, time.monotonic() - began, options.processes, first))
        result["options"] = dict(overrides)
        out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")

    soak(options.seconds, options.processes, first, overrides, keep)
    print(json.dumps({k: v for k, v in result.items() if k not in ("counts", "failures")}))
    for failure in result["failures"]:
        print(f"FAILED: {failure['what']}", file=sys.stderr)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
