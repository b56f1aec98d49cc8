"""Parse the search for records that a URL describes: partitions, start position and filters.

Pages, JSON, exports and live tails use the same query fields, so a saved link repeats the search.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from broker_lite.client.administration.admin import Admin
from broker_lite.config.time_text import parse_time_ms
from broker_lite.console.messages.matching import RecordFilters
from broker_lite.console.messages.ranges_reader import Ranges
from broker_lite.console.messages.search import Found, forward, newest
from broker_lite.console.page_request import PageRequest
from broker_lite.errors import InvalidRequestError, UnknownTopicOrPartitionError
from broker_lite.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

Begin = Literal["newest", "oldest", "offset", "time"]
BEGINS = ("newest", "oldest", "offset", "time")
CONTINUED_MAX = 300
"""Maximum partitions in a link that continues a search. With more partitions the URL would be too
long."""


class MessageQuery(NamedTuple):
    """A search for records of a topic.

    ``begin`` says where the search begins: at the newest records, at the oldest, or at the offset
    or time ``at``. If the search continues an earlier one, ``left`` has the ranges of offsets that
    the earlier search has not read, as a text (``as_text``)."""

    topic: str
    partitions: tuple[int, ...]
    begin: Begin
    at: str
    filters: RecordFilters
    left: str


def parse_query(request: PageRequest) -> MessageQuery:
    """Return the search that the query fields of a request describe. Raises InvalidRequestError and
    UnknownTopicOrPartitionError."""
    topic = request.topic()
    begin = request.query.get("from", "newest")
    if begin not in BEGINS:
        raise InvalidRequestError(f"from={begin[:40]!r}: give one of {', '.join(BEGINS)}")
    number = request.number("partition")
    known = tuple(part.partition for part in topic.partitions)
    if number is not None and number not in known:
        raise UnknownTopicOrPartitionError(
            f"topic {topic.name!r} has {len(known)} partitions, and no partition {number}"
        )
    filters = RecordFilters.of(request.query)
    if request.settings.hides_payloads and not filters.is_everything:
        raise InvalidRequestError(
            "this console hides keys, values and headers (--no-payloads), so it cannot search them"
        )
    return MessageQuery(
        topic.name,
        known if number is None else (number,),
        cast(Begin, begin),
        request.query.get("at", "").strip()[:64],
        filters,
        request.query.get("left", ""),
    )


def ranges_of(request: PageRequest, query: MessageQuery, now_ms: int) -> Ranges:
    """Return the range of offsets to search in each partition, up to the present last stable
    offset. Partitions without a leader, or without records in their range, are omitted."""
    admin = request.admin
    tps = [TopicPartition(query.topic, number) for number in query.partitions]
    tps = [tp for tp in tps if request.view.leader(tp) is not None]
    if query.left:
        return _continued(query, tps)
    ends = _list(admin, tps, LATEST_TIMESTAMP)
    if query.begin == "newest":
        # A backward search rarely reaches the start of a log, so the start offsets of the last
        # reading are good enough: where records were deleted since, the search finds none.
        known = request.reading.starts
        return {tp: (known.get(tp, 0), ends[tp]) for tp in tps if known.get(tp, 0) < ends[tp]}
    starts = _list(admin, tps, EARLIEST_TIMESTAMP)
    if query.begin == "offset":
        if not is_offset(query.at):
            raise InvalidRequestError(f"at={query.at!r}: give an offset, such as 1200")
        starts = {tp: max(start, int(query.at)) for tp, start in starts.items()}
    elif query.begin == "time":
        at_ms = parse_time_ms(query.at, now_ms)
        if at_ms is None:
            raise InvalidRequestError(
                f"at={query.at!r}: give a time, such as 2026-11-20T10:00:00Z or -1h"
            )
        times = _list(admin, tps, max(at_ms, 0))  # To ListOffsets, -1 and -2 are no times.
        starts = {tp: ends[tp] if times[tp] < 0 else times[tp] for tp in tps}
    return {tp: (starts[tp], ends[tp]) for tp in tps if starts[tp] < ends[tp]}


def _list(admin: Admin, tps: list[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    if not tps:
        return {}
    offsets = admin.list_offsets(dict.fromkeys(tps, timestamp))
    return {tp: row.offset for tp, row in offsets.items()}


def is_offset(text: str) -> bool:
    """Return whether a text is a whole number of at most 18 digits, which fits into an offset."""
    return text.isascii() and text.isdigit() and len(text) < 19


def _continued(query: MessageQuery, tps: list[TopicPartition]) -> Ranges:
    """Return the ranges of offsets in ``query.left``, which an earlier search has not read. Raises
    InvalidRequestError if ``query.left`` is malformed."""
    ranges: Ranges = {}
    for part in query.left.split("-"):
        numbers = part.split(".")
        if len(numbers) != 3 or not all(map(is_offset, numbers)):
            raise InvalidRequestError(
                f"left={query.left[:40]!r} does not come from an earlier search; search again"
            )
        partition, first, end = map(int, numbers)
        tp = TopicPartition(query.topic, partition)
        if tp in tps and first < end:
            ranges[tp] = (first, end)
    return ranges


def search(request: PageRequest, query: MessageQuery, now_ms: int) -> Found:
    """Run a search: from the newest records backward, or forward from the search's start
    position."""
    ranges = ranges_of(request, query, now_ms)
    if query.begin == "newest":
        row = request.reading.topics[query.topic]
        stored = row.size_bytes / max(row.replicas, 1)
        record_bytes, is_first = stored / max(row.records, 1), not query.left
        return newest(request, ranges, query.filters, record_bytes, is_first=is_first)
    return forward(request, ranges, query.filters)
