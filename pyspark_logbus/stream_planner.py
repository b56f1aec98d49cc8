"""Plan the micro-batches of a stream, in the runner process of its source on the driver.

One planner serves a whole run of a query, on the main thread of the runner: the process in which
Spark runs a stream's Python source. Spark calls ``latest_offset`` of an idle query every 12 ms, and
the query's other sources wait for the result. So no call blocks longer than 20 ms once the planner
knows the log ends and has the lease of its consumer group (``group_progress``).

Spark does not retry a failed call, but ends the query. The planner therefore waits until transient
failures are over, and raises only errors that would not pass, such as data loss.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker_lite.errors import (
    DataLossError,
    InconsistentClusterIdError,
    LogbusError,
    RequestTimedOutError,
    SaslAuthenticationError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListedOffset,
    TopicPartition,
)
from pyspark_logbus import offsets
from pyspark_logbus.admission import Admission, RangeLimits
from pyspark_logbus.bytes_limit import BytesLimit
from pyspark_logbus.first_contact import Silence
from pyspark_logbus.group_progress import GroupProgress
from pyspark_logbus.live_offsets import LiveOffsets
from pyspark_logbus.losses import (
    GONE,
    LATE,
    RECREATED,
    UNSUBSCRIBED,
    Loss,
    Losses,
    find_losses,
    unsubscribed,
    with_ranges,
)
from pyspark_logbus.offset_ranges import (
    Live,
    OffsetRange,
    existing_topics,
    has_transactions,
    ranges_between,
    starts_in,
)
from pyspark_logbus.offset_reader import OffsetReader, default_group
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions
from pyspark_logbus.range_tasks import Task, make_tasks
from pyspark_logbus.termination import stop_on_terminate, termination_waits

RUN_AGAIN = "To continue without the lost records, run the query again with failOnDataLoss=false"
"""The remedy in an error about an AvailableNow run whose target lies beyond the log's end."""
PATIENCE_S = 0.02
"""Seconds that one planning call may wait for brokers, once the query has started."""

Document = dict[str, Any]


class StreamPlanner:
    """Plans the micro-batches of one query."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._reader = OffsetReader(options)
        self._live = LiveOffsets(options)
        self._silence = Silence(options.bootstrap_servers, time.monotonic)
        self._admission = Admission(
            RangeLimits(
                options.rows_max,
                options.rows_min,
                options.trigger_delay_max_ms,
                options.new_partitions,
            )
        )
        self._progress: GroupProgress | None = None
        self._initial: Document | None = None
        self._no_start: LogbusError | None = None
        self._started = False
        self._checked = False
        self._is_available_now = False
        self._target: Live | None = None
        self._parsed: tuple[Document, SourceOffset] | None = None
        self._idle: tuple[SourceOffset, Live] | None = None
        self._losses = Losses(options)
        self._planned_end: SourceOffset | None = None
        self._report: tuple[SourceOffset, tuple[Any, ...], Document] | None = None
        self._bytes_limit = BytesLimit(options, self._reader)
        stop_on_terminate()

    # Methods that Spark calls.

    def initial_offset(self) -> Document:
        """Return the start of a query without a checkpoint. Within a run the result stays the same,
        because Spark calls this method twice for the first batch.

        Spark also calls this method before it repeats a first batch, and does not use that result.
        So this method raises no error, for example about a missing topic. It stores the error, and
        the call that uses the start raises it.
        """
        if self._initial is None:
            try:
                start = self._reader.start()
            except LogbusError as error:
                self._no_start = error
                start = SourceOffset(self._reader.view.cluster_id)
            self._initial = replace(start, query=_new_query()).to_json()
        return self._initial

    def prepare_for_available_now(self) -> None:
        """Prepare a run that stops at the current log ends (Trigger.AvailableNow).

        The run's target, the log ends at which it stops, is fixed by its first ``latest_offset``
        and not by this call: Spark may first repeat a batch that was planned before a partition was
        added. Spark ends the run after the first ``latest_offset`` without new data. So that method
        does not wait for ``minOffsetsPerTrigger``, nor return before the brokers have answered.
        """
        self._is_available_now = True
        self._admission = Admission(replace(self._admission.limits, rows_min=0))

    def latest_offset(self, document: Document, *, unlimited: bool) -> Document:
        """Return the end of the batch that starts at ``document``, or ``document`` itself if there
        is nothing to read.

        ``unlimited`` reads everything, as Trigger.Once does. Raises DataLossError,
        GroupLeaseHeldError, and errors that are not retriable.
        """
        self._check_start(document)
        start = self._parse(document)
        live = self._ends_now(start, unlimited)
        problem = self._check_access()
        self._silence.check(problem, is_known=live is not None)
        if live is None:
            return document
        self._check_cluster(start, live)
        idle = self._idle
        if (
            idle is not None
            and idle[0] is start
            and idle[1] is live
            and not self._losses.are_suspected
        ):
            end = document
            self._planned_end = start
        else:
            end = self._next(document, start, live, unlimited)
        # If lost records are suspected, do not publish the query's progress yet: ``start`` may be
        # within lost records, and the check for losses has not run.
        if not self._losses.are_suspected:
            self._publish(start, live)
        return end

    def report(self) -> Document | None:
        """Return the log ends, the lag after the planned batch, and the number of lost records, as
        JSON. Spark shows them in its progress report as ``sources[].latestOffset``."""
        live, at = self._live.now(), self._planned_end
        if live is None or at is None:
            return None
        problem = str(self._live.problem or "")
        group = self._progress.group if self._progress else ""
        state = self._progress.state if self._progress else ""
        key = (live.version, problem, state, self._losses.row_count)
        if self._report is None or self._report[0] is not at or self._report[1] != key:
            topics, lag = {}, {}
            for name, topic in sorted(live.topics.items()):
                topics[name] = {str(p): end.offset for p, end in sorted(topic.ends.items())}
                lag[name] = {
                    str(p): max(0, end.offset - (starts_in(at, name, topic.topic_id, p) or 0))
                    for p, end in sorted(topic.ends.items())
                    if end.offset >= 0
                }
            document: Document = {
                "topics": topics,
                "lagAfterBatch": lag,
                "lagAfterBatchTotal": sum(sum(rows.values()) for rows in lag.values()),
                "lostRecords": self._losses.row_count,
                "group": group,
                "groupState": state,
            }
            if problem:
                document["degraded"] = problem
            self._report = (at, key, document)
        return self._report[2]

    def ranges(self, start: Document, end: Document) -> list[Task]:
        """Return the tasks of the batch between two offsets.

        Raises DataLossError for records that were deleted before the batch read them, unless
        failOnDataLoss=false.
        """
        begin, until = offsets.from_json(start), offsets.from_json(end)
        if until.begin is None:
            self._check_start(start)
        live = self._require_live()
        self._check_cluster(until, live)
        ranges = ranges_between(begin, until, self.options.new_partitions)
        if not self._checked:
            # This is the batch that Spark repeats after a restart. Check for lost records now,
            # because this run has not yet checked the batch's offsets.
            self._checked = True
            stored = SourceOffset(until.cluster_id, until.topics)
            self._losses.judge(with_ranges(self._find_losses(stored, live), ranges))
            ranges = self._check_begins(begin, until, ranges, is_repeated=True)
        else:
            ranges = self._check_begins(begin, until, ranges, is_repeated=False)
        ranges = [item for item in ranges if self._is_there(item, live)]
        if self._progress is None:
            # Spark repeats a planned batch after a restart, before any planning call, so no call
            # has acquired the group's lease yet.
            committed = begin.topics if until.begin is None else until.begin
            self._publish(SourceOffset(until.cluster_id, committed, query=until.query), live)
        return make_tasks(ranges, self.options, self._reader, self._live.view)

    def stop(self) -> None:
        """Commit the group's pending offsets, and close all connections and threads. A second call
        does nothing."""
        with termination_waits():
            if self._progress is not None:
                self._progress.close()
            self._bytes_limit.close()
            self._live.close()
            self._reader.close()

    # Methods that plan batches and publish the group's progress.

    def _next(
        self, document: Document, start: SourceOffset, live: Live, unlimited: bool
    ) -> Document:
        target = self._available_now_target(start, live) if self._is_available_now else live
        cut_back = self._losses.judge(self._losses.confirmed(self._find_losses(start, live)))
        self._live.forget_deleted(start)
        self._checked = True
        is_first = document == self._initial
        wait_for_group = is_first and self.options.starting == offsets.GROUP and not unlimited
        end = start
        if not wait_for_group:
            end = self._admission.next_end(
                int(time.monotonic() * 1000),
                start,
                target.offset(),
                unlimited=unlimited,
                cut_back=cut_back,
            )
        nothing_new = end is start
        if self.options.bytes_max and not unlimited and not nothing_new:
            patience_s = None if self._is_available_now else PATIENCE_S
            end = self._bytes_limit.within(start, end, live, patience_s=patience_s)
        self._planned_end = end
        query = start.query or _new_query()
        # Spark keeps no initial offset, so store the first batch's start in its end offset.
        begin = start.topics if is_first else None
        if end is start and not is_first:
            # If nothing is new, later planning calls need not plan until a log end moves. With
            # minOffsetsPerTrigger every call must plan, because maxTriggerDelay can make a batch
            # due without new records.
            if nothing_new and not self.options.rows_min:
                self._idle = (start, live)
            return document
        is_mixed = has_transactions(start, end, live, self.options.new_partitions)
        return SourceOffset(end.cluster_id, end.topics, begin, query, is_mixed).to_json()

    def _check_start(self, document: Document) -> None:
        if self._no_start is not None and document == self._initial:
            raise self._no_start

    def _parse(self, document: Document) -> SourceOffset:
        if self._parsed is None or self._parsed[0] != document:
            self._parsed = (document, offsets.from_json(document))
        return self._parsed[1]

    def _ends_now(self, start: SourceOffset, unlimited: bool) -> Live | None:
        """Return the known log ends; None if no broker has answered.

        Waits at most ``PATIENCE_S`` seconds for the first answer. With Trigger.Once and
        Trigger.AvailableNow, the first call of a run waits until all ends are known.
        """
        live = self._live.now()
        patient = unlimited or self._is_available_now
        if live is None and not patient:
            live = self._live.wait(PATIENCE_S)
        if patient and not self._started:
            live = self._complete(start)
        if live is not None:
            self._started = True
        return live

    def _complete(self, start: SourceOffset) -> Live:
        """Return every log end as of this call, so that the query reads all records that were
        acknowledged before the call.

        A broker that has just started may not list an existing topic yet. So a topic of ``start``
        counts as deleted only if brokers have not listed it for as long as an offset lookup is
        retried. Raises RequestTimedOutError.
        """
        options = self.options
        deadline = time.monotonic() + options.request_timeout_ms / 1000
        grace_until = time.monotonic() + options.grace_s
        ids = self._reader.partitions(start.topics)
        topic_names = set(options.topics.among(start.topics))
        while time.monotonic() < grace_until and not topic_names <= {tp.topic for tp in ids}:
            time.sleep(0.005)
            ids = self._reader.partitions(start.topics)
        listed = self._reader.listed(ids, LATEST_TIMESTAMP)
        while True:
            live = self._live.wait(PATIENCE_S)
            if live is not None and live.is_complete() and _covers(live, listed):
                return live
            if time.monotonic() > deadline:
                raise self._live.problem or RequestTimedOutError(
                    f"brokers did not return all log ends of {options.topics.describe()} within "
                    f"request.timeout.ms={options.request_timeout_ms}; check the brokers with: "
                    "logbus doctor"
                )
            time.sleep(0.005)

    def _require_live(self) -> Live:
        live = self._live.now() or self._live.wait(self.options.poll_timeout_ms / 1000)
        if live is None:
            raise self._live.problem or RequestTimedOutError(
                f"no broker of {self.options.bootstrap_servers} answered within "
                f"pollTimeoutMs={self.options.poll_timeout_ms}; check the brokers with: logbus "
                "doctor"
            )
        self._check_access()
        return live

    def _available_now_target(self, start: SourceOffset, live: Live) -> Live:
        """Return the log ends at which an AvailableNow run stops: the log ends at the run's first
        call of ``latest_offset``.

        Raises DataLossError, even with failOnDataLoss=false, if a log now ends before its target,
        because the run would never end.
        """
        if self._target is None:
            self._target = live
        for name, topic in self._target.topics.items():
            now = live.topics.get(name)
            for number, end in topic.ends.items():
                at = starts_in(start, name, topic.topic_id, number)
                if at is not None and at >= end.offset:
                    continue
                if now is None or now.topic_id != topic.topic_id or number not in now.ends:
                    raise DataLossError(
                        f"{name}-{number} (topic id {topic.topic_id}) was deleted before this run "
                        f"with Trigger.AvailableNow read it to the end. {RUN_AGAIN}"
                    )
                if 0 <= now.ends[number].offset < end.offset:
                    raise DataLossError(
                        f"{name}-{number} ends at offset {now.ends[number].offset}, but this run "
                        f"with Trigger.AvailableNow planned to read up to {end.offset}. {RUN_AGAIN}"
                    )
        return self._target

    def _publish(self, start: SourceOffset, live: Live) -> None:
        """Commit ``start``, the end of the last committed batch, as the group's offsets, without
        those of deleted or recreated topics.

        The first call of a run also acquires the group's lease (``group_progress``), before any
        task reads a batch.
        """
        is_first = self._progress is None
        if self._progress is None:
            group = self.options.group_id or default_group(self.options, live.cluster_id)
            self._progress = GroupProgress(
                self._reader.admin,
                group,
                explicit=bool(self.options.group_id),
                # The query's next run has the same run id, so it need not wait until this run's
                # lease of the group expires.
                run=start.query or _new_query(),
            )
        self._progress.publish(existing_topics(start, live))
        if is_first:
            self._progress.claim()
        self._progress.check()
        if self._is_available_now:
            # This may be the run's last call, so wait until the background thread has published.
            self._progress.wait(PATIENCE_S)

    # Methods that check for permissions, for losses and for another cluster.

    def _check_access(self) -> LogbusError | None:
        """Return the present error of requests to the brokers, or None. Raise the error if the user
        may not log in or may not read a topic: a retry cannot mend this, and a topic that the user
        may not see would count as deleted."""
        problem = self._live.problem
        if isinstance(problem, (SaslAuthenticationError, TopicAuthorizationError)):
            raise problem
        return problem

    def _check_cluster(self, at: SourceOffset, live: Live) -> None:
        if at.cluster_id and at.cluster_id != live.cluster_id:
            raise InconsistentClusterIdError(
                f"the checkpoint belongs to cluster {at.cluster_id}, but "
                f"{self.options.bootstrap_servers} is cluster {live.cluster_id}; use a new "
                "checkpointLocation, or the brokers of that cluster"
            )

    def _find_losses(self, start: SourceOffset, live: Live) -> list[Loss]:
        return find_losses(start, live, self.options.topics, self._live.seen)

    def _check_begins(
        self,
        start: SourceOffset,
        end: SourceOffset,
        ranges: list[OffsetRange],
        *,
        is_repeated: bool,
    ) -> list[OffsetRange]:
        """Return the ranges of the batch, shortened by the records that were deleted before the
        query read them.

        Looks up the log starts of partitions that are new in this batch, or of all partitions of a
        repeated batch. If records were deleted, raises DataLossError unless failOnDataLoss=false.
        Spark requests no progress report with a repeated batch, so the next batch's report counts
        the losses.
        """
        begin = start if end.begin is None else SourceOffset(end.cluster_id, end.begin)
        by_tp = {item.tp: item for item in ranges}
        fresh = {
            tp
            for tp, item in by_tp.items()
            if starts_in(begin, item.topic, item.topic_id, item.partition) is None
        }
        if not is_repeated:
            by_tp = {tp: by_tp[tp] for tp in fresh}
        if not by_tp:
            return ranges
        earliest = self._earliest(by_tp)
        losses = []
        for tp, item in by_tp.items():
            row = earliest.get(tp)
            if row is not None and row.offset > item.start:
                detail = (
                    f"Added partition {tp} starts from {row.offset} instead of 0"
                    if tp in fresh
                    else f"records before offset {row.offset} were deleted before they were read"
                )
                losses.append(Loss(LATE, *tp, item.start, row.offset, detail, item.topic_id))
            elif row is None and tp in fresh:
                detail = "the topic was deleted"
                losses.append(Loss(GONE, *tp, item.start, item.end, detail, item.topic_id))
        self._losses.judge(losses)
        clipped = []
        for item in ranges:
            tp = item.tp
            row = earliest.get(tp)
            if row is not None and row.offset > item.start:
                item = item._replace(start=row.offset, start_epoch=-1)
            if item.start < item.end and (row is not None or tp not in fresh):
                clipped.append(item)
        return clipped

    def _earliest(
        self, requested: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the log start offsets of the partitions ``requested``, except those of deleted
        topics.

        A broker that has just started may not list an existing topic yet. So this method repeats
        the lookup of a missing topic as long as the background long poll reports the topic, for at
        most ``request.timeout.ms``.
        """
        try:
            return self._reader.listed(requested, EARLIEST_TIMESTAMP)
        except UnknownTopicOrPartitionError as error:
            problem = error
        listed: dict[TopicPartition, ListedOffset] = {}
        deadline = time.monotonic() + self.options.request_timeout_ms / 1000
        for topic in sorted({tp.topic for tp in requested}):
            tps = [tp for tp in requested if tp.topic == topic]
            while True:
                try:
                    listed.update(self._reader.listed(tps, EARLIEST_TIMESTAMP))
                    break
                except UnknownTopicOrPartitionError as error:
                    problem = error
                now = self._require_live().topics.get(topic)
                if now is None or now.topic_id != requested[tps[0]].topic_id:
                    break
                if time.monotonic() > deadline:
                    raise problem
                time.sleep(0.005)
        return listed

    def _is_there(self, item: OffsetRange, live: Live) -> bool:
        topic = live.topics.get(item.topic)
        if topic is not None and topic.topic_id == item.topic_id:
            return True
        end = self._live.seen.get(item.topic_id, {}).get(item.partition, item.end)
        kind, reason = GONE, "the topic was deleted"
        topics = self.options.topics
        if not topics.reads(item.tp):
            kind, reason = UNSUBSCRIBED, unsubscribed(topics)
        elif topic is not None:
            kind, reason = RECREATED, "the topic was deleted and recreated"
        lost = item.topic, item.partition, item.start, end, reason, item.topic_id
        self._losses.judge([Loss(kind, *lost)])
        return False


def _new_query() -> str:
    return uuid.uuid4().hex[:12]


def _covers(live: Live, listed: dict[TopicPartition, Any]) -> bool:
    for tp, row in listed.items():
        topic = live.topics.get(tp.topic)
        end = topic.ends.get(tp.partition) if topic is not None else None
        if end is None or end.offset < row.offset:
            return False
    return True
