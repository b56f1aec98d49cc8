"""``python -m peers [ROW …]``: runs rows, keeps each result, writes the report."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

from peers import alternate, report, versions
from peers.bench import Bench
from peers.row import Row
from peers.rows import ROWS

RESULTS = Path(__file__).parent.parent / "results"


def machine() -> dict[str, Any]:
    """What a reader must know to compare: nothing that names the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def keep(found: dict[str, Any]) -> None:
    """Write a row's result beside the others'; a quick run's never replaces a full one's."""
    folder = RESULTS / "quick" if found["quick"] else RESULTS
    folder.mkdir(exist_ok=True)
    path = folder / f"{found['row']}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def listed(row: Row) -> dict[str, Any]:
    """A row in short, for whoever asks which there are."""
    return {
        "row": row.name,
        "number": row.number,
        "work": row.work,
        "variants": [variant.name for variant in row.variants],
        "goals": [dataclasses.asdict(goal) for goal in row.goals],
    }


def main() -> int:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="peers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="small sizes, two rounds: minutes")
    parser.add_argument("--input", type=Path, metavar="FILE", help="lines to use (plain or .gz)")
    parser.add_argument("--list", action="store_true", help="say which rows there are, as JSON")
    parser.add_argument("--report", action="store_true", help="only write the report again")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.rows) - set(names)):
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(names)}")
    if arguments.list:
        print(json.dumps([listed(row) for row in ROWS]))
        return 0
    # Ended from outside it ends as by Ctrl-C: servers stop and their folders go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = False
    if not arguments.report:
        facts = {"versions": versions.found()}
        with Bench(quick=arguments.quick, given=arguments.input) as bench:
            for row in ROWS:
                if row.name in arguments.rows or (
                    not arguments.rows and (row.quick or not arguments.quick)
                ):
                    print(f"{row.name}: {row.work}", file=sys.stderr, flush=True)
                    about = {"machine": machine(), **facts}
                    found = alternate.run(row, bench) | about
                    keep(found)
                    failed |= any(each.get("failed") for each in found["variants"])
                    print("\n".join(report.brief(found)), flush=True)
                    report.write(RESULTS, quick=arguments.quick)  # what is known so far
    else:
        report.write(RESULTS, quick=arguments.quick)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
