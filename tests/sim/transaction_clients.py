"""Transactional clients: the production sender and state machine on the simulated network.

``Producer`` writes batches under one transactional id and commits or aborts. ``Copier`` copies
each record of the topic numbers once, and commits its offsets in the same transaction.
``CommittedReader`` compares the rows of a read_committed reader with the committed transactions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sim.checker import Entry, Violation
from sim.clients import SimShell
from sim.cluster import SimCluster, pick
from sim.consumer import Consumer
from sim.history import History
from sim.scheduler import stream
from sim.transaction_truth import Pair, TransactionTruth

from broker_lite.client.operations import group_requests
from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.transaction_requests import OffsetsToCommit
from broker_lite.client.producing.accumulator import Chunk
from broker_lite.client.producing.sender import Sender
from broker_lite.client.received import Slice
from broker_lite.client.transactions import events as ev
from broker_lite.client.transactions.runner import TransactionRunner
from broker_lite.client.transport.steps import Operation, spawn
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    FencedError,
    LogbusError,
    TransactionAbortedError,
    UnknownOutcomeError,
)
from broker_lite.model import CommittedOffset, Endpoint, PartitionKey, TopicPartition
from broker_lite.record.arrow import Columns

OUT, NUMBERS, GROUP = "ledger", "numbers", "copiers"
TIMEOUTS_MS = (3_000, 6_000, 10_000)
CALL_MS = 8_000


@dataclass
class Attempted:
    """One transaction of a client; ``is_committed`` is None while the client does not know the
    outcome."""

    name: str
    pair: Pair
    values: list[bytes] = field(default_factory=list)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    is_committed: bool | None = None


class Runner(TransactionRunner):
    """Runs the operations of one transactional client.

    ``highest`` is the highest transaction version that the client supports.
    """

    highest = 2

    def _initialized(self, found: Any) -> None:
        if not isinstance(found, LogbusError):
            found = (*found[:2], min(found[2], self.highest))
        super()._initialized(found)


class Transactional:
    """One transactional producer process; it sends values between begin() and end()."""

    def __init__(
        self,
        cluster: SimCluster,
        truth: TransactionTruth,
        transactional_id: str,
        label: str,
        *,
        version: int = 2,
        timeout_ms: int = 6_000,
    ) -> None:
        self.cluster = cluster
        self.truth = truth
        self.id = transactional_id
        self.label = label
        self.transaction: Attempted | None = None
        self._shut: LogbusError | None = None
        self._waking = threading.Condition()
        shell = self.shell = SimShell(cluster, label)
        endpoints = tuple(Endpoint("sim", broker_id) for broker_id in cluster.disks)
        self.view = Cluster(endpoints, shell.now_ms)
        config = ProducerConfig(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            request_timeout_ms=4_000,
            delivery_timeout_ms=20_000,
            max_block_ms=CALL_MS,
        )
        self.sender = Sender(
            shell,
            self.view,
            config,
            on_released=lambda size: None,
            on_finished=lambda outcome: None,
        )
        self.runner = Runner(shell, self.view, config, self.sender, on_shut=self._on_shut)
        self.runner.highest = version

    def _on_shut(self, error: LogbusError | None) -> None:
        self._shut = error

    async def _call(self, event: ev.Call, offsets: OffsetsToCommit | None = None) -> None:
        answered: asyncio.Future[LogbusError | None] = self.cluster.loop.create_future()

        def answer(error: LogbusError | None) -> None:
            if not answered.done():
                answered.set_result(error)

        self.runner.call(event, answer, offsets=offsets)
        error = await answered
        self.cluster.trace(self.label, type(event).__name__, type(error).__name__)
        if error is not None:
            raise error

    async def operation(self, make: Callable[[float], Operation[Any]]) -> Any:
        """Run a client operation, such as a commit, with a deadline; return its result or raise its
        error.
        """
        found: asyncio.Future[Any] = self.cluster.loop.create_future()

        def done(result: Any) -> None:
            if not found.done():
                found.set_result(result)

        spawn(self.shell, make(self.shell.now_ms() + CALL_MS), done)
        result = await found
        if isinstance(result, LogbusError):
            raise result
        return result

    async def begin(self) -> Attempted:
        """Begin a transaction; raise the error if the coordinator refuses it."""
        while True:
            try:
                await self._call(ev.BeginCall())
                break
            except UnknownOutcomeError:
                # The former transaction is not over: the response to its end is missing.
                continue
        identity = self.runner.machine.identity
        assert identity is not None
        pair = Pair(*identity)
        self.truth.initialized(self.id, pair)
        self.transaction = Attempted(self.id, pair)
        return self.transaction

    def send(self, partition: int, values: list[bytes]) -> None:
        """Send one batch; raise the transaction's error if it must be aborted."""
        if self._shut is not None:
            raise self._shut
        assert self.transaction is not None
        self.transaction.values += values
        chunk = Chunk(
            OUT,
            self._waking,
            lambda outcome: None,
            columns=Columns(len(values), None, pa.array(values, pa.binary()), None, None),
            requested=partition,
            size_bytes=sum(map(len, values)),
            timestamp_ms=int(1_735_689_600_000 + self.cluster.loop.now * 1000),
        )
        self.sender.inbox.append(chunk)
        self.sender.wake()

    async def send_offsets(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        """Add a group's offsets to the transaction."""
        assert self.transaction is not None
        self.transaction.offsets.update(offsets)
        await self._call(ev.OffsetsCall(GROUP), OffsetsToCommit(GROUP, offsets))

    async def end(self, *, is_commit: bool) -> None:
        """Commit or abort, with retries until the outcome is known.

        Raises FencedError, or the error that turned a commit into an abort.
        """
        transaction = self.transaction
        assert transaction is not None
        event: ev.Call = ev.CommitCall() if is_commit else ev.AbortCall()
        while True:
            try:
                await self._call(event)
            except UnknownOutcomeError:
                continue
            except TransactionAbortedError:
                self._ended(transaction, is_committed=False)
                raise
            break
        self._ended(transaction, is_committed=is_commit)

    def _ended(self, transaction: Attempted, *, is_committed: bool) -> None:
        transaction.is_committed = is_committed
        self.cluster.count("committed transactions" if is_committed else "aborted transactions")
        if transaction.values or not is_committed:
            self.truth.answered(self.id, transaction.pair, is_committed)


class Producer:
    """Successive processes with one transactional id; former processes may still run."""

    def __init__(
        self, cluster: SimCluster, truth: TransactionTruth, name: str, version: int, partitions: int
    ) -> None:
        self.cluster = cluster
        self.truth = truth
        self.name = name
        self.version = version
        if version == 1:
            truth.of_version_1.add(name)
        self.partitions = partitions
        self.rng = stream(cluster.seed, name)
        self.timeout_ms = pick(self.rng, TIMEOUTS_MS)
        self.attempted: list[Attempted] = []
        self.is_stopping = False
        self._processes = 0
        self._number = 0
        self._running: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Run one process of the client after the other until ``is_stopping`` is set.

        A process ends when another process fences it, or when it dies.
        """
        while self._goes_on():
            if len(self._running) < 2:
                self._start()
            last = list(self._running)[-1]
            takes_over = self.rng.random() < 0.3 and not self.is_stopping
            await asyncio.wait([last], timeout=self.rng.random() * 20 if takes_over else None)
            self._reap()
            if not takes_over:
                await asyncio.sleep(self.rng.choice((0.0, 1.0, 8.0)) * self.rng.random())
        while self._running:
            await asyncio.wait(self._running)
            self._reap()

    def _goes_on(self) -> bool:
        return not self.is_stopping

    def _start(self) -> None:
        task = self.cluster.loop.create_task(self._process())
        self._running[task] = None

    def _reap(self) -> None:
        for task in [task for task in self._running if task.done()]:
            del self._running[task]
            task.result()

    async def _process(self) -> None:
        self._processes += 1
        client = Transactional(
            self.cluster,
            self.truth,
            self.name,
            f"{self.name}.{self._processes}",
            version=self.version,
            timeout_ms=self.timeout_ms,
        )
        while not self.is_stopping:
            await asyncio.sleep(self.rng.random() * self.cluster.options.think_s)
            try:
                if not await self._transaction(client):
                    return
            except FencedError:
                self.cluster.count("fenced producers")
                return
            except TransactionAbortedError:
                continue
            except LogbusError as error:
                if not error.retriable:
                    raise Violation(f"{client.label}: the client reported {error!r}") from None

    async def _transaction(self, client: Transactional) -> bool:
        """Run one transaction; return False if the process dies during the transaction."""
        rng = self.rng
        self.attempted.append(await client.begin())
        for _ in range(rng.randint(0, 3)):
            count = rng.randint(1, 3)
            size = rng.choice((0, 0, 1000))
            values = [
                f"{self.name}/{self._number + n}".encode() + b"." * size for n in range(count)
            ]
            self._number += count
            client.send(rng.randrange(self.partitions), values)
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.1, 1.0)) * rng.random())
        if rng.random() < 0.05:
            await asyncio.sleep(self.timeout_ms / 1000 * 1.2)
        if rng.random() < 0.05:
            return False
        await client.end(is_commit=rng.random() < 0.7)
        return True


class NumberReader(Consumer):
    """A consumer of the topic of numbers, for ``Copier``. ``found`` holds the numbers that are
    fetched but not copied to the target topic yet."""

    rewinds = False

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.found: list[tuple[TopicPartition, CommittedOffset, bytes]] = []

    def take(self, offsets: dict[TopicPartition, CommittedOffset]) -> None:
        """Make the reader continue at these offsets; drop the records that it has fetched but not
        copied.
        """
        self.found.clear()
        epochs = {tp: row.leader_epoch for tp, row in offsets.items() if row.leader_epoch >= 0}
        self._seek({tp: row.offset for tp, row in offsets.items()}, epochs)

    def poll(self) -> None:
        """Add the records of all fetched batches to ``found``."""
        self._begin_again()
        self._take()

    def _check(self, tp: TopicPartition, rows: Slice) -> None:
        start = rows.header.base_offset + rows.first_row
        if start != self.positions[tp]:
            raise Violation(f"{self.name}: {tp} at {self.positions[tp]}, rows of {start}")
        values: Any = rows.columns.value
        found = values.slice(rows.first_row, rows.row_count).to_pylist()
        epoch = rows.header.leader_epoch
        self.found += [
            (tp, CommittedOffset(start + n + 1, epoch), value) for n, value in enumerate(found)
        ]
        self.positions[tp] = start + rows.row_count


class Copier(Producer):
    """A producer that copies each number once; each of its processes starts at the committed
    offsets."""

    def __init__(
        self,
        cluster: SimCluster,
        truth: TransactionTruth,
        name: str,
        version: int,
        partitions: int,
        keys: Sequence[PartitionKey],
    ) -> None:
        super().__init__(cluster, truth, name, version, partitions)
        self.keys = keys
        self._is_done = False

    def _goes_on(self) -> bool:
        return not self._is_done

    async def _process(self) -> None:
        self._processes += 1
        label = f"{self.name}.{self._processes}"
        client = Transactional(
            self.cluster,
            self.truth,
            self.name,
            label,
            version=self.version,
            timeout_ms=self.timeout_ms,
        )
        reader = NumberReader(self.cluster, History(), f"{label} reader", NUMBERS, self.keys)
        await reader.start()
        while True:
            try:
                # Begin before reading the offsets. This fences the former producer, which could
                # otherwise commit offsets after the read.
                self.attempted.append(await client.begin())
                if not await self._position(client, reader):
                    await client.end(is_commit=False)
                    continue
                while await self._transaction_of(client, reader):
                    self.attempted.append(await client.begin())
                return
            except FencedError:
                self.cluster.count("fenced producers")
                return
            except TransactionAbortedError:
                continue
            except LogbusError as error:
                if not error.retriable:
                    raise Violation(f"{client.label}: the client reported {error!r}") from None
            if self.is_stopping:
                await asyncio.sleep(0.5)

    async def look_at_offsets(self) -> None:
        """After each decided transaction, fetch the group's offset. Unless an open transaction may
        change it, check that it is not below any offset that a decided transaction committed.
        """
        client = Transactional(self.cluster, self.truth, self.name, f"{self.name} offsets")
        (tp,) = (TopicPartition(NUMBERS, key.partition) for key in self.keys)
        while True:
            self.truth.has_decided.clear()
            await self.truth.has_decided.wait()
            await asyncio.sleep(self.rng.random() * 0.02)
            least = max(
                (one.offsets[tp].offset for one in self.attempted if self._decided(one, tp)),
                default=0,
            )
            try:
                found, unstable = await client.operation(
                    lambda deadline_ms: group_requests.stable(
                        client.view, GROUP, [tp], until_ms=0, deadline_ms=deadline_ms
                    )
                )
            except LogbusError:
                continue
            row = found.get(tp)
            offset = row.offset if isinstance(row, CommittedOffset) else 0
            if tp not in unstable and not isinstance(row, LogbusError) and offset < least:
                raise Violation(f"{tp}: {offset} was read as stable, {least} is decided")

    def _decided(self, attempted: Attempted, tp: TopicPartition) -> bool:
        return tp in attempted.offsets and self.truth.decided.get(attempted.pair) is True

    async def _position(self, client: Transactional, reader: NumberReader) -> bool:
        """Move the reader to the group's offsets; return False if some are pending or unknown."""
        tps = list(reader.keys)
        try:
            found, unstable = await client.operation(
                lambda deadline_ms: group_requests.stable(
                    client.view, GROUP, tps, until_ms=deadline_ms, deadline_ms=deadline_ms
                )
            )
        except LogbusError as error:
            if not error.retriable:
                raise Violation(f"{client.label}: offsets: {error!r}") from None
            return False
        if unstable or any(isinstance(row, LogbusError) for row in found.values()):
            return False
        reader.take({tp: found.get(tp, CommittedOffset(0)) for tp in tps})
        return True

    async def _transaction_of(self, client: Transactional, reader: NumberReader) -> bool:
        """Run one transaction; return False if nothing is left to copy, or if the process dies."""
        rng = self.rng
        while True:
            reader.poll()
            if reader.found:
                break
            ends = {tp: self.cluster.checker.true_end(key) for tp, key in reader.keys.items()}
            is_done = all(reader.positions[tp] >= end for tp, end in ends.items())
            if self.is_stopping and is_done:
                await client.end(is_commit=False)
                self._is_done = True
                return False
            await asyncio.sleep(0.3)
        rows, reader.found = reader.found[:20], reader.found[20:]
        assert client.transaction is not None
        attempt = ".".join(map(str, client.transaction.pair))
        for tp, following, value in rows:
            offset = following.offset - 1
            name = f"{self.name}:{tp.partition}:{offset}:{attempt}:".encode() + value
            client.send(rng.randrange(self.partitions), [name])
        await client.send_offsets({tp: following for tp, following, _ in rows})
        if rng.random() < 0.05 and not self.is_stopping:
            return False
        is_commit = rng.random() < 0.9 or self.is_stopping
        await client.end(is_commit=is_commit)
        if not is_commit:
            raise TransactionAbortedError()
        await asyncio.sleep(rng.random() * self.cluster.options.think_s)
        return True


class CommittedReader(Consumer):
    """A read_committed consumer; its rows must be exactly those of committed transactions."""

    def __init__(self, truth: TransactionTruth, *values: Any) -> None:
        super().__init__(*values)
        self.truth = truth
        self._returned: dict[TopicPartition, set[int]] = {}

    def _take(self) -> None:
        self._returned = {tp: set() for tp in self.positions}
        before = dict(self.positions)
        self._take_batches()
        for tp, start in before.items():
            end = max(self.positions[tp], self._collector.position(tp) or 0)
            if end > start:
                self.truth.read(self.keys[tp], start, end, self._returned[tp])
                self.positions[tp] = end
                self.cluster.count("read committed")
                self.cluster.trace(self.name, "read", tp.partition, end)

    @property
    def _is_damage_known(self) -> bool:
        return bool(self.cluster.rot.struck_disks)

    def _check(self, tp: TopicPartition, rows: Slice) -> None:
        header, key = rows.header, self.keys[tp]
        start = header.base_offset + rows.first_row
        if start < self.positions[tp] or start + rows.row_count != header.next_offset:
            raise Violation(f"{self.name}: {tp} at {self.positions[tp]}: {header}")
        self._compare(
            key, Entry(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
        )
        self._returned[tp].add(header.base_offset)
        self.positions[tp] = header.next_offset
        self._keep_values(key, start, rows)

    async def _commit(self, tp: TopicPartition) -> None:
        """Commit no position: in simulations of transactions only the copier's group commits
        offsets."""
