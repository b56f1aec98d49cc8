"""Send the commit and abort markers of transactions to partition leaders and to group coordinators.

A marker is repeated without a time limit until the receiver confirms it, because the decision is
committed and read_committed consumers wait for the marker. Markers for one broker that are due in
the same iteration of the event loop share a request. A transaction coordinator that lost its
leadership stops sending; the next one loads the decision and sends the markers.

A partition of a deleted topic needs no marker. A topic that the metadata lack may be new, so
ZooKeeper must confirm the deletion."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker_lite.errors import (
    NO_ERROR,
    CoordinatorNotAvailableError,
    LogbusError,
    NotLeaderError,
    TransactionCoordinatorFencedError,
    UnknownTopicOrPartitionError,
    error_for,
)
from broker_lite.model import NO_BROKER, PartitionKey
from broker_lite.server.cluster.peers import BrokerCalls
from broker_lite.server.cluster.registry import Registry
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.task_set import TaskSet
from broker_lite.transactions.effects import SendMarkers
from broker_lite.transactions.events import Participating
from broker_lite.wire.calls.broker_transactions import (
    MarkedTopic,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from broker_lite.wire.calls.group_transactions import EndGroupOffsetsRequest

logger = logging.getLogger("logbus.transactions")

RETRY_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds before the first and each further retry of a marker. The last value repeats."""
PARTITIONS_PER_CALL = 2_000
"""Maximum number of partitions in one WriteTxnMarkers request, which takes 3 ms of the receiver's
event loop."""


@dataclass(slots=True, eq=False)
class MarkerJob:
    """The markers to send for one transaction.

    ``state_partition`` is the transaction's partition of ``__transaction_state``, ``epoch`` its
    leader epoch. ``done`` is called once for each participant (partition or group) that confirmed
    its marker. The coordinator sets ``is_cancelled`` when it loses the leadership."""

    transactional_id: str
    markers: SendMarkers
    state_partition: int
    epoch: int
    done: Callable[[Participating], None]
    is_cancelled: bool = False


@dataclass(slots=True)
class _Marker:
    """One marker of a ``MarkerJob``: for a partition, or for a group's offsets. ``attempt`` counts
    failures."""

    job: MarkerJob
    participant: Participating
    attempt: int = 0


class MarkerSender:
    """Sends all transaction markers of one broker."""

    def __init__(self, registry: Registry, calls: BrokerCalls, groups: GroupCoordinator) -> None:
        self._registry = registry
        self._calls = calls
        self._groups = groups
        self._queued: dict[int, list[_Marker]] = {}
        """Markers to send at the end of this event loop iteration, by the partition leader's id."""
        self._absent: list[_Marker] = []
        """Markers for topics that the metadata lack. ``_end_deleted`` reads from ZooKeeper whether
        these topics are deleted."""
        self._is_flush_due = False
        self._tasks = TaskSet()
        self._timers: set[asyncio.TimerHandle] = set()

    def send_soon(self, job: MarkerJob) -> None:
        """Send a transaction's markers in the next iteration of the event loop.

        The request that ended the transaction is thus answered first."""
        asyncio.get_running_loop().call_soon(self._send, job)

    def _send(self, job: MarkerJob) -> None:
        for key in sorted(job.markers.partitions):
            self._begin(_Marker(job, key))
        for group in sorted(job.markers.groups):
            self._begin(_Marker(job, group))

    def close(self) -> None:
        """Stop sending; the next coordinator sends the markers that are not confirmed."""
        self._tasks.cancel()
        for timer in self._timers:
            timer.cancel()

    def _begin(self, marker: _Marker) -> None:
        if marker.job.is_cancelled:
            return
        if not isinstance(marker.participant, PartitionKey):
            self._tasks.start(self._end_group(marker, marker.participant))
            return
        snapshot = self._registry.snapshot
        if marker.participant.topic_id not in snapshot.topics_by_id:
            self._absent.append(marker)
            self._flush_soon()
            return
        view = snapshot.partition_by_key(marker.participant)
        leader = NO_BROKER if view is None else view.state.leader
        if leader == NO_BROKER:
            self._retry(marker, NotLeaderError(f"{marker.participant} has no leader"))
            return
        self._queued.setdefault(leader, []).append(marker)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        queued, self._queued = self._queued, {}
        absent, self._absent = self._absent, []
        for broker_id, markers in queued.items():
            self._tasks.start(self._write_all(broker_id, markers))
        if absent:
            self._tasks.start(self._end_deleted(absent))

    async def _end_deleted(self, markers: Sequence[_Marker]) -> None:
        """Report the markers for deleted topics as done. Retry the others: their topics may be too
        new for the metadata."""
        keys = [marker.participant for marker in markers]
        topic_ids = {key.topic_id for key in keys if isinstance(key, PartitionKey)}
        try:
            deleted = await self._registry.deleted_topics(topic_ids)
        except LogbusError as error:
            for marker in markers:
                self._retry(marker, error)
            return
        for marker, key in zip(markers, keys):
            assert isinstance(key, PartitionKey)
            if key.topic_id not in deleted:
                self._retry(marker, UnknownTopicOrPartitionError(f"{key} is not in the metadata"))
            elif not marker.job.is_cancelled:
                marker.job.done(key)

    async def _write_all(self, broker_id: int, markers: Sequence[_Marker]) -> None:
        """Send markers to a broker in requests of limited size, one after another.

        Sent together, they would block the receiver's event loop for long."""
        for at in range(0, len(markers), PARTITIONS_PER_CALL):
            await self._write(broker_id, markers[at : at + PARTITIONS_PER_CALL])

    async def _write(self, broker_id: int, markers: Sequence[_Marker]) -> None:
        topics = self._registry.snapshot.topics_by_id
        jobs: dict[MarkerJob, dict[str, list[int]]] = {}
        sent: dict[tuple[int, str, int], _Marker] = {}
        for marker in markers:
            key, job = marker.participant, marker.job
            assert isinstance(key, PartitionKey)
            view = topics.get(key.topic_id)
            if view is None:
                self._begin(marker)
                continue
            jobs.setdefault(job, {}).setdefault(view.name, []).append(key.partition)
            sent[job.markers.producer_id, view.name, key.partition] = marker
        if not sent:
            return
        request = WriteTxnMarkersRequest(
            tuple(
                TransactionMarker(
                    job.markers.producer_id,
                    job.markers.epoch,
                    job.markers.is_commit,
                    tuple(MarkedTopic(name, tuple(rows)) for name, rows in names.items()),
                    job.epoch,
                    job.markers.version,
                    job.markers.transaction,
                    job.state_partition,
                )
                for job, names in jobs.items()
            )
        )
        try:
            answer = await self._calls.send(broker_id, request)
        except LogbusError as error:
            for marker in sent.values():
                self._retry(marker, error)
            return
        for row in answer.rows:
            answered = sent.pop((row.producer_id, row.name, row.partition), None)
            if answered is not None:
                self._judge(answered, row.error_code)
        for marker in sent.values():
            self._retry(
                marker,
                CoordinatorNotAvailableError(
                    f"broker {broker_id} did not answer the request with the marker"
                ),
            )

    async def _end_group(self, marker: _Marker, group: str) -> None:
        """Let a group's coordinator commit or drop the transaction's offsets (logbus's API
        EndGroupOffsets)."""
        job = marker.job
        coordinator = self._groups.coordinator_of(group)
        if coordinator is None:
            self._retry(
                marker,
                CoordinatorNotAvailableError(
                    "no broker is registered that could coordinate the group"
                ),
            )
            return
        request = EndGroupOffsetsRequest(
            group,
            job.markers.producer_id,
            job.markers.open_epoch,
            job.markers.transaction,
            job.state_partition,
            job.epoch,
            job.markers.is_commit,
        )
        try:
            answer = await self._calls.send(coordinator.broker_id, request)
        except LogbusError as error:
            self._retry(marker, error)
        else:
            self._judge(marker, answer.error_code)

    def _judge(self, marker: _Marker, code: int) -> None:
        job = marker.job
        if job.is_cancelled:
            return
        if code == NO_ERROR:
            job.done(marker.participant)
        elif code == TransactionCoordinatorFencedError.code:
            logger.info(
                "%s: %s has a higher coordinator epoch; this coordinator stops sending the marker",
                job.transactional_id,
                marker.participant,
            )
        else:
            self._retry(marker, error_for(code))

    def _retry(self, marker: _Marker, error: LogbusError) -> None:
        job = marker.job
        if job.is_cancelled:
            return
        wait_s = RETRY_S[min(marker.attempt, len(RETRY_S) - 1)]
        level = logging.WARNING if wait_s == RETRY_S[-1] else logging.DEBUG
        logger.log(
            level,
            "%s: the marker for %s is sent again in %g s: %s",
            job.transactional_id,
            marker.participant,
            wait_s,
            error,
        )
        marker.attempt += 1
        loop = asyncio.get_running_loop()

        def again() -> None:
            self._timers.discard(timer)
            self._begin(marker)

        timer = loop.call_later(wait_s, again)
        self._timers.add(timer)
