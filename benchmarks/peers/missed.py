"""The report's page of goals that are not met: how far each is from what bounds it.

A bound is a ratio, what a logbus that costs nothing would have: the variant's own side ``floor``
through the peer, or what the row's ``ceiling`` makes of the figures. Called by ``peers.report``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from peers.row import FLOOR
from peers.rows import ROWS

Found = Mapping[str, Any]

NO_BOUND = "nobody knows what bounds it"
HEADING = "Goals that are not met, and what bounds them"
BEYOND, WITHIN = "beyond the bound", "within the bound"


class Missed(NamedTuple):
    """A goal that is not met. ``bound``: the best ratio that there could be, None: no figure."""

    row: Found
    variant: str
    compared: Found
    bound: float | None

    @property
    def is_more(self) -> bool:
        return str(self.compared["goal"]).startswith("≥")

    @property
    def is_beyond(self) -> bool:
        """Whether not even what costs nothing would meet the goal."""
        limit = float(str(self.compared["goal"]).split()[1])
        if self.bound is None:
            return False
        return self.bound < limit if self.is_more else self.bound > limit


def lines(rows: list[Found]) -> Iterator[str]:
    """Nothing where every goal is met."""
    missed = list(_missed(rows))
    if not missed:
        return
    yield f"### {HEADING}"
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
            yield f"  - [{row}](#{row}): {'; '.join(map(_said, all_))}"
    yield ""


def _missed(rows: list[Found]) -> Iterator[Missed]:
    for found in rows:
        for variant in found["variants"]:
            for each in variant.get("compared", ()):
                if each["met"] is False:
                    bound = _bound(found, variant, each)
                    yield Missed(found, variant["variant"], each, bound)


def _bound(found: Found, variant: Found, missed: Found) -> float | None:
    floor = variant["sides"].get(FLOOR, {"median": {}})["median"].get(missed["measure"])
    if floor and missed["other"]:
        return float(floor / missed["other"])
    ceilings = (row.ceiling for row in ROWS if row.name == found["row"])
    return next((ceiling(variant, missed["measure"]) for ceiling in ceilings), None)


def _counts(missed: list[Missed]) -> Iterator[str]:
    beyond = sum(each.is_beyond for each in missed)
    unknown = sum(each.bound is None for each in missed)
    yield (
        f"Of {len(missed)}: {beyond} *{BEYOND}* (what costs nothing would not meet them either, by "
        f"what was measured), {len(missed) - beyond - unknown} *{WITHIN}*, where logbus's own cost "
        "decides" + (f"; of {unknown} the bound is in words alone." if unknown else ".")
    )


def _said(missed: Missed) -> str:
    """One goal: its ratio, what it could be, and how far it is from there."""
    measure = missed.compared["measure"] + (
        ", first run" if missed.compared["of"] == "first" else ""
    )
    ratio, goal = float(missed.compared["ratio"]), missed.compared["goal"]
    head = f"{measure} of *{missed.variant}* {ratio:.2f}"
    if missed.bound is None:
        return f"{head} (goal {goal})"
    where = f"(goal {goal}, {BEYOND if missed.is_beyond else WITHIN})"
    if not missed.is_more:
        return f"{head} of at least {missed.bound:.2f}, {ratio / missed.bound:.1f} times it {where}"
    share = ratio / missed.bound
    reached = f"{share:.0%} of it" if share < 1 else "which it reaches"
    return f"{head} of at most {missed.bound:.2f}, {reached} {where}"
