"""Compare this tree with an earlier commit: logbus's side of rows of ``make bench``, in pairs.

    PYTHONPATH=benchmarks python -P -m peers.pairs --before COMMIT ROW … [--pairs 7]

Each tree runs its own benchmark against its own brokers, in a process of its own. In each pair both
trees run the row once, in the reverse order of the pair before. A first pair warms caches and
compilers, and does not count. ``cpu_s`` is the processor time of all processes of a run.

The script prints a JSON object for each row. A ratio is this tree's figure divided by the earlier
one's. A measure is *worse* if its median ratio is worse by more than ``BOUND``, and all pairs but
one at most are worse.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from peers.bench import Bench
from peers.meter import Meter
from peers.row import LOGBUS, Measures
from peers.rows import ROWS

ROOT = Path(__file__).parents[2]
BOUND = 0.03
CPU = "cpu_s"


def serve(name: str, variant: str) -> None:
    """Run logbus's side of a row once for each line on stdin, and print its measures as JSON.

    This module runs with the ``peers`` package of the tree that is measured, so it uses only what
    earlier commits have, too.
    """
    # A second name for logbus's servers takes the place of Kafka, which this comparison needs not.
    Bench.kafka = lambda bench, brokers=1, **_: bench.logbus(brokers)  # type: ignore[method-assign]
    row = next(each for each in ROWS if each.name == name)
    chosen = next(each for each in row.variants if each.name == variant)
    answers, sys.stdout = sys.stdout, sys.stderr
    with Bench() as bench, row.open(bench, chosen) as sides:
        side = sides[LOGBUS]
        for _ in sys.stdin:
            os.sync()
            with Meter(side.servers(), bench.pids(), side.within) as meter:
                measures = side.run()
            measures[CPU] = sum(each["cpu_s"] for each in meter.found.values())
            print(json.dumps(measures), file=answers, flush=True)


class Tree:
    """A tree of the repository, with a process (``serve``) that runs one row again and again."""

    def __init__(self, root: Path, row: str, variant: str, log: IO[str]) -> None:
        path = os.pathsep.join((str(root / "benchmarks"), str(root)))
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, row, "--variant", variant, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._root = root

    def run(self) -> Measures:
        """Run the row once. Raises RuntimeError if the process of the tree has ended."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the benchmark of {self._root} ended; --log FILE shows its output")
        measures: Measures = json.loads(line)
        return measures

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a temporary folder with the files of a commit."""
    with tempfile.TemporaryDirectory(prefix="logbus-bench-") as folder:
        command = ["git", "archive", commit]
        archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def run_pairs(trees: Sequence[Tree], count: int) -> list[tuple[Measures, Measures]]:
    """Return the measures of the first and of the second tree in each of ``count`` pairs."""
    first, second = trees
    found = []
    for number in range(count + 1):
        if number % 2:
            measures = first.run(), second.run()
        else:
            after = second.run()
            measures = first.run(), after
        found.append(measures)
        print(f"  {number}: {measures}", file=sys.stderr, flush=True)
    return found[1:]


def compared(measure: str, pairs: Sequence[tuple[Measures, Measures]]) -> dict[str, Any]:
    """Return the ratios of a measure, and whether it is worse than before."""
    ratios = [after[measure] / before[measure] for before, after in pairs]
    costs = [1 / each if measure.endswith("_per_s") else each for each in ratios]
    is_beyond = statistics.median(costs) > 1 + BOUND
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(each, 3) for each in ratios],
        "is_worse": is_beyond and sum(each > 1 for each in costs) >= len(costs) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="+", metavar="ROW", help=", ".join(names))
    parser.add_argument("--before", default="HEAD", metavar="COMMIT")
    parser.add_argument("--variant", default="defaults")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--log", default=os.devnull, help="file for the output of both trees")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.rows[0], given.variant)
        return
    with checkout(given.before) as before, Path(given.log).open("a") as log:
        for name in given.rows:
            with contextlib.ExitStack() as stack:
                trees = [
                    stack.enter_context(contextlib.closing(Tree(root, name, given.variant, log)))
                    for root in (before, ROOT)
                ]
                pairs = run_pairs(trees, given.pairs)
            measures = pairs[0][0].keys() & pairs[0][1].keys()
            found = {measure: compared(measure, pairs) for measure in sorted(measures)}
            print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    main()
