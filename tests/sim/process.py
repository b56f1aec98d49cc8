"""One broker process in virtual time, from its start to its end.

The production Registry, controller, ReplicaManager, fetchers and Log run on a simulated ZooKeeper,
network, disk and clock, without sockets and threads. All code of the process runs in one context
(``scheduler.Owner``), so that the process can be stopped or killed between two callbacks.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

from sim.broker_requests import SimBrokerCalls
from sim.disk import SimDisk
from sim.net import Answered, Channel
from sim.scheduler import Owner
from support.memory_files import MemFiles

from broker_lite.errors import LogbusError, NotLeaderError
from broker_lite.metadata.znodes import Registration
from broker_lite.model import BrokerView, Endpoint, PartitionKey
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.cluster.registry import SUPPORTED_FEATURES, Registry
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.coordinators.group_transactions import TIMEOUTS, GroupTransactions
from broker_lite.server.coordinators.hanging_transactions import HangingTransactions
from broker_lite.server.coordinators.transaction_coordinator import TransactionCoordinator
from broker_lite.server.coordinators.transaction_markers import MarkerSender
from broker_lite.server.coordinators.transaction_verifier import TransactionVerifier
from broker_lite.server.metrics import Metrics
from broker_lite.server.partitions.disk import CallJob, SyncJob
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.storage.log import Log
from broker_lite.storage.manager import LogManager
from broker_lite.wire import fetch as wire

if TYPE_CHECKING:
    from sim.cluster import SimCluster

DIRECTORY = "/data"
PEER_TIMEOUT_S = 5.0
SEARCH_S = 0.5
"""Seconds between two searches for hanging transactions.

Each search asks about the transactions without a change since the search before: long before they
hang, so that a wrong answer ends a transaction that goes on."""


class Process:
    """One broker process with the disk ``files``; it calls ``on_end`` once it has ended."""

    def __init__(
        self, cluster: SimCluster, broker_id: int, files: MemFiles, *, is_stale: bool = False
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.files = files
        self.is_stale = is_stale
        """Whether the disk was rolled back, so that the process must never serve."""
        self.number: int = next(cluster.process_numbers)
        self.alive = True
        self.serving = False
        self.owner = Owner(self)
        self.zk = cluster.zk.client(self.owner.context)
        self.clock = cluster.clock()
        self.config = cluster.config(broker_id)
        self.registry = Registry(
            self.config,
            now_ms=self.clock.now_ms,
            store=self.zk,
            random_bytes=cluster.ids.randbytes,
        )
        self.disk = SimDisk(
            cluster.loop,
            files,
            cluster.disk_chance,
            clock=self.clock,
            on_power_cut=lambda: cluster.power_cut(self),
            observe=self._observe,
        )
        self.logs: LogManager | None = None
        self.replicas: ReplicaManager | None = None
        self.parts: BrokerContext | None = None
        self.on_end: Callable[[], object] = lambda: None

    def log(self, key: PartitionKey) -> Log | None:
        return None if self.logs is None else self.logs.get(key)

    @property
    def context(self) -> Context:
        return self.owner.context

    async def start(self) -> None:
        """Start the broker as ``server/broker.py`` does; raise LogbusError if it cannot start."""
        cluster = self.cluster
        logs = self.logs = LogManager(
            self.files, DIRECTORY, random_id=lambda: f"D{cluster.ids.getrandbits(40):x}"
        )
        logs.data.start()
        logs.open_all(self.clock.now_ms())
        if self.files is cluster.disks[self.broker_id]:
            cluster.rot.own_disks.add(logs.data.directory_id)
        cluster.checker.recovered(self, logs)
        # Simulate the time that log recovery takes.
        await asyncio.sleep(cluster.chance.random() * 0.3)
        self.registry.on_fatal(lambda error: cluster.stopped(self, error))
        cluster_id = await self.registry.start(
            Registration(
                self.broker_id,
                Endpoint("sim", self.broker_id),
                logs.data.directory_id,
                logs.data.start_counter,
                features=SUPPORTED_FEATURES,
                is_full=logs.data.is_full,
            ),
            cluster_id=logs.data.cluster_id,
            damaged=logs.suspect_logs,
        )
        logs.data.adopt_cluster(cluster_id)
        cluster.checker.registered(self)
        self.replicas = ReplicaManager(
            cluster.loop,
            self.config,
            clock=self.clock,
            disk=self.disk,
            logs=logs,
            metrics=Metrics(),
            cluster=self.registry,
            net=SimPeerNet(self),
        )
        epochs = CoordinatorEpochs(lambda: self.registry.snapshot)
        calls = SimBrokerCalls(self)
        groups = GroupCoordinator(self.config, self.registry, clock=self.clock, metrics=Metrics())
        self.parts = BrokerContext(
            config=self.config,
            clock=self.clock,
            registry=self.registry,
            replicas=self.replicas,
            logs=logs,
            disk=self.disk,
            metrics=Metrics(),
            endpoint=Endpoint("sim", self.broker_id),
            groups=groups,
            calls=calls,
            coordinator_epochs=epochs,
            group_transactions=GroupTransactions(
                self.config, self.registry, groups, clock=self.clock, calls=calls, epochs=epochs
            ),
            verifier=TransactionVerifier(
                calls=calls, snapshot=lambda: self.registry.snapshot, epochs=epochs
            ),
            transactions=TransactionCoordinator(
                self.config,
                self.registry,
                replicas=self.replicas,
                markers=MarkerSender(self.registry, calls, groups),
                clock=self.clock,
                metrics=Metrics(),
            ),
        )
        self.registry.on_change(self.replicas.apply)
        self.serving = True
        cluster.loop.create_task(self._keep_house())
        if cluster.options.searches:
            cluster.loop.create_task(self._search(self.replicas, self.parts))

    async def _search(self, replicas: ReplicaManager, parts: BrokerContext) -> None:
        silent_ms = int(SEARCH_S * 1000) // 2
        hanging = HangingTransactions(
            dataclasses.replace(self.config, transaction_max_timeout_ms=silent_ms // TIMEOUTS),
            self.registry,
            replicas,
            clock=self.clock,
            calls=parts.calls,
            epochs=parts.coordinator_epochs,
            metrics=parts.metrics,
        )
        while True:
            await asyncio.sleep(SEARCH_S)
            await hanging.end()

    async def _keep_house(self) -> None:
        logs = self.logs
        assert logs is not None
        while True:
            await asyncio.sleep(1.0)
            if not logs.data.failed:
                self.disk.keep(logs.checkpoint, _ignore)
                self.disk.keep(lambda: logs.tick(self.clock.now_ms()), _ignore)

    async def stop(self) -> None:
        """Shut down as after SIGTERM; return when the process has ended."""
        cluster, logs = self.cluster, self.logs
        assert logs is not None and self.replicas is not None
        try:
            async with asyncio.timeout(10.0):
                await self.registry.drain()
        except TimeoutError:
            cluster.trace("drained too slowly", self.broker_id)
        self.serving = False
        until = cluster.loop.time() + 5.0
        while self.replicas.in_flight_count and cluster.loop.time() < until:
            await asyncio.sleep(0.01)
        self.replicas.close(NotLeaderError("the broker is stopping"))
        await self.registry.close()
        await self.disk.run_keeper(lambda: None if logs.data.failed else logs.close_clean())

    def end(self) -> None:
        """End the process at once, so that none of its code runs any more."""
        self.alive = self.serving = False
        self.owner.die()
        self.disk.stop()
        self.zk.kill()

    def pause(self) -> None:
        """Suspend the process, as SIGSTOP does."""
        self.owner.pause()
        self.zk.pause()

    def resume(self) -> None:
        """Resume the process as SIGCONT does."""
        self.owner.resume(self.cluster.loop)
        self.zk.resume()

    def unexpected(self, error: BaseException) -> None:
        """Make the simulated run fail because of an unexpected error."""
        self.cluster.failure = self.cluster.failure or error

    def _observe(self, job: Any) -> None:
        if type(job) is SyncJob:
            self.cluster.trace("sync", self.broker_id, job.target.log.key.partition)
        elif type(job) is CallJob:
            self.cluster.trace("call", self.broker_id)


class SimPeerNet:
    """The connections of one process's replica fetchers to the leaders that they follow."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._channels: dict[tuple[int, int], tuple[int, Channel]] = {}

    def fetch(
        self,
        leader: BrokerView,
        request: wire.FetchRequest,
        answered: Callable[[wire.FetchResponse | LogbusError], None],
    ) -> None:
        """Send a fetch request to a leader; later call ``answered`` with the response or error."""
        process = self._process
        lane = leader.broker_id, request.flags & wire.FLAG_IDLE
        epoch, channel = self._channels.get(lane, (-1, None))
        if channel is None or not channel.is_open or epoch != leader.broker_epoch:
            if channel is not None:
                channel.fail(LogbusError("another process of the broker is asked now"))
            net = process.cluster.net
            channel = net.channel(process.broker_id, leader.broker_id, process.context)
            self._channels[lane] = leader.broker_epoch, channel

        def serve(server: Process, answer: Answered) -> None:
            assert server.replicas is not None
            server.replicas.follower_fetches.begin(
                request, lambda topics: answer(_response(topics)), lambda: channel.is_open
            )

        channel.request(serve, answered, PEER_TIMEOUT_S)


def _response(topics: list[wire.TopicAnswer]) -> wire.FetchResponse:
    """Return the response as its receiver decodes it.

    File ranges of the response are read now, at the time of sending, as sendfile does.
    """
    fetched = [
        wire.FetchedTopic("", topic.topic_id, [_partition(row) for row in topic.partitions])
        for topic in topics
    ]
    return wire.FetchResponse(0, 0, fetched, 0)


def _partition(row: wire.PartitionAnswer) -> wire.FetchedPartition:
    data = bytearray()
    for part in row.records:
        if isinstance(part, wire.FileRange):
            file: Any = part.file
            data += file.pread(part.position, part.length)
        else:
            data += part
    return wire.FetchedPartition(
        row.partition,
        row.error_code,
        row.high_watermark,
        row.last_stable_offset,
        row.log_start_offset,
        memoryview(data),
        None,
        row.diverging,
        row.leader_id,
        row.leader_epoch,
    )


def _ignore(_: object, __: BaseException | None) -> None:
    """Ignore the result of a checkpoint or tick: the log manager records a failed directory."""
