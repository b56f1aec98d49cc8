"""Runs every benchmark, one after the other, and keeps what each printed.

    python benchmarks/all.py [NAME …]        (or: make bench)

Each benchmark is a script beside this one that prints one JSON object. Results go to
``benchmarks/results/NAME.json``; the exit code is 1 if one failed. Nothing else should run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def main(wanted: list[str]) -> int:
    failed = []
    results = FOLDER / "results"
    results.mkdir(exist_ok=True)
    for script in sorted(FOLDER.glob("*.py")):
        if script.name == "all.py" or (wanted and script.stem not in wanted):
            continue
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", str(script)], stdout=subprocess.PIPE, text=True, check=False
        )
        seconds = time.monotonic() - started
        print(f"{script.stem}: {seconds:.0f} s", file=sys.stderr)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = None
        if done.returncode or found is None:
            failed.append(script.stem)
            print(f"{script.stem} failed ({done.returncode}): {done.stdout}", file=sys.stderr)
            continue
        (results / f"{script.stem}.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
        print(json.dumps({"benchmark": script.stem, **found}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
