"""Run all fuzz targets for some time and write how many inputs each got: ``make fuzz``.

Run ``python -m fuzz.soak --seconds 600 --only sasl --first 0``. A target ends after its number of
inputs (``INPUTS``), and leaves its unused time to the targets after it. A failure prints its target
and seeds; ``--first SEED --count N`` repeats the failure. For every thousandth input, the allocated
memory is checked. The result is ``benchmarks/results/fuzz.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import sys
import time
import tracemalloc
from pathlib import Path

from fuzz.targets import INPUTS, TARGETS, Target, quiet

OUT = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"
ALLOCATED_SHARE_MAX = 2
ALLOCATED_FREE = 1 << 20
"""Bytes that an input may allocate in addition to ALLOCATED_SHARE_MAX times its own size."""
RSS_GROWTH_MAX = 32 << 20
WATCHED_EVERY = 1000
WARM_UP = 2000
"""Number of inputs before the first measurement of resident memory.

Caches and simulated brokers grow at the beginning.
"""


def run(name: str, first: int, count: int, seconds: float) -> dict[str, object]:
    """Run seeds from ``first`` on: at most ``count`` seeds, for at most ``seconds`` seconds. Return
    the target's figures for the results file.
    """
    with contextlib.closing(TARGETS[name]()) as target:
        return _run(name, target, first, count, seconds)


def _run(name: str, target: Target, first: int, count: int, seconds: float) -> dict[str, object]:
    began = time.monotonic()
    done, size, rss = 0, 0, 0
    while done < count and time.monotonic() - began < seconds:
        seeds = range(first + done, first + min(done + target.together, count))
        try:
            if target.is_remote and done % WATCHED_EVERY == WATCHED_EVERY // 2:
                _check_memory(target, seeds[0])
            size += target.all_at_once([random.Random(seed) for seed in seeds])
        except BaseException:
            again = f"--only {name} --first {seeds[0]} --count {len(seeds)}"
            print(f"target {name}, seeds from {seeds[0]} on: {again}")
            raise
        done += len(seeds)
        if done == WARM_UP:
            rss = _rss()
    grown = max(0, _rss() - rss) if done > WARM_UP else 0
    assert grown <= RSS_GROWTH_MAX, f"target {name}: the process grew by {grown} bytes"
    return {
        "inputs": done,
        "bytes": size,
        "seconds": round(time.monotonic() - began, 1),
        "rss_growth_bytes": grown,
        "failures": 0,
    }


def _check_memory(target: Target, seed: int) -> None:
    """Run an input and check the memory it allocates; retry, because the first run fills caches."""
    size, peak = _measured(target, seed)
    if peak > _allowed(size):
        size, peak = _measured(target, seed)
    assert peak <= _allowed(size), f"{peak} bytes were allocated for an input of {size}"


def _allowed(size: int) -> int:
    return ALLOCATED_FREE + ALLOCATED_SHARE_MAX * size


def _measured(target: Target, seed: int) -> tuple[int, int]:
    tracemalloc.start()
    try:
        size = target.once(random.Random(seed))
        return size, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz.soak")
    parser.add_argument("--seconds", type=float, default=600, help="of all targets together")
    parser.add_argument("--count", type=int, help="inputs of each target")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", choices=sorted(TARGETS), help="one target")
    given = parser.parse_args()
    quiet()
    names = [given.only] if given.only else list(TARGETS)
    found = {}
    until = time.monotonic() + given.seconds
    for index, name in enumerate(names):
        seconds = (until - time.monotonic()) / (len(names) - index)
        wanted = given.count or INPUTS[name]
        found[name] = run(name, given.first, wanted, seconds) | {"wanted": wanted}
        print(name, json.dumps(found[name]), flush=True)
    if given.only is None:
        OUT.write_text(json.dumps({"first": given.first, "targets": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
