"""``EndOffsetsWatch``: always knows where partitions end, and hardly asks.

One thread keeps a long poll open to every leader: a fetch from the known ends that is answered
without records when there are some. So new data is known within milliseconds and an idle log costs
one request a leader every ten seconds. Metadata is renewed every ``refresh_ms`` and when an answer
says that it is stale; new partitions join, deleted topics leave, a topic made again has a new id.
Readers on other threads see immutable snapshots and never wait. Not usable after a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import (
    Cluster,
    ClusterView,
    backoff_ms,
    unknown_topic,
)
from broker_lite.client.operations.fetches import answers_of, topics_of
from broker_lite.client.transport.blocking import Reactor, monotonic_ms
from broker_lite.client.transport.steps import FetchExchange, Operation, Send, Timer, spawn
from broker_lite.errors import LogbusError, OffsetOutOfRangeError, error_for
from broker_lite.model import LATEST_TIMESTAMP, Endpoint, ListedOffset, TopicPartition
from broker_lite.record.format import BODY_VERSION
from broker_lite.wire.fetch import (
    FLAG_CHECKS_CRC,
    FLAG_ENDS_ONLY,
    READ_COMMITTED,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

POLL_WAIT_MS = 10_000
POLL_PAUSE_MS = 4
"""After news: a busy topic then costs its broker at most 250 small requests a second."""
REFRESH_MS = 30_000
REQUEST_TIMEOUT_MS = 10_000
"""For an answer, besides the time that a poll waits for news on purpose."""

Topics = Iterable[str] | Callable[[ClusterView], Iterable[str]]


class EndsSnapshot(NamedTuple):
    """What a watch knew at one moment; the three belong together."""

    view: ClusterView
    topic_ids: Mapping[str, str]
    ends: Mapping[TopicPartition, ListedOffset]


class EndOffsetsWatch:
    """The ends of some topics' partitions, kept fresh by a background thread.

    ``topics`` are names, or a function that picks names from a view of all topics (a pattern).
    ``isolation``: ends are high watermarks, or for read_committed last stable offsets.
    ``on_change`` is called on the watch's thread after each change and must not block.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Topics,
        *,
        isolation: str = "read_committed",
        refresh_ms: float = REFRESH_MS,
        on_change: Callable[[], None] | None = None,
        client_id: str = "logbus",
        request_timeout_ms: float = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._pick = topics if callable(topics) else None
        self._names = () if callable(topics) else tuple(dict.fromkeys(topics))
        self._isolation_level = requests.isolation_code(isolation)
        self._refresh_ms = refresh_ms
        self._on_change = on_change
        self._ends: dict[TopicPartition, ListedOffset] = {}
        self.version = 0
        """Grows with each change of ``ends()``, which is the same object until then."""
        self._topic_ids: dict[str, str] = {}
        self._snapshot = EndsSnapshot(ClusterView(), {}, {})
        self._plan: dict[TopicPartition, tuple[Endpoint, str, int]] = {}
        self._lane = 0
        self._attempt = 0
        self._is_renewing = False
        self._timer: Timer | None = None
        self._ready = threading.Event()
        self.error: LogbusError | None = None
        """What keeps the watch from knowing better, or None."""
        self._reactor = Reactor(client_id, "logbus-ends")
        endpoints = parse_endpoints(bootstrap_servers)
        self._cluster = Cluster(endpoints, monotonic_ms, client_id)
        self._reactor.call_soon(self._renew)
        self._reactor.start()

    # -- any thread

    def ends(self) -> Mapping[TopicPartition, ListedOffset]:
        """The ends as known now: offset (exclusive) and leader epoch; empty until ready."""
        return self._ends

    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics that exist; one made again has another id than before."""
        return self._topic_ids

    def view(self) -> ClusterView:
        """The newest metadata."""
        return self._cluster.view

    def snapshot(self) -> EndsSnapshot:
        """Metadata, ids and ends of one moment; the same object while nothing has changed."""
        return self._snapshot

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the ends are known for the first time; False if they are not by then."""
        return self._ready.wait(timeout_s)

    def update(self, topics: Iterable[str]) -> None:
        """Watch these topics instead of those named before."""
        names = tuple(dict.fromkeys(topics))
        if names != self._names:
            self._names = names
            self._reactor.call_soon(self._renew)

    def close(self) -> None:
        """Stop the thread."""
        self._reactor.stop()

    def __enter__(self) -> EndOffsetsWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the watch's thread

    def _renew(self) -> None:
        """Look at the cluster anew, and at the ends of partitions that are new or have moved."""
        if not self._is_renewing:
            self._is_renewing = True
            spawn(self._reactor, self._look(), self._looked)

    def _look(self) -> Operation[dict[TopicPartition, ListedOffset | LogbusError]]:
        cluster = self._cluster
        deadline_ms = cluster.now_ms() + self._request_timeout_ms
        names = None if self._pick is not None else self._names
        yield from requests.refresh_once(cluster, names)
        view = cluster.view
        chosen = self._names if self._pick is None else tuple(self._pick(view))
        wheres = [where for name in chosen for where in view.partitions_of(name)]
        topic_ids = {name: view.topic_id(name) for name in chosen if view.partitions_of(name)}
        stale = [
            where
            for where in wheres
            if where not in self._ends
            or self._topic_ids.get(where.topic) != view.topic_id(where.topic)
        ]
        found: dict[TopicPartition, ListedOffset | LogbusError] = {}
        led = [where for where in stale if view.leader(where) is not None]
        if led:
            found = yield from requests.list_offsets(
                cluster,
                dict.fromkeys(led, LATEST_TIMESTAMP),
                isolation_level=self._isolation_level,
                deadline_ms=min(deadline_ms, cluster.now_ms() + 1000),
            )
        self._topic_ids = topic_ids
        old = {where: self._ends[where] for where in wheres if where not in stale}
        return {**old, **found}

    def _looked(self, found: dict[TopicPartition, Any] | LogbusError) -> None:
        self._is_renewing = False
        if isinstance(found, LogbusError):
            self._later(found)
            return
        problems = [error for error in found.values() if isinstance(error, LogbusError)]
        view = self._cluster.view
        ends = {
            where: ListedOffset(end.offset, leader_epoch=view.leader_epoch(where))
            for where, end in found.items()
            if isinstance(end, ListedOffset)
        }
        self._publish(ends)
        self._ready.set()
        self._poll_all()
        leaderless = [
            where
            for name in self._topic_ids
            for where in view.partitions_of(name)
            if view.leader(where) is None
        ]
        problems += [error_for(5, f"{where} has no leader") for where in leaderless]
        problems += [
            view.topics[name].error or unknown_topic(name)
            for name in self._names
            if name in view.topics and name not in self._topic_ids
        ]
        if problems:
            self._later(problems[0])
        else:
            self.error = None
            self._attempt = 0
            self._renew_in(self._refresh_ms)

    def _later(self, problem: LogbusError) -> None:
        self.error = problem
        self._renew_in(backoff_ms(self._attempt))
        self._attempt += 1

    def _renew_in(self, delay_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.later(delay_ms, self._renew)

    def _publish(self, ends: dict[TopicPartition, ListedOffset]) -> None:
        view = self._cluster.view
        if ends != self._ends or self._snapshot[:2] != (view, self._topic_ids):
            self._ends = ends
            self._snapshot = EndsSnapshot(view, self._topic_ids, ends)
            self.version += 1
            if self._on_change is not None:
                self._on_change()

    def _poll_all(self) -> None:
        """Keep one poll open to each leader; begin anew where the plan has changed."""
        view = self._cluster.view
        plan = {}
        for where in self._ends:
            leader = view.leader(where)
            if leader is not None:
                plan[where] = (leader, view.topic_id(where.topic), view.leader_epoch(where))
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
        rows = [
            (topic_id, FetchPartition(where.partition, self._ends[where].offset, 1, epoch))
            for where, (leader, topic_id, epoch) in self._plan.items()
            if leader == endpoint and where in self._ends
        ]
        request = FetchRequest(
            topics_of(rows),
            POLL_WAIT_MS,
            isolation_level=self._isolation_level,
            columns_body_version=BODY_VERSION,
            flags=FLAG_CHECKS_CRC | FLAG_ENDS_ONLY,
        )
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
            self._reactor.later(POLL_PAUSE_MS, lambda: self._poll(endpoint, lane))
            return
        # A plan without this leader differs from what the next look finds, so that begins anew.
        self._plan = {where: row for where, row in self._plan.items() if row[0] != endpoint}
        self._later(problem)

    def _read(
        self, endpoint: Endpoint, answer: FetchResponse | LogbusError
    ) -> tuple[dict[TopicPartition, ListedOffset], LogbusError | None]:
        ends: dict[TopicPartition, ListedOffset] = dict(self._ends)
        problem: LogbusError | None = None
        asked = {
            where: row[1]
            for where, row in self._plan.items()
            if row[0] == endpoint and where in ends
        }
        for where, row in answers_of(answer, asked).items():
            if isinstance(row, LogbusError):
                problem = row
                if isinstance(problem, OffsetOutOfRangeError):
                    del ends[where]
                continue
            is_committed = self._isolation_level == READ_COMMITTED
            offset = row.last_stable_offset if is_committed else row.high_watermark
            if offset < 0:
                offset = row.high_watermark
            ends[where] = ListedOffset(offset, leader_epoch=self._plan[where][2])
        return ends, problem
