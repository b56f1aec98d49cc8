"""Run benchmarks (rows of the table), store each result, and write the report.

``python -m peers [ROW[:VARIANT] …]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers import alternate, kept, report
from peers.bench import Bench
from peers.row import Row
from peers.rows import ROWS


def listed(row: Row) -> dict[str, Any]:
    """Return the line about a row (one benchmark) in the list of all rows."""
    return {
        "row": row.name,
        "number": row.number,
        "work": row.work,
        "variants": [variant.name for variant in row.variants],
        "goals": [dataclasses.asdict(goal) for goal in row.goals],
    }


def chosen(asked: Sequence[str], variants: Sequence[str]) -> dict[str, list[str]]:
    """Return the chosen rows (benchmarks), each with its chosen variants (sets of settings). An
    empty list means all variants.

    ``asked`` holds ``ROW`` or ``ROW:VARIANT``; ``variants`` apply to every row. Raises ValueError
    for an unknown name.
    """
    rows = {row.name: row for row in ROWS}
    found: dict[str, list[str]] = {}
    for each in asked:
        name, _, variant = each.partition(":")
        if name not in rows:
            raise ValueError(f"no such row (benchmark): {name}; there are {', '.join(rows)}")
        found.setdefault(name, []).extend([variant] if variant else variants)
        there = [variant.name for variant in rows[name].variants]
        for wanted in found[name]:
            if wanted not in there:
                raise ValueError(f"{name} has no variant {wanted!r}; it has {', '.join(there)}")
    if variants and not asked:
        raise ValueError("--variant needs a row: name one")
    return found


def has_failed(variant: Mapping[str, Any]) -> bool:
    """Return whether a variant of a benchmark, or one of its sides (compared systems), failed.

    A variant that cannot run on this machine has not failed.
    """
    return bool(variant.get("failed")) or any(
        why.startswith("failed: ") for why in variant.get("absent", {}).values()
    )


def measure(asked: Mapping[str, list[str]], *, quick: bool, given: Path | None) -> bool:
    """Run benchmarks and store each result; return whether no benchmark failed.

    ``asked`` holds the rows with their variants; if it is empty, all rows run.
    """
    into = kept.folder(quick=quick)
    is_good = True
    with Bench(quick=quick, given=given) as bench:
        for row in ROWS:
            if row.name in asked or (not asked and (row.quick or not quick)):
                print(f"{row.name}: {row.work}", file=sys.stderr, flush=True)
                wanted = asked.get(row.name, [])
                found = alternate.run(row, bench, wanted)
                kept.keep(into, found, row, whole=not wanted)
                is_good &= not any(map(has_failed, found["variants"]))
                print("\n".join(report.brief(found)), flush=True)
                # Write the report after each benchmark, so that an interrupted run leaves a report.
                report.write(kept.RESULTS, quick=quick)
    return is_good


def main() -> int:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "rows", nargs="*", metavar="ROW[:VARIANT]", help=f"default: all. {', '.join(names)}"
    )
    parser.add_argument(
        "--variant", action="append", default=[], help="only this one of each row, again for more"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds: minutes")
    parser.add_argument("--input", type=Path, metavar="FILE", help="lines to use (plain or .gz)")
    parser.add_argument("--list", action="store_true", help="say which rows there are, as JSON")
    parser.add_argument("--report", action="store_true", help="only write the report again")
    arguments = parser.parse_args()
    try:
        asked = chosen(arguments.rows, arguments.variant)
    except ValueError as why:
        parser.error(str(why))
    if arguments.list:
        print(json.dumps([listed(row) for row in ROWS]))
        return 0
    if arguments.report:
        report.write(kept.RESULTS, quick=arguments.quick)
        return 0
    # Treat SIGTERM as Ctrl-C, so that servers stop and their folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return int(not measure(asked, quick=arguments.quick, given=arguments.input))


if __name__ == "__main__":
    sys.exit(main())
