"""Writing what leaders propose: changes of in-sync replicas, gathered over all partitions.

Loop thread only. One write is under way at a time; what is proposed meanwhile goes with the next,
so that a broker that leads a thousand partitions loses a follower in a few writes. Each machine is
told what became of its proposal: written, or refused, after which the metadata says what is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, PartitionKey, ReplicaId, StateChange
from broker_lite.replication.events import Event, IsrRefused, IsrWritten
from broker_lite.server.metrics import Metrics

logger = logging.getLogger("logbus.isr")

PROPOSALS_PER_WRITE_MAX = 200
"""More wait for the next write, so that the first ones are not held up by a thousand."""
AGAIN_S = 0.2
"""After a failure that nobody expected."""


class Cluster(Protocol):
    """Who writes: the registry."""

    async def write_states(
        self, changes: Sequence[StateChange]
    ) -> Sequence[LeaderAndIsr | None]: ...


class Target(Protocol):
    """A replica that leads."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def topic(self) -> str: ...

    @property
    def isr(self) -> tuple[ReplicaId, ...]: ...

    def deliver(self, event: Event) -> None: ...


class IsrWrites:
    """The proposals of this broker's leaders."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, cluster: Cluster, metrics: Metrics
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._metrics = metrics
        self._waiting: list[tuple[Target, LeaderAndIsr]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def propose(self, target: Target, state: LeaderAndIsr) -> None:
        """Have ``state`` written if the znode is still of ``state.version``."""
        if self._closed:
            return
        self._waiting.append((target, state))
        if self._task is None:
            self._task = self._loop.create_task(self._write())

    def close(self) -> None:
        """Nothing more is written, and nobody is told."""
        self._closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        try:
            while self._waiting and not self._closed:
                part = self._waiting[:PROPOSALS_PER_WRITE_MAX]
                del self._waiting[:PROPOSALS_PER_WRITE_MAX]
                for (target, wanted), state in zip(part, await self._outcomes(part)):
                    try:
                        target.deliver(IsrRefused(wanted) if state is None else IsrWritten(state))
                    except Exception:
                        # One partition's trouble must not keep the others from their outcomes.
                        logger.exception("an outcome of %s", target)
        finally:
            self._task = None

    async def _outcomes(
        self, part: list[tuple[Target, LeaderAndIsr]]
    ) -> Sequence[LeaderAndIsr | None]:
        changes = [
            StateChange(target.topic, target.key.partition, state, target.key.topic_id)
            for target, state in part
        ]
        try:
            outcomes = await self._cluster.write_states(changes)
        except LogbusError as error:
            logger.warning("in-sync replicas cannot be changed now: %s", error)
            await asyncio.sleep(AGAIN_S)
            return [None] * len(part)
        except Exception:
            # Who is told nothing would propose nothing more in this epoch.
            logger.exception("in-sync replicas cannot be changed now")
            await asyncio.sleep(AGAIN_S)
            return [None] * len(part)
        self._metrics.count("isr_writes")
        for (target, _), state in zip(part, outcomes):
            if state is None:
                self._metrics.count("isr_writes_refused")
                continue
            if len(state.isr) != len(target.isr):
                more = len(state.isr) > len(target.isr)
                self._metrics.count("isr_expands" if more else "isr_shrinks")
            members = sorted(replica.broker_id for replica in state.isr)
            logger.info("%s: in sync are now %s", target, members)
        return outcomes
