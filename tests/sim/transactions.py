"""Run transactional clients beside the scenario's plain clients; check them at the end.

The clients are producers of transaction versions 1 and 2, a copier that commits its offsets in the
transaction, and read_committed readers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from sim.checker import Violation
from sim.cluster import SimCluster, pick
from sim.history import ACKS_ALL, History
from sim.scheduler import stream
from sim.sinks import Query
from sim.transaction_clients import (
    GROUP,
    NUMBERS,
    OUT,
    TIMEOUTS_MS,
    CommittedReader,
    Copier,
    Producer,
    Transactional,
)
from sim.transaction_truth import TransactionTruth
from sim.workload import Client, RowProducer, create_topic

from broker_lite.errors import LogbusError
from broker_lite.metadata import znodes
from broker_lite.model import TRANSACTION_STATE, PartitionKey
from broker_lite.server.handlers import find_coordinator
from broker_lite.transactions import keyed_state

STATE_PARTITIONS = 2
IDLE_IDS = 4
FINISH_S = 120.0
ENDS_S = max(TIMEOUTS_MS) / 1000 * 1.2 + 10.0
"""Seconds until every transaction has ended: the longest timeout, measured by the slowest clock,
plus ten seconds."""


@contextmanager
def small_state(copy_batches: int) -> Iterator[None]:
    """Use few partitions of transaction state. Write a full copy of the state often, in small
    parts."""
    names = ("COPY_BATCHES", "BATCH_BYTES")
    values = [getattr(keyed_state, name) for name in names]
    partitions = find_coordinator.STATE_PARTITIONS
    for name, value in zip(names, (copy_batches, 100)):
        setattr(keyed_state, name, value)
    find_coordinator.STATE_PARTITIONS = STATE_PARTITIONS
    try:
        yield
    finally:
        find_coordinator.STATE_PARTITIONS = partitions
        for name, value in zip(names, values):
            setattr(keyed_state, name, value)


class Transactions:
    """The transactional clients of one simulated run, and their topics."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.rng = stream(cluster.seed, "transactions")
        self.truth = TransactionTruth(cluster)
        self.numbers = History()
        self._processes = 0

    async def begin(self, admin: Client) -> list[Coroutine[Any, Any, None]]:
        """Create the topics; return the coroutines of the clients."""
        cluster, options, rng = self.cluster, self.cluster.options, self.rng
        factor = options.replication_factor
        config = {"segment.ms": "3000"} if rng.random() < 0.5 else {}
        partitions = pick(rng, (1, 2))
        self.out = await create_topic(admin, OUT, partitions, factor, config)
        self.truth.topics.add(self.out[0].topic_id)
        self.inputs = await create_topic(admin, NUMBERS, 1, factor, {})
        self.sources = [
            RowProducer(cluster, self.numbers, "number", self.inputs[0], ACKS_ALL),
        ]
        versions = (2, 1) if rng.random() < 0.5 else (2,)
        self.producers: list[Producer] = [
            Producer(cluster, self.truth, f"t{n}", version, partitions)
            for n, version in enumerate(versions)
        ]
        self.copier = Copier(
            cluster, self.truth, "copier", pick(rng, (2, 2, 1)), partitions, self.inputs
        )
        self.query = Query(cluster, self.truth, "sink", partitions)
        self.reader = self._reader("rc")
        clients: list[RowProducer | Producer | Query] = [
            *self.sources,
            *self.producers,
            self.copier,
        ]
        if options.sinks:
            clients.append(self.query)
        self._finishing: list[asyncio.Task[None]] = [
            cluster.loop.create_task(client.run()) for client in clients
        ]
        return [
            self.reader.run(),
            self.copier.look_at_offsets(),
            self._begin_idle(),
            self._watch_clients(),
        ]

    async def _begin_idle(self) -> None:
        """Initialise idle transactional ids. Each full copy that a leader of the transaction state
        log writes must contain them."""
        for number in range(IDLE_IDS):
            name = f"idle{number}"
            self._processes += 1
            client = Transactional(self.cluster, self.truth, name, f"{name}.{self._processes}")
            while True:
                try:
                    await client.begin()
                    break
                except LogbusError as error:
                    if not error.retriable:
                        raise Violation(f"{name}: the client reported {error!r}") from None

    def _reader(self, name: str) -> CommittedReader:
        return CommittedReader(self.truth, self.cluster, History(), name, OUT, self.out)

    async def _watch_clients(self) -> None:
        """Wait until a transactional client fails; raise the violation that the client found."""
        await asyncio.gather(*self._finishing)
        await asyncio.Event().wait()

    @property
    def keys(self) -> dict[str, list[PartitionKey]]:
        """Return the keys of the partitions that transactional clients use, by topic."""
        topic_id = self.truth.state_topic
        count = STATE_PARTITIONS if topic_id else 0
        state = [PartitionKey(topic_id, n) for n in range(count)]
        return {OUT: self.out, NUMBERS: self.inputs, TRANSACTION_STATE: state}

    async def check(self, settled: Callable[[list[PartitionKey], str], Awaitable[None]]) -> None:
        """Once all faults are healed, let the clients finish; then compare records and outcomes."""
        cluster, checker = self.cluster, self.cluster.checker
        everything = self.keys
        if any(checker.is_lost(key) for keys in everything.values() for key in keys):
            cluster.count("transactions where all in-sync disks were lost")
            for task in self._finishing:
                task.cancel()
            return
        for source in self.sources:
            source.is_stopping = True
        await self._finish(self._finishing[: len(self.sources)])
        for client in (*self.producers, self.copier, self.query):
            client.is_stopping = True
        await self._finish(self._finishing)
        # If a transactional id was lost, it gets another producer id here.
        await self._begin_idle()
        for topic, keys in self.keys.items():
            if keys:
                await settled(keys, topic)
        await self._ended()
        for process in cluster.processes.values():
            for key in self.out:
                if process.log(key) is not None:
                    self.truth.check_replica(process, key)
        await self._compare()

    async def _finish(self, tasks: list[asyncio.Task[None]]) -> None:
        try:
            async with asyncio.timeout(FINISH_S):
                await asyncio.gather(*tasks)
        except TimeoutError:
            raise Violation("transactional clients did not finish") from None

    async def _ended(self) -> None:
        """Wait until no transaction is open, no offset is pending, and the last stable offset of
        each partition has reached its high watermark.
        """
        try:
            async with asyncio.timeout(ENDS_S):
                while (open_one := self._open()) is not None:
                    await asyncio.sleep(0.25)
                    self.cluster.check()
        except TimeoutError:
            raise Violation(f"{ENDS_S:g} s after all faults were healed {open_one}") from None

    def _open(self) -> str | None:
        cluster = self.cluster
        unfinished = self.truth.unfinished()
        if unfinished is not None:
            return unfinished
        pending = cluster.zk.peek_children(znodes.pending_path(GROUP))
        if pending:
            return f"offsets are pending: {pending}"
        for key in self.out:
            state = cluster.checker.state(key)
            assert state is not None
            replicas = cluster.processes[state.leader].replicas
            assert replicas is not None
            stable = replicas.find_by_id(*key).last_stable_offset
            if stable != cluster.checker.true_end(key):
                return f"{key} is stable to {stable} of {cluster.checker.true_end(key)}"
        return None

    async def _compare(self) -> None:
        """Check that each committed transaction is complete and the copier copied each input number
        once."""
        whole = self._reader("rc whole")
        whole.rows = {}
        await whole.start()
        for reader in (whole, self.reader):
            try:
                async with asyncio.timeout(FINISH_S):
                    await reader.read_to_the_end(self.out)
            except TimeoutError:
                raise Violation(f"{reader.name} did not reach the end of the log") from None
        found = Counter(value for rows in whole.rows.values() for value in rows.values())
        twice = [value for value, count in found.items() if count > 1]
        if twice:
            raise Violation(f"{len(twice)} values are in the log twice: {twice[:3]}")
        for producer in (*self.producers, self.copier):
            for attempted in producer.attempted:
                there = [value for value in attempted.values if value in found]
                decided = self.truth.decided.get(attempted.pair)
                wanted = bool(decided) if attempted.is_committed is None else attempted.is_committed
                if len(there) != (len(attempted.values) if wanted else 0):
                    raise Violation(
                        f"{attempted.name} {attempted.pair}: {len(there)} of "
                        f"{len(attempted.values)} rows are there; answered: "
                        f"{attempted.is_committed}, decided: {decided}"
                    )
        self.query.check(value for value in found if value.startswith(b"sink:"))
        self._compare_numbers([value for value in found if value.startswith(b"copier:")])

    def _compare_numbers(self, found: list[bytes]) -> None:
        copied = Counter(value.split(b":", 4)[4] for value in found)
        sent = [value for row in self.numbers.sent for value in row.values]
        wrong = [value for value in sent if copied[value] != 1]
        if wrong or len(copied) != len(sent):
            raise Violation(
                f"{len(sent)} numbers, {len(copied)} copied, {len(wrong)} not once: {wrong[:3]}"
            )
        self.cluster.counts["numbers copied"] = len(sent)
