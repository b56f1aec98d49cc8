"""Driver only: where a batch ends within ``maxBytesPerTrigger``, which brokers alone can tell.

They are asked on threads of their own, so that planning need not wait for them; the answer to a
question counts as long as the batch would begin at the same place. One instance for the whole run
of a query, on its planner's thread.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from broker_lite.errors import LogbusError, OffsetOutOfRangeError
from broker_lite.model import EARLIEST_TIMESTAMP, TopicPartition
from pyspark_logbus import offset_ranges as plan
from pyspark_logbus.offset_ranges import Live
from pyspark_logbus.offset_reader import OffsetReader
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions

BYTES_THREADS = 4
"""One asks; others may still wait for what is gone, until their request times out."""

Reach = dict[TopicPartition, tuple[int, int]]


class BytesLimit:
    """Only where ``options.bytes_max`` is given. ``close`` it."""

    def __init__(self, options: ReadOptions, reader: OffsetReader) -> None:
        self._options = options
        self._reader = reader
        self._pool: ThreadPoolExecutor | None = None
        self._asked: tuple[SourceOffset, SourceOffset, Future[SourceOffset]] | None = None

    def within(
        self, start: SourceOffset, end: SourceOffset, live: Live, *, patience_s: float | None
    ) -> SourceOffset:
        """``end`` within the limit; ``start`` where that is not known after ``patience_s``. With
        None it is waited for, and fails where no broker can tell. A question about a topic that is
        gone by now is not waited for: clients give a topic time to appear."""
        asked = self._asked
        if (
            asked is None
            or not plan.same_place(asked[0], start)
            or plan.still_there(asked[1], live) is not asked[1]
        ):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(BYTES_THREADS, "logbus-bytes")
            asked = (start, end, self._pool.submit(self._ask, start, end))
            self._asked = asked
        try:
            capped = asked[2].result(patience_s)
        except TimeoutError:
            return start
        except LogbusError as error:
            self._asked = None
            if not error.retriable or patience_s is None:
                raise
            return start
        self._asked = None
        return start if plan.same_place(start, capped) else capped

    def close(self) -> None:
        """What is being asked is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, start: SourceOffset, end: SourceOffset) -> SourceOffset:
        budget = self._options.bytes_max
        topic_ids = {name: topic.topic_id for name, topic in end.topics.items()}
        begins = {
            TopicPartition(item.topic, item.partition): item.start
            for item in plan.ranges_between(start, end, self._options.new_partitions)
        }

        def ask(ranges: Reach) -> Reach:
            admin = self._reader.admin
            # By id: of a topic that is made again meanwhile another answer would be another log's.
            return self._reader.retrying(lambda: admin.offsets_for_bytes(ranges, topic_ids))

        try:
            reach = ask({where: (at, budget) for where, at in begins.items()}) if begins else {}
        except OffsetOutOfRangeError:
            # Records aged out before they were read: the tasks say what that means.
            earliest = self._reader.listed(begins, EARLIEST_TIMESTAMP)
            begins = {where: max(at, earliest[where].offset) for where, at in begins.items()}
            reach = ask({where: (at, budget) for where, at in begins.items()})
        shares = plan.share_bytes(budget, reach)
        if shares is not None:
            reach = ask({where: (begins[where], share) for where, share in shares.items()})
        return plan.cap(end, {where: row[0] for where, row in reach.items()})
