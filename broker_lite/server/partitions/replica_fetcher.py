"""Fetch records from leaders, for all partitions that this broker follows.

A replica's state machine asks for a range with the effect ``FetchFrom`` and receives the answer as
an event. One request carries all partitions of a leader. Its fetch offsets tell the leader which
records are on this broker's disk, so the next request is sent only when the records of the previous
answer are flushed. If another partition becomes ready while a request waits at the leader, a second
request without a wait time makes the leader answer the first at once.

Partitions without recent records are fetched on a connection of their own, the *idle lane*, so that
they cost nothing while other partitions are busy. If the rate of replication throttling is used up,
a throttled partition is not fetched for a while, unless this broker is in its ISR. Failed
partitions are retried with exponential backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError, OffsetOutOfRangeError, error_for
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import BrokerView, PartitionKey
from broker_lite.record.format import BODY_VERSION
from broker_lite.replication.effects import FetchFrom
from broker_lite.replication.events import Event, FetchDiverged, Fetched, FetchOutOfRange
from broker_lite.replication.throttle import FOLLOWER_RATE, UNLIMITED, Throttle, lists
from broker_lite.server.metrics import Metrics
from broker_lite.storage.log import Log
from broker_lite.wire import fetch as wire

Answered = Callable[[wire.FetchResponse | LogbusError], None]
"""A function that receives the response to a fetch request, or the error.

It is called exactly once, on the event loop's thread, after ``PeerNet.fetch`` has returned."""

RESPONSE_BYTES = 8 << 20
"""Maximum bytes of one fetch response. A follower needs this much memory for each request in
flight."""
PARTITION_BYTES = 4 << 20
"""Maximum bytes of one partition in a fetch response."""
FIRST_RETRY_MS = 10
"""Milliseconds before a failed fetch of a partition is repeated for the first time.

It is short because a follower may learn of a new leader before that leader does, and then its first
fetch fails."""
RETRY_MS_MAX = 500
"""Maximum milliseconds between two attempts to fetch the same range after errors."""
HOT_S = 30.0
"""Seconds without records after which a partition is fetched on the connection for idle
partitions."""
IDLE_WAITS = 4
"""Factor by which a fetch of idle partitions waits longer at the leader than others.

Fewer repeated fetches save processor time. No record is delayed, because an append ends the
wait."""
THROTTLED_S = 0.1
"""Seconds until the next fetch of a partition that replication throttling delays."""
PATIENCE_MS = 20
"""Milliseconds for which partitions with a range to fetch wait for those whose records are still
being flushed, so that one request fetches both."""


class PeerNet(Protocol):
    """Sends fetch requests to other brokers, two at most in flight on each connection to a leader.

    There are two connections to each leader; requests with ``FLAG_IDLE``, for idle partitions, use
    the second."""

    def fetch(self, leader: BrokerView, request: wire.FetchRequest, answered: Answered) -> None:
        """Send a fetch request. Pass the response, or NetworkError, to ``answered``.

        The responses of one connection arrive in the order of the requests."""


class FetcherCluster(Protocol):
    """The cluster's metadata and this broker's epoch, for the replica fetcher. ``Registry``
    implements this interface."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...

    @property
    def broker_epoch(self) -> int: ...


class FetchTarget(Protocol):
    """The local follower replica for which records are fetched."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def log(self) -> Log: ...

    def deliver(self, event: Event) -> None: ...


class _ReplicaRow(NamedTuple):
    """One partition of a fetch request: the local replica, the range to fetch, and the connection
    to the leader (*lane*)."""

    target: FetchTarget
    fetch_from: FetchFrom
    lane: _Leader


class Fetchers:
    """Fetches the records of all partitions that this broker follows."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        *,
        net: PeerNet,
        cluster: FetcherCluster,
        metrics: Metrics,
    ) -> None:
        self.loop = loop
        self.net = net
        self.cluster = cluster
        self.metrics = metrics
        self.broker_id = config.broker_id
        self.wait_ms = config.replica_fetch_wait_ms
        # A follower must fetch several times within replica.lag.time.max.ms, because each fetch
        # shows the leader that the follower is in sync.
        self.idle_wait_ms_max = max(self.wait_ms, config.replica_lag_ms // 4)
        self.closed = False
        self.suspects: set[PartitionKey] = set()
        """Partitions for which a corrupt batch arrived. Their next fetch asks the leader to check
        CRCs."""
        self._rows: dict[PartitionKey, _ReplicaRow] = {}
        self._hot_until: dict[PartitionKey, float] = {}
        self._leaders: dict[tuple[int, bool], _Leader] = {}
        self._throttle = Throttle(FOLLOWER_RATE)
        self.received_bytes = metrics.counter("replication_received_bytes")
        self.fetches = metrics.counter("replica_fetches")
        self._corrupt_batches = metrics.counter("corrupt_batches", "replica_fetch")

    def fetch(self, target: FetchTarget, fetch_from: FetchFrom) -> None:
        """Fetch a range for a replica, and retry until it arrives or the replica asks for another
        range."""
        if self.closed:
            return
        key = target.key
        before = self._rows.get(key)
        if before is None or before.fetch_from.leader_epoch != fetch_from.leader_epoch:
            self.mark_active(key)
        name = fetch_from.leader, self._hot_until[key] < self.loop.time()
        lane = self._leaders.get(name)
        if lane is None:
            lane = self._leaders[name] = _Leader(self, *name)
        if before is not None and before.lane is not lane:
            before.lane.forget(key)
        row = self._rows[key] = _ReplicaRow(target, fetch_from, lane)
        lane.ready(key, row)

    def mark_active(self, key: PartitionKey) -> None:
        """Fetch the partition on the connection for active partitions for ``HOT_S`` seconds."""
        self._hot_until[key] = self.loop.time() + HOT_S

    def stop(self, target: FetchTarget) -> None:
        """Stop fetching for a replica and ignore answers that are still to come."""
        row = self._rows.pop(target.key, None)
        self.suspects.discard(target.key)
        self._hot_until.pop(target.key, None)
        if row is not None:
            row.lane.forget(target.key)

    def suspect(self, target: FetchTarget) -> None:
        """Let the next fetch of the partition ask the leader to check CRCs.

        Call it when the replica received a corrupt batch."""
        self.suspects.add(target.key)
        self._corrupt_batches.n += 1

    def is_current(self, key: PartitionKey, row: _ReplicaRow) -> bool:
        return self._rows.get(key) is row

    def allowance(self, row: _ReplicaRow) -> int:
        """Return how many bytes of the partition may be fetched now; UNLIMITED if not throttled."""
        key, snapshot = row.target.key, self.cluster.snapshot
        listed = row.target.log.config.follower_throttled_replicas
        if not lists(listed, key.partition, self.broker_id):
            return UNLIMITED
        view = snapshot.partition_by_key(key)
        if view is not None and any(one.broker_id == self.broker_id for one in view.state.isr):
            return UNLIMITED
        return self._throttle.allowance(snapshot.broker_config(self.broker_id), self.loop.time())

    def received(self, row: _ReplicaRow, size: int) -> None:
        """Count ``size`` received bytes in the metrics and in the replication throttle."""
        self.received_bytes.n += size
        if self.allowance(row) < UNLIMITED:
            self._throttle.spend(size)

    def close(self) -> None:
        """Stop sending requests, and ignore all answers that are still to come."""
        self.closed = True
        self._rows.clear()
        for leader in self._leaders.values():
            leader.close()


class _Leader:
    """The fetch requests on one of the two connections to a leader: the one for idle partitions, or
    the one for others."""

    __slots__ = (
        "_attempts",
        "_broker_id",
        "_busy",
        "_has_new",
        "_idle",
        "_is_due",
        "_is_idle_lane",
        "_owner",
        "_patience",
        "_ready",
        "_retries",
        "_under_way",
    )

    def __init__(self, owner: Fetchers, broker_id: int, is_idle_lane: bool) -> None:
        self._owner = owner
        self._broker_id = broker_id
        self._is_idle_lane = is_idle_lane
        self._ready: dict[PartitionKey, _ReplicaRow] = {}
        self._busy: set[PartitionKey] = set()
        """Partitions whose fetched records are being appended and flushed."""
        self._idle: set[PartitionKey] = set()
        """Partitions for which the answer that is being delivered has no records.

        Their replicas ask for the same range again, which causes no second request while another is
        in flight."""
        self._has_new = False
        """Whether ``_ready``, the rows of the next request, has a new range or a retry, which is
        requested at once. Ranges that were just answered without records wait if a request
        is in flight."""
        self._attempts: dict[PartitionKey, int] = {}
        """Number of consecutive failed fetches of each partition."""
        self._retries: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._under_way = 0
        self._is_due = False
        self._patience: asyncio.TimerHandle | None = None

    def ready(self, key: PartitionKey, row: _ReplicaRow) -> None:
        self._busy.discard(key)
        self._cancel_retries(key)
        if key in self._idle:
            self._idle.discard(key)
        else:
            self._has_new = True
        self._ready[key] = row
        self._due()

    def forget(self, key: PartitionKey) -> None:
        self._ready.pop(key, None)
        self._attempts.pop(key, None)
        self._cancel_retries(key)
        if key in self._busy:
            self._busy.discard(key)
            self._due()

    def close(self) -> None:
        self._ready.clear()
        for key in list(self._retries):
            self._cancel_retries(key)
        if self._patience is not None:
            self._patience.cancel()

    def _cancel_retries(self, key: PartitionKey) -> None:
        if self._retries and (timer := self._retries.pop(key, None)) is not None:
            timer.cancel()

    # Methods that send requests to the leader.

    def _due(self) -> None:
        """Schedule one request for all partitions that become ready in this iteration of the event
        loop."""
        if not self._is_due:
            self._is_due = True
            self._owner.loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_due = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        rows = self._ready
        if not rows or self._under_way == 2 or self._owner.closed:
            return
        if self._under_way and not self._has_new:
            # Wait for the answer to the first request. At the leader a second request ends the wait
            # of the first, so the two would go on ending each other's wait.
            return
        if self._busy and not self._under_way:
            self._patience = self._owner.loop.call_later(PATIENCE_MS / 1000, self._patience_ended)
            return
        self._ready = {}
        self._request_rows(rows)

    def _patience_ended(self) -> None:
        """Fetch the ready partitions, without waiting longer for others whose records are being
        flushed."""
        self._patience = None
        if self._ready and not self._under_way:
            rows, self._ready = self._ready, {}
            self._request_rows(rows)

    def _request_rows(self, rows: dict[PartitionKey, _ReplicaRow]) -> None:
        owner = self._owner
        leader = owner.cluster.snapshot.brokers.get(self._broker_id)
        if leader is None or owner.cluster.broker_epoch < 0:
            # The metadata lack the leader's broker, or this broker is not registered. Retry later.
            self._fail(rows)
            return
        allowances = {key: owner.allowance(row) for key, row in rows.items()}
        for key in [key for key, allowance in allowances.items() if not allowance]:
            self._retry_later(key, rows.pop(key), THROTTLED_S)
        if not rows:
            self._has_new = False
            return
        wait_ms = 0 if self._under_way else owner.wait_ms
        if self._is_idle_lane:
            wait_ms = min(IDLE_WAITS * wait_ms, owner.idle_wait_ms_max)
        checks_crc = not owner.suspects.isdisjoint(rows)
        flags = wire.FLAG_REPAIR if checks_crc else wire.FLAG_CHECKS_CRC
        if self._is_idle_lane:
            flags |= wire.FLAG_IDLE
        request = _request(owner, rows, allowances, wait_ms, flags)
        self._under_way += 1
        self._has_new = False
        owner.fetches.n += 1
        owner.net.fetch(leader, request, lambda answer: self._answered(rows, answer))

    # Methods that handle the leader's answers, and retries.

    def _answered(
        self, rows: dict[PartitionKey, _ReplicaRow], answer: wire.FetchResponse | LogbusError
    ) -> None:
        self._under_way -= 1
        if self._owner.closed:
            return
        if isinstance(answer, LogbusError):
            self._owner.metrics.count("replica_fetch_errors", answer.name)
            self._fail(rows)
        elif answer.error_code:
            error = error_for(answer.error_code)
            self._owner.metrics.count("replica_fetch_errors", error.name)
            self._fail(rows)
        else:
            self._accept(rows, answer)
        if self._ready:
            self._due()

    def _accept(self, rows: dict[PartitionKey, _ReplicaRow], answer: wire.FetchResponse) -> None:
        left = dict(rows)
        failed: dict[PartitionKey, _ReplicaRow] = {}
        for topic in answer.topics:
            for part in topic.partitions:
                key = PartitionKey(topic.topic_id, part.partition)
                row = left.pop(key, None)
                if row is None or not self._owner.is_current(key, row):
                    continue
                event = _event(row, part)
                if event is None:
                    failed[key] = row
                    name = error_for(part.error_code).name
                    self._owner.metrics.count("replica_fetch_errors", name)
                    continue
                self._attempts.pop(key, None)
                if part.records:
                    self._owner.suspects.discard(key)
                    self._busy.add(key)
                    self._owner.mark_active(key)
                    self._owner.received(row, len(part.records))
                elif isinstance(event, Fetched):
                    self._idle.add(key)
                row.target.deliver(event)
                self._idle.discard(key)
        # A leader answers every partition of a request. If one is missing all the same, retry it.
        if left or failed:
            self._fail({**left, **failed})

    def _fail(self, rows: Mapping[PartitionKey, _ReplicaRow]) -> None:
        """Schedule a retry of each partition after its backoff.

        A new range that the replica asks for cancels the retry."""
        owner = self._owner
        for key, row in rows.items():
            if not owner.is_current(key, row):
                continue
            attempt = self._attempts.get(key, 0)
            self._attempts[key] = attempt + 1
            delay_ms = min(FIRST_RETRY_MS << min(attempt, 10), RETRY_MS_MAX)
            self._retry_later(key, row, delay_ms / 1000)

    def _retry_later(self, key: PartitionKey, row: _ReplicaRow, delay_s: float) -> None:
        self._cancel_retries(key)
        self._retries[key] = self._owner.loop.call_later(delay_s, self._retry, key, row)

    def _retry(self, key: PartitionKey, row: _ReplicaRow) -> None:
        self._retries.pop(key, None)
        if self._owner.is_current(key, row):
            self._has_new = True
            self._ready[key] = row
            self._due()


def _request(
    owner: Fetchers,
    rows: Mapping[PartitionKey, _ReplicaRow],
    allowances: Mapping[PartitionKey, int],
    wait_ms: int,
    flags: int,
) -> wire.FetchRequest:
    topics: dict[str, list[wire.FetchPartition]] = {}
    for (topic_id, partition), (target, fetch_from, _) in rows.items():
        one = wire.FetchPartition(
            partition,
            fetch_from.fetch_offset,
            min(PARTITION_BYTES, allowances[PartitionKey(topic_id, partition)]),
            fetch_from.leader_epoch,
            fetch_from.last_fetched_epoch,
            target.log.log_start_offset,
        )
        topics.setdefault(topic_id, []).append(one)
    return wire.FetchRequest(
        [wire.FetchTopic("", topic_id, parts) for topic_id, parts in topics.items()],
        wait_ms,
        max_bytes=RESPONSE_BYTES,
        replica_id=owner.broker_id,
        replica_epoch=owner.cluster.broker_epoch,
        columns_body_version=BODY_VERSION,
        flags=flags,
    )


def _event(row: _ReplicaRow, part: wire.FetchedPartition) -> Event | None:
    """Return a partition's answer as an event for the replica's state machine; None for an error
    after which the fetch is repeated."""
    fetch_from = row.fetch_from
    if part.error_code == OffsetOutOfRangeError.code:
        return FetchOutOfRange(
            fetch_from.leader_epoch, fetch_from.fetch_offset, part.log_start_offset
        )
    if part.error_code:
        return None
    if part.diverging is not None:
        own = row.target.log.reader.end_offset_for(part.diverging.leader_epoch)
        return FetchDiverged(
            fetch_from.leader_epoch,
            fetch_from.fetch_offset,
            fetch_from.last_fetched_epoch,
            part.diverging,
            own,
        )
    return Fetched(
        fetch_from.leader_epoch,
        fetch_from.fetch_offset,
        part.records if part.records else None,
        part.high_watermark,
        part.log_start_offset,
    )
