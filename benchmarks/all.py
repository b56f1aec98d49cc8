"""Run logbus's own benchmarks one after the other and write their results: ``make figures``.

python benchmarks/all.py [NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
BENCHMARKS = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "all"))


def start(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script of one benchmark, which can import the modules in its folder."""
    shared = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-P", str(FOLDER / f"{name}.py"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": shared},
    )


def run(name: str) -> bool:
    """Run one benchmark; print and write its result. Return False if the benchmark fails."""
    started = time.monotonic()
    done = start(name)
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    if done.returncode:
        print(f"{name} failed ({done.returncode}): {done.stdout}", file=sys.stderr)
        return False
    (FOLDER / "results" / f"{name}.json").write_text(done.stdout, "utf-8")
    print(json.dumps({"benchmark": name, **json.loads(done.stdout)}), flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    wanted = parser.parse_args().names or BENCHMARKS
    if unknown := sorted(set(wanted) - set(BENCHMARKS)):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return int(sum(not run(name) for name in wanted) > 0)


if __name__ == "__main__":
    sys.exit(main())
