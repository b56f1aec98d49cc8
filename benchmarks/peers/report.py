"""Write the report from the stored results of the benchmarks.

``RESULTS.md`` is the summary in the repository: a line for each row (benchmark), the paper's
experiment, the growth of cost, and each missed goal with its bound. ``results/<row>.md`` has the
settings, medians and processes of a row; each run writes it, and git ignores it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from peers import compression, kept, missed, overview, summary
from peers.row import Row
from peers.rows import ROWS

Found = Mapping[str, Any]

UNITS = {
    "_s_per_gb": " s/GB",
    "_per_s": "/s",
    "_ms": " ms",
    "_mb": " MB",
    "_gb": " GB",
    "_s": " s",
}
HEAD = """# logbus side by side with Kafka

`make bench` writes this page from `results/*.json`; `README.md` explains the method. A *row* is one
benchmark. logbus and the other system (the *peer*) ran a row alternately, in one session. A ratio
is logbus's median divided by the peer's median.

**In every row logbus flushes to disk on every in-sync replica before it acknowledges, and Kafka
acknowledges from memory.** `python -m peers --report` also writes a page for each row.
"""


def brief(found: Found) -> Iterator[str]:
    """Yield the results of one benchmark as lines for a terminal."""
    for variant in found["variants"]:
        head = f"{found['number']:>2} {found['row']} [{variant['variant']}]"
        if "cannot" in variant:
            yield f"{head}: cannot run: {variant['cannot']}"
        for name, why in variant.get("absent", {}).items():
            yield f"{head}: {name} is missing: {why}"
        for each in variant.get("compared", ()):
            yield (
                f"{head} {_measure(each)}: logbus {_shown(each['measure'], each['logbus'])}, "
                f"{each['peer']} {_shown(each['measure'], each['other'])}, ratio "
                f"{each['ratio']:.2f} ({_spread(each)}), goal {each['goal']} {_met(each)}"
            )


def write(folder: Path, *, quick: bool) -> None:
    """Write the summary, and a page for each benchmark into the folder of the results.

    The summary and the pages of a quick run are in the folder of quick results.
    """
    source = folder / "quick" if quick else folder
    rows = results(source)
    if not rows:
        return
    target = source / "RESULTS.md" if quick else folder.parent / "RESULTS.md"
    target.write_text("\n".join(_summary(rows)) + "\n", "utf-8")
    for found in rows:
        page = source / f"{found['row']}.md"
        page.write_text("\n".join(_row(found)) + "\n", "utf-8")


def results(folder: Path) -> list[Found]:
    """Return the stored results in the order of the table. Their descriptive texts are those of the
    present ``ROWS``, not the stored ones."""
    known = {row.name: row for row in ROWS}
    found = map(kept.read, sorted(folder.glob("*.json")))
    rows = [each | _texts(known.get(each["row"])) for each in found if each["variants"]]
    order = {row.name: at for at, row in enumerate(ROWS)}
    return sorted(rows, key=lambda each: (each["number"], order.get(each["row"], 0), each["row"]))


def _texts(row: Row | None) -> dict[str, str]:
    return {} if row is None else {"work": row.work, "note": row.note, "bound": row.bound}


def _summary(rows: list[Found]) -> Iterator[str]:
    yield HEAD
    yield from _where(rows)
    yield from summary.lines(rows)
    yield from compression.lines(rows)
    yield from overview.lines(rows)
    yield from missed.lines(rows)
    yield from _unmeasured(rows)


def _where(rows: list[Found]) -> Iterator[str]:
    variants = [variant for each in rows for variant in each["variants"]]
    machines = {
        "{cpus} cores, {memory_gb} GB, {kernel}, Python {python}".format(**each["machine"])
        for each in variants
    }
    dates = sorted({each["machine"]["date"] for each in variants})
    loads = [each["machine"]["load_before"] for each in variants]
    versions = {
        ", ".join(f"{name} {version}" for name, version in sorted(each["versions"].items()))
        for each in variants
    }
    yield f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}:"
    yield ""
    yield from (f"- machine{_some(machines)}: {each}" for each in sorted(machines))
    busy = sum(each["machine"]["load_before"] > each["machine"]["cpus"] for each in variants)
    yield (
        f"- load average before a measurement: {min(loads)} to {max(loads)}, above the number of "
        f"cores before {busy} of {len(variants)} measurements; of these compare ratios, not rates"
    )
    yield from (f"- versions{_some(versions)}: {each}" for each in sorted(versions))
    inputs = ", ".join(sorted({each["input"] for each in variants}))
    yield f"- input: {inputs}, each line made unique"
    yield ""


def _some(values: Collection[str]) -> str:
    """Return the words that say that each of several values holds for a part of the results."""
    return " of some results" if len(values) > 1 else ""


def _unmeasured(rows: list[Found]) -> Iterator[str]:
    """Yield the benchmarks, with their variants (sets of settings), that have no result yet."""
    measured = {(found["row"], each["variant"]) for found in rows for each in found["variants"]}
    if any(found["quick"] for found in rows):
        return  # A quick run skips some variants on purpose: do not report them.
    missing = [
        f"{row.name} [{variant.name}]"
        for row in ROWS
        for variant in row.variants
        if (row.name, variant.name) not in measured
    ]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
        yield ""


def _row(found: Found) -> Iterator[str]:
    yield f"# {found['row']}"
    yield ""
    yield f"{found['work']}." + (f" {_sentence(found['note'])}" if found["note"] else "")
    if found.get("bound") and not _all_met(found):
        yield ""
        yield f"**Bound:** {found['bound']}"
    for variant in found["variants"]:
        yield from _variant(variant)


def _variant(variant: Found) -> Iterator[str]:
    settings = dict(variant["settings"])
    yield ""
    yield f"**{variant['variant']}** (compression: {_compression(variant)})"
    yield ""
    yield from (f"- {who}: {words}" for who, words in settings.items())
    yield f"- measured {_when(variant['machine'])}"
    if "failed_first" in variant:
        yield f"- tried twice; the first time: {_cell(variant['failed_first'])}"
    if "cannot" in variant:
        yield f"- cannot run: {_cell(variant['cannot'])}"
        return
    for name, why in variant.get("absent", {}).items():
        yield f"- **{name} is missing:** {_cell(why)}"
    yield ""
    for each in variant.get("compared", ()):
        yield (
            f"- {_measure(each)}: {_shown(each['measure'], each['logbus'])}, {each['peer']} "
            f"{_shown(each['measure'], each['other'])}, ratio {each['ratio']:.2f} "
            f"({_spread(each)}), goal {each['goal']} {_met(each)}"
        )
    sides = variant["sides"]
    yield ""
    yield "| | " + " | ".join(sides) + " |"
    yield "|---" * (len(sides) + 1) + "|"
    for name in _names(side["median"] for side in sides.values()):
        cells = [_measured(name, side) for side in sides.values()]
        yield f"| {name} | " + " | ".join(cells) + " |"
    for role in _names(side["processes"] for side in sides.values()):
        cells = [_spent(side["processes"].get(role)) for side in sides.values()]
        yield f"| *{role}* | " + " | ".join(cells) + " |"


def _when(machine: Found) -> str:
    commit = machine.get("commit") or "not written down"
    return f"{machine['date']}, commit {commit}, load before {machine['load_before']}"


def _measured(name: str, side: Found) -> str:
    """Return a measure's median as text, with spread and first run if these differ from the
    median."""
    if name not in side["median"]:
        return ""
    median = _shown(name, side["median"][name])
    low, high = (_shown(name, value) for value in side["spread"][name])
    first = _shown(name, side["first"]["measures"][name]) if side["first"] is not None else median
    if {low, high, first} == {median}:
        return median
    return f"{median} ({low} – {high}" + (f"; first {first})" if side["first"] else ")")


def _spent(process: Found | None) -> str:
    return f"{process['cpu_s']:g} CPU s, {process['peak_mb']:.0f} MB peak" if process else ""


def _names(tables: Any) -> list[str]:
    return list(dict.fromkeys(name for table in tables for name in table))


def _all_met(found: Found) -> bool:
    return all(
        each["met"] is not False
        for variant in found["variants"]
        for each in variant.get("compared", ())
    )


def _compression(variant: Found) -> str:
    kinds = variant["compression"]
    if len(set(kinds.values())) == 1:
        return next(iter(kinds.values()))
    return ", ".join(f"{side} {kind}" for side, kind in kinds.items())


def _measure(each: Found) -> str:
    return each["measure"] + (", first run" if each["of"] == "first" else "")


def _spread(each: Found) -> str:
    low, high = each["ratio_spread"]
    return f"{low:.2f}–{high:.2f}"


def _met(each: Found) -> str:
    return {True: "met", False: "**not met**", None: ""}[each["met"]]


def _shown(measure: str, value: float) -> str:
    unit = next((unit for end, unit in UNITS.items() if measure.endswith(end)), "")
    return f"{value:,.0f}{unit}" if abs(value) >= 1000 else f"{value:.4g}{unit}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:300]
