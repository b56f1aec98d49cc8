"""Run the simulations of one consumer group: one seed for a test, or many seeds from a command
line.

A failure names its seed; the same seed repeats the same run.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from sim.scheduler import SimLoop


def first_seed() -> int:
    """Return LOGBUS_SIM_SEED if it is set, otherwise a seed derived from the Git commit.

    Each Git commit tries other seeds than earlier ones, but the same seeds on every machine.
    Outside a git clone the first seed is 0.
    """
    if chosen := os.environ.get("LOGBUS_SIM_SEED"):
        return int(chosen)
    command = ["git", "rev-parse", "HEAD"]
    try:
        asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return int(asked.stdout[:7] or "0", 16)


class Violation(AssertionError):
    """Raised when an invariant does not hold; the message begins with the seed."""


class World(Protocol):
    """One simulated run, determined by its seed. ``problems`` holds the errors of callbacks."""

    problems: list[BaseException]
    counts: Counter[str]

    async def start(self) -> None: ...

    async def chaos(self) -> None: ...

    async def settle(self) -> None: ...


def play(make: Callable[[SimLoop, int], World], seed: int) -> Counter[str]:
    """Run the simulation with one seed; return how often each event occurred.

    Raises Violation with the seed in its message.
    """
    loop = SimLoop()  # type: ignore[abstract]
    world = make(loop, seed)
    problems = world.problems

    def trouble(_: Any, context: dict[str, Any]) -> None:
        problems.append(context.get("exception") or RuntimeError(context["message"]))

    async def whole() -> None:
        await world.start()
        await world.chaos()
        await world.settle()

    loop.set_exception_handler(trouble)
    try:
        loop.run_until_complete(whole())
        if problems:
            raise problems[0]
    except Exception as error:
        first = problems[0] if problems else error
        name = type(first).__name__
        raise Violation(f"seed {seed}, ended at {loop.now:.3f} s: {name}: {first}") from first
    finally:
        loop.finish()
    world.counts["steps"] = loop.steps
    return world.counts


def main(what: str, run: Callable[[int], Counter[str]]) -> None:
    """Run the seeds that ``--seeds N --first SEED`` selects; exit with 1 at the first violation."""
    parser = argparse.ArgumentParser(description=f"Seeds of {what} in virtual time")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    # Disable logging, because brokers under faults log thousands of errors.
    logging.disable(logging.ERROR)
    began, counts = time.monotonic(), Counter[str]()
    for seed in range(options.first, options.first + options.seeds):
        try:
            counts += run(seed)
        except Violation as violation:
            sys.exit(str(violation))
    seconds = time.monotonic() - began
    print(f"{options.seeds} seeds in {seconds:.0f} s: {dict(sorted(counts.items()))}")
