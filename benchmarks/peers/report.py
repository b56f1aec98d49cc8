"""Write the report from the stored results of the benchmarks.

``RESULTS.md`` is the summary in the repository: a line for each row (benchmark), the NetDB'11
paper's experiment, the growth of cost, and each missed goal with its bound. ``results/<row>.json``
has all else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from peers import compression, kept, missed, overview, summary
from peers.rows import ROWS

Found = Mapping[str, Any]

HEAD = """# logbus side by side with Kafka

`make bench` writes this page from `results/*.json`; `README.md` explains the method. A *row* is one
benchmark. logbus and the other system (the *peer*) ran a row alternately, in one session. A ratio
is logbus's median divided by the peer's median.

**In every row logbus flushes to disk on every in-sync replica before it acknowledges, and Kafka
acknowledges from memory.** A row's file in `results/` has its settings, its spread,
and the processor time and memory of each side.
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
            low, high = each["ratio_spread"]
            yield (
                f"{head} {each['measure']}: logbus {each['logbus']:,}, {each['peer']} "
                f"{each['other']:,}, ratio {each['ratio']:.2f} ({low:.2f}–{high:.2f}), "
                f"goal {each['goal']} {'met' if each['met'] else 'not met'}"
            )


def write(folder: Path, *, quick: bool) -> None:
    """Write ``RESULTS.md``; for a quick run, into the folder of quick results."""
    source = folder / "quick" if quick else folder
    rows = results(source)
    if rows:
        target = source / "RESULTS.md" if quick else folder.parent / "RESULTS.md"
        target.write_text("\n".join(_summary(rows)) + "\n", "utf-8")


def results(folder: Path) -> list[Found]:
    """Return the stored results in the order of the table. Their descriptive texts come from the
    present ``ROWS``, not from the store."""
    texts = {row.name: {"work": row.work, "bound": row.bound} for row in ROWS}
    found = map(kept.read, sorted(folder.glob("*.json")))
    rows = [each | texts.get(each["row"], {}) for each in found if each["variants"]]
    return sorted(rows, key=lambda each: (each["number"], each["row"]))


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
        f"cores before {busy} of {len(variants)} measurements; compare the ratios of these, not "
        "their rates"
    )
    yield from (f"- versions{_some(versions)}: {each}" for each in sorted(versions))
    inputs = ", ".join(sorted({each["input"] for each in variants}))
    yield f"- input: {inputs}, each line made unique"
    yield ""


def _some(values: Collection[str]) -> str:
    """Return " of some results" if there are several ``values``, because then each holds only for
    some results; else ""."""
    return " of some results" if len(values) > 1 else ""


def _unmeasured(rows: list[Found]) -> Iterator[str]:
    """Yield the benchmarks, with their variants (sets of settings), that have no result yet."""
    measured = {(found["row"], each["variant"]) for found in rows for each in found["variants"]}
    if any(found["quick"] for found in rows):
        return  # A quick run skips some variants on purpose: none is missing.
    missing = [
        f"{row.name} [{variant.name}]"
        for row in ROWS
        for variant in row.variants
        if (row.name, variant.name) not in measured
    ]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
        yield ""
