"""A query with Spark's exactly-once sink: drivers and task attempts that fail, race and die.

A driver runs batches in order. It starts attempts of each task until all rows of one attempt are
acknowledged. Some attempts fail, and some race another attempt and continue as zombies. The driver
commits the batch with the first successful attempt of each task. A driver may die before or after
the commit, or continue as a zombie beside the next driver. The next driver repeats the batch that
the query's commit log lacks.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from typing import Any

import pyarrow as pa
from sim.checker import Violation
from sim.clients import SimShell
from sim.cluster import SimCluster
from sim.scheduler import stream
from sim.transaction_clients import OUT
from sim.transaction_truth import Pair, TransactionTruth

from broker_lite.client.operations.cluster import Cluster
from broker_lite.client.operations.group_requests import CachedCoordinator
from broker_lite.client.operations.sink_requests import SinkCall, ask_sink
from broker_lite.client.producing.accumulator import Chunk
from broker_lite.client.producing.batches import ProducerIdentity
from broker_lite.client.producing.sender import Sender
from broker_lite.client.transport.steps import spawn
from broker_lite.config import ProducerConfig
from broker_lite.errors import (
    LogbusError,
    ProducerFencedError,
    SinkAheadOfCheckpointError,
    SinkRowsDifferError,
)
from broker_lite.model import NO_PRODUCER, Endpoint
from broker_lite.record.arrow import Columns
from broker_lite.wire.calls.sinks import (
    EndBatchRequest,
    JoinBatchRequest,
    KeepBatchRequest,
    SinkResponse,
)

TASKS = 2
TIMEOUT_MS = 6_000
FAILS, RACES, DRIVER_DIES, DRIVER_STAYS = 0.08, 0.2, 0.15, 0.08


class TaskFailedError(Exception):
    """Raised when a task attempt fails before it writes its rows."""


class Worker:
    """A process of the query: a driver or an attempt of a task."""

    def __init__(self, cluster: SimCluster, sink: str, label: str) -> None:
        self.cluster = cluster
        self.label = label
        shell = self.shell = SimShell(cluster, label)
        endpoints = tuple(Endpoint("sim", broker_id) for broker_id in cluster.disks)
        self.view = Cluster(endpoints, shell.now_ms)
        self.known = CachedCoordinator(sink)
        self.config = ProducerConfig(
            transactional_id=sink, request_timeout_ms=4_000, delivery_timeout_ms=20_000
        )

    async def ask(self, request: SinkCall, timeout_ms: float = TIMEOUT_MS) -> SinkResponse:
        """Send a request to the transaction coordinator that serves the sink, with retries. Raise
        the response's error."""
        found: asyncio.Future[Any] = self.cluster.loop.create_future()

        def done(result: Any) -> None:
            if not found.done():
                found.set_result(result)

        deadline_ms = self.shell.now_ms() + timeout_ms
        spawn(self.shell, ask_sink(self.view, self.known, request, deadline_ms), done)
        result = await found
        self.cluster.trace(self.label, type(request).__name__, type(result).__name__)
        if isinstance(result, LogbusError):
            raise result
        answer: SinkResponse = result
        return answer

    async def write(self, identity: ProducerIdentity, partition: int, values: list[bytes]) -> None:
        """Send rows and wait for their acknowledgement; raises the first failure."""
        finished = asyncio.Event()
        sender = Sender(
            self.shell,
            self.view,
            self.config,
            on_released=lambda size: None,
            on_finished=lambda outcome: finished.set(),
        )
        sender.delivery.added = None
        sender.delivery.set_identity(identity)
        chunk = Chunk(
            OUT,
            threading.Condition(),
            lambda outcome: finished.set(),
            columns=Columns(len(values), None, pa.array(values, pa.binary()), None, None),
            requested=partition,
            size_bytes=sum(map(len, values)),
            timestamp_ms=int(1_735_689_600_000 + self.cluster.loop.now * 1000),
        )
        chunk.add_done_callback(lambda _: finished.set(), chunk)
        sender.inbox.append(chunk)
        sender.wake()
        while not finished.is_set():
            await asyncio.wait_for(finished.wait(), None)
        if chunk.error is not None:
            raise chunk.error
        if sender.delivery.failure is not None:
            raise sender.delivery.failure


class Query:
    """A Spark query; ``committed`` is the last batch in its commit log."""

    def __init__(
        self, cluster: SimCluster, truth: TransactionTruth, name: str, partitions: int
    ) -> None:
        self.cluster = cluster
        self.truth = truth
        self.name = name
        self.partitions = partitions
        self.rng = stream(cluster.seed, name)
        self.committed = -1
        self.is_stopping = False
        self._runs = 0
        self._attempts = 0
        self._loose: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Run one driver of the query after the other until ``is_stopping``."""
        while not self.is_stopping:
            self._runs += 1
            run = f"run{self._runs}"
            try:
                await self._drive(run)
            except (TaskFailedError, LogbusError) as error:
                self.cluster.trace(self.name, run, type(error).__name__)
                if isinstance(error, SinkAheadOfCheckpointError | SinkRowsDifferError):
                    raise Violation(f"{self.name} {run}: {error}") from None
            await asyncio.sleep(self.rng.choice((0.1, 1.0, 9.0)) * self.rng.random())
        for task in self._loose:
            task.cancel()

    async def _drive(self, run: str) -> None:
        rng, driver = self.rng, Worker(self.cluster, self.name, f"{self.name} {run}")
        while not self.is_stopping:
            batch = self.committed + 1
            results = await asyncio.gather(*(self._task(run, batch, task) for task in range(TASKS)))
            winners = tuple(pair for pair in results if pair is not None)
            request = EndBatchRequest(
                self.name, run, batch, True, sum(_rows(batch, n) for n in range(TASKS)), winners
            )
            if rng.random() < DRIVER_STAYS:
                # Start the next driver, and let this driver commit late.
                self._spawn(self._commit_late(driver, request))
                return
            if rng.random() < DRIVER_DIES / 2:
                return
            await driver.ask(request, 4 * TIMEOUT_MS)
            wrong = [pair for pair in winners if self.truth.decided.get(Pair(*pair)) is not True]
            if wrong:
                raise Violation(
                    f"{self.name}: batch {batch} was acknowledged, but is not committed: {wrong}"
                )
            if rng.random() < DRIVER_DIES / 2:
                return
            self.committed = batch
            self.cluster.count("committed batches")
            await asyncio.sleep(rng.random() * self.cluster.options.think_s)

    async def _commit_late(self, driver: Worker, request: EndBatchRequest) -> None:
        await asyncio.sleep(self.rng.random() * 3)
        await driver.ask(request)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background; return a task whose result is the coroutine's value
        or error."""

        async def quietly() -> Any:
            try:
                return await work
            except (LogbusError, TaskFailedError) as error:
                self.cluster.trace(self.name, "alone", type(error).__name__)
                return error

        task = self.cluster.loop.create_task(quietly())
        self._loose.add(task)
        task.add_done_callback(self._loose.discard)
        return task

    async def _task(self, run: str, batch: int, task: int) -> tuple[int, int] | None:
        """Run attempts of a Spark task; return the producer id and epoch of the first that
        succeeds."""
        for _ in range(4):
            attempts = [self._spawn(self._attempt(run, batch, task))]
            if self.rng.random() < RACES:
                attempts.append(self._spawn(self._attempt(run, batch, task)))
            left: Iterable[asyncio.Task[Any]] = attempts
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for each in attempts:
                    if each in done and not isinstance(each.result(), Exception):
                        return each.result()  # type: ignore[no-any-return]
                    if each in done and isinstance(each.result(), ProducerFencedError):
                        raise each.result()
        raise TaskFailedError()

    async def _attempt(self, run: str, batch: int, task: int) -> tuple[int, int] | None:
        """Write the rows of a Spark task; return the producer id and epoch, or None if the batch is
        already committed."""
        self._attempts += 1
        attempt, rng = self._attempts, self.rng
        worker = Worker(self.cluster, self.name, f"{self.name} attempt {attempt}")
        await asyncio.sleep(rng.choice((0.0, 0.2)) * rng.random())
        join = JoinBatchRequest(self.name, run, batch, task, attempt, TIMEOUT_MS)
        answer = await worker.ask(join)
        if answer.producer_id == NO_PRODUCER:
            return None
        identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        keeper = self.cluster.loop.create_task(self._keep(worker, run, batch))
        try:
            if rng.random() < FAILS:
                raise TaskFailedError()
            values = [
                f"sink:{batch}:{task}:{row}:{attempt}".encode() for row in range(_rows(batch, task))
            ]
            await asyncio.sleep(rng.choice((0.0, 0.0, 2.0)) * rng.random())
            await worker.write(identity, rng.randrange(self.partitions), values)
        except (TaskFailedError, LogbusError):
            # Without its commit message the driver cannot commit the attempt: count it as aborted.
            self.truth.decided.setdefault(Pair(*identity), False)
            failed = EndBatchRequest(self.name, run, batch, False, winners=(identity,))
            self._spawn(worker.ask(failed, TIMEOUT_MS / 3))
            raise
        finally:
            keeper.cancel()
        return answer.producer_id, answer.producer_epoch

    async def _keep(self, worker: Worker, run: str, batch: int) -> None:
        while True:
            await asyncio.sleep(TIMEOUT_MS / 3000)
            try:
                await worker.ask(KeepBatchRequest(self.name, run, batch), TIMEOUT_MS / 3)
            except LogbusError:
                continue

    def check(self, values: Iterable[bytes]) -> None:
        """Check that each task of each committed batch has the rows of exactly one attempt."""
        found: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
        for value in values:
            batch, task, row, attempt = map(int, value.split(b":")[1:])
            found[batch, task][attempt].add(row)
        for place, attempts in found.items():
            if len(attempts) != 1 or [*attempts.values()] != [set(range(_rows(*place)))]:
                raise Violation(f"{self.name}: batch and task {place} have {dict(attempts)}")
        batches = {batch for batch, _ in found}
        for batch in batches | set(range(self.committed + 1)):
            if any((batch, task) not in found for task in range(TASKS)):
                raise Violation(f"{self.name}: batch {batch} of {self.committed} is incomplete")


def _rows(batch: int, task: int) -> int:
    return 1 + (batch + task) % 3
