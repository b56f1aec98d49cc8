"""A topic with unclean leader elections, which may lose committed records.

While a seed runs, the topic's batches are not compared with the committed log. A consumer reads the
topic from the beginning, and drops the records that logbus reports as lost. At the end, all
replicas must be equal, and the consumer must have exactly the records of the log. If no election
was unclean, no record may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sim.checker import Entry, Violation, entries
from sim.cluster import SimCluster, pick
from sim.consumer import Consumer
from sim.history import ACKS_ALL, History
from sim.scheduler import stream
from sim.workload import Client, RowProducer, create_topic

from broker_lite.client.received import LogTruncatedError
from broker_lite.errors import LogbusError
from broker_lite.model import OffsetAndEpoch, PartitionKey, TopicPartition

LOSSY_TOPIC = "lossy"
CONFIG = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
CATCH_UP_S = 60.0


class LossyTopic:
    """A topic that allows unclean elections: one partition, two producers and a reader."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.history = History(is_lossy=True)
        self.rng = stream(cluster.seed, "lossy")

    async def begin(self, admin: Client) -> list[Coroutine[Any, Any, None]]:
        """Create the topic; return the coroutines of its clients."""
        cluster, copies = self.cluster, pick(self.rng, (2, 2, 3))
        cluster.checker.least_copies[LOSSY_TOPIC] = 1
        keys = await create_topic(admin, LOSSY_TOPIC, 1, copies, CONFIG)
        (self.key,) = keys
        cluster.checker.lossy_topics.add(self.key.topic_id)
        self.reader = LossyReader(cluster, self.history, "l0", LOSSY_TOPIC, keys)
        self.producers = [
            RowProducer(cluster, self.history, f"l{acks}", self.key, acks, is_once=True)
            for acks in (1, ACKS_ALL)
        ]
        return [self.reader.run(), *(producer.run() for producer in self.producers)]

    async def check(self, settled: Callable[[list[PartitionKey]], Awaitable[None]]) -> None:
        """Compare the replicas and the reader after all faults are healed."""
        last = RowProducer(self.cluster, self.history, "last", self.key, ACKS_ALL, is_once=True)
        mark = await last.send_one()
        await settled([self.key])
        whole = LossyReader(self.cluster, self.history, "all", LOSSY_TOPIC, [self.key])
        await whole.start()
        for reader in (whole, self.reader):
            try:
                async with asyncio.timeout(CATCH_UP_S):
                    await reader.read_to(self.key, mark)
            except TimeoutError:
                raise Violation(f"{reader.name} did not read {mark!r}") from None
        found = whole.of(self.key)
        self.history.check({self.key: found}, self.cluster.checker.unclean)
        _compare(self.reader.of(self.key), found)
        self._check_replicas()

    def _check_replicas(self) -> None:
        state = self.cluster.checker.state(self.key)
        assert state is not None
        logs = {}
        for replica in state.isr:
            log = self.cluster.processes[replica.broker_id].log(self.key)
            assert log is not None
            logs[replica.broker_id] = list(entries(log, 0, log.log_end_offset))
        if any(found != logs[state.leader] for found in logs.values()):
            raise Violation(f"{self.key}: the replicas differ: {logs}")


def _compare(kept: dict[int, bytes], found: dict[int, bytes]) -> None:
    for offset in range(max(len(kept), len(found))):
        if kept.get(offset) != found.get(offset):
            raise Violation(
                f"a reader that dropped all lost records has {kept.get(offset)!r} at {offset}; "
                f"the log has {found.get(offset)!r}"
            )


class LossyReader(Consumer):
    """A consumer with ``start="earliest"`` that drops records when logbus reports them as lost."""

    rewinds = False

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.rows = {}

    def of(self, key: PartitionKey) -> dict[int, bytes]:
        """Return the records that this consumer has read from a partition, by offset."""
        assert self.rows is not None
        return self.rows.setdefault(key, {})

    def _compare(self, key: PartitionKey, entry: Entry) -> None:
        """Skip the comparison with the committed log: a record may be lost after it was read."""

    def _out_of_range(self, tp: TopicPartition, error: LogbusError) -> None:
        is_cut = isinstance(error, LogTruncatedError)
        resume_at = OffsetAndEpoch(0)
        if isinstance(error, LogTruncatedError):
            resume_at = OffsetAndEpoch(error.offset, error.epoch)
        offset = resume_at.offset
        self.cluster.count(
            "cuts told to a consumer" if is_cut else "begins anew told to a consumer"
        )
        self.cluster.trace(self.name, "is told", offset)
        rows = self.of(self.keys[tp])
        for lost in [at for at in rows if at >= offset]:
            del rows[lost]
        self.positions[tp] = offset
        self._collector.resume_at(tp, resume_at)

    async def read_to(self, key: PartitionKey, mark: bytes) -> None:
        """Read a partition until the consumer has returned the record with the value ``mark``."""
        while mark not in self.of(key).values():
            self._woken.clear()
            self._take()
            if mark not in self.of(key).values():
                await self._woken.wait()
