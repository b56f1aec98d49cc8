"""Write the report's sections about benchmarks without goals: the NetDB'11 paper's systems and the
growth of cost.

``peers.summary`` writes about benchmarks with goals; ``peers.report`` calls both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peers.rows.netdb11 import DURABLE, NAMES

Found = Mapping[str, Any]

FLAT = 1.5
"""A measure is flat if its values at the smallest and the largest size differ by at most this
factor."""
BENT = 2.0
"""The report names the first size (such as a number of partitions) at which a measure has grown or
shrunk by this factor or more."""
OF_A_SYSTEM = ("produced_per_s", "consumed_per_s")
HOW = f"""The table divides each measure by its value at the smallest size, such as the lowest
number of partitions. At the largest size, the ratio of a *flat* measure is at most {FLAT:g} and at
least 1/{FLAT:g}. For the others, the table has the ratio at the largest size, and the first size at
which the ratio is {BENT:g} or more, or 1/{BENT:g} or less.
"""


def lines(rows: list[Found]) -> Iterator[str]:
    """Yield the report's lines about benchmarks without goals."""
    for found in rows:
        if found["row"] == "netdb11" and any("sides" in each for each in found["variants"]):
            yield from _systems(found)
    grown = [found for found in rows if found["row"].startswith("growth-")]
    if grown:
        yield "## How cost grows"
        yield ""
        yield HOW
        yield "| row | sizes | flat | grows |"
        yield "|---|---|---|---|"
        for found in grown:
            yield from _growth(found)
        yield ""


def _systems(found: Found) -> Iterator[str]:
    """Yield a line for each system with its rates and the guarantee of its acknowledgements."""
    variants = [each for each in found["variants"] if "sides" in each]
    heads = [f"{name}, {each['variant']}" for each in variants for name in OF_A_SYSTEM]
    yield "## Beside other systems: the paper's experiment"
    yield ""
    yield (
        "Row netdb11: one producer, then one consumer, with messages of 200 bytes. The figures are "
        "medians. The second column says what a system does with a message before it acknowledges "
        "it."
    )
    yield ""
    yield f"| system | what an acknowledgement means | {' | '.join(heads)} |"
    yield "|---" * (2 + len(heads)) + "|"
    for name, title in NAMES.items():
        cells = [_rate(each, name, measure) for each in variants for measure in OF_A_SYSTEM]
        yield f"| {title} | {DURABLE[name]} | {' | '.join(cells)} |"
    yield ""


def _rate(variant: Found, side: str, measure: str) -> str:
    if side in variant["sides"]:
        return f"{variant['sides'][side]['median'][measure]:,.0f}"
    return "missing" if side in variant.get("absent", {}) else ""


def _times(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value >= 0.01 else f"{value:.5f}"


def _growth(found: Found) -> Iterator[str]:
    for variant in found["variants"]:
        sizes = list(variant.get("sides", {}))
        if not sizes:
            continue
        flat, bent = [], []
        medians = {size: variant["sides"][size]["median"] for size in sizes}
        for measure in medians[sizes[0]]:
            points = [(size, each[measure]) for size, each in medians.items() if each.get(measure)]
            times = [(size, value / points[0][1]) for size, value in points]
            if len(times) < 2:
                continue
            last = times[-1][1]
            since = next((size for size, each in times if not 1 / BENT < each < BENT), "")
            if 1 / FLAT <= last <= FLAT:
                flat.append(measure)
            else:
                bent.append(f"{measure} × {_times(last)}" + (f" (from {since})" if since else ""))
        yield (
            f"| {found['row']} | {sizes[0]} to {sizes[-1]} | {', '.join(flat)} "
            f"| {'; '.join(bent)} |"
        )
