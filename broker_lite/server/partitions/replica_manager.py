"""The partition replicas of this broker: create, find and remove them, and append produced batches.

``ReplicaManager.apply`` compares each metadata snapshot with the present replicas. It identifies
replicas by topic id, so a topic that was deleted and created anew gets a new log. It deletes the
replicas of deleted topics and of partitions that were reassigned to other brokers. A failure of the
data directory takes all replicas offline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from broker_lite.config import BrokerConfig, TopicConfig, min_insync
from broker_lite.errors import (
    CoordinationUnavailableError,
    LogbusError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownServerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WriteConflictError,
)
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.model import (
    NO_OFFSET,
    LeaderAndIsr,
    PartitionKey,
    PartitionView,
    ReplicaId,
    StateChange,
    TopicView,
)
from broker_lite.record.control import Marker
from broker_lite.replication.events import (
    ACKS_ALL,
    ACKS_LEADER,
    Appended,
    AppendRequested,
    Closed,
    CorruptionFound,
    LeaderAndIsrChanged,
    ReplicaLimits,
    StorageFailed,
)
from broker_lite.replication.partition import Partition
from broker_lite.server.clock import Clock
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Labels, Metrics, Read, in_slices
from broker_lite.server.network.quotas import Spent, uncounted
from broker_lite.server.partitions.disk import AppendBatch, Disk, MarkerBatch
from broker_lite.server.partitions.follower_fetch import FollowerFetches
from broker_lite.server.partitions.full_disk import FullDisk
from broker_lite.server.partitions.isr_writes import IsrWrites
from broker_lite.server.partitions.pending_produces import PendingProduces, Produced
from broker_lite.server.partitions.purgatory import Waiters
from broker_lite.server.partitions.replica import Replica, as_storage_error
from broker_lite.server.partitions.replica_fetcher import Fetchers, PeerNet
from broker_lite.server.partitions.ticks import Ticks
from broker_lite.server.partitions.topic_configs import TopicConfigs
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager

logger = logging.getLogger("logbus.replicas")

RETRY_S = 1.0
"""Seconds between two attempts at a log operation that found no disk space, and between two
attempts to hand over leadership."""


class ReplicaCluster(Protocol):
    """The metadata, and what replicas write to ZooKeeper; ``Registry`` has both."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def broker_epochs(self) -> frozenset[int]: ...

    async def write_states(
        self, changes: Sequence[StateChange]
    ) -> Sequence[LeaderAndIsr | None]: ...

    async def drain(self) -> None: ...

    async def set_full(self, is_full: bool) -> None: ...


class ReplicaManager:
    """All partition replicas of one broker.

    The caller must have opened and recovered ``logs``. ``net`` sends fetch requests to other
    brokers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        logs: LogManager,
        metrics: Metrics,
        cluster: ReplicaCluster,
        net: PeerNet,
    ) -> None:
        self.clock = clock
        self.disk = disk
        self.refused = logs.data.refused
        self.unread_cached_bytes = config.unread_cached_bytes
        self.local = ReplicaId(config.broker_id, logs.data.directory_id)
        self._loop = loop
        self.call_soon = disk.call_soon
        self._config = config
        self._logs = logs
        self._metrics = metrics
        self.traffic = metrics.traffic
        self.corrupt_reads = metrics.counter("corrupt_batches", "read")
        self._corrupt_recoveries = metrics.counter("corrupt_batches", "recovery")
        self._cluster = cluster
        self._configs = TopicConfigs()
        self._failure: LogbusError | None = None
        self._handover: asyncio.Task[None] | None = None
        self._snapshot = MetadataSnapshot()
        self._has_applied = self._closed = False
        self._replicas: dict[PartitionKey, Replica] = {}
        self._by_name: dict[tuple[str, int], Replica] = {}
        self._creating: dict[PartitionKey, Waiters] = {}
        self._deleting: set[PartitionKey] = set()
        self._role_callbacks: dict[str, Callable[[Replica], None]] = {}
        self._produces = PendingProduces(loop, clock, metrics)
        self._ticks = Ticks(loop, clock, config.replica_lag_ms)
        self._full_disk = FullDisk(loop, cluster=cluster, disk=disk, logs=logs)
        self.fetchers = Fetchers(loop, config, net=net, cluster=cluster, metrics=metrics)
        self.isr_writes = IsrWrites(loop, cluster=cluster, metrics=metrics)
        self.follower_fetches = FollowerFetches(
            loop, config, clock=clock, replicas=self, cluster=cluster, disk=disk, metrics=metrics
        )
        self._declare_gauges(metrics.gauge)

    def _declare_gauges(self, gauge: Callable[[str, Read], None]) -> None:
        gauge("partitions", self._partitions_by_role)
        gauge(
            "under_replicated_partitions",
            lambda: in_slices(self._ticks.replicated, lambda r: r.is_under_replicated),
        )
        gauge(
            "under_min_isr_partitions",
            lambda: in_slices(self.replicas, lambda r: r.is_below_min_isr),
        )
        gauge(
            "replica_lag_records_max",
            lambda: in_slices(self._ticks.replicated, lambda r: r.lag, max),
        )
        gauge("replica_lag_seconds_max", self._lag_seconds)
        gauge(
            "last_stable_offset_lag_records_max",
            lambda: in_slices(self.replicas, lambda r: r.unstable_count, max),
        )
        directory = (self._logs.data.path,)
        gauge("log_size_bytes", self._log_bytes)
        gauge(
            "log_segments",
            lambda: in_slices(self.replicas, lambda r: r.log.reader.segment_count),
        )
        gauge("disk_full", lambda: {directory: self._logs.data.is_full})
        gauge("disk_failed", lambda: {directory: self._logs.data.failed})
        gauge("stray_partitions", lambda: self._logs.stray_count)
        gauge("produces_waiting", lambda: len(self._produces))

    def _lag_seconds(self) -> Generator[None, None, float]:
        now_ms = self.clock.monotonic_ms()
        return (
            yield from in_slices(self._ticks.replicated, lambda r: r.lag_ms(now_ms) / 1000, max)
        )

    def _partitions_by_role(self) -> Generator[None, None, Mapping[Labels, float]]:
        every = self.replicas
        led = yield from in_slices(every, lambda r: r.role.is_leader)
        return {("leader",): led, ("follower",): len(every) - led}

    def _log_bytes(self) -> Generator[None, None, Mapping[Labels, float]]:
        size = yield from in_slices(self.replicas, lambda r: r.log.reader.size_bytes)
        return {(self._logs.data.path,): size}

    # Methods that look up replicas.

    def find(self, topic: str, partition: int) -> Replica:
        """Return the local replica of a partition, whether or not it leads.

        Raises UnknownTopicOrPartitionError if the partition does not exist, NotLeaderError if this
        broker has no replica of it, and StorageError if the data directory failed."""
        replica = self._by_name.get((topic, partition))
        if replica is not None:
            return replica
        view = self._snapshot.topics.get(topic)
        if view is None:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
        raise self._absent(view, partition)

    def find_by_id(self, topic_id: str, partition: int) -> Replica:
        """Return the local replica of a partition by topic id.

        Raises UnknownTopicIdError if no topic has the id, and the other errors of ``find``."""
        replica = self._replicas.get(PartitionKey(topic_id, partition))
        if replica is not None:
            return replica
        view = self._snapshot.topics_by_id.get(topic_id)
        if view is None:
            raise UnknownTopicIdError(f"no topic has id {topic_id}; refresh the metadata")
        raise self._absent(view, partition)

    @property
    def is_creating_logs(self) -> bool:
        """Whether any log is being created. If not, ``defer`` need not be called."""
        return bool(self._creating)

    def defer(self, topic: str, partition: int, by_id: bool, call: Callable[[], None]) -> bool:
        """Call ``call`` once the partition's log has been created. Return False if no creation is
        in progress. With ``by_id``, ``topic`` is a topic id.

        A new topic is in the metadata before its leaders have created their logs. If brokers
        refused produce requests in that time, producers would use up their retries."""
        if not self._creating:
            return False
        view = (self._snapshot.topics_by_id if by_id else self._snapshot.topics).get(topic)
        key = None if view is None else PartitionKey(view.topic_id, partition)
        waiters = None if key is None else self._creating.get(key)
        if waiters is not None:
            waiters.add(call)
        return waiters is not None

    def _absent(self, view: TopicView, partition: int) -> LogbusError:
        if view.partition(partition) is None:
            return UnknownTopicOrPartitionError(
                f"topic {view.name!r} has {len(view.partitions)} partitions; "
                f"partition {partition} does not exist"
            )
        if self._failure is not None:
            return self._failure.with_traceback(None)
        return NotLeaderError(
            f"this broker does not lead {view.name}-{partition}; refresh the metadata"
        )

    @property
    def replicas(self) -> list[Replica]:
        return list(self._replicas.values())

    # Methods that append, and that report changes of roles.

    def append(
        self, replica: Replica, acks: int, batch: AppendBatch, deadline_ms: int, done: Produced
    ) -> None:
        """Append a batch. ``done`` is called once: with the result, the error, or the timeout.

        The result comes when the condition of ``acks`` is met, with acks=0 after the append.
        ``deadline_ms`` is monotonic time."""
        token = self._produces.add(deadline_ms, done)
        if batch.header.is_columns:
            replica.pending_columns.add(token)
        acks = ACKS_ALL if acks == ACKS_ALL else ACKS_LEADER
        self._request(replica, AppendRequested(token, acks, batch, batch.header.record_count))

    def _request(self, replica: Replica, event: AppendRequested) -> None:
        now_ms = self.clock.monotonic_ms()
        replica.crc_cache.appending(now_ms, replica.role.log_end_offset)
        replica.carry_out(replica.role.step(now_ms, event))
        self._ticks.appended(replica)

    async def append_markers(
        self, replica: Replica, markers: Sequence[Marker], deadline_ms: int
    ) -> Sequence[LogbusError | None]:
        """Append transaction markers with acks=all. Return the error of each marker, or None.

        A marker that the log already has is not appended again; it succeeds when the high watermark
        reaches the log end offset. A marker of an earlier transaction than the producer's current
        one is left out and succeeds. Raises the error of a failed append."""
        end = replica.participant.end
        # ``end`` needs the epoch of the transaction. A marker with ``raises_epoch`` carries the
        # next epoch, with which ``end`` would also drop the verification of the producer's next
        # transaction, whose first batch may be waiting.
        current = [
            end(m.producer_id, m.producer_epoch - m.raises_epoch, m.transaction_number)
            for m in markers
        ]
        batch = MarkerBatch(tuple(m for m, is_current in zip(markers, current) if is_current))
        if not batch.markers:
            return [None] * len(markers)
        written: asyncio.Future[Appended] = self._loop.create_future()

        def done(appended: Appended | None, error: LogbusError | None) -> None:
            if written.cancelled():
                return
            if appended is not None:
                written.set_result(appended)
            else:
                written.set_exception(error or UnknownServerError())

        token = self._produces.add(deadline_ms, done)
        self._request(replica, AppendRequested(token, ACKS_ALL, batch, len(batch.markers)))
        errors = iter((await written).errors)
        return [next(errors) if is_current else None for is_current in current]

    def replied(self, token: int, appended: Appended | None, error: LogbusError | None) -> None:
        """Pass the result of an append, or the error, to the produce request with this token."""
        self._produces.complete(token, appended, error)

    def on_role_change(self, topic: str, callback: Callable[[Replica], None]) -> None:
        """Call ``callback`` after each change of role or leader epoch of a local replica of the
        topic.

        ``callback`` is also called at once for each local replica. It may be called without a
        change."""
        self._role_callbacks[topic] = callback
        for replica in self.replicas:
            self.role_changed(replica)

    def role_changed(self, replica: Replica) -> None:
        callback = self._role_callbacks.get(replica.topic)
        if callback is not None:
            callback(replica)

    # Methods that create, change and remove replicas as the metadata require.

    def apply(self, snapshot: MetadataSnapshot) -> None:
        """Create, change and remove replicas to match the metadata snapshot."""
        before, self._snapshot = self._snapshot, snapshot
        for view in snapshot.topics.values():
            if before.topics.get(view.name) is view and not self._is_leader_renewed(view):
                continue
            config = self._configs.of(view)
            for partition in view.partitions:
                if self.local.broker_id in partition.replicas:
                    self._apply_partition(view, partition, config)
        for key, replica in list(self._replicas.items()):
            if key.topic_id not in snapshot.topics_by_id:
                self._remove(replica, f"topic {replica.topic!r} was deleted")
            elif not self._is_mine(key):
                self._remove(replica, f"{replica} was reassigned to other brokers")
        if not self._has_applied:
            self._has_applied = True
            self._set_aside_strays(snapshot)

    def _is_mine(self, key: PartitionKey) -> bool:
        """Return whether this broker is assigned to the partition or in its ISR."""
        view = self._snapshot.partition_by_key(key)
        return view is not None and (
            self.local.broker_id in view.replicas or self.local in view.state.isr
        )

    def _set_aside_strays(self, snapshot: MetadataSnapshot) -> None:
        """Rename the logs that the metadata do not assign to this broker.

        The broker deletes such a log only later, because the log's topic may be missing in
        ZooKeeper by mistake."""
        moved = [key for key in self._logs.logs if not self._is_mine(key)]
        strays = [key for key in moved if key.topic_id not in snapshot.topics_by_id]
        for key in moved:
            if key not in strays:
                logger.warning(
                    "%s: reassigned to other brokers while this broker was down; "
                    "moving its log to the stray logs",
                    key,
                    extra=log_event("replica_set_aside"),
                )
                self._forget_log(key, self._logs.set_aside, "set aside")
        if not strays:
            return
        logger.error(
            "%d logs in %s belong to topics that are not in ZooKeeper, e.g. %s. They are "
            "set aside and deleted after stray.retention.ms=%d. If the topics were deleted while "
            "this broker was down, nothing is wrong; to delete the logs now: "
            "logbus storage strays %s --delete. If ZooKeeper was restored from an older state, "
            "stop the brokers and restore a newer one: the logs return with their topics",
            len(strays),
            self._logs.data.path,
            strays[0],
            self._config.stray_retention_ms,
            self._logs.data.path,
            extra=log_event("stray_logs"),
        )
        for key in strays:
            self._forget_log(key, self._logs.set_aside, "set aside")

    def _is_leader_renewed(self, view: TopicView) -> bool:
        """Return whether the metadata name this broker leader of a partition whose local replica
        does not lead yet.

        This may be so although the topic has not changed: after this process registered again, the
        leader's broker epoch may reach ``broker_epochs`` later than the topic."""
        local = self.local.broker_id
        return any(
            partition.state.leader == local
            and not self._is_led_here(PartitionKey(view.topic_id, partition.partition))
            for partition in view.partitions
        )

    def _is_led_here(self, key: PartitionKey) -> bool:
        replica = self._replicas.get(key)
        return replica is not None and replica.role.is_leader

    def _apply_partition(
        self, view: TopicView, partition: PartitionView, config: TopicConfig
    ) -> None:
        key = PartitionKey(view.topic_id, partition.partition)
        replica = self._replicas.get(key)
        if replica is not None:
            self._change(replica, partition, config)
            return
        # While a log is being created or deleted, do nothing: at the end of the creation,
        # ``_host_created`` applies the metadata; at the end of the deletion, ``_forget_log`` does.
        if key in self._deleting or key in self._creating:
            return
        log = self._logs.get(key)
        if log is not None:
            self._host(view.name, log, partition, config)
        elif self._failure is None:
            self._creating[key] = Waiters()
            now_ms = self.clock.now_ms()
            self.disk.keep(
                lambda: self._logs.create(key, config, now_ms),
                lambda made, error: self._created(key, made, error),
            )

    def _created(self, key: PartitionKey, log: Log | None, error: BaseException | None) -> None:
        waiters = self._creating.pop(key)
        self._host_created(key, log, error)
        waiters.wake()

    def _host_created(
        self, key: PartitionKey, log: Log | None, error: BaseException | None
    ) -> None:
        """Start the replica of a new log, or delete the log if its partition is no longer assigned
        to this broker. Retry a failed creation later."""
        if log is None:
            logger.error(
                "%s: cannot create the log: %s",
                key,
                error,
                extra=log_event("log_create_failed"),
            )
            self.storage_failed(as_storage_error(error))
            self.retry_later(lambda: self._reapply(key))
            return
        view = self._snapshot.topics_by_id.get(key.topic_id)
        partition = self._snapshot.partition_by_key(key)
        if view is None or partition is None or not self._is_mine(key):
            self._delete_log(key)
            return
        self._host(view.name, log, partition, self._configs.of(view))

    def _host(self, topic: str, log: Log, partition: PartitionView, config: TopicConfig) -> None:
        role = Partition(
            log.key,
            self.local,
            log_end_offset=log.log_end_offset,
            flushed_end=log.flushed_end,
            high_watermark=log.log_start_offset,
            last_epoch=log.leader_epochs.latest,
        )
        replica = Replica(self, topic, log, role)
        self._replicas[log.key] = replica
        self._by_name[topic, log.key.partition] = replica
        self._change(replica, partition, config)
        if log.reader.corruption:
            # The recovery of the log found damage in flushed records. Report it to the replica,
            # because another replica may have an intact copy.
            self._corrupt_recoveries.n += len(log.reader.corruption)
            replica.deliver(CorruptionFound(log.reader.corruption[0].first_offset))

    def _change(self, replica: Replica, partition: PartitionView, config: TopicConfig) -> None:
        if replica.log.config != config:
            replica.log.config = config
        limits = ReplicaLimits(
            min_insync(config, len(partition.target)),
            config.flush_messages,
            config.flush_ms,
            self._config.replica_lag_ms,
        )
        before, was_leader, epoch = replica.state, replica.role.is_leader, replica.leader_epoch
        is_replicated = len(partition.replicas) > 1
        self._ticks.watch(replica, is_replicated=is_replicated)
        replica.has_followers = is_replicated
        replica.assigned_count = len(partition.target)
        replica.deliver(
            LeaderAndIsrChanged(
                partition.state, self._cluster.broker_epochs, limits, partition.replicas
            )
        )
        if replica.role.is_leader is not was_leader or replica.leader_epoch != epoch:
            role = "leads" if replica.role.is_leader else "follows"
            logger.info(
                "%s: %s in epoch %d",
                replica,
                role,
                replica.leader_epoch,
                extra=log_event("replica_role", tp=replica),
            )
            if replica.role.is_leader:
                is_preferred = partition.replicas[:1] == (self.local.broker_id,)
                self._metrics.count("leader_elections", "preferred" if is_preferred else "other")
            replica.log_lost_records(before)

    def _remove(self, replica: Replica, why: str) -> None:
        """Fail the requests that wait for a replica, then delete its log."""
        logger.info(
            "%s: deleting this replica: %s",
            replica,
            why,
            extra=log_event("replica_deleted", tp=replica),
        )
        del self._replicas[replica.key]
        if self._by_name.get((replica.topic, replica.partition)) is replica:
            del self._by_name[replica.topic, replica.partition]
        self._ticks.forget(replica)
        self._deleting.add(replica.key)
        replica.closed = True
        is_deleted = replica.key.topic_id not in self._snapshot.topics_by_id
        replica.deliver(
            Closed(UnknownTopicOrPartitionError(why) if is_deleted else NotLeaderError(why))
        )
        self.fetchers.stop(replica)
        replica.leadership_changed()
        # Delete the log after the appends that are queued on the append thread. The keeper thread
        # deletes it, because only that thread creates and deletes logs.
        self.disk.call(replica.key, _nothing, lambda _, __: self._delete_log(replica.key))

    def _delete_log(self, key: PartitionKey) -> None:
        self._forget_log(key, self._logs.delete, "deleted")

    def _forget_log(
        self, key: PartitionKey, forget: Callable[[PartitionKey, int], None], what: str
    ) -> None:
        now_ms = self.clock.now_ms()
        self._deleting.add(key)

        def done(_: object, error: BaseException | None) -> None:
            self._deleting.discard(key)
            if error is not None:
                logger.error("%s: the log could not be %s: %s", key, what, error)
                self.storage_failed(as_storage_error(error))
                return
            if not self._closed:
                # Apply the metadata again: the partition may have been assigned to this broker
                # again during the deletion.
                self._reapply(key)

        self.disk.keep(lambda: forget(key, now_ms), done)

    def _reapply(self, key: PartitionKey) -> None:
        """Update the replica of one partition to the current metadata, if the partition is assigned
        to this broker."""
        view = self._snapshot.topics_by_id.get(key.topic_id)
        if view is not None and self._is_mine(key):
            self._apply_partition(view, view.partitions[key.partition], self._configs.of(view))

    # Methods that handle disk failures and the shutdown.

    def storage_failed(self, error: LogbusError) -> None:
        """Handle a failed write or flush.

        If the data directory failed, take all replicas offline. If the disk is full, report it to
        the cluster."""
        if self._failure is None and self._logs.data.failed:
            self._fail_all(error)
        elif self._logs.data.is_full:
            self._full_disk.watch()

    def _fail_all(self, error: LogbusError) -> None:
        self._failure = StorageError(error.message)
        self._full_disk.close()
        logger.critical(
            "the data directory %s failed: %s. Its %d partitions are "
            "offline; repair or replace the disk and start the broker again",
            self._logs.data.path,
            error.message,
            len(self._replicas),
            extra=log_event("disk_failed"),
        )
        for replica in list(self._replicas.values()):
            replica.carry_out(
                replica.role.step(self.clock.monotonic_ms(), StorageFailed(self._failure))
            )
            replica.leadership_changed()
        self._handover = self._loop.create_task(self._hand_over())

    async def _hand_over(self) -> None:
        """Report to the cluster that this broker gives up leadership (drains). Retry until the
        metadata contain the report."""
        while True:
            with contextlib.suppress(WriteConflictError, CoordinationUnavailableError):
                await self._cluster.drain()
            own = self._snapshot.brokers.get(self.local.broker_id)
            if own is not None and own.draining:
                return
            await asyncio.sleep(RETRY_S)

    def retry_later(self, attempt: Callable[[], None]) -> None:
        """Call ``attempt`` after ``RETRY_S`` seconds, unless the broker stops or its disk fails
        before."""

        def run() -> None:
            if not self._closed and self._failure is None:
                attempt()

        self._loop.call_later(RETRY_S, run)

    def close(self, error: LogbusError) -> None:
        """Stop all replicas, and fail all waiting requests with ``error``."""
        self._closed = True
        self._produces.close()
        if self._handover is not None:
            self._handover.cancel()
        self._ticks.close()
        self._full_disk.close()
        self.fetchers.close()
        self.isr_writes.close()
        for replica in list(self._replicas.values()):
            replica.deliver(Closed(error))
            replica.leadership_changed()

    @property
    def in_flight_count(self) -> int:
        """Number of produce requests that have no result yet."""
        return len(self._produces)

    # Methods that delete records and apply retention.

    async def delete_records(
        self, topic: str, partition: int, offset: int, spent: Spent = uncounted
    ) -> int:
        """Delete a partition's records below ``offset``; -1 means below the high watermark.

        Return the new log start offset once every in-sync replica has deleted the records, so that
        a later leader cannot bring them back. Raises OffsetOutOfRangeError above the high
        watermark, and the errors of ``find`` and ``check_leader``."""
        replica = self.find(topic, partition)
        replica.check_leader()
        high_watermark = replica.high_watermark
        if offset == NO_OFFSET:
            offset = high_watermark
        if not 0 <= offset <= high_watermark:
            raise OffsetOutOfRangeError(
                f"{replica}: records can be deleted up to offset {high_watermark}, not {offset}"
            )
        log = replica.log
        start = await self.disk.run_on(log.key, lambda: log.delete_records_before(offset), spent)
        await replica.followers_begin_at(start)
        return start

    def apply_retention(self) -> None:
        """Delete the expired segments of every log, on the log's append thread."""
        now_ms = self.clock.now_ms()
        for replica in self._replicas.values():
            self._retain(replica, now_ms)

    def _retain(self, replica: Replica, now_ms: int) -> None:
        log, stable = replica.log, replica.last_stable_offset

        def done(reasons: list[str] | None, error: BaseException | None) -> None:
            if error is not None:
                logger.error(
                    "%s: cannot apply retention: %s",
                    replica,
                    error,
                    extra=log_event("retention_failed", tp=replica),
                )
                self.storage_failed(as_storage_error(error))
            elif reasons:
                logger.info(
                    "%s: %d old segments deleted",
                    replica,
                    len(reasons),
                    extra=log_event("segments_deleted", tp=replica),
                )
                for reason in reasons:
                    self._metrics.count("segments_deleted", reason)

        self.disk.call(log.key, lambda: log.apply_retention(now_ms, stable), done)


def _nothing() -> None:
    """Do nothing. When a queued job of this function ends, all jobs before it have ended."""
