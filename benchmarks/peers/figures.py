"""The common parts of the scripts of ``make figures``: options, order of runs, medians, output."""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeVar

Case = TypeVar("Case", bound=Hashable)
Result = TypeVar("Result")
SHORTEST_OF = 5


def main(measure: Callable[..., Mapping[str, Any]]) -> None:
    """Call ``measure``, and print the figures that it returns, and the machine, as a JSON object.

    Each parameter of ``measure`` is an option of the command line, with its default and its type.
    """
    script = sys.modules["__main__"].__doc__ or ""
    parser = argparse.ArgumentParser(description=script.splitlines()[0])
    for name, parameter in inspect.signature(measure).parameters.items():
        value = parameter.default
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    # Import here: a measured client imports this module, too, and would load ``versions`` for
    # nothing.
    from peers import versions

    machine = versions.machine()
    print(json.dumps({**measure(**given), "machine": machine}, indent=2))


def in_turns(
    cases: Iterable[Case], run: Callable[[Case], Result], rounds: int
) -> dict[Case, list[Result]]:
    """Run each case once in each round, in the reverse order of the round before.

    Return the results of each case, without the first round, which warms caches and compilers.
    """
    ordered = list(cases)
    found: dict[Case, list[Result]] = {case: [] for case in ordered}
    for number in range(rounds + 1):
        for case in ordered[:: 1 if number % 2 else -1]:
            found[case].append(run(case))
    return {case: results[1:] for case, results in found.items()}


def median(values: Iterable[float], digits: int = 1) -> float:
    return round(statistics.median(values), digits)


def ratio(above: Iterable[float], below: Iterable[float], digits: int = 2) -> float:
    """Return the median of the rounds' ratios ``above / below``."""
    return median((a / b for a, b in zip(above, below, strict=True)), digits)


def percentile(values: Iterable[float], percent: int) -> float:
    """Return a percentile of the values: the one with the nearest rank."""
    ranked = sorted(values)
    return ranked[round((len(ranked) - 1) * percent / 100)]


def spread_ms(values: list[float], digits: int | None = None) -> dict[str, float]:
    """Return the median, the p99 and the maximum of durations in ms."""
    ranks = {"p50_ms": 50, "p99_ms": 99, "max_ms": 100}
    return {name: round(percentile(values, rank), digits) for name, rank in ranks.items()}


def shortest(call: Callable[[], object], seconds: float) -> float:
    """Return the mean duration of a call in seconds, in the fastest of several rounds. All rounds
    take about ``seconds``."""
    times, rounds = 1, []
    while len(rounds) < SHORTEST_OF:
        began = time.perf_counter()
        for _ in range(times):
            call()
        took = time.perf_counter() - began
        if rounds or took > seconds / SHORTEST_OF:
            rounds.append(took / times)
        else:
            times *= 2
    return min(rounds)


def timed(call: Callable[..., object], *arguments: object) -> float:
    """Return the duration of a call in seconds."""
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began
