"""Write the report's section about missed goals and their bounds.

A bound is the best ratio that any implementation could reach: the floor (a program that does only
the necessary work) divided by the peer, or the benchmark's ``ceiling``. Bounds vary between rounds:
a goal between the lowest and the highest bound may or may not be reachable. ``peers.report`` calls
this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from peers.row import FLOOR
from peers.rows import ROWS

Found = Mapping[str, Any]

NO_BOUND = "unknown"
HEADING = "Missed goals and their bounds"
BEYOND, WITHIN = "beyond the bound", "within the bound"
AT = "at the bound, within its spread"


class Bound(NamedTuple):
    """The best ratio that any implementation could reach: ``ratio`` by the medians of the rounds.
    ``low`` and ``high`` are the lowest and the highest of ``ratio`` and the ratio of each round."""

    ratio: float
    low: float
    high: float

    @property
    def text(self) -> str:
        spread = f" ({self.low:.2f}–{self.high:.2f})" if self.low < self.high else ""
        return f"{self.ratio:.2f}{spread}"


class Missed(NamedTuple):
    """A missed goal (limit of a ratio) and the best possible ratio (``bound``), None if unknown."""

    row: Found
    variant: str
    compared: Found
    bound: Bound | None

    @property
    def is_more(self) -> bool:
        return str(self.compared["goal"]).startswith("≥")

    @property
    def limit(self) -> float:
        return float(str(self.compared["goal"]).split()[1])

    @property
    def where(self) -> str:
        """Return in words whether the bound (the best possible ratio) reaches the goal in no round,
        in some rounds or in all. Return an empty text if the bound is unknown."""
        if self.bound is None:
            return ""
        limit, least, most = self.limit, self.bound.low, self.bound.high
        if not self.is_more:
            limit, least, most = -limit, -most, -least
        return BEYOND if most < limit else WITHIN if least >= limit else AT


def lines(rows: list[Found]) -> Iterator[str]:
    """Yield the lines of the report's section about missed goals. There are none if every goal is
    met."""
    missed = list(_missed(rows))
    if not missed:
        return
    yield f"## {HEADING}"
    yield ""
    yield from _counts(missed)
    yield ""
    by_bound: dict[str, dict[str, list[Missed]]] = {}
    for each in missed:
        bound = str(each.row.get("bound") or NO_BOUND)
        by_bound.setdefault(bound, {}).setdefault(each.row["row"], []).append(each)
    for bound, by_row in by_bound.items():
        yield f"- {bound[0].upper()}{bound[1:].rstrip('.')}."
        for row, all_ in by_row.items():
            yield f"  - {row}: {'; '.join(map(_said, all_))}"
    yield ""


def _missed(rows: list[Found]) -> Iterator[Missed]:
    for found in rows:
        for variant in found["variants"]:
            for each in variant.get("compared", ()):
                if not each["met"]:
                    bound = _bound(found, variant, each)
                    yield Missed(found, variant["variant"], each, bound)


def _bound(found: Found, variant: Found, missed: Found) -> Bound | None:
    """Return the best ratio that any implementation could reach for a measure that missed its goal.
    Return None if it is unknown, or for a quick run, which is too short."""
    if found["quick"]:
        return None
    all_runs = (each["runs"] for each in variant["sides"].values())
    rounds = [_once(variant, runs) for runs in zip(*all_runs, strict=False)]
    best = _best(found, variant, missed)
    if best is None:
        return None
    each_round = (_best(found, once, missed) for once in rounds)
    all_ = [best, *(each for each in each_round if each is not None)]
    return Bound(best, min(all_), max(all_))


def _once(variant: Found, runs: Sequence[Found]) -> Found:
    """Return a copy of a variant's results, with the figures of one run of each side in place of
    the medians of all runs."""
    sides = zip(variant["sides"], runs, strict=True)
    once = {name: {"median": run["measures"], "processes": run["processes"]} for name, run in sides}
    return {**variant, "sides": once}


def _best(found: Found, variant: Found, missed: Found) -> float | None:
    measure, sides = missed["measure"], variant["sides"]
    floor = sides.get(FLOOR, {"median": {}})["median"].get(measure)
    peer = sides[missed["peer"]]["median"][measure]
    if floor and peer:
        return float(floor / peer)
    ceilings = (row.ceiling for row in ROWS if row.name == found["row"])
    return next((ceiling(variant, measure) for ceiling in ceilings), None)


def _counts(missed: list[Missed]) -> Iterator[str]:
    where = Counter(each.where for each in missed)
    yield (
        f"{len(missed)} goals are missed. {where[BEYOND]} are *{BEYOND}*: even a program that does "
        f"only the unavoidable work would miss them in every round; in most rows the side *floor* "
        f"is this program. "
        f"{where[AT]} are *{AT}*: such a program would reach them in some rounds. "
        f"{where[WITHIN]} are *{WITHIN}*: such a program would reach them, so logbus's own cost "
        f"decides. {where['']} have no measured bound. Each line below has the measured ratio, the "
        "bound (in brackets its lowest and highest round), and the ratio as a share of the bound."
    )


def _said(missed: Missed) -> str:
    """Return the report's words about one goal: the ratio, the best possible ratio (bound), and
    the first as a share of the second."""
    ratio, goal = float(missed.compared["ratio"]), missed.compared["goal"]
    head = f"{missed.compared['measure']} of *{missed.variant}* {ratio:.2f}"
    if missed.bound is None:
        return f"{head} (goal {goal})"
    where, share = f"(goal {goal}, {missed.where})", ratio / missed.bound.ratio
    if not missed.is_more:
        return f"{head} of at least {missed.bound.text}, {share:.1f} times it {where}"
    reached = f"{share:.0%} of it" if share < 1 else "which logbus reaches"
    return f"{head} of at most {missed.bound.text}, {reached} {where}"
