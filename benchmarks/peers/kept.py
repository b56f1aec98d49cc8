"""The results that are kept: one JSON file a row, each of its variants with what it ran on.

A run of some variants takes their place in the row's file and leaves the others as they are, so a
file may hold variants of several days: date, commit, machine, load, versions and input are said by
each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peers.row import Row

Found = Mapping[str, Any]

RESULTS = Path(__file__).parent.parent / "results"
OF_A_VARIANT = ("machine", "versions", "input")
"""What files of before said once for all of a row's variants."""


def folder(*, quick: bool) -> Path:
    """Where results go; a quick run's never replace a full one's."""
    return RESULTS / "quick" if quick else RESULTS


def read(path: Path) -> dict[str, Any]:
    """A row's result; without variants where there is none, or the file is no row's."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if "variants" not in found:
        return {"variants": []}
    once = {name: found.pop(name) for name in OF_A_VARIANT if name in found}
    return found | {"variants": [once | each for each in found["variants"]]}


def keep(into: Path, found: Found, row: Row, *, whole: bool) -> dict[str, Any]:
    """Write a row's result beside the others' and return it as it is kept.

    ``whole``: every variant ran, so nothing of before is left. Else the variants that ran take
    their places; one that failed takes none from figures, which is said on stderr.
    """
    into.mkdir(exist_ok=True)
    path = into / f"{row.name}.json"
    before = [] if whole else read(path)["variants"]
    kept = {**found, "variants": merged(before, found["variants"], row)}
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return kept


def merged(before: Sequence[Found], new: Sequence[Found], row: Row) -> list[Found]:
    """Variants of two runs, in the row's order; those that the row has no more are gone."""
    by_name = {each["variant"]: each for each in before}
    for each in new:
        name = each["variant"]
        if "sides" in by_name.get(name, {}) and "sides" not in each:
            print(f"  {row.name} [{name}]: its figures of before are kept", file=sys.stderr)
        else:
            by_name[name] = each
    return [by_name[each.name] for each in row.variants if each.name in by_name]
