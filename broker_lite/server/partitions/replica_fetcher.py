"""Following: fetches from leaders, two loops of requests per leader broker, all partitions in them.

Loop thread only. A replica's machine says what it wants (``FetchFrom``) and is told what came. The
next request to a leader leaves when what the last one brought is on disk, since a fetch offset
promises just that: so one request a round carries all partitions. Where one becomes ready while a
request still waits at the leader, a second request that does not wait is sent behind it, at which
the leader ends the wait of the first. Partitions in which nothing happened lately wait on a lane of
their own, so that they cost nothing when something happens in others. What fails is asked again,
later and later, until the machine wants something else. ``PeerNet`` is who carries requests.
"""

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
from broker_lite.server.metrics import Metrics
from broker_lite.storage.log import Log
from broker_lite.wire import fetch as wire

Answered = Callable[[wire.FetchResponse | LogbusError], None]
"""Called exactly once, on the loop, never from within the call that was given it."""

RESPONSE_BYTES = 8 << 20
"""What one answer may hold: memory that each leader costs a follower."""
PARTITION_BYTES = 4 << 20
FIRST_RETRY_MS = 10
"""A new leader may hear of it a moment after its followers did."""
RETRY_MS_MAX = 500
HOT_S = 30.0
"""A partition goes to the idle lane when it brought nothing for so long."""
PATIENCE_MS = 20
"""Partitions that are ready wait so long for those whose records are still being written."""


class PeerNet(Protocol):
    """Carries a request to another broker. At most two are under way to one leader on each lane:
    those with ``FLAG_IDLE`` have a connection of their own."""

    def fetch(self, leader: BrokerView, request: wire.FetchRequest, answered: Answered) -> None:
        """Answers come in the order of the requests; NetworkError where there is none."""


class Cluster(Protocol):
    """What following needs to know of the cluster."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...

    @property
    def broker_epoch(self) -> int: ...


class Target(Protocol):
    """A replica that follows."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def log(self) -> Log: ...

    def deliver(self, event: Event) -> None: ...


class _Row(NamedTuple):
    """What one partition wants."""

    target: Target
    wanted: FetchFrom
    lane: _Leader


class Fetchers:
    """All that this broker follows."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        *,
        net: PeerNet,
        cluster: Cluster,
        metrics: Metrics,
    ) -> None:
        self.loop = loop
        self.net = net
        self.cluster = cluster
        self.metrics = metrics
        self.broker_id = config.broker_id
        self.wait_ms = config.replica_fetch_wait_ms
        self.closed = False
        self.doubted: set[PartitionKey] = set()
        """Where a damaged batch came: the leader is asked to check before it sends."""
        self._rows: dict[PartitionKey, _Row] = {}
        self._hot_until: dict[PartitionKey, float] = {}
        self._leaders: dict[tuple[int, bool], _Leader] = {}
        metrics.gauge("partitions_followed", lambda: len(self._rows))

    def fetch(self, target: Target, wanted: FetchFrom) -> None:
        """Ask until it is answered, or until the partition wants something else."""
        if self.closed:
            return
        key = target.key
        before = self._rows.get(key)
        if before is None or before.wanted.leader_epoch != wanted.leader_epoch:
            self.is_hot(key)
        name = wanted.leader, self._hot_until[key] < self.loop.time()
        lane = self._leaders.get(name)
        if lane is None:
            lane = self._leaders[name] = _Leader(self, *name)
        if before is not None and before.lane is not lane:
            before.lane.forget(key)
        row = self._rows[key] = _Row(target, wanted, lane)
        lane.ready(key, row)

    def is_hot(self, key: PartitionKey) -> None:
        """Something happened in this partition."""
        self._hot_until[key] = self.loop.time() + HOT_S

    def stop(self, target: Target) -> None:
        """What is under way for this partition means nothing any more."""
        row = self._rows.pop(target.key, None)
        self.doubted.discard(target.key)
        self._hot_until.pop(target.key, None)
        if row is not None:
            row.lane.forget(target.key)

    def doubt(self, target: Target) -> None:
        """What came was damaged: on the leader's disk, perhaps, or on the way."""
        self.doubted.add(target.key)
        self.metrics.count("replica_fetches_damaged")

    def is_current(self, key: PartitionKey, row: _Row) -> bool:
        return self._rows.get(key) is row

    def close(self) -> None:
        """Nothing more is asked, and no answer is passed on."""
        self.closed = True
        self._rows.clear()
        for leader in self._leaders.values():
            leader.close()


class _Leader:
    """The requests to one leader, on one lane."""

    __slots__ = (
        "_attempts",
        "_broker_id",
        "_busy",
        "_has_news",
        "_idle",
        "_is_due",
        "_is_idle_lane",
        "_later",
        "_owner",
        "_patience",
        "_ready",
        "_under_way",
    )

    def __init__(self, owner: Fetchers, broker_id: int, is_idle_lane: bool) -> None:
        self._owner = owner
        self._broker_id = broker_id
        self._is_idle_lane = is_idle_lane
        self._ready: dict[PartitionKey, _Row] = {}
        self._busy: set[PartitionKey] = set()
        """Partitions that are writing what they got."""
        self._idle: set[PartitionKey] = set()
        """Partitions whose answer held nothing: they ask again as before."""
        self._has_news = False
        """Whether somebody asks otherwise than before, which must not wait."""
        self._attempts: dict[PartitionKey, int] = {}
        """How often in a row it failed."""
        self._later: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._under_way = 0
        self._is_due = False
        self._patience: asyncio.TimerHandle | None = None

    def ready(self, key: PartitionKey, row: _Row) -> None:
        self._busy.discard(key)
        self._cancel_later(key)
        if key in self._idle:
            self._idle.discard(key)
        else:
            self._has_news = True
        self._ready[key] = row
        self._due()

    def forget(self, key: PartitionKey) -> None:
        self._ready.pop(key, None)
        self._attempts.pop(key, None)
        self._cancel_later(key)
        if key in self._busy:
            self._busy.discard(key)
            self._due()

    def close(self) -> None:
        self._ready.clear()
        for key in list(self._later):
            self._cancel_later(key)
        if self._patience is not None:
            self._patience.cancel()

    def _cancel_later(self, key: PartitionKey) -> None:
        if self._later and (timer := self._later.pop(key, None)) is not None:
            timer.cancel()

    # Asking.

    def _due(self) -> None:
        """Send once all that happens in this turn of the loop has happened."""
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
        if self._under_way and not self._has_news:
            # Each would end the other's wait, without end: they go together when it is back.
            return
        if self._busy and not self._under_way:
            self._patience = self._owner.loop.call_later(PATIENCE_MS / 1000, self._no_longer)
            return
        self._ready = {}
        self._ask(rows)

    def _no_longer(self) -> None:
        """Somebody writes for long: go on with the others."""
        self._patience = None
        if self._ready and not self._under_way:
            rows, self._ready = self._ready, {}
            self._ask(rows)

    def _ask(self, rows: dict[PartitionKey, _Row]) -> None:
        owner = self._owner
        leader = owner.cluster.snapshot.brokers.get(self._broker_id)
        if leader is None or owner.cluster.broker_epoch < 0:
            # It is gone, or we are: until the metadata says who leads, or we are registered.
            self._fail(rows)
            return
        wait_ms = 0 if self._under_way else owner.wait_ms
        doubts = not owner.doubted.isdisjoint(rows)
        flags = wire.FLAG_DOUBTS if doubts else wire.FLAG_CHECKS_CRC
        if self._is_idle_lane:
            flags |= wire.FLAG_IDLE
        request = _request(rows, owner.broker_id, owner.cluster.broker_epoch, wait_ms, flags)
        self._under_way += 1
        self._has_news = False
        owner.metrics.count("replica_fetches")
        owner.net.fetch(leader, request, lambda answer: self._answered(rows, answer))

    # Answers.

    def _answered(
        self, rows: dict[PartitionKey, _Row], answer: wire.FetchResponse | LogbusError
    ) -> None:
        self._under_way -= 1
        if self._owner.closed:
            return
        if isinstance(answer, LogbusError):
            self._owner.metrics.count("replica_fetch_errors", label=answer.name)
            self._fail(rows)
        elif answer.error_code:
            error = error_for(answer.error_code)
            self._owner.metrics.count("replica_fetch_errors", label=error.name)
            self._fail(rows)
        else:
            self._take(rows, answer)
        if self._ready:
            self._due()

    def _take(self, rows: dict[PartitionKey, _Row], answer: wire.FetchResponse) -> None:
        left = dict(rows)
        failed: dict[PartitionKey, _Row] = {}
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
                    self._owner.metrics.count("replica_fetch_errors", label=name)
                    continue
                self._attempts.pop(key, None)
                if part.records:
                    self._owner.doubted.discard(key)
                    self._busy.add(key)
                    self._owner.is_hot(key)
                    self._owner.metrics.count("replica_fetched_bytes", len(part.records))
                elif isinstance(event, Fetched):
                    self._idle.add(key)
                row.target.deliver(event)
                self._idle.discard(key)
        # A leader answers for every partition; what it left out was not looked at.
        if left or failed:
            self._fail({**left, **failed})

    def _fail(self, rows: Mapping[PartitionKey, _Row]) -> None:
        """Ask for these again in a while, unless they want something else by then."""
        owner = self._owner
        for key, row in rows.items():
            if not owner.is_current(key, row):
                continue
            attempt = self._attempts.get(key, 0)
            self._attempts[key] = attempt + 1
            delay_ms = min(FIRST_RETRY_MS << min(attempt, 10), RETRY_MS_MAX)
            self._cancel_later(key)
            self._later[key] = owner.loop.call_later(delay_ms / 1000, self._again, key, row)

    def _again(self, key: PartitionKey, row: _Row) -> None:
        self._later.pop(key, None)
        if self._owner.is_current(key, row):
            self._has_news = True
            self._ready[key] = row
            self._due()


def _request(
    rows: Mapping[PartitionKey, _Row],
    broker_id: int,
    broker_epoch: int,
    wait_ms: int,
    flags: int,
) -> wire.FetchRequest:
    topics: dict[str, list[wire.FetchPartition]] = {}
    for (topic_id, partition), (target, wanted, _) in rows.items():
        one = wire.FetchPartition(
            partition,
            wanted.fetch_offset,
            PARTITION_BYTES,
            wanted.leader_epoch,
            wanted.last_fetched_epoch,
            target.log.log_start_offset,
        )
        topics.setdefault(topic_id, []).append(one)
    return wire.FetchRequest(
        [wire.FetchTopic("", topic_id, parts) for topic_id, parts in topics.items()],
        wait_ms,
        max_bytes=RESPONSE_BYTES,
        replica_id=broker_id,
        replica_epoch=broker_epoch,
        columns_body_version=BODY_VERSION,
        flags=flags,
    )


def _event(row: _Row, part: wire.FetchedPartition) -> Event | None:
    """What the machine is told; None for an error that only time or new metadata cures."""
    wanted = row.wanted
    if part.error_code == OffsetOutOfRangeError.code:
        return FetchOutOfRange(wanted.leader_epoch, wanted.fetch_offset, part.log_start_offset)
    if part.error_code:
        return None
    if part.diverging is not None:
        own = row.target.log.end_offset_for(part.diverging.leader_epoch)
        return FetchDiverged(
            wanted.leader_epoch, wanted.fetch_offset, wanted.last_fetched_epoch, part.diverging, own
        )
    return Fetched(
        wanted.leader_epoch,
        wanted.fetch_offset,
        part.records if part.records else None,
        part.high_watermark,
        part.log_start_offset,
    )
