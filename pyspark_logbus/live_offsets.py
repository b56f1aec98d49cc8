"""The log end offsets of a source's partitions, which long polls in the background keep current.

A broker that has just started may not list an existing topic yet. So a topic that is missing from
the responses counts as deleted only after the time that an offset lookup would spend on retries
(``fetchOffset.numRetries`` times ``fetchOffset.retryIntervalMs``). The module runs on the driver,
and the thread that plans batches reads the log ends.
"""

from __future__ import annotations

import time

from broker_lite.client.fetch.ends import EndOffsetsWatch, EndsSnapshot
from broker_lite.client.operations.cluster import ClusterView
from broker_lite.errors import (
    LogbusError,
    RequestTimedOutError,
    SaslAuthenticationError,
    TopicAuthorizationError,
)
from broker_lite.model import OffsetAndEpoch
from pyspark_logbus.offset_ranges import Live, LiveTopic
from pyspark_logbus.offsets import SourceOffset
from pyspark_logbus.query_options import ReadOptions

UNKNOWN_END = OffsetAndEpoch(-1)
"""The log end of a partition whose leader has not answered yet."""


class LiveOffsets:
    """The known log ends of a source's partitions. ``now`` returns them without waiting."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        topics = options.topics
        self._grace_s = options.grace_s
        self._assigned = frozenset(topics.partitions)
        self._watch = EndOffsetsWatch(
            options.bootstrap_servers,
            topics.named() or (lambda view: topics.among(view.topics)),
            isolation=options.isolation,
            refresh_ms=options.metadata_age_ms,
            client_id=options.client_id,
            request_timeout_ms=options.request_timeout_ms,
            security=options.given_security(),
        )
        self._snapshot: EndsSnapshot | None = None
        self._live: Live | None = None
        self._missing_since: dict[str, float] = {}
        self.seen: dict[str, dict[int, int]] = {}
        """The last known log ends, by topic id and partition number. Those of deleted topics stay
        until ``forget_deleted`` removes them."""

    def close(self) -> None:
        self._watch.close()

    @property
    def problem(self) -> LogbusError | None:
        """Return the error because of which the log ends may be outdated; None if they are
        current."""
        return self._watch.error

    def check_access(self) -> LogbusError | None:
        """Return the error ``problem``, or raise it if the user may not log in or may not read a
        topic.

        It raises these two errors because a retry cannot add a permission, and because a topic that
        the user may not see would otherwise count as deleted.
        """
        problem = self.problem
        if isinstance(problem, (SaslAuthenticationError, TopicAuthorizationError)):
            raise problem
        return problem

    @property
    def view(self) -> ClusterView:
        return self._watch.snapshot().view

    def wait(self, timeout_s: float) -> Live | None:
        """Return the known log ends. Wait at most ``timeout_s`` seconds for the brokers' first
        response. Return None if no response arrives."""
        self._watch.wait_ready(timeout_s)
        return self.now()

    def require(self) -> Live:
        """Return the known log ends. Wait at most ``pollTimeoutMs`` for the brokers' first
        response. Raises RequestTimedOutError, or the error that prevents a response."""
        options = self._options
        live = self.now() or self.wait(options.poll_timeout_ms / 1000)
        if live is None:
            raise self.problem or RequestTimedOutError(
                f"no broker of {options.bootstrap_servers} answered within "
                f"pollTimeoutMs={options.poll_timeout_ms}; check the brokers with: logbus doctor"
            )
        self.check_access()
        return live

    def now(self) -> Live | None:
        """Return the known log ends; None before the first response. Every call returns the same
        object until an end or topic changes."""
        snapshot = self._watch.snapshot()
        if not snapshot.view.cluster_id:
            return None
        if snapshot is self._snapshot and not self._missing_since:
            return self._live
        before, self._snapshot = self._live, snapshot
        topics = {name: self._topic(name, snapshot) for name in snapshot.topic_ids}
        self._keep_missing_for_a_while(before, topics)
        if before is None or topics != before.topics:
            for topic in topics.values():
                for number, end in topic.ends.items():
                    if end.offset >= 0:
                        self.seen.setdefault(topic.topic_id, {})[number] = end.offset
            version = before.version + 1 if before is not None else 1
            self._live = Live(snapshot.view.cluster_id, topics, version)
        return self._live

    def forget_deleted(self, position: SourceOffset) -> None:
        """Remove deleted topics from ``seen``, except those that the query's ``position`` still
        has."""
        known = self._live.topics if self._live is not None else {}
        kept = {topic.topic_id for topic in known.values()}
        kept |= {topic.topic_id for topic in position.topics.values()}
        for topic_id in self.seen.keys() - kept:
            del self.seen[topic_id]

    def _topic(self, name: str, snapshot: EndsSnapshot) -> LiveTopic:
        ends, transactions = {}, {}
        for tp in snapshot.view.partitions_of(name):
            if not self._assigned or tp in self._assigned:
                end = snapshot.ends.get(tp)
                known = OffsetAndEpoch(end.offset, end.leader_epoch) if end else UNKNOWN_END
                ends[tp.partition] = known
                if end is not None and end.transactions_from >= 0:
                    transactions[tp.partition] = end.transactions_from
        return LiveTopic(snapshot.topic_ids[name], ends, transactions)

    def _keep_missing_for_a_while(self, before: Live | None, topics: dict[str, LiveTopic]) -> None:
        """Add to ``topics`` the topics of ``before`` that brokers no longer list, until the grace
        time has passed. Only then do they count as deleted."""
        now = time.monotonic()
        for name in list(self._missing_since):
            if name in topics:
                del self._missing_since[name]
        for name, topic in (before.topics if before is not None else {}).items():
            if name not in topics:
                since = self._missing_since.setdefault(name, now)
                if now - since < self._grace_s:
                    topics[name] = topic
                else:
                    del self._missing_since[name]
