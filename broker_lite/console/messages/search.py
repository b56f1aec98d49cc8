"""Search for records of a topic that pass filters.

A search sets its range of offsets when it starts. It stops after 100 hits, 250,000 records, 256 MiB
or 10 seconds. It then returns the unread ranges, from which the next search continues."""

from __future__ import annotations

from typing import Literal, NamedTuple

from broker_lite.client.administration.admin import Admin
from broker_lite.client.record_files import Row, rows_of
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.ranges_reader import Limit, Ranges, RangesReader, SearchBudget
from broker_lite.console.page_request import PageRequest
from broker_lite.model import MAX_TIMESTAMP, TopicPartition

HITS_MAX = 100
"""Maximum records that a search returns."""
WINDOW_BYTES = 16 * 1024 * 1024
"""Maximum estimated bytes of a window: the range of offsets that a backward search (newest records
first) reads in one step."""
WINDOW_RECORDS = 50_000
"""Maximum records of a window (the offsets that a backward search reads in one step), counted over
all partitions."""
SHRINKS_MAX = 2
"""Maximum number of retries of a backward search that reached a limit before it had read its first
window (the range of offsets that it reads in one step).

Each retry has a window 16 times smaller."""

Stop = Literal["end", "hits"] | Limit


class Found(NamedTuple):
    """The result of a search.

    ``rows`` are the hits: the records that pass the filters. ``records`` and ``size_bytes`` count
    all records that the search read, and ``left`` has the ranges that it has not read. ``stop`` is
    the limit that stopped the search, or "end" if it read its whole range."""

    rows: list[Row]
    records: int
    size_bytes: int
    seconds: float
    stop: Stop
    left: Ranges


def forward(request: PageRequest, ranges: Ranges, filters: RecordFilters) -> Found:
    """Search each partition from the beginning of its range on, in the order of offsets."""
    left, budget = dict(ranges), SearchBudget()
    rows: list[Row] = []
    if not left:
        return Found(rows, 0, 0, 0.0, "end", left)
    with RangesReader(request.bus, request.view, ranges) as reader:
        for batch in reader.batches(left, budget):
            hits = rows_of(filters.select(batch))
            room = HITS_MAX - len(rows)
            rows += hits[:room]
            for row in reversed(hits[room:]):
                tp = TopicPartition(row["topic"], row["partition"])
                left[tp] = (row["offset"], ranges[tp][1])
            if len(rows) >= HITS_MAX:
                break
    return _result(rows, budget, left)


def newest(
    request: PageRequest,
    ranges: Ranges,
    filters: RecordFilters,
    record_bytes: float,
    *,
    is_first: bool,
) -> Found:
    """Search backward from the end of the ranges. The newest hits come first.

    ``record_bytes`` is the mean size of a record in bytes. ``is_first`` says that no earlier search
    has read the newer records, after the ranges."""
    if not (is_first and filters.is_everything and len(ranges) > HITS_MAX):
        return _backward(request, ranges, filters, record_bytes)
    parts = _recent(request.admin, ranges)
    found = _backward(request, parts, filters, record_bytes)
    unread = {tp: end for tp, (_, end) in ranges.items()}
    unread |= {tp: first for tp, (first, _) in parts.items()}
    unread |= {tp: end for tp, (_, end) in found.left.items()}
    left = {tp: (first, unread[tp]) for tp, (first, _) in ranges.items() if unread[tp] > first}
    return found._replace(left=left, stop="hits" if left and found.stop == "end" else found.stop)


def _backward(
    request: PageRequest, ranges: Ranges, filters: RecordFilters, record_bytes: float
) -> Found:
    """Search backward from the end of the ranges, one window of offsets after the other.

    The window's size follows from ``record_bytes``, the mean size of a record in bytes."""
    left, budget = dict(ranges), SearchBudget()
    rows: list[Row] = []
    shrinks = 0
    if not left:
        return Found(rows, 0, 0, 0.0, "end", left)
    window = _first_window(len(ranges), filters)
    most = max(1, min(WINDOW_RECORDS, int(WINDOW_BYTES / max(record_bytes, 1))) // len(ranges))
    with RangesReader(request.bus, request.view, ranges) as reader:
        while left and len(rows) < HITS_MAX and budget.spent is None:
            window = min(window, most)
            part = {tp: (max(first, end - window), end) for tp, (first, end) in left.items()}
            begins = {tp: first for tp, (first, _) in part.items()}
            part_bytes = record_bytes * sum(end - first for first, end in part.values())
            hits: list[Row] = []
            for batch in reader.batches(part, budget, part_bytes):
                hits += rows_of(filters.select(batch))
            if part:
                # A limit stopped the search before the end of the window, so its newest hits are
                # missing: try a smaller window.
                if window == 1 or left != ranges or shrinks == SHRINKS_MAX:
                    break
                window, shrinks, budget = max(1, window // 16), shrinks + 1, SearchBudget()
                continue
            rows, dropped = _newest_of(rows + hits)
            left = {
                tp: (left[tp][0], dropped.get(tp, begin))
                for tp, begin in begins.items()
                if dropped.get(tp, begin) > left[tp][0]
            }
            window *= 8
    return _result(rows, budget, left)


def _recent(admin: Admin, ranges: Ranges) -> Ranges:
    """Return the parts of the ranges, of more than ``HITS_MAX`` partitions, that have the newest
    ``HITS_MAX`` records.

    Each of the ``HITS_MAX`` partitions with the newest timestamps has a record that is at least as
    new as the oldest of these timestamps. So neither older records nor other partitions are
    searched."""
    newest_ms = {
        tp: found.timestamp_ms
        for tp, found in admin.list_offsets(dict.fromkeys(ranges, MAX_TIMESTAMP)).items()
    }
    chosen = sorted(ranges, key=newest_ms.__getitem__, reverse=True)[:HITS_MAX]
    oldest_ms = max(0, newest_ms[chosen[-1]])
    parts = {}
    for tp, found in admin.list_offsets(dict.fromkeys(chosen, oldest_ms)).items():
        first, end = ranges[tp]
        # Ignore a record at or after ``end``: it was appended after the search began.
        begin = found.offset if 0 <= found.offset < end else first
        parts[tp] = max(first, begin, end - HITS_MAX), end
    return parts


def _first_window(partitions: int, filters: RecordFilters) -> int:
    if filters.is_everything:
        return max(1, min(HITS_MAX, WINDOW_RECORDS // partitions))
    return max(1, 2000 // partitions)


def _newest_of(rows: list[Row]) -> tuple[list[Row], dict[TopicPartition, int]]:
    """Return the newest ``HITS_MAX`` hits, newest first, and drop the others. Also return, for each
    partition with dropped hits, the offset below which the next search finds them.

    Hits of one partition are sorted by offset, so dropped hits have lower offsets than returned
    ones."""
    times: dict[int, int] = {}
    timed = []
    for row in sorted(rows, key=lambda row: row["offset"]):
        at = times[row["partition"]] = max(times.get(row["partition"], -1), row["timestamp_ms"])
        timed.append((at, row["offset"], row["partition"], row))
    timed.sort(key=lambda each: each[:3], reverse=True)
    ends: dict[TopicPartition, int] = {}
    for _, offset, partition, row in timed[HITS_MAX:]:
        tp = TopicPartition(row["topic"], partition)
        ends[tp] = max(ends.get(tp, 0), offset + 1)
    return [row for _, _, _, row in timed[:HITS_MAX]], ends


def _result(rows: list[Row], budget: SearchBudget, left: Ranges) -> Found:
    stop: Stop = "end"
    if left:
        stop = "hits" if len(rows) >= HITS_MAX else budget.spent or "hits"
    return Found(rows, budget.records, budget.size_bytes, budget.seconds, stop, left)


def as_text(ranges: Ranges) -> str:
    """Return ranges of offsets as a text for a link. 0.12.40-1.5.30 means the offsets 12 to 39 of
    partition 0, and 5 to 29 of partition 1."""
    return "-".join(f"{tp.partition}.{first}.{end}" for tp, (first, end) in sorted(ranges.items()))
