"""Run benchmarks (rows of the table), store each result, and write the report."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers import alternate, kept, report
from peers.bench import Bench
from peers.row import Row
from peers.rows import ROWS


def chosen(names: Sequence[str], variants: Sequence[str], *, quick: bool = False) -> list[Row]:
    """Return the rows (benchmarks) with these names; without names all, or those of a quick run.

    Raises ValueError for an unknown name, and for a variant (set of settings) that a row lacks.
    """
    if variants and not names:
        raise ValueError("--variant needs a row: name one")
    rows = {row.name: row for row in ROWS if names or row.quick or not quick}
    for name in names:
        if name not in rows:
            raise ValueError(f"no such row (benchmark): {name}; there are {', '.join(rows)}")
        there = [variant.name for variant in rows[name].variants]
        for wanted in variants:
            if wanted not in there:
                raise ValueError(f"{name} has no variant {wanted!r}; it has {', '.join(there)}")
    return [row for name, row in rows.items() if name in names or not names]


def has_failed(variant: Mapping[str, Any]) -> bool:
    """Return whether a variant of a benchmark, or one of its sides (compared systems), failed.

    A variant that cannot run on this machine has not failed.
    """
    return bool(variant.get("failed")) or any(
        why.startswith("failed: ") for why in variant.get("absent", {}).values()
    )


def measure(rows: Sequence[Row], variants: Sequence[str], bench: Bench) -> bool:
    """Run benchmarks and store each result; return whether no benchmark failed."""
    is_good = True
    for row in rows:
        print(f"{row.name}: {row.work}", file=sys.stderr, flush=True)
        found = alternate.run(row, bench, variants)
        kept.keep(kept.folder(quick=bench.quick), found, row, whole=not variants)
        is_good &= not any(map(has_failed, found["variants"]))
        print("\n".join(report.brief(found)), flush=True)
        # Write the report after each benchmark, so that an interrupted run leaves a report.
        report.write(kept.RESULTS, quick=bench.quick)
    return is_good


def main() -> int:
    names = ", ".join(row.name for row in ROWS)
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    add = parser.add_argument
    add("rows", nargs="*", metavar="ROW", help=f"default: all. {names}")
    add("--variant", action="append", default=[], help="only this one; again for more")
    add("--quick", action="store_true", help="small sizes, two rounds: minutes")
    add("--input", type=Path, metavar="FILE", help="lines to use (plain or .gz)")
    add("--report", action="store_true", help="only write the report again")
    given = parser.parse_args()
    try:
        rows = chosen(given.rows, given.variant, quick=given.quick)
    except ValueError as why:
        parser.error(str(why))
    if given.report:
        report.write(kept.RESULTS, quick=given.quick)
        return 0
    # Treat SIGTERM as Ctrl-C, so that servers stop and their folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Bench(quick=given.quick, given=given.input) as bench:
        return int(not measure(rows, given.variant, bench))


if __name__ == "__main__":
    sys.exit(main())
