"""``EndOffsetsWatch``: a background thread that keeps the end offsets of partitions current.

It keeps one long poll open to every leader: a fetch from the known end offsets. As soon as records
arrive, the leader answers with the new end offsets, without records. A new end is known within
milliseconds, and idle partitions cost one request to each leader every ten seconds. Metadata is
refreshed every ``refresh_ms``, and after an error which shows that it is out of date. Other threads
read immutable snapshots and never block. A watch cannot be used after a fork.

A watch reads no records, so it has no ``FetchPosition``: it shares with the readers of records only
``fetches``, which builds requests and splits responses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from broker_lite.client.closing import ClosedByWith
from broker_lite.client.discovery import security_for
from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.operations import offset_requests, requests
from broker_lite.client.operations.cluster import ClusterView, backoff_ms, cluster_at, unknown_topic
from broker_lite.client.transport.reactor import Reactor
from broker_lite.client.transport.resettable_timer import ResettableTimer
from broker_lite.client.transport.steps import FetchExchange, Operation, Send, spawn
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import (
    ClosedError,
    LogbusError,
    OffsetOutOfRangeError,
    TopicAuthorizationError,
    error_for,
)
from broker_lite.model import LATEST_TIMESTAMP, NO_EPOCH, Endpoint, ListedOffset, TopicPartition
from broker_lite.wire.fetch import READ_COMMITTED, FetchedPartition, FetchPartition, FetchResponse

POLL_WAIT_MS = 10_000
"""Milliseconds for which a leader may delay the answer to a long poll without new end offsets."""
POLL_PAUSE_MS = 4
"""Milliseconds between a response with new end offsets and the next poll.

A broker thus receives at most 250 polls a second from each ``EndOffsetsWatch``."""
REFRESH_MS = 30_000
"""Milliseconds between two metadata refreshes, by default."""
REQUEST_TIMEOUT_MS = 10_000
"""Milliseconds that a long poll's response may take in addition to POLL_WAIT_MS."""

Topics = Iterable[str] | Callable[[ClusterView], Iterable[str]]


class LogEnd(NamedTuple):
    """The end offset (exclusive) of a partition, and the partition's leader epoch.

    The log has no transactional records before the offset ``transactions_from``; -1 means that it
    has none at all, 0 that this is unknown."""

    offset: int
    leader_epoch: int = NO_EPOCH
    transactions_from: int = 0


class EndsSnapshot(NamedTuple):
    """The metadata, topic ids and end offsets of one moment, consistent with each other."""

    view: ClusterView
    topic_ids: Mapping[str, str]
    ends: Mapping[TopicPartition, LogEnd]


class EndOffsetsWatch(ClosedByWith):
    """The end offsets of all partitions of some topics, kept current by a background thread.

    ``topics`` are names, or a function that selects names from the metadata. With ``isolation``
    "read_committed", end offsets are last stable offsets; with "read_uncommitted", high
    watermarks."""

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Topics,
        *,
        isolation: str = "read_committed",
        refresh_ms: float = REFRESH_MS,
        client_id: str = "logbus",
        request_timeout_ms: float = REQUEST_TIMEOUT_MS,
        security: ClientSecurity | None = None,
    ) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._pick = topics if callable(topics) else None
        self._names = () if callable(topics) else tuple(dict.fromkeys(topics))
        self._isolation_level = offset_requests.isolation_code(isolation)
        self._refresh_ms = refresh_ms
        self._topic_ids: dict[str, str] = {}
        self._snapshot = EndsSnapshot(ClusterView(), {}, {})
        self._plan: dict[TopicPartition, tuple[Endpoint, str, int]] = {}
        self._lane = 0
        self._attempt = 0
        self._is_renewing = False
        self._must_renew = False
        """Whether a refresh was requested during the refresh in progress, and must follow it."""
        self._ready = threading.Event()
        self.error: LogbusError | None = None
        """The error of the last metadata refresh or poll; None while the end offsets are
        current."""
        security = security_for(bootstrap_servers, security)
        self._cluster = cluster_at(bootstrap_servers, security.user)
        self._reactor = Reactor(client_id, "logbus-ends", security)
        self._timer = ResettableTimer(self._reactor.later, self._renew)
        self._reactor.call_soon(self._renew)
        self._reactor.start(self._crashed)

    # Methods that any thread may call.

    def snapshot(self) -> EndsSnapshot:
        """Return metadata, topic ids and end offsets that are consistent with each other. Calls
        return the same object until some of these data change."""
        return self._snapshot

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the first refresh has found the end offsets; False after ``timeout_s``
        seconds."""
        return self._ready.wait(timeout_s)

    def close(self) -> None:
        """Stop the background thread."""
        self._reactor.stop()

    # Methods that run on the background thread.

    def _crashed(self, error: BaseException) -> None:
        self.error = ClosedError(
            f"the thread that watches end offsets ended: {error!r}; create another watch"
        )
        raise error

    def _renew(self) -> None:
        if self._is_renewing:
            self._must_renew = True
            return
        self._is_renewing = True
        spawn(self._reactor, self._refresh(), self._refreshed)

    def _refresh(self) -> Operation[dict[TopicPartition, LogEnd | LogbusError]]:
        cluster = self._cluster
        deadline_ms = cluster.now_ms() + self._request_timeout_ms
        names = None if self._pick is not None else self._names
        yield from requests.refresh_once(cluster, names)
        view = cluster.view
        chosen = self._names if self._pick is None else tuple(self._pick(view))
        tps = [tp for name in chosen for tp in view.partitions_of(name)]
        topic_ids = {name: view.topic_id(name) for name in chosen if view.partitions_of(name)}
        stale = [
            tp
            for tp in tps
            if tp not in self._snapshot.ends
            or self._topic_ids.get(tp.topic) != view.topic_id(tp.topic)
        ]
        log_ends: dict[TopicPartition, LogEnd | LogbusError] = {}
        led = [tp for tp in stale if view.leader(tp) is not None]
        if led:
            log_ends = yield from self._list(led, min(deadline_ms, cluster.now_ms() + 1000))
        self._topic_ids = topic_ids
        # A partition without an end offset gets an error: a poll has meanwhile removed the end
        # offset, because the leader answered OFFSET_OUT_OF_RANGE.
        ends = self._snapshot.ends
        old = {tp: ends.get(tp) or _out_of_range(tp) for tp in tps if tp not in stale}
        return {**old, **log_ends}

    def _list(
        self, led: list[TopicPartition], deadline_ms: float
    ) -> Operation[dict[TopicPartition, LogEnd | LogbusError]]:
        """Look up end offsets with ListOffsets, then ``transactions_from`` (see ``LogEnd``) with
        one fetch from each leader.

        A ListOffsets response does not contain ``transactions_from``."""
        cluster = self._cluster
        listed = yield from offset_requests.list_offsets(
            cluster,
            dict.fromkeys(led, LATEST_TIMESTAMP),
            isolation_level=self._isolation_level,
            deadline_ms=deadline_ms,
        )
        view = cluster.view
        log_ends: dict[TopicPartition, LogEnd | LogbusError] = {
            tp: LogEnd(row.offset, view.leader_epoch(tp)) if isinstance(row, ListedOffset) else row
            for tp, row in listed.items()
        }

        def make(group: list[TopicPartition]) -> FetchExchange:
            # Send the leader epoch, so that a later leader refuses the fetch. Otherwise the end
            # offset of that leader would be stored with the earlier epoch, and readers would assume
            # that the log was rewritten.
            view = cluster.view
            rows = [
                (
                    view.topic_id(tp.topic),
                    FetchPartition(tp.partition, end.offset, 1, view.leader_epoch(tp)),
                )
                for tp in group
                if isinstance(end := log_ends[tp], LogEnd)
            ]
            return FetchExchange(fetch_request(rows, 0, self._isolation_level, ends_only=True))

        def read(
            answer: FetchResponse, group: list[TopicPartition]
        ) -> dict[TopicPartition, FetchedPartition | LogbusError]:
            return answers_of(answer, {tp: cluster.view.topic_id(tp.topic) for tp in group})

        known = [tp for tp, row in log_ends.items() if isinstance(row, LogEnd)]
        fetched = yield from requests.per_partition(cluster, known, make, read, deadline_ms)
        for tp, row in fetched.items():
            if isinstance(row, FetchedPartition):
                log_ends[tp] = self._end_of(row, cluster.view.leader_epoch(tp))
        return log_ends

    def _refreshed(self, result: dict[TopicPartition, Any] | LogbusError) -> None:
        self._is_renewing = False
        if isinstance(result, LogbusError):
            self._later(result)
            return
        problems = [error for error in result.values() if isinstance(error, LogbusError)]
        view = self._cluster.view
        ends = {
            tp: end._replace(leader_epoch=view.leader_epoch(tp))
            for tp, end in result.items()
            if isinstance(end, LogEnd)
        }
        self._publish(ends)
        self._poll_all()
        leaderless = [
            tp
            for name in self._topic_ids
            for tp in view.partitions_of(name)
            if view.leader(tp) is None
        ]
        problems += [error_for(5, f"{tp} has no leader") for tp in leaderless]
        problems += [
            view.topics[name].error or unknown_topic(name)
            for name in self._names
            if name in view.topics and name not in self._topic_ids
        ]
        if problems:
            self._later(problems[0])
        else:
            # Keep an authorization error. Only a successful poll clears it: a poll needs the
            # permission to read the topic, a metadata refresh does not.
            if not isinstance(self.error, TopicAuthorizationError):
                self.error = None
            self._attempt = 0
            self._renew_in(self._refresh_ms)
        self._ready.set()

    def _later(self, problem: LogbusError) -> None:
        self.error = problem
        self._renew_in(backoff_ms(self._attempt))
        self._attempt += 1

    def _renew_in(self, delay_ms: float) -> None:
        if not self._is_renewing and self._must_renew:
            self._must_renew, delay_ms = False, 0
        self._timer.set(delay_ms)

    def _publish(self, ends: dict[TopicPartition, LogEnd]) -> None:
        snapshot = EndsSnapshot(self._cluster.view, self._topic_ids, ends)
        if snapshot != self._snapshot:
            self._snapshot = snapshot

    def _poll_all(self) -> None:
        """Keep one long poll open to each leader; renew it after a change of leader or leader
        epoch."""
        view = self._cluster.view
        plan = {}
        for tp in self._snapshot.ends:
            leader = view.leader(tp)
            if leader is not None:
                plan[tp] = (leader, view.topic_id(tp.topic), view.leader_epoch(tp))
        if plan == self._plan:
            return
        old, lane = self._plan, self._lane
        self._plan = plan
        self._lane += 1
        for endpoint in {row[0] for row in old.values()}:
            self._reactor.disconnect(endpoint, f"ends-{lane}")
        for endpoint in {row[0] for row in plan.values()}:
            self._poll(endpoint, self._lane)

    def _poll(self, endpoint: Endpoint, lane: int) -> None:
        if lane != self._lane:
            return
        ends = self._snapshot.ends
        rows = [
            (topic_id, FetchPartition(tp.partition, ends[tp].offset, 1, epoch))
            for tp, (leader, topic_id, epoch) in self._plan.items()
            if leader == endpoint and tp in ends
        ]
        request = fetch_request(rows, POLL_WAIT_MS, self._isolation_level, ends_only=True)
        timeout_ms = POLL_WAIT_MS + self._request_timeout_ms
        self._reactor.request(
            Send(endpoint, FetchExchange(request), timeout_ms, f"ends-{lane}"),
            lambda answer: self._polled(endpoint, lane, answer),
        )

    def _polled(self, endpoint: Endpoint, lane: int, answer: FetchResponse | LogbusError) -> None:
        if lane != self._lane:
            return
        ends, problem = self._read(endpoint, answer)
        self._publish(ends)
        if problem is None:
            if isinstance(self.error, TopicAuthorizationError):
                self.error = None
            self._reactor.later(POLL_PAUSE_MS, lambda: self._poll(endpoint, lane))
            return
        # Remove the failed leader from ``_plan``. The plan of the next refresh then differs, so
        # ``_poll_all`` polls all leaders anew, on new connections.
        self._reactor.disconnect(endpoint, f"ends-{lane}")
        self._plan = {tp: row for tp, row in self._plan.items() if row[0] != endpoint}
        self._later(problem)

    def _read(
        self, endpoint: Endpoint, answer: FetchResponse | LogbusError
    ) -> tuple[dict[TopicPartition, LogEnd], LogbusError | None]:
        ends = dict(self._snapshot.ends)
        problem: LogbusError | None = None
        offsets = {
            tp: row[1] for tp, row in self._plan.items() if row[0] == endpoint and tp in ends
        }
        for tp, row in answers_of(answer, offsets).items():
            if isinstance(row, LogbusError):
                problem = row
                if isinstance(problem, OffsetOutOfRangeError):
                    del ends[tp]
                continue
            ends[tp] = self._end_of(row, self._plan[tp][2])
        return ends, problem

    def _end_of(self, row: FetchedPartition, leader_epoch: int) -> LogEnd:
        is_committed = self._isolation_level == READ_COMMITTED and row.last_stable_offset >= 0
        offset = row.last_stable_offset if is_committed else row.high_watermark
        return LogEnd(offset, leader_epoch, row.transactions_from)


def _out_of_range(tp: TopicPartition) -> LogbusError:
    return OffsetOutOfRangeError(f"the end offset of {tp} is out of range; it is looked up again")
