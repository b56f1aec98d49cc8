"""Run logbus's own benchmarks one after the other and write their results: ``make figures``.

python benchmarks/all.py [NAME …]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

BENCHMARKS = (
    "broker",
    "console",
    "failover",
    "kafka_groups",
    "read_committed",
    "record",
    "security",
    "small_partitions",
    "storage",
    "transactions",
    "wire",
)


def start(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Start the script of one benchmark, which can import the modules in its folder."""
    shared = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-P", str(FOLDER / f"{name}.py"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": shared},
    )


def _machine() -> dict[str, Any]:
    """Return the facts about this machine that a reader of the results needs, but not its name."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpus": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }


def run(name: str) -> dict[str, Any] | None:
    """Run one benchmark; write and return its result. If it fails, print why and return None."""
    machine = _machine()
    started = time.monotonic()
    done = start(name)
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if done.returncode or not isinstance(found, dict):
        print(f"{name} failed ({done.returncode}): {done.stdout}", file=sys.stderr)
        return None
    found["machine"] = machine
    kept = FOLDER / "results" / f"{name}.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    return {"benchmark": name, **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    wanted = parser.parse_args().names
    if unknown := sorted(set(wanted) - set(BENCHMARKS)):
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    failed = False
    for name in BENCHMARKS:
        if not wanted or name in wanted:
            found = run(name)
            failed |= found is None
            if found is not None:
                print(json.dumps(found), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
