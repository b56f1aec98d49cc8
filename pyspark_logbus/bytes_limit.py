"""Find the end of a batch within ``maxBytesPerTrigger``, from the sizes that brokers report.

Background threads send the requests, so planning need not wait. A response stays valid while the
batch starts at the same offsets. One ``BytesLimit`` serves a whole run of a query, on the driver,
on the thread that plans batches.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from broker_lite.errors import LogbusError, OffsetOutOfRangeError
from broker_lite.model import EARLIEST_TIMESTAMP, TopicPartition
from pyspark_logbus.admission import cap, same_place, share_bytes
from pyspark_logbus.offset_ranges import Live, existing_topics, ranges_between
from pyspark_logbus.offset_reader import OffsetReader
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions

BYTES_THREADS = 4
"""Maximum number of threads that look up the sizes of ranges at the brokers. One thread runs the
current lookup. Earlier lookups, of topics that were deleted meanwhile, may occupy the others."""

Reach = dict[TopicPartition, tuple[int, int]]
"""By partition, a range to look up, as start offset and maximum bytes; or the answer, as the
range's end offset and bytes."""


class BytesLimit:
    """Applies a query's ``maxBytesPerTrigger`` to each of its batches. The caller closes it."""

    def __init__(self, options: ReadOptions, reader: OffsetReader) -> None:
        self._options = options
        self._reader = reader
        self._pool: ThreadPoolExecutor | None = None
        self._lookup: tuple[SourceOffset, SourceOffset, Future[SourceOffset]] | None = None

    def within(
        self, start: SourceOffset, end: SourceOffset, live: Live, *, patience_s: float | None
    ) -> SourceOffset:
        """Return the batch's end offset: ``end``, or an earlier offset if the batch would exceed
        maxBytesPerTrigger.

        Returns ``start`` if the brokers have not answered after ``patience_s`` seconds. A later
        call uses their answer. With ``patience_s`` None the call waits for the brokers, and raises
        their error. ``live`` shows which topics were deleted. The call does not wait for deleted
        topics.
        """
        lookup = self._lookup
        if (
            lookup is None
            or not same_place(lookup[0], start)
            or existing_topics(lookup[1], live) is not lookup[1]
        ):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(BYTES_THREADS, "logbus-bytes")
            lookup = (start, end, self._pool.submit(self._find_end, start, end))
            self._lookup = lookup
        try:
            capped = lookup[2].result(patience_s)
        except TimeoutError:
            return start
        except LogbusError as error:
            self._lookup = None
            if not error.retriable or patience_s is None:
                raise
            return start
        self._lookup = None
        return start if same_place(start, capped) else capped

    def close(self) -> None:
        """Stop the lookup threads without waiting for requests in flight."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _find_end(self, start: SourceOffset, end: SourceOffset) -> SourceOffset:
        budget = self._options.bytes_max
        topic_ids = {name: topic.topic_id for name, topic in end.topics.items()}
        begins = {
            item.tp: item.start for item in ranges_between(start, end, self._options.new_partitions)
        }

        def ask(ranges: Reach) -> Reach:
            admin = self._reader.admin
            # Look up by topic id, because a recreated topic is another log.
            return self._reader.retrying(lambda: admin.offsets_for_bytes(ranges, topic_ids))

        try:
            reach = ask({tp: (at, budget) for tp, at in begins.items()}) if begins else {}
        except OffsetOutOfRangeError:
            # Retention deleted records that the query has not read. Continue at the earliest
            # offsets; the tasks that read the batch report the loss.
            earliest = self._reader.listed(begins, EARLIEST_TIMESTAMP)
            begins = {tp: max(at, earliest[tp].offset) for tp, at in begins.items()}
            reach = ask({tp: (at, budget) for tp, at in begins.items()})
        shares = share_bytes(budget, reach)
        if shares is not None:
            reach = ask({tp: (begins[tp], share) for tp, share in shares.items()})
        return cap(end, {tp: row[0] for tp, row in reach.items()})
