"""Run both sides (compared systems) of a benchmark alternately; store the first run of each side
separately.

A round runs each side once, in the reverse order of the round before. Before each run, the page
cache's dirty pages are written to disk, so that no side pays for the writes of another side.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from peers import versions
from peers.bench import Bench
from peers.fetch import Cannot
from peers.meter import Meter
from peers.row import LOGBUS, Goal, Row, Side, Variant, is_floor

QUICK_ROUNDS = 2


class TookTooLong(Exception):
    """Raised when a benchmark exceeds its time limit.

    Unlike TimeoutError it is no OSError: the alarm may interrupt a read of a file in /proc by the
    meter, which ignores an OSError.
    """


def run(row: Row, bench: Bench, names: Collection[str] = ()) -> dict[str, Any]:
    """Run a benchmark (a row of the table of results); return its result.

    ``names`` selects variants (sets of settings) by name. Without names, all variants run; a quick
    run takes only the first. In the result, ``cannot`` is the reason why a variant has no figures.
    """
    chosen = [each for each in row.variants if each.name in names] or list(row.variants)
    if bench.quick and not names:
        chosen = chosen[:1]
    return {
        "row": row.name,
        "number": row.number,
        "work": row.work,
        "bound": row.bound,
        "quick": bench.quick,
        "variants": [_variant(row, bench, variant) for variant in chosen],
    }


def _variant(row: Row, bench: Bench, variant: Variant) -> dict[str, Any]:
    """Run one variant (set of settings) of a benchmark, and return its result."""
    kept: dict[str, Any] = {
        "variant": variant.name,
        "settings": dict(variant.settings),
        "compression": variant.compression,
        "input": bench.lines.source,
        "machine": versions.machine(),
        "versions": versions.found(),
    }
    began = time.monotonic()
    try:
        with _at_most(None if row.apart else row.seconds_max), row.open(bench, variant) as opened:
            sides = {name: s for name, s in opened.items() if not bench.is_left_out(name)}
            kept["settings"] |= {name: s.settings for name, s in sides.items() if s.settings}
            kept["absent"] = {name: s.cannot for name, s in sides.items() if s.cannot}
            found = _alternate(row, bench, sides, kept["absent"])
        if not found:
            raise Cannot("; ".join(kept["absent"].values()) or "it has no sides")
        kept["seconds"] = round(time.monotonic() - began, 1)
        return kept | {"sides": found, "compared": compared(row, variant, found)}
    except Cannot as why:
        return kept | {"cannot": str(why)}
    except Exception as error:  # Record why the benchmark failed.
        why_not = _said(error)
        print(f"  {row.name} [{variant.name}]: {why_not}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            bench.stop_all()  # The failure may have left a server unusable, so end all servers.
        return kept | {"cannot": why_not, "failed": True}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:600]


@contextlib.contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raise TookTooLong in the block if it takes longer than ``seconds``; None means no limit.
    Needs the main thread, as signals do.

    This way, a benchmark that hangs does not prevent later benchmarks.
    """
    if seconds is None:
        yield
        return

    def expired(*_: object) -> None:
        raise TookTooLong(f"the benchmark took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _alternate(
    row: Row, bench: Bench, sides: Mapping[str, Side], absent: dict[str, str]
) -> dict[str, Any]:
    """Run the sides (the compared systems) alternately and return their measurements.

    If the row allows it (``apart``), a side that fails does not end the benchmark: the side is
    added to ``absent`` with the reason and not run again.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    rounds = min(row.rounds, QUICK_ROUNDS) if bench.quick else row.rounds
    for number in range(rounds + (row.rounds > 1)):
        names = list(sides)
        for name in names if number % 2 == 0 else names[::-1]:
            if name in absent:
                continue
            try:
                with _at_most(row.seconds_max if row.apart else None):
                    runs[name].append(_once(row, bench, sides, name))
            except Exception as error:
                if not row.apart:
                    raise
                cannot = isinstance(error, Cannot)
                absent[name] = str(error) if cannot else f"failed: {_said(error)}"
                print(f"  {row.name} {name}: {absent[name]}", file=sys.stderr, flush=True)
                continue
            measures = runs[name][-1]["measures"]
            brief = ", ".join(f"{key} {value:g}" for key, value in measures.items())
            print(f"  {row.name} {number} {name}: {brief}", file=sys.stderr, flush=True)
    return {name: _summary(each) for name, each in runs.items() if name not in absent}


def _once(row: Row, bench: Bench, sides: Mapping[str, Side], name: str) -> dict[str, Any]:
    """Run one side (one of the compared systems) of a benchmark once, and measure its processes."""
    os.sync()
    servers = {each: side.servers() for each, side in sides.items()}
    others = {pid for roles in servers.values() for pids in roles.values() for pid in pids}
    with Meter(servers[name], bench.pids() | others, sides[name].within) as meter:
        measures = sides[name].run()
    measures |= row.derive(measures, meter.found)
    return {"measures": measures, "processes": meter.found}


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first run, the other runs, and the medians and spread of the others."""
    first, rest = (runs[0], runs[1:]) if len(runs) > 1 else (None, runs)
    names = rest[0]["measures"]
    values = {name: [each["measures"][name] for each in rest] for name in names}
    return {
        "first": first,
        "runs": rest,
        "median": {name: rounded(statistics.median(all_)) for name, all_ in values.items()},
        "spread": {name: [rounded(min(all_)), rounded(max(all_))] for name, all_ in values.items()},
        "processes": {role: _taken(rest, role) for role in rest[0]["processes"]},
    }


def _taken(runs: list[dict[str, Any]], role: str) -> dict[str, float]:
    """Return the median processor seconds and the maximum peak memory, over ``runs``, of the
    processes with one role, such as ``broker``."""
    taken = [each["processes"][role] for each in runs if role in each["processes"]]
    return {
        "cpu_s": rounded(statistics.median(each["cpu_s"] for each in taken)),
        "peak_mb": rounded(max(each["peak_mb"] for each in taken)),
    }


def compared(row: Row, variant: Variant, sides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each goal of this variant (set of settings): the medians of logbus and of the
    other system, their ratio, and the spread of the ratio."""
    return [
        {"peer": peer, **_against(goal, sides[LOGBUS], sides[peer])}
        for goal in row.goals
        if goal.variant in ("", variant.name) and LOGBUS in sides
        for peer in sides
        if peer != LOGBUS and not is_floor(peer)
    ]


def _against(goal: Goal, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    name = goal.measure
    pairs = [
        (a["measures"][name], b["measures"][name])
        for a, b in zip(ours["runs"], theirs["runs"], strict=True)
    ]
    both = ours["median"][name], theirs["median"][name]
    ratio = both[0] / both[1] if both[1] else float("inf")
    ratios = [a / b if b else float("inf") for a, b in pairs]
    return {
        "measure": name,
        "logbus": rounded(both[0]),
        "other": rounded(both[1]),
        "ratio": round(ratio, 3),
        "ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "goal": goal.text,
        "met": goal.is_met(ratio),
    }


def rounded(value: float) -> float:
    """Round to four significant digits; keep all digits of integers."""
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)
