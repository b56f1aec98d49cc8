"""Run all fuzz targets for some time and write how many inputs each got: ``make fuzz``.

Run ``python -m fuzz.soak --seconds 600 --only sasl --first 0``. A target ends after its number of
inputs (``INPUTS``), and leaves its unused time to the targets after it. A failure prints its target
and seeds; ``--first SEED --count N`` repeats the failure. For every thousandth input, the memory is
checked: how much the code allocates for the input, and how much it keeps afterwards. The result is
``benchmarks/results/fuzz.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import resource
import sys
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

from fuzz.targets import INPUTS, TARGETS, Target, quiet

OUT = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz.json"
ALLOCATED_SHARE_MAX = 2
"""The code may allocate this many times the size of an input, plus ``Target.fixed_bytes``."""
KEPT_MAX = 128
"""Maximum bytes that the code may keep for each repetition of an input, on average.

A smaller leak shows in a complete run, which limits the growth of resident memory. A check of a
signature keeps 60 bytes, in a cache of ``cryptography`` that stops at 5 KB.
"""
REPEATED = 8
"""Number of repetitions of an input for which the kept bytes are counted."""
NOT_COUNTED = [
    tracemalloc.Filter(False, files)
    for files in ("*/asyncio/*", "*/selectors.py", "*/tracemalloc.py", "*/tests/sim/*")
]
"""Files whose allocations do not count as kept: event loops keep the timers of past timeouts."""
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


class _Memory(NamedTuple):
    """The ``size`` of an input in bytes, the bytes that the code ``allocated`` for it at its peak,
    and the bytes that it ``kept`` for each repetition of the input."""

    size: int
    allocated: int
    kept: float

    def excess(self, fixed_bytes: int) -> str:
        """Return which limit the code exceeded, or "" if it exceeded none."""
        if self.allocated > fixed_bytes + ALLOCATED_SHARE_MAX * self.size:
            return f"{self.allocated} bytes were allocated for an input of {self.size}"
        if self.kept > KEPT_MAX:
            return f"{self.kept} bytes are kept for each input of {self.size}"
        return ""


def _check_memory(target: Target, seed: int) -> None:
    """Run an input and check its memory; retry, because the first run fills caches."""
    excess = _measured(target, seed).excess(target.fixed_bytes)
    if excess:
        excess = _measured(target, seed).excess(target.fixed_bytes)
    assert not excess, excess


def _measured(target: Target, seed: int) -> _Memory:
    gc.freeze()  # So that ``gc.collect`` examines only objects of these inputs.
    tracemalloc.start()
    try:
        target.once(random.Random(seed))
        before = _kept_bytes()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        size = target.once(random.Random(seed))
        allocated = tracemalloc.get_traced_memory()[1] - used
        for _ in range(REPEATED - 1):
            target.once(random.Random(seed))
        return _Memory(size, allocated, (_kept_bytes() - before) / REPEATED)
    finally:
        tracemalloc.stop()
        gc.unfreeze()


def _kept_bytes() -> int:
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces(NOT_COUNTED)
    return sum(trace.size for trace in snapshot.traces)


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
