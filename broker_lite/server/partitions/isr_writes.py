"""Write to ZooKeeper the ISR changes that the leaders on this broker propose, many in one write.

One write is in flight at a time; proposals that arrive meanwhile share the next one. A broker that
leads a thousand partitions thus removes a lost follower in a few writes. Each leader learns
whether its proposal was written or refused. After a refusal, it takes the current state from the
metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from broker_lite.errors import LogbusError
from broker_lite.model import LeaderAndIsr, PartitionKey, ReplicaId, StateChange, TopicPartition
from broker_lite.replication.events import Event, IsrRefused, IsrWritten
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Metrics

logger = logging.getLogger("logbus.isr")

PROPOSALS_PER_WRITE_MAX = 200
"""Maximum number of ISR changes in one write, so that the first need not wait for all others."""
RETRY_S = 0.2
"""Seconds from a failed write until its ISR changes are reported as refused.

The leaders then propose them again."""


class IsrCluster(Protocol):
    """Writes partition states to ZooKeeper."""

    async def write_states(
        self, changes: Sequence[StateChange]
    ) -> Sequence[LeaderAndIsr | None]: ...


class IsrTarget(Protocol):
    """The leader that proposed an ISR change, and that receives the outcome."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def topic(self) -> str: ...

    @property
    def isr(self) -> tuple[ReplicaId, ...]: ...

    def deliver(self, event: Event) -> None: ...


class IsrWrites:
    """The queue of the ISR changes that this broker's leaders propose."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, cluster: IsrCluster, metrics: Metrics
    ) -> None:
        self._loop = loop
        self._cluster = cluster
        self._metrics = metrics
        self._waiting: list[tuple[IsrTarget, LeaderAndIsr]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def propose(self, target: IsrTarget, state: LeaderAndIsr) -> None:
        """Queue the partition state ``state``, with the ISR that a leader proposes.

        The write succeeds only if the partition's znode still has the version ``state.version``."""
        if self._closed:
            return
        self._waiting.append((target, state))
        if self._task is None:
            self._task = self._loop.create_task(self._write())

    def close(self) -> None:
        """Drop the queued ISR changes and cancel the write in flight. Their replicas learn no
        outcome."""
        self._closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _write(self) -> None:
        try:
            while self._waiting and not self._closed:
                part = self._waiting[:PROPOSALS_PER_WRITE_MAX]
                del self._waiting[:PROPOSALS_PER_WRITE_MAX]
                for (target, proposed), state in zip(part, await self._outcomes(part)):
                    try:
                        target.deliver(IsrRefused(proposed) if state is None else IsrWritten(state))
                    except Exception:
                        # Log the error and go on, so that the other partitions of this write get
                        # their outcomes.
                        logger.exception("cannot deliver an ISR write's outcome to %s", target)
        finally:
            self._task = None

    async def _outcomes(
        self, part: list[tuple[IsrTarget, LeaderAndIsr]]
    ) -> Sequence[LeaderAndIsr | None]:
        changes = [
            StateChange(target.topic, target.key.partition, state, target.key.topic_id)
            for target, state in part
        ]
        try:
            outcomes = await self._cluster.write_states(changes)
        except LogbusError as error:
            logger.warning(
                "cannot write ISR changes; retrying: %s", error, extra=log_event("isr_write_failed")
            )
            await asyncio.sleep(RETRY_S)
            return [None] * len(part)
        except Exception:
            # Report the proposals as refused: a leader that gets no outcome would never propose
            # again in this leader epoch.
            logger.exception("cannot write ISR changes; retrying")
            await asyncio.sleep(RETRY_S)
            return [None] * len(part)
        for (target, _), state in zip(part, outcomes):
            if state is None:
                self._metrics.count("isr_changes", "refused")
                continue
            if len(state.isr) != len(target.isr):
                more = len(state.isr) > len(target.isr)
                self._metrics.count("isr_changes", "expand" if more else "shrink")
            members = sorted(replica.broker_id for replica in state.isr)
            logger.info(
                "%s: the ISR is now %s",
                target,
                members,
                extra=log_event(
                    "isr_changed", tp=TopicPartition(target.topic, target.key.partition)
                ),
            )
        return outcomes
