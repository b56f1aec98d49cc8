"""Plan the micro-batches of a stream, in the runner process of its source on the driver.

One planner serves a whole run of a query, on the main thread of the runner: the process in which
Spark runs a stream's Python source. Spark calls ``latest_offset`` of an idle query every 12 ms, and
the query's other sources wait for the result. So no call blocks longer than 20 ms once the planner
knows the log ends and has the lease of its consumer group (``group_progress``).

Spark does not retry a failed call, but ends the query. The planner therefore waits until transient
failures are over, and raises only errors that would not pass, such as data loss.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import Any

from broker_lite.client.operations.silence import Silence
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.errors import InconsistentClusterIdError, LogbusError, RequestTimedOutError
from broker_lite.model import LATEST_TIMESTAMP, TopicPartition
from pyspark_logbus import offsets
from pyspark_logbus.admission import Admission, RangeLimits
from pyspark_logbus.bytes_limit import BytesLimit
from pyspark_logbus.group_progress import GroupProgress
from pyspark_logbus.lag_report import lag_report
from pyspark_logbus.live_offsets import LiveOffsets
from pyspark_logbus.loss_check import LossCheck
from pyspark_logbus.losses import Losses, check_target
from pyspark_logbus.offset_ranges import Live, existing_topics, has_transactions
from pyspark_logbus.offset_reader import OffsetReader, default_group
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions
from pyspark_logbus.range_tasks import Task, make_tasks
from pyspark_logbus.termination import stop_on_terminate, termination_waits

log = logging.getLogger("pyspark_logbus")

PATIENCE_S = 0.02
"""Seconds that one planning call may wait for brokers, once the query has started."""

Document = dict[str, Any]


class StreamPlanner:
    """Plans the micro-batches of one query."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._reader = OffsetReader(options)
        self._live = LiveOffsets(options)
        self._silence = Silence(options.bootstrap_servers, "query", monotonic_ms, log)
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
        self._check = LossCheck(options, self._reader, self._live, self._losses)
        self._planned_end: SourceOffset | None = None
        self._report: tuple[SourceOffset, tuple[Any, ...], Document] | None = None
        self._bytes_limit = BytesLimit(options, self._reader)
        stop_on_terminate()

    # Methods that Spark calls.

    def initial_offset(self) -> Document:
        """Return the start of a query without a checkpoint. Within a run the result stays the same,
        because Spark calls this method twice for the first batch.

        Spark also calls this method before it repeats a first batch, and then ignores the result.
        So this method raises no error, for example about a missing topic. It stores the error, and
        the planning call that starts at this offset raises it.
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

        The first call of ``latest_offset`` fixes the log ends at which the run stops. This method
        runs too early for that: Spark may next repeat an older batch, planned before a partition
        was added. Spark ends the run when ``latest_offset`` first returns no new data. So
        ``latest_offset`` waits for the brokers, but not for ``minOffsetsPerTrigger``.
        """
        self._is_available_now = True
        self._admission = Admission(replace(self._admission.limits, rows_min=0))

    def latest_offset(self, document: Document, *, unlimited: bool) -> Document:
        """Return the end offset of the batch that starts at the offset ``document``, or
        ``document`` itself if there is nothing to read.

        ``unlimited`` reads everything, as Trigger.Once does. Raises DataLossError,
        GroupLeaseHeldError, and errors that are not retriable.
        """
        self._check_start(document)
        start = self._parse(document)
        live = self._ends_now(start, unlimited)
        problem = self._live.check_access()
        self._silence.check(problem, is_known=live is not None)
        if live is None:
            return document
        self._check_cluster(start, live)
        is_idle = self._idle is not None and self._idle[0] is start and self._idle[1] is live
        if is_idle and not self._losses.are_suspected:
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
        state = self._progress.state if self._progress else ""
        key = (live.version, problem, state, self._losses.row_count)
        if self._report is None or self._report[0] is not at or self._report[1] != key:
            document = lag_report(live, at)
            document["lostRecords"] = self._losses.row_count
            document["group"] = self._progress.group if self._progress else ""
            document["groupState"] = state
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
        live = self._live.require()
        self._check_cluster(until, live)
        # Until this run plans a batch of its own, Spark repeats the last batch of the previous run.
        is_repeated, self._checked = not self._checked, True
        ranges = self._check.remaining(begin, until, live, is_repeated=is_repeated)
        if self._progress is None:
            # Acquire the group's lease (the right to commit to the group) here: after a restart,
            # Spark repeats the last batch before ``latest_offset``, which otherwise acquires it.
            committed = until.batch_start(begin).topics
            self._publish(SourceOffset(until.cluster_id, committed, query=until.query), live)
        return make_tasks(ranges, self.options, self._reader, self._live.view)

    def stop(self) -> None:
        """Commit the newest offsets to the group, and close all connections and threads. A second
        call does nothing."""
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
        target = live
        if self._is_available_now:
            # With availableNow, the run stops at the log ends of its first planning call.
            target = self._target = self._target or live
            check_target(target, start, live)
        cut_back = self._check.cut_back(start, live)
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
        # Spark stores no initial offset, so store the first batch's start together with its end.
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

    def _check_cluster(self, at: SourceOffset, live: Live) -> None:
        if at.cluster_id and at.cluster_id != live.cluster_id:
            raise InconsistentClusterIdError(
                f"the checkpoint belongs to cluster {at.cluster_id}, but "
                f"{self.options.bootstrap_servers} is cluster {live.cluster_id}; use a new "
                "checkpointLocation, or the brokers of that cluster"
            )

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

        A broker that has just started may not list an existing topic yet. So this method waits up
        to ``grace_s`` for the topics of ``start``; topics that are then missing count as deleted.
        Raises RequestTimedOutError.
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
            # This may be the run's last call, so wait until the background thread has committed the
            # progress.
            self._progress.wait(PATIENCE_S)


def _new_query() -> str:
    return uuid.uuid4().hex[:12]


def _covers(live: Live, listed: dict[TopicPartition, Any]) -> bool:
    for tp, row in listed.items():
        topic = live.topics.get(tp.topic)
        end = topic.ends.get(tp.partition) if topic is not None else None
        if end is None or end.offset < row.offset:
            return False
    return True
