"""Write the report's lines about the default compression of columns, from the results.

logbus's clients and Spark's sink do not compress by default (setting ``compression``). The report
prints the measurements behind this decision, so that readers notice when they change.
``peers.report`` calls this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peers.row import LOGBUS

Found = Mapping[str, Any]

NONE, LZ4 = "none", "lz4"
MEASURED = (
    ("spark-write", "as advised", "run_s", "time of Spark's write {:.2f}"),
    ("spark-read", "as advised", "run_s", "of its read {:.2f}"),
    ("spark-pipeline", "as advised", "run_s", "of the pipeline {:.2f}"),
    ("spark-catch-up", "as advised", "run_s", "of catching up from the disk {:.2f}"),
    ("disk", NONE, "columns_mb", "size of the log {:.2f}"),
    (
        "python-batches",
        "defaults",
        "records_per_s",
        "rate of poll_arrow from local log files {:.2f}",
    ),
    ("python-send-100b", "defaults", "records_per_s", "rate of send {:.2f}"),
    ("python-table", "defaults", "records_per_s", "of send_arrow {:.2f}"),
)
"""Each entry: a benchmark, its variant without compression, a measure, and the report's words for
the ratio of this measure with lz4 to that without."""


def lines(rows: list[Found]) -> Iterator[str]:
    """Yield the report's lines about compression; none if no benchmark has results both with
    and without it."""
    by_row = {found["row"]: found for found in rows}
    said = []
    for row, plain, measure, words in MEASURED:
        before, packed = (_median(by_row.get(row), name, measure) for name in (plain, LZ4))
        if before and packed:
            said.append(words.format(packed / before))
    if said:
        yield "Columns are not compressed by default."
        yield f"Results with lz4 divided by those without: {'; '.join(said)}."
        yield ""


def _median(found: Found | None, variant: str, measure: str) -> float | None:
    for each in found["variants"] if found else ():
        if each["variant"] == variant and LOGBUS in each.get("sides", {}):
            return float(each["sides"][LOGBUS]["median"][measure])
    return None
