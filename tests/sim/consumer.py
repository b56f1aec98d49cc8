"""Run the production consumer on the simulator's clock and network.

``FetchEngine`` (leaders, epochs, failover, fetch scheduling) and ``FetchCollector`` (positions,
checks) run unchanged over ``SimShell``. Fetches are sent as bytes, and the broker's production
handler answers them. Each returned batch must equal the batch of the committed log and start where
the previous batch ended. An uncommitted, skipped or repeated record therefore fails the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sim.checker import Entry, Violation
from sim.clients import SimShell
from sim.cluster import SimCluster, pick
from sim.history import Commit, History
from sim.workload import Client

from broker_lite.client.consuming.arrow_rows import ConcatenatedSlices
from broker_lite.client.consuming.fetch_collector import FetchCollector
from broker_lite.client.fetch.fetch_engine import NO_EPOCHS, FetchEngine
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.received import Slice
from broker_lite.client.transport.steps import spawn
from broker_lite.config import ConsumerConfig
from broker_lite.errors import CorruptMessageError, LogbusError, UnknownTopicIdError
from broker_lite.model import CommittedOffset, Endpoint, PartitionKey, TopicPartition

WAITS_MS = (500, 2_000, 5_000)
LEAST_BYTES = (1, 4_000, 20_000)
FETCH_BYTES = 64 << 10
LOOK_TIMEOUT_MS = 600_000


class Consumer(Client):
    """A client that reads the given partitions of a topic from their beginning."""

    rewinds = True

    def __init__(
        self,
        cluster: SimCluster,
        history: History,
        name: str,
        topic: str,
        keys: Sequence[PartitionKey],
    ) -> None:
        super().__init__(cluster, history, name)
        self.topic = topic
        self.keys = {TopicPartition(topic, key.partition): key for key in keys}
        self.positions: dict[TopicPartition, int] = {}
        """The offset that the next batch of each partition must begin at."""
        self.rows: dict[PartitionKey, dict[int, bytes]] | None = None
        """The values read, by partition and offset; None if the test does not need them."""
        self._has_failed = False
        """Whether the reader got a corruption error and has not called seek since then."""
        shell = self._shell = SimShell(cluster, name)
        endpoints = tuple(Endpoint("sim", broker_id) for broker_id in cluster.disks)
        self._view = Cluster(endpoints, shell.now_ms)
        self._woken = asyncio.Event()
        config = ConsumerConfig(
            fetch_max_wait_ms=pick(self.rng, WAITS_MS),
            fetch_min_bytes=pick(self.rng, LEAST_BYTES),
            partition_fetch_bytes=FETCH_BYTES,
            request_timeout_ms=8_000,
            retry_backoff_ms=200,
        )
        self._engine = FetchEngine(
            shell, self._view, config, on_fetched=self._woken.set, on_view=lambda view: None
        )
        self._collector = FetchCollector(self._engine, skips_corrupt=False)

    async def start(self, offsets: Mapping[PartitionKey, int] | None = None) -> None:
        """Find the topic's leaders and begin to fetch; the default start offset is 0."""
        found: asyncio.Future[None] = self.cluster.loop.create_future()

        def done(view: ClusterView | LogbusError) -> None:
            if not found.done():
                found.set_result(None)

        while self._view.view.topics.get(self.topic) is None:
            deadline_ms = self._shell.now_ms() + LOOK_TIMEOUT_MS
            spawn(self._shell, requests.known_topics(self._view, (self.topic,), deadline_ms), done)
            await found
            found = self.cluster.loop.create_future()
        begins = offsets or {}
        self._seek({tp: begins.get(key, 0) for tp, key in self.keys.items()})

    def add(self, key: PartitionKey) -> None:
        """Read a partition that was added to the topic."""
        tp = TopicPartition(self.topic, key.partition)
        self.keys[tp] = key
        if self.positions:
            self._seek({tp: 0})

    def _seek(
        self, offsets: dict[TopicPartition, int], epochs: Mapping[TopicPartition, int] = NO_EPOCHS
    ) -> None:
        self.positions.update(offsets)
        self._collector.begin(offsets, epochs)

    async def run(self) -> None:
        """Read records and commit positions; seek back at random times."""
        await self.start()
        while True:
            await self.pause(2.0)
            self._begin_again()
            if self.rewinds:
                self._rewind()
            self._take()
            if self.rng.random() < 0.2:
                await self._commit(pick(self.rng, list(self.positions)))

    def _rewind(self) -> None:
        """Seek back at random times, also into a corrupt batch, so that the consumer reads
        records again."""
        if self.rng.random() < 0.03:
            tp = pick(self.rng, list(self.positions))
            self._seek({tp: self.rng.randint(0, self.positions[tp])})
        struck_at = self.cluster.rot.struck_at
        if struck_at is None or self.rng.random() < 0.7:
            return
        key, offsets = struck_at
        tp = TopicPartition(self.topic, key.partition)
        if self.keys.get(tp) == key and self.positions.get(tp, 0) >= offsets.stop:
            self.cluster.rot.struck_at = None
            self._seek({tp: pick(self.rng, offsets)})

    async def read_to_the_end(self, keys: Sequence[PartitionKey]) -> None:
        """Read until every committed record of the partitions was returned."""
        checker = self.cluster.checker
        wanted = [TopicPartition(self.topic, key.partition) for key in keys]
        while True:
            self._woken.clear()
            self._take()
            if all(self.positions[tp] >= checker.true_end(self.keys[tp]) for tp in wanted):
                return
            if self._has_failed:
                await self.pause(2.0)
                self._begin_again()
            else:
                await self._woken.wait()

    def _begin_again(self) -> None:
        """After a corruption error, seek to the present positions: without a seek, each poll
        repeats the error."""
        if self._has_failed:
            self._has_failed = False
            self._seek(dict(self.positions))

    def _take(self) -> None:
        before = dict(self.positions)
        self._take_batches()
        for tp, position in self.positions.items():
            if position != before[tp]:
                self.cluster.count("read")
                self.cluster.trace(self.name, "read", tp.partition, position)

    def _take_batches(self) -> None:
        collector = self._collector
        collector.settle()
        try:
            while collector.advance(self._out_of_range):
                parts = ConcatenatedSlices()
                collector.take_rows(parts, None)
                for tp, rows in parts.slices:
                    self._check(tp, rows)
        except CorruptMessageError as error:
            if not self._is_damage_known:
                raise Violation(f"{self.name}: the consumer reported {error!r}") from None
            # No broker with an intact copy was available for a while. Retry, as a user would.
            self.cluster.count("damage reported to a consumer")
            self._has_failed = True
        except LogbusError as error:
            raise Violation(f"{self.name}: the consumer reported {error!r}") from None

    @property
    def _is_damage_known(self) -> bool:
        return bool(self.cluster.rot.struck)

    def _check(self, tp: TopicPartition, rows: Slice) -> None:
        header, key = rows.header, self.keys[tp]
        start = header.base_offset + rows.first_row
        if start != self.positions[tp] or start + rows.row_count != header.next_offset:
            raise Violation(
                f"{self.name}: {tp} has the position {self.positions[tp]}, but rows {start} to "
                f"{start + rows.row_count} of {header} follow"
            )
        self._compare(
            key, Entry(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
        )
        self.positions[tp] = header.next_offset
        self._keep_values(key, start, rows)

    def _keep_values(self, key: PartitionKey, start: int, rows: Slice) -> None:
        """Keep the values of rows from offset ``start`` on, if this consumer keeps rows."""
        if self.rows is not None:
            values: Any = rows.columns.value
            kept = values.slice(rows.first_row, rows.row_count).to_pylist()
            self.rows.setdefault(key, {}).update(zip(range(start, rows.header.next_offset), kept))

    def _compare(self, key: PartitionKey, entry: Entry) -> None:
        self.cluster.checker.read(key, entry)

    def _out_of_range(self, tp: TopicPartition, error: LogbusError) -> None:
        raise Violation(f"{self.name}: {tp} at {self.positions[tp]}: {error}")

    async def _commit(self, tp: TopicPartition) -> None:
        offset = self.positions[tp]
        attempt = Commit(offset, self.cluster.loop.time())
        self.history.committed.setdefault((self.name, tp), []).append(attempt)
        broker_id = pick(self.rng, list(self.cluster.disks))
        try:
            result = await self.call(
                broker_id,
                lambda process: process.registry.groups.commit(
                    self.name, {tp: CommittedOffset(offset)}
                ),
            )
        except LogbusError as error:
            self.cluster.trace(self.name, "failed", type(error).__name__)
            return
        problem = result[tp]
        if problem is None:
            attempt.acknowledged = True
            self.cluster.count("committed")
        elif isinstance(problem, UnknownTopicIdError):
            raise Violation(f"{self.name}: {problem}")
