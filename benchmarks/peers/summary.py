"""Write the report's first section: a line for each row (benchmark), and which side is ahead.

``peers.report`` calls this module. A ratio is logbus divided by the peer, as in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Found = Mapping[str, Any]

COLUMNS = ("defaults", "as advised", "tuned")
"""Variants (sets of settings) that most benchmarks have. The column ``OTHERS`` of the report has
the results of all other variants."""
OTHERS = "others"
GOAL = """A *goal* is a limit on the ratio of one measure, such as `rows_per_s`, with one set of
settings. With the goal "≥ 3", logbus's figure must be at least three times the peer's."""
HOW = """Each figure in the table is logbus's result divided by the peer's. A **bold** figure
misses the goal. *defaults*: both sides as installed. *as advised*: both sides with
the Spark session that logbus's README advises. *tuned*: the peer has the settings that its users
change for this kind of work; in most rows logbus keeps its defaults."""


def lines(rows: list[Found]) -> Iterator[str]:
    """Yield the lines of the report's section about goals. There are no lines if no benchmark has a
    goal."""
    all_ = list(_compared(rows))
    if not all_:
        return
    yield "## In short"
    yield ""
    yield from _counts(all_)
    yield ""
    yield HOW
    yield ""
    yield f"| # | row | measure | goal | {' | '.join(COLUMNS)} | {OTHERS} |"
    yield "|---" * (5 + len(COLUMNS)) + "|"
    for found in rows:
        yield from _of_row(found)
    yield ""


def is_behind(each: Found) -> bool:
    """Return whether the other system (the peer) was better than logbus, even if the goal is
    met."""
    is_more = str(each["goal"]).startswith("≥")
    return bool(each["ratio"] < 1 if is_more else each["ratio"] > 1)


def _compared(rows: list[Found]) -> Iterator[tuple[Found, Found, Found]]:
    """Yield, for each measure with a goal: the results of the benchmark and of the variant, and the
    comparison of logbus with the peer."""
    for found in rows:
        for variant in found["variants"]:
            for each in variant.get("compared", ()):
                yield found, variant, each


def _counts(all_: list[tuple[Found, Found, Found]]) -> Iterator[str]:
    met = sum(bool(each["met"]) for _, _, each in all_)
    yield GOAL
    yield ""
    yield f"{met} of {len(all_)} goals are met{_by_column(all_)}."
    yield ""
    behind = [
        f"- {found['row']} [{variant['variant']}]: {each['measure']} is {each['ratio']:.3g} times "
        f"{each['peer'].capitalize()}'s"
        for found, variant, each in all_
        if is_behind(each)
    ]
    peers = "/".join(dict.fromkeys(each["peer"] for _, _, each in all_)).capitalize()
    if behind:
        yield f"{peers} is ahead in {len(behind)}:"
        yield ""
        yield from behind
    else:
        yield f"{peers} is ahead in none."


def _by_column(all_: list[tuple[Found, Found, Found]]) -> str:
    by_name: dict[str, list[bool]] = {name: [] for name in (*COLUMNS, OTHERS)}
    for _, variant, each in all_:
        name = variant["variant"]
        by_name[name if name in COLUMNS else OTHERS].append(bool(each["met"]))
    said = [f"{sum(met)} of {len(met)} *{name}*" for name, met in by_name.items() if met]
    return f". By the table's columns: {', '.join(said)}" if said else ""


def _of_row(found: Found) -> Iterator[str]:
    """Yield a line of the report for each of a benchmark's measures that has a goal."""
    by_measure: dict[str, dict[str, Found]] = {}
    for _, variant, each in _compared([found]):
        by_measure.setdefault(each["measure"], {})[variant["variant"]] = each
    row = f"{found['row']}: {found['work']}"
    for measure, by_variant in by_measure.items():
        goals = dict.fromkeys(str(each["goal"]) for each in by_variant.values())
        cells = [_cell(by_variant[name]) if name in by_variant else "" for name in COLUMNS]
        others = "; ".join(
            f"{name} {_cell(each)}" for name, each in by_variant.items() if name not in COLUMNS
        )
        yield (
            f"| {found['number']} | {row} | {measure} | {', '.join(goals)} "
            f"| {' | '.join(cells)} | {others} |"
        )
        row = ""  # Only a benchmark's first line in the table has its name.


def _cell(each: Found) -> str:
    return f"{each['ratio']:.2f}" if each["met"] else f"**{each['ratio']:.2f}**"
