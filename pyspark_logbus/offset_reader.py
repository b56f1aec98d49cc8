"""Look up offsets at the brokers: log starts, log ends, offsets by time and committed offsets.

A stream looks up its start here, and a batch query its start and its end. A lookup may wait for
``fetchOffset.numRetries`` retries. The module runs on the driver, on the thread that plans.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from broker_lite.client.administration.admin import Admin
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.client.operations.requests import FIRST_CONTACT_MS
from broker_lite.errors import (
    DataLossError,
    InconsistentClusterIdError,
    InvalidConfigError,
    LogbusError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NULL_TOPIC_ID,
    ListedOffset,
    OffsetAndEpoch,
    TopicPartition,
)
from pyspark_logbus import first_contact, offsets
from pyspark_logbus.losses import CURE
from pyspark_logbus.offset_ranges import TASK_BYTES
from pyspark_logbus.offsets import OffsetSpec, SourceOffset, TopicOffsets
from pyspark_logbus.query_options import ReadOptions

T = TypeVar("T")


def default_group(options: ReadOptions, cluster_id: str) -> str:
    """Return the name of the consumer group of a query without the option ``group.id``. Queries
    with equal source options on one cluster have the same default group."""
    text = json.dumps([cluster_id, *options.identity])
    return f"{options.group_prefix}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class OffsetReader:
    """Offset lookups for a source's topics. Each call sends requests to brokers.

    ``view`` is the metadata that the last ``partitions()`` fetched. The caller closes the reader.
    """

    def __init__(self, options: ReadOptions, admin: Admin | None = None) -> None:
        self.options = options
        self.admin = admin or Admin(
            options.bootstrap_servers,
            client_id=options.client_id,
            timeout_ms=options.request_timeout_ms,
            security=options.given_security(),
        )
        self.view = ClusterView()
        self.reach: dict[TopicPartition, tuple[int, int]] = {}
        """For each partition, the offset after about the first ``TASK_BYTES`` of its log, and the
        exact size in bytes up to that offset. ``with_stored_bytes`` estimates sizes from it. Only
        ``bounds`` sets it, for a query that reads whole logs."""

    def close(self) -> None:
        self.admin.close()

    def retrying(self, question: Callable[[], T]) -> T:
        """Call the lookup ``question``, and return its result. Retry it after retriable errors, at
        most ``fetchOffset.numRetries`` times."""
        for attempt in range(self.options.retries + 1):
            try:
                return question()
            except LogbusError as error:
                last = attempt == self.options.retries
                if last or not error.retriable or isinstance(error, UnknownTopicOrPartitionError):
                    raise
                time.sleep(self.options.retry_interval_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _first_contact(self) -> AbstractContextManager[None]:
        """Return a context manager that warns while the first request to the cluster has no answer.
        For later requests the context manager does nothing."""
        options = self.options
        if self.view.cluster_id:
            return nullcontext()
        once_ms = min(options.request_timeout_ms, FIRST_CONTACT_MS)
        seconds = (options.retries + 1) * once_ms / 1000 + options.grace_s
        return first_contact.warn_if_silent(options.bootstrap_servers, seconds)

    def partitions(self, known: Collection[str] = ()) -> dict[TopicPartition, str]:
        """Return the partitions to read with their topic ids.

        Raises UnknownTopicOrPartitionError for a missing topic or partition that the options name.
        A pattern may match no topic. Missing partitions of the topics ``known`` raise no error: the
        result leaves them out, because the caller has read them before and handles the loss.
        """
        topics = self.options.topics
        names = None if topics.pattern else topics.named()
        with self._first_contact():
            view = self.view = self.retrying(lambda: self.admin.cluster(names))
        topic_ids: dict[TopicPartition, str] = {}
        for name in topics.among(view.topics) if names is None else names:
            topic = view.topics.get(name)
            if topic is None or topic.error is not None:
                if names is None or name in known:
                    continue
                raise self.admin.missing_topic(name)
            topic_ids.update((tp, topic.topic_id) for tp in view.partitions_of(name))
        if topics.partitions:
            for tp in topics.partitions:
                if tp not in topic_ids and tp.topic not in known:
                    raise UnknownTopicOrPartitionError(
                        f"assign names {tp}, but topic {tp.topic!r} has only "
                        f"{len(view.partitions_of(tp.topic))} partitions; add some with: "
                        f"logbus topic alter {tp.topic} --partitions {tp.partition + 1}"
                    )
            topic_ids = {tp: topic_ids[tp] for tp in topics.partitions if tp in topic_ids}
        return topic_ids

    def listed(
        self, tps: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the offset of each partition for a timestamp in ms. Two special timestamps exist:
        -1 is the log's end, and -2 is its start."""
        timestamps = dict.fromkeys(tps, timestamp_ms)
        if not timestamps:
            return {}
        isolation = self.options.isolation
        return self.retrying(lambda: self.admin.list_offsets(timestamps, isolation=isolation))

    def start(self) -> SourceOffset:
        """Return the start offsets of a query without a checkpoint."""
        return self._start(self.partitions())

    def bounds(self) -> tuple[SourceOffset, SourceOffset]:
        """Return the start offsets and the end offsets of a batch query. Both have the same
        partitions."""
        ids, options = self.partitions(), self.options
        is_whole = options.starting == offsets.EARLIEST_EVERYWHERE
        if ids and is_whole and options.ending == offsets.LATEST_EVERYWHERE:
            # If a broker of an earlier version refuses this request, the code below sends one
            # request for the start offsets and one for the end offsets.
            with contextlib.suppress(UnsupportedVersionError):
                return self._whole_logs(ids)
        start = self._start(ids)
        at = self._resolve(options.ending, options.ending_option, ids, late="latest")
        return start, self._offset(ids, at)

    def _whole_logs(self, ids: Mapping[TopicPartition, str]) -> tuple[SourceOffset, SourceOffset]:
        """Return the start offsets and the end offsets of whole logs. Stores the sizes in
        ``reach``.

        A single request asks for starts, ends and sizes, because each request for a thousand
        partitions takes some 20 ms.
        """
        isolation = self.options.isolation
        bounds = self.retrying(lambda: self.admin.log_bounds(ids, TASK_BYTES, isolation=isolation))
        self.reach = {tp: (row.reach_end, row.reach_bytes) for tp, row in bounds.items()}
        start = self._offset(ids, {tp: row.start for tp, row in bounds.items()})
        return start, self._offset(ids, {tp: row.end for tp, row in bounds.items()})

    def _start(self, ids: Mapping[TopicPartition, str]) -> SourceOffset:
        options = self.options
        at = self._resolve(options.starting, options.starting_option, ids, late=None)
        return self._offset(ids, self._within_the_log(at))

    def _offset(
        self, ids: Mapping[TopicPartition, str], at: Mapping[TopicPartition, int]
    ) -> SourceOffset:
        topics: dict[str, dict[int, OffsetAndEpoch]] = {}
        names: dict[str, str] = {}
        for tp, offset in at.items():
            names[tp.topic] = ids[tp]
            # Leave out the leader epoch, which may have changed since the offset was looked up.
            topics.setdefault(tp.topic, {})[tp.partition] = OffsetAndEpoch(offset)
        return SourceOffset(
            self.view.cluster_id,
            {name: TopicOffsets(names[name], rows) for name, rows in topics.items()},
        )

    def _resolve(
        self,
        spec: OffsetSpec,
        option: str,
        ids: Mapping[TopicPartition, str],
        *,
        late: str | None,
    ) -> dict[TopicPartition, int]:
        """Convert ``spec``, the parsed value of the option ``option``, to an offset for each
        partition.

        ``late`` is the rule for a timestamp without a record at or after it: ``latest`` uses the
        log's end, and ``error`` raises an error. With None, the option
        startingOffsetsByTimestampStrategy decides.
        """
        match spec:
            case offsets.SymbolicOffset("group"):
                return self._from_group(ids)
            case offsets.SymbolicOffset(word):
                stamp = EARLIEST_TIMESTAMP if word == "earliest" else LATEST_TIMESTAMP
                return {tp: row.offset for tp, row in self.listed(ids, stamp).items()}
            case offsets.PerPartition(topics):
                self._check_origin(spec, option, ids)
                return self._from_offsets(offsets.expand(option, topics, ids))
            case offsets.PerPartitionTime(topics):
                return self._from_times(option, offsets.expand(option, topics, ids), late)
            case offsets.GlobalTime(timestamp_ms):
                return self._from_times(option, dict.fromkeys(ids, timestamp_ms), late)

    def _check_origin(
        self, spec: offsets.PerPartition, option: str, ids: Mapping[TopicPartition, str]
    ) -> None:
        """Reject offsets from a progress report of another cluster or of a deleted topic.

        Raises InconsistentClusterIdError or DataLossError. Accepts offsets without a cluster id and
        topic ids.
        """
        if spec.cluster_id not in ("", self.view.cluster_id):
            raise InconsistentClusterIdError(
                f"{option} holds offsets of cluster {spec.cluster_id}, but "
                f"{self.options.bootstrap_servers} is cluster {self.view.cluster_id}; give offsets "
                "of this cluster"
            )
        for tp, topic_id in ids.items():
            reported = spec.topic_ids.get(tp.topic, topic_id)
            if reported != topic_id:
                raise DataLossError(
                    f"{option} holds offsets of topic {tp.topic!r} with id {reported}; that "
                    f"topic was deleted and recreated (id {topic_id}). Give offsets of the new "
                    "topic, or earliest"
                )

    def _from_offsets(self, at: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        resolved = dict(at)
        for mark in (offsets.EARLIEST, offsets.LATEST):
            marked = [tp for tp, offset in at.items() if offset == mark]
            resolved.update((tp, row.offset) for tp, row in self.listed(marked, mark).items())
        return resolved

    def _from_times(
        self, option: str, times: Mapping[TopicPartition, int], late: str | None
    ) -> dict[TopicPartition, int]:
        if not times:
            return {}
        isolation = self.options.isolation
        listed = self.retrying(lambda: self.admin.list_offsets(times, isolation=isolation))
        offsets_by_tp = {tp: row.offset for tp, row in listed.items()}
        unmatched = [tp for tp, offset in offsets_by_tp.items() if offset < 0]
        if unmatched and (late or self.options.late_timestamp) == "error":
            raise InvalidConfigError(
                f"No offset matched from request of {option}: "
                + ", ".join(f"{tp} at {times[tp]} ms" for tp in sorted(unmatched))
                + "; give startingOffsetsByTimestampStrategy=latest to start there at the end"
            )
        latest = self.listed(unmatched, LATEST_TIMESTAMP)
        offsets_by_tp.update((tp, row.offset) for tp, row in latest.items())
        return offsets_by_tp

    def _from_group(self, ids: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        group = self.options.group_id or default_group(self.options, self.view.cluster_id)
        committed = self.retrying(lambda: self.admin.committed(group, list(ids)) if ids else {})
        resolved = {
            tp: row.offset
            for tp, row in committed.items()
            if tp in ids and row.topic_id in (ids[tp], NULL_TOPIC_ID)
        }
        stamp = EARLIEST_TIMESTAMP if self.options.fallback == "earliest" else LATEST_TIMESTAMP
        rest = self.listed([tp for tp in ids if tp not in resolved], stamp)
        resolved.update((tp, row.offset) for tp, row in rest.items())
        return resolved

    def _within_the_log(self, at: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the start offsets, each within its log.

        Raises DataLossError for an offset outside the log. With failOnDataLoss=false it moves the
        offset to the log's start or end, whichever is nearer.
        """
        if isinstance(self.options.starting, offsets.PerPartition) or (
            self.options.starting == offsets.GROUP
        ):
            first, last = self.listed(at, EARLIEST_TIMESTAMP), self.listed(at, LATEST_TIMESTAMP)
            outside = [w for w, o in at.items() if not first[w].offset <= o <= last[w].offset]
            if outside and self.options.fail_on_data_loss:
                raise DataLossError(
                    f"{self.options.starting_option}: "
                    + "; ".join(
                        f"{w} has offsets {first[w].offset} to {last[w].offset}, not {at[w]}"
                        for w in outside
                    )
                    + f". {CURE}"
                )
            for tp in outside:
                at[tp] = min(max(at[tp], first[tp].offset), last[tp].offset)
        return at
