"""Read and write the stored results, a JSON file for each row.

A run of some variants (sets of settings) replaces only the results of these variants, so a file may
hold variants that were measured on different days. Each variant has its date, commit, machine,
load, versions and input.
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


def folder(*, quick: bool) -> Path:
    """Return the folder of the results; quick runs have another folder."""
    return RESULTS / "quick" if quick else RESULTS


def read(path: Path) -> dict[str, Any]:
    """Return the stored result of a row, without variants if the file is missing or contains no
    result."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {"variants": [], **found}


def keep(into: Path, found: Found, row: Row, *, whole: bool) -> dict[str, Any]:
    """Write the result of a row; return the stored result.

    With ``whole``, drop all stored variants. Otherwise replace only the variants in ``found``. A
    failed variant does not replace stored figures, but is reported on stderr.
    """
    into.mkdir(exist_ok=True)
    path = into / f"{row.name}.json"
    before = [] if whole else read(path)["variants"]
    kept = {**found, "variants": merged(before, found["variants"], row)}
    path.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return kept


def merged(before: Sequence[Found], new: Sequence[Found], row: Row) -> list[Found]:
    """Return the results of a row's variants (sets of settings), in its order: new results in place
    of stored ones. Leave out variants that the row no longer has."""
    by_name = {each["variant"]: each for each in before}
    for each in new:
        name = each["variant"]
        if "sides" in by_name.get(name, {}) and "sides" not in each:
            print(f"  {row.name} [{name}]: its figures of before are kept", file=sys.stderr)
        else:
            by_name[name] = each
    return [by_name[each.name] for each in row.variants if each.name in by_name]
