"""Write the records that a search finds to a file: CSV, JSON Lines or Parquet.

The console completes the file before it sends the first byte to the browser. A full disk therefore
causes an error response instead of a truncated file."""

from __future__ import annotations

import contextlib
import tempfile
from typing import IO, NamedTuple

from broker_lite.client.record_files import WRITERS
from broker_lite.console.messages.query import parse_query, ranges_of
from broker_lite.console.messages.ranges_reader import RECORDS_MAX, RangesReader, SearchBudget
from broker_lite.console.page_request import PageRequest
from broker_lite.errors import InvalidRequestError, LogbusError, StorageError


class Export(NamedTuple):
    """A file with the records of a search. With ``is_part``, a limit stopped the search, so that
    records may be missing."""

    file: IO[bytes]
    records: int
    is_part: bool


def export(request: PageRequest, form: str, now_ms: int) -> Export:
    """Write the records of a search into a temporary file. A search from the newest records reads
    the last 250,000, equally many per partition. Raises InvalidRequestError, StorageError."""
    query = parse_query(request)
    if request.settings.hides_payloads:
        raise InvalidRequestError(
            "this console hides keys, values and headers (--no-payloads), so it cannot export them"
        )
    if form not in WRITERS:
        raise InvalidRequestError(f"format={form[:40]!r}: give one of {', '.join(WRITERS)}")
    ranges = ranges_of(request, query, now_ms)
    if query.begin == "newest" and ranges:
        each = max(1, RECORDS_MAX // len(ranges))
        ranges = {tp: (max(first, end - each), end) for tp, (first, end) in ranges.items()}
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the answer closes it)
    try:
        write, finish = WRITERS[form](file)
        budget, records = SearchBudget(), 0
        if ranges:
            with RangesReader(request.bus, request.view, ranges) as reader:
                for batch in reader.batches(ranges, budget):
                    hits = query.filters.select(batch)
                    records += hits.num_rows
                    write(hits)
        finish()
        file.seek(0)
    except OSError as error:
        # Ignore the error of ``close``: it writes the buffered bytes, and fails as the write above
        # did.
        with contextlib.suppress(OSError):
            file.close()
        raise StorageError(
            f"the export cannot be written to {tempfile.gettempdir()}: {error.strerror}. Free some "
            "space there, or name another folder with TMPDIR"
        ) from None
    except LogbusError:
        file.close()
        raise
    return Export(file, records, bool(ranges))


TYPES = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}
"""The media type of each file format."""
