"""Writes ``RESULTS.md`` from the results that are kept: one table, then each row in full."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

UNITS = {
    "_per_s": "/s",
    "_ms": " ms",
    "_mb": " MB",
    "_s": " s",
    "_s_per_gb": " s/GB",
}


def brief(found: Mapping[str, Any]) -> Iterator[str]:
    """A row in lines of a terminal."""
    for variant in found["variants"]:
        head = f"{found['number']:>2} {found['row']} [{variant['variant']}]"
        if "cannot" in variant:
            yield f"{head}: cannot run: {variant['cannot']}"
        for each in variant.get("compared", ()):
            low, high = each["ratio_spread"]
            yield (
                f"{head} {each['measure']}: logbus {_shown(each['measure'], each['logbus'])}, "
                f"{each['peer']} {_shown(each['measure'], each['other'])}, ratio "
                f"{each['ratio']:.2f} ({low:.2f}–{high:.2f}), goal {each['goal']} {_met(each)}"
            )


def _shown(measure: str, value: float) -> str:
    unit = next((u for end, u in UNITS.items() if measure.endswith(end)), "")
    return f"{value:,.0f}{unit}" if abs(value) >= 1000 else f"{value:g}{unit}"


def _met(each: Mapping[str, Any]) -> str:
    return {True: "met", False: "**not met**", None: ""}[each["met"]]


def write(folder: Path, *, quick: bool) -> None:
    """The report beside the results' folder; a quick run's goes among its own results."""
    source = folder / "quick" if quick else folder
    results = sorted(
        (json.loads(path.read_text("utf-8")) for path in source.glob("*.json")),
        key=lambda found: (found.get("number", 0), found.get("row", "")),
    )
    rows = [found for found in results if "variants" in found]
    if rows:
        target = source / "RESULTS.md" if quick else folder.parent / "RESULTS.md"
        target.write_text("\n".join(_document(rows)) + "\n", "utf-8")


def _document(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "# logbus side by side with Kafka"
    yield ""
    yield from _table(rows)


def _table(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "| # | row | variant | measure | logbus | peer | ratio | spread | goal | |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for found in rows:
        for variant in found["variants"]:
            head = f"| {found['number']} | {found['row']} | {variant['variant']}"
            if "cannot" in variant:
                yield f"{head} | cannot run: {variant['cannot']} | | | | | | |"
            for each in variant.get("compared", ()):
                low, high = each["ratio_spread"]
                measure = each["measure"] + (", first run" if each["of"] == "first" else "")
                yield (
                    f"{head} | {measure} | {_shown(each['measure'], each['logbus'])} "
                    f"| {_shown(each['measure'], each['other'])} ({each['peer']}) "
                    f"| {each['ratio']:.2f} | {low:.2f}–{high:.2f} "
                    f"| {each['goal']} | {_met(each)} |"
                )
