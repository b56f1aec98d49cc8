"""Writes ``RESULTS.md`` from the results that are kept: the goals in one table, then every row.

A row's charts are the files ``results/<row>*.svg``, which its ``draw`` writes; the chart of all
ratios is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peers import charts, cited, compression, kept, missed, overview, summary
from peers.row import Row
from peers.rows import ROWS

Found = Mapping[str, Any]

RATIOS = "ratios.svg"
CITING = ("HUNDRED_BROKERS.md", "README.md")
"""The pages beside the report whose figures are those of the results."""
TO_BOUND = {True: "", None: "", False: " ([why](#goals-that-are-not-met-and-what-bounds-them))"}
UNITS = {
    "_s_per_gb": " s/GB",
    "_per_s": "/s",
    "_ms": " ms",
    "_mb": " MB",
    "_gb": " GB",
    "_s": " s",
}
DISK = (
    '- disk: [315 MB/s](results/storage.json "append_and_flush/1_mb/mb_per_s") where 1 MB at a '
    'time is appended and flushed, [568](results/storage.json "group_commit/1_mb/mb_per_s_flushed")'
    " where a flush takes in what came meanwhile"
)
HEAD = """# logbus side by side with Kafka

Written by `make bench` from `results/*.json`; `README.md` says how each figure comes about and
how to read it. Both sides of a line ran in turn in one run: the ratio is logbus's median through
the peer's, the spread that of the single rounds' ratios. **logbus flushes to disk before each
acknowledgement, on every in-sync replica; Kafka acknowledges from memory.** No row changes that.
A figure that is in no table and no link was measured once, by hand, and says why, not how fast.
"""


def brief(found: Found) -> Iterator[str]:
    """A row in lines of a terminal."""
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
    """The report beside the results' folder; a quick run's goes among its own results."""
    source = folder / "quick" if quick else folder
    rows = results(source)
    if not rows:
        return
    target = source / "RESULTS.md" if quick else folder.parent / "RESULTS.md"
    _draw_ratios(source / RATIOS, rows)
    drawers = {row.name: row.draw for row in ROWS}
    for found in rows:
        if (draw := drawers.get(found["row"])) is not None:
            draw(source, found)
    drawn = {path.name: path.relative_to(target.parent).as_posix() for path in source.glob("*.svg")}
    text = "\n".join(_document(rows, drawn)) + "\n"
    target.write_text(cited.updated(text, folder.parent), "utf-8")
    for page in [] if quick else [folder.parent / name for name in CITING]:
        if page.is_file():
            page.write_text(cited.updated(page.read_text("utf-8"), folder.parent), "utf-8")


def results(folder: Path) -> list[Found]:
    """What rows left there, in the order of the table; other benchmarks' results are not ours. What
    a row says of itself is what it says now."""
    known = {row.name: row for row in ROWS}
    found = map(kept.read, sorted(folder.glob("*.json")))
    rows = [each | _texts(known.get(each["row"]), each) for each in found if each["variants"]]
    order = {row.name: at for at, row in enumerate(ROWS)}
    return sorted(rows, key=lambda each: (each["number"], order.get(each["row"], 0), each["row"]))


def _texts(row: Row | None, found: Found) -> dict[str, str]:
    if row is None:
        return {}
    follows = row.concludes(found)
    note = f"{_sentence(row.note)} {_sentence(follows)}" if follows else row.note
    return {"work": row.work, "note": note, "bound": row.bound}


def _document(rows: list[Found], drawn: Mapping[str, str]) -> Iterator[str]:
    yield HEAD
    yield from _where(rows)
    yield from summary.lines(rows)
    yield from compression.lines(rows)
    yield from overview.lines(rows)
    yield "## The goals"
    yield ""
    yield from _goals(rows)
    yield ""
    yield from missed.lines(rows)
    yield from _unmeasured(rows)
    if RATIOS in drawn:
        yield f"![Every ratio beside its goal]({drawn[RATIOS]})"
        yield ""
    yield "## Each row"
    for found in rows:
        yield from _row(found, rows, drawn)


def _where(rows: list[Found]) -> Iterator[str]:
    """Machines and versions that met, each once; which of them a variant had, it says itself."""
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
    yield from (f"- {each}" for each in sorted(machines))
    busy = sum(each["machine"]["load_before"] > each["machine"]["cpus"] for each in variants)
    yield (
        "- processes that wanted a core in the minute before a variant, the last one's own "
        f"among them: {min(loads)} to {max(loads)}"
        + (
            f"; more than there are cores before {busy} of {len(variants)}: their ratios and "
            "memory hold, their seconds and rates are no comparison for another day's"
            if busy
            else ""
        )
    )
    yield from (f"- versions: {each}" for each in sorted(versions))
    yield DISK
    yield f"- input: {', '.join(sorted({each['input'] for each in variants}))}, made unique"
    yield ""


def _goals(rows: list[Found]) -> Iterator[str]:
    yield "| # | row | variant | compression | measure | logbus | peer | ratio | spread | goal | |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for found in rows:
        for variant in found["variants"]:
            head = (
                f"| {found['number']} | [{found['row']}](#{found['row']}) | {variant['variant']} "
                f"| {_compression(variant)}"
            )
            if "cannot" in variant:
                yield f"{head} | cannot run: {_cell(variant['cannot'])} | | | | | | |"
            for each in variant.get("compared", ()):
                yield (
                    f"{head} | {_measure(each)} | {_shown(each['measure'], each['logbus'])} "
                    f"| {_shown(each['measure'], each['other'])} ({each['peer']}) "
                    f"| {each['ratio']:.2f} | {_spread(each)} "
                    f"| {each['goal'].replace('none', '')} | {_met(each)}{TO_BOUND[each['met']]} |"
                )


def _unmeasured(rows: list[Found]) -> Iterator[str]:
    """Variants that the table has and no result."""
    measured = {(found["row"], each["variant"]) for found in rows for each in found["variants"]}
    if any(found["quick"] for found in rows):
        return  # not meant to be whole
    missing = [
        f"{row.name} [{variant.name}]"
        for row in ROWS
        for variant in row.variants
        if (row.name, variant.name) not in measured
    ]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
        yield ""


def _row(found: Found, rows: list[Found], drawn: Mapping[str, str]) -> Iterator[str]:
    yield ""
    yield f"### {found['row']}"
    yield ""
    yield f"{found['work']}." + (f" {_sentence(found['note'])}" if found["note"] else "")
    if found.get("bound") and not _all_met(found):
        yield ""
        yield f"**What bounds it:** {found['bound']}"
    for variant in found["variants"]:
        yield from _variant(variant)
    longer = [each["row"] for each in rows if each["row"].startswith(f"{found['row']}-")]
    for name, path in sorted(drawn.items()):
        if name.startswith(found["row"]) and not any(map(name.startswith, longer)):
            yield ""
            yield f"![{Path(name).stem}]({path})"


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
    """Median, spread and the first run of a measure; the last two where they say something."""
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


def _draw_ratios(path: Path, rows: list[Found]) -> None:
    """Advantage over the peer, upward good: 1 is as good as the peer, whichever way is better."""
    groups = {}
    for found in rows:
        for variant in found["variants"]:
            for each in variant.get("compared", ()):
                if each["met"] is None or each["ratio"] <= 0:
                    continue
                sign, limit = each["goal"].split()
                name = f"{found['row']} {variant['variant']} {_measure(each)}"
                better = each["ratio"] if sign == "≥" else 1 / each["ratio"]
                goal = float(limit) if sign == "≥" else 1 / float(limit)
                groups[name] = (better, goal)
    if groups:
        charts.against_goals(
            path, "logbus through the peer, and the goal (right is better)", groups
        )


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
