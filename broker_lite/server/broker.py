"""Start and stop a broker: create its parts and connect them.

At its start, the broker binds its ports, opens the data directory (lock, identity, recovery),
registers in ZooKeeper, and accepts connections. To stop, it gives up leadership, closes the
listeners, finishes requests in flight, flushes every log, writes the clean-shutdown marker, and
removes its registration. The HTTP port answers probes from before the recovery to the end of the
stop.

Other threads recover and close the logs; all else runs on the event loop's thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import os
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from broker_lite import __version__
from broker_lite.config import MINUTE, BrokerConfig
from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.listeners import ListenerConfig, metrics_listener
from broker_lite.errors import (
    InvalidConfigError,
    LogbusError,
    MissingDependencyError,
    NotLeaderError,
    PortInUseError,
)
from broker_lite.machine import machine_id
from broker_lite.metadata.znodes import Registration
from broker_lite.metadata.zookeeper.store import OPERATIONS, ZooKeeperStore
from broker_lite.metadata.zookeeper.tls import tls_of
from broker_lite.model import NO_BROKER, OAUTHBEARER, Endpoint, PartitionView
from broker_lite.net.listening import why_not_listening
from broker_lite.security.acls import Operation, ResourceKind
from broker_lite.server.audit import AuditLog
from broker_lite.server.broker_context import BrokerContext
from broker_lite.server.clock import Clock
from broker_lite.server.cluster.peers import Peers, security_between_brokers
from broker_lite.server.cluster.registry import SUPPORTED_FEATURES, Registry
from broker_lite.server.coordinators.coordinator_epochs import CoordinatorEpochs
from broker_lite.server.coordinators.coordinator_fencing import CHECK_MS, CoordinatorFencing
from broker_lite.server.coordinators.group_coordinator import GroupCoordinator
from broker_lite.server.coordinators.group_transactions import GroupTransactions
from broker_lite.server.coordinators.hanging_transactions import HangingTransactions
from broker_lite.server.coordinators.transaction_coordinator import (
    EXPIRY_CHECK_MS,
    TransactionCoordinator,
)
from broker_lite.server.coordinators.transaction_markers import MarkerSender
from broker_lite.server.coordinators.transaction_verifier import TransactionVerifier
from broker_lite.server.descriptors import Descriptors
from broker_lite.server.dispatch import Dispatcher
from broker_lite.server.http_login import HttpLogin
from broker_lite.server.log_events import log_event
from broker_lite.server.loop_watch import LoopWatch
from broker_lite.server.metrics import Metrics, in_slices
from broker_lite.server.network.access import Authorizer, check_own_principal, check_start
from broker_lite.server.network.context import Session
from broker_lite.server.network.listener import RELOAD_S, Listener
from broker_lite.server.network.logins import CHECK_THREADS, SWEEP_MS, Issuer, Logins
from broker_lite.server.network.quotas import Quotas
from broker_lite.server.partitions.disk import Disk
from broker_lite.server.partitions.replica_manager import ReplicaManager
from broker_lite.server.task_set import TaskSet
from broker_lite.storage.files import OsFiles
from broker_lite.storage.manager import LogManager

logger = logging.getLogger("logbus.broker")

HOUSEKEEPING_MS = 1000
"""Milliseconds between two rounds of housekeeping, such as deleting files of deleted segments."""
FINISH_S = 0.7
"""Maximum seconds for which a stopping broker waits for requests in flight."""
DRAIN_S = 10.0
"""Maximum seconds for which a stopping broker waits until other brokers lead its partitions."""
DEREGISTER_S = 0.5
"""Maximum seconds for which a stopping broker waits for ZooKeeper to remove its registration.

If ZooKeeper does not answer, the registration ends when the session expires."""
RECOVERING = "recovering"
NOT_REGISTERED = "not registered in ZooKeeper"
NOT_ACCEPTING = "not accepting connections"
DRAINING = "draining"


class Broker:
    """One broker, from its start to its stop, in a running event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._clock = Clock()
        self._metrics = Metrics(config.metrics_topics_max)
        self._loop = asyncio.get_running_loop()
        self._watch = LoopWatch(self._loop, clock=self._clock, metrics=self._metrics)
        self._stack = contextlib.AsyncExitStack()
        self._timers = TaskSet()
        self.fatal: asyncio.Future[LogbusError] = self._loop.create_future()
        self._clean = False
        self._recovery_s = 0.0
        self._reasons = [RECOVERING, NOT_REGISTERED, NOT_ACCEPTING]
        """Why the broker is not ready: the steps of its start that are left, and its stop."""
        self._parts: BrokerContext | None = None
        """The parts of the broker while it accepts connections, else None."""
        self._metrics.gauge("ready", lambda: not self._unready())

    async def start(self) -> dict[str, Any]:
        """Start to serve clients. Return the fields of the ready line.

        The ready line is the JSON line that reports the start to the parent process. Raises
        LogbusError for an error that an operator can fix, after stopping what has been started."""
        try:
            return await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> dict[str, Any]:
        config, clock, stack = self._config, self._clock, self._stack
        listener = Listener(config, clock=clock, metrics=self._metrics)
        stack.callback(listener.close)
        security = security_between_brokers(config, listener.inter_broker)
        check_own_principal(config, listener.inter_broker, listener.own_principal(security))
        metrics_port = await self._serve_metrics()
        logs = await self._open_logs()
        self._reasons.remove(RECOVERING)
        disk = Disk(
            self._loop,
            append_threads=config.disk_threads,
            read_threads=config.read_threads,
            clock=clock,
            metrics=self._metrics,
        )
        stack.push_async_callback(self._loop.run_in_executor, None, disk.stop)
        registry = Registry(config, now_ms=clock.now_ms, store=self._store())
        registry.session_losses = self._metrics.counter("zookeeper_session_losses")
        registry.on_fatal(self._fatal)
        stack.push_async_callback(self._deregister, registry)
        cluster_id = await self._register(listener, logs, registry)
        peers = self._peers(listener, registry, security)
        parts = self._compose(listener, logs, disk, registry, peers)
        parts = self._with_authorizer(parts, listener.inter_broker)
        if config.sasl_mechanisms:
            parts = await self._with_logins(parts, registry)
        if config.hands_out_descriptors and machine_id():
            parts = self._with_descriptors(parts)
        dispatcher = Dispatcher(self._loop, parts)
        listener.start(
            self._loop,
            dispatcher.begin,
            may_connect=parts.quotas.may_connect,
            on_login=parts.audit.write if parts.audit.is_on else None,
            call_soon=disk.call_soon,
        )
        self._parts = parts
        self._reasons.remove(NOT_ACCEPTING)
        if listener.has_tls:
            self._loop.add_signal_handler(signal.SIGHUP, listener.reload)
        stack.push_async_callback(self._finish, listener, dispatcher, parts.replicas)
        stack.callback(parts.groups.close)
        stack.push_async_callback(self._drain, registry)
        stack.callback(self._watch.close)
        self._declare_gauges(parts)
        self._start_housekeeping(parts)
        bound = listener.bound
        logger.info(
            "broker %d of cluster %s listens on %s",
            config.broker_id,
            cluster_id,
            listener.addresses(),
            extra=log_event("broker_started"),
        )
        return {
            "id": config.broker_id,
            "host": bound.host,
            "port": bound.port,
            "pid": os.getpid(),
            "metrics_port": metrics_port,
        }

    async def _register(self, listener: Listener, logs: LogManager, registry: Registry) -> str:
        """Register the broker in ZooKeeper, and record the cluster in the data directory. Return
        the cluster id."""
        config = self._config
        cluster_id = await registry.start(
            Registration(
                broker_id=config.broker_id,
                endpoint=listener.endpoint,
                directory_id=logs.data.directory_id,
                start_counter=logs.data.start_counter,
                rack=config.rack or None,
                features=SUPPORTED_FEATURES,
                is_full=logs.data.is_full,
                listeners=listener.endpoints,
            ),
            cluster_id=logs.data.cluster_id,
            damaged=logs.suspect_logs,
        )
        self._reasons.remove(NOT_REGISTERED)
        logs.data.adopt_cluster(cluster_id)
        return cluster_id

    def _store(self) -> ZooKeeperStore:
        """Return the connection to ZooKeeper. It adds the latency of each kind of request to the
        metrics."""
        store = ZooKeeperStore(
            self._config.zookeeper_connect,
            session_timeout_ms=self._config.zookeeper_session_timeout_ms,
            auth_file=self._config.zookeeper_auth_file,
            tls=tls_of(self._config),
        )
        answers = {
            name: self._metrics.histogram("zookeeper_request_duration_seconds", name)
            for name in OPERATIONS
        }
        store.on_answer = lambda name, seconds: answers[name].observe(seconds)
        store.on_refused = lambda: self._metrics.count("zookeeper_write_conflicts")
        return store

    def _peers(self, listener: Listener, registry: Registry, security: ClientSecurity) -> Peers:
        """Return the connections to other brokers, which this broker opens with ``security``."""
        peers = Peers(
            self._loop,
            self._config,
            clock=self._clock,
            failure_listener=registry,
            metrics=self._metrics,
            listener=listener.inter_broker.name,
            security=security,
        )
        self._stack.callback(peers.close)
        return peers

    def _compose(
        self,
        listener: Listener,
        logs: LogManager,
        disk: Disk,
        registry: Registry,
        peers: Peers,
    ) -> BrokerContext:
        """Create the objects that serve partitions, groups and transactions. Return them as the
        context of the request handlers."""
        config, clock, metrics = self._config, self._clock, self._metrics
        replicas = ReplicaManager(
            self._loop,
            config,
            clock=clock,
            disk=disk,
            logs=logs,
            metrics=metrics,
            cluster=registry,
            net=peers,
        )
        groups = GroupCoordinator(config, registry, clock=clock, metrics=metrics)
        epochs = CoordinatorEpochs(lambda: registry.snapshot)
        verifier = TransactionVerifier(
            calls=peers, snapshot=lambda: registry.snapshot, epochs=epochs
        )
        self._stack.callback(verifier.close)
        transactions = TransactionCoordinator(
            config,
            registry,
            replicas=replicas,
            markers=MarkerSender(registry, peers, groups),
            clock=clock,
            metrics=metrics,
        )
        self._stack.callback(transactions.close)
        parts = BrokerContext(
            config=config,
            clock=clock,
            registry=registry,
            replicas=replicas,
            logs=logs,
            disk=disk,
            metrics=metrics,
            endpoint=listener.endpoint,
            listeners=listener.endpoints,
            groups=groups,
            transactions=transactions,
            calls=peers,
            coordinator_epochs=epochs,
            group_transactions=GroupTransactions(
                config, registry, groups, clock=clock, calls=peers, epochs=epochs
            ),
            verifier=verifier,
            fetch_waits=metrics.histogram("fetch_wait_seconds"),
            quotas=Quotas(clock, metrics),
        )
        parts.quotas.apply(registry.snapshot)
        registry.on_change(parts.quotas.apply)
        registry.on_change(peers.apply)
        registry.on_change(replicas.apply)
        return parts

    def _with_authorizer(self, parts: BrokerContext, inter_broker: ListenerConfig) -> BrokerContext:
        """Return ``parts`` with an audit log, and an authorizer that follows the ACLs in the
        metadata."""
        audit = AuditLog(self._config.audit_log, self._clock)
        self._stack.callback(audit.close)
        authorizer = Authorizer(
            self._config, inter_broker, on_denial=audit.write if audit.is_on else None
        )
        registry = parts.registry
        authorizer.apply(registry.snapshot)
        check_start(self._config, inter_broker, authorizer.index)
        registry.on_change(authorizer.apply)
        return dataclasses.replace(parts, authorizer=authorizer, audit=audit)

    async def _with_logins(self, parts: BrokerContext, registry: Registry) -> BrokerContext:
        """Return ``parts`` with ``logins``, which checks clients' logins, for a broker with
        SASL."""
        threads = ThreadPoolExecutor(CHECK_THREADS, "logins")
        logins = Logins(
            self._config.sasl_mechanisms,
            clock=self._clock,
            users=lambda: registry.snapshot.users,
            salt_key=await registry.administration.salt_key(),
            reauth_ms=self._config.reauth_ms,
            issuer=await self._issuer(threads),
            threads=threads,
            check_name=partial(parts.authorizer.check_user_name, has_token=True),
        )
        registry.on_change(lambda _: logins.sweep())
        return dataclasses.replace(parts, logins=logins)

    async def _issuer(self, threads: ThreadPoolExecutor) -> Issuer | None:
        """Return the issuer of access tokens; None if OAUTHBEARER is not enabled."""
        if OAUTHBEARER not in self._config.sasl_mechanisms:
            return None
        try:
            from broker_lite.server.network.token_issuer import TokenIssuer
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"sasl.enabled.mechanisms has OAUTHBEARER, and the package {error.name} is "
                "missing; run: pip install 'pyspark-logbus[oauth]'"
            ) from None
        issuer = TokenIssuer(self._config, self._clock, threads)
        await issuer.start()
        return issuer

    def _with_descriptors(self, parts: BrokerContext) -> BrokerContext:
        """Return ``parts`` with a socket from which readers on this machine get open segment files.
        Without the socket, they receive all records in fetch responses."""

        def may_read(session: Session, topic: str) -> bool:
            decides, kind = parts.authorizer.decides, ResourceKind.TOPIC
            is_allowed = decides(session, Operation.READ, kind, topic)
            return is_allowed or parts.authorizer.only_reports

        try:
            descriptors = Descriptors(
                self._loop, clock=self._clock, metrics=self._metrics, may_read=may_read
            )
        except OSError as error:
            logger.warning(
                "cannot open the Unix socket that hands out segment files: %s; consumers on this "
                "machine fetch their records instead",
                error,
                extra=log_event("descriptors_unavailable"),
            )
            return parts
        self._stack.callback(descriptors.close)
        self._timers.start(_every(HOUSEKEEPING_MS, descriptors.expire))
        return dataclasses.replace(parts, descriptors=descriptors)

    def watch_loop(self) -> None:
        """Start to report delays of the event loop. Call it after the broker's start, which may
        block the loop."""
        self._watch.start()

    async def stop(self) -> None:
        """Stop gracefully, within 2 s unless a disk hangs or leadership cannot be moved."""
        self._clean = True
        self._reasons.append(DRAINING)
        self._timers.cancel()
        await self._stack.aclose()

    async def _open_logs(self) -> LogManager:
        """Lock the data directory, check its identity and recover its logs, in another thread.

        Meanwhile the event loop can handle signals."""
        config, clock = self._config, self._clock
        if not config.log_dir:
            raise InvalidConfigError("log.dir is not set; give the broker's data directory")
        logs = LogManager(
            OsFiles(),
            config.log_dir,
            producer_expiration_ms=config.producer_id_expiration_ms,
            stray_retention_ms=config.stray_retention_ms,
        )
        run = self._loop.run_in_executor
        began_ms = clock.monotonic_ms()
        try:
            await run(None, lambda: Path(config.log_dir).mkdir(parents=True, exist_ok=True))
            if config.keeps_files_private:
                await run(None, lambda: Path(config.log_dir).chmod(0o700))
            await run(None, logs.data.start)
        except OSError as error:
            raise InvalidConfigError(f"log.dir={config.log_dir}: {error.strerror}") from None
        self._stack.push_async_callback(run, None, lambda: self._close_logs(logs))
        opened = await run(None, lambda: logs.open_all(clock.now_ms()))
        self._recovery_s = (clock.monotonic_ms() - began_ms) / 1000
        stop = "a clean stop" if logs.data.was_clean else "an unclean stop"
        logger.info(
            "%s: %d logs opened%s in %d ms",
            config.log_dir,
            len(opened),
            f" after {stop}" if opened else "",
            clock.monotonic_ms() - began_ms,
            extra=log_event("logs_opened"),
        )
        _log_recovery(logs)
        return logs

    def _close_logs(self, logs: LogManager) -> None:
        if self._clean and not logs.data.failed:
            logs.close_clean()
        else:
            logs.close()

    async def _drain(self, registry: Registry) -> None:
        """Move leadership to other brokers. Meanwhile this broker still serves clients, which learn
        from it the new leaders."""
        if not self._clean or not registry.connected:
            return
        began_ms = self._clock.monotonic_ms()
        try:
            await asyncio.wait_for(registry.drain(), DRAIN_S)
        except (TimeoutError, LogbusError) as error:
            logger.warning(
                "cannot move leadership to other brokers before the stop: %s",
                error,
                extra=log_event("drain_failed"),
            )
        else:
            logger.info(
                "moved leadership to other brokers in %d ms",
                self._clock.monotonic_ms() - began_ms,
                extra=log_event("broker_drained"),
            )

    async def _deregister(self, registry: Registry) -> None:
        try:
            await asyncio.wait_for(registry.close(), DEREGISTER_S)
        except (TimeoutError, LogbusError) as error:
            logger.warning(
                "cannot remove this broker's registration from ZooKeeper: %s",
                error,
                extra=log_event("deregistration_failed"),
            )

    async def _finish(
        self, listener: Listener, dispatcher: Dispatcher, replicas: ReplicaManager
    ) -> None:
        """Stop accepting connections, and wait up to ``FINISH_S`` seconds for produce requests in
        flight.

        Then fail all requests that still wait, and send the answers."""
        listener.stop()
        self._parts = None
        self._reasons.append(NOT_ACCEPTING)
        until_ms = self._clock.monotonic_ms() + int(FINISH_S * 1000)
        while replicas.in_flight_count and self._clock.monotonic_ms() < until_ms:
            await asyncio.sleep(0.01)
        # Fail these requests with NOT_LEADER_OR_FOLLOWER, after which clients retry. By then
        # another broker leads the partition, or this broker has restarted.
        replicas.close(NotLeaderError(f"broker {self._config.broker_id} is stopping"))
        while not listener.is_idle and self._clock.monotonic_ms() < until_ms:
            await asyncio.sleep(0.01)
        dispatcher.close()
        listener.close()

    async def _serve_metrics(self) -> int | None:
        """Open the HTTP port if the configuration has one. Return the bound port, or None."""
        config = self._config
        if config.metrics_port < 0:
            return None
        try:
            from broker_lite.server.exposition import Exposition
            from broker_lite.server.http import HttpServer
        except ImportError as error:
            raise MissingDependencyError(
                f"metrics.port={config.metrics_port} needs the package {error.name}: "
                "pip install 'pyspark-logbus[broker]'"
            ) from None
        login = self._metrics_login()
        server = HttpServer(Exposition(self._metrics), self._unready, login)
        try:
            port = await server.start(config.metrics_host, config.metrics_port)
        except OSError as error:
            at = f"metrics.host={config.metrics_host}, metrics.port={config.metrics_port}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"{at}: {error.strerror or error}; set metrics.port to another number "
                    "(0 takes a free one)"
                ) from None
            raise InvalidConfigError(f"{at}: {why_not_listening(error)}") from None
        self._stack.push_async_callback(server.close)
        scheme = "http" if login is None else "https"
        logger.info(
            "serving metrics at %s://%s/metrics", scheme, Endpoint(config.metrics_host, port)
        )
        return port

    def _metrics_login(self) -> HttpLogin | None:
        """Return the object that checks logins at the HTTP port, and start to reload its TLS files;
        None without metrics.listener.name."""
        listener = metrics_listener(self._config)
        if listener is None:
            return None
        from broker_lite.server.network.tls_listener import ListenerTls

        tls = ListenerTls(listener, "", clock=self._clock)

        async def reload() -> None:
            tls.reload()

        self._timers.start(_every(int(RELOAD_S * 1000), reload))
        return HttpLogin(lambda: self._parts, tls)

    def _unready(self) -> list[str]:
        """Return why clients cannot rely on this broker now; an empty list if they can."""
        parts = self._parts
        if parts is None:
            return self._reasons
        reasons = {
            NOT_REGISTERED: self._config.broker_id not in parts.registry.snapshot.brokers,
            "no connection to ZooKeeper": not parts.registry.connected,
            f"the log directory {parts.logs.data.path} failed": parts.logs.data.failed,
            f"the log directory {parts.logs.data.path} is full": parts.logs.data.is_full,
        }
        return [*self._reasons, *(reason for reason, applies in reasons.items() if applies)]

    def _declare_gauges(self, parts: BrokerContext) -> None:
        """Register the gauges whose values come from several parts of the broker."""
        config, gauge, registry = self._config, self._metrics.gauge, parts.registry
        labels = (__version__, parts.cluster_id(), str(config.broker_id), config.rack)
        directory = (parts.logs.data.path,)
        gauge("broker_info", lambda: {labels: 1})
        gauge("controller_active", lambda: registry.is_controller)
        gauge("zookeeper_connected", lambda: registry.connected)
        gauge("metadata_age_seconds", lambda: registry.metadata_age_s)
        gauge("unreadable_znodes", lambda: len(registry.unreadable_znodes))
        gauge("reassigning_partitions", lambda: _count(registry, lambda view: view.is_reassigning))
        gauge(
            "leaderless_partitions",
            lambda: _count(registry, lambda view: view.state.leader == NO_BROKER),
        )
        gauge("recovery_duration_seconds", lambda: self._recovery_s)
        slow = self._metrics.slow_gauge
        slow("disk_size_bytes", lambda: {directory: parts.logs.data.space()[0]})
        slow("disk_free_bytes", lambda: {directory: parts.logs.data.space()[1]})

    def _start_housekeeping(self, parts: BrokerContext) -> None:
        config, clock, disk, logs = self._config, self._clock, parts.disk, parts.logs
        replicas, groups = parts.replicas, parts.groups
        fencing = CoordinatorFencing(config.broker_id, parts.registry, groups, parts.calls.send)
        hanging = HangingTransactions(
            config,
            parts.registry,
            replicas,
            clock=clock,
            calls=parts.calls,
            epochs=parts.coordinator_epochs,
            metrics=parts.metrics,
        )

        async def keep(work: Callable[[], Any]) -> None:
            if logs.data.failed:
                return
            try:
                await disk.run_keeper(work)
            except LogbusError as error:
                replicas.storage_failed(error)
                raise

        async def checkpoint() -> None:
            await keep(logs.checkpoint)

        async def tick() -> None:
            await keep(lambda: logs.tick(clock.now_ms()))

        async def end_sessions() -> None:
            parts.logins.sweep()

        async def retain() -> None:
            if not logs.data.failed:
                replicas.apply_retention()
                await hanging.end()

        for interval_ms, work in (
            (config.checkpoint_interval_ms, checkpoint),
            (HOUSEKEEPING_MS, tick),
            (config.retention_check_interval_ms, retain),
            (config.offsets_retention_check_ms, groups.expire),
            (config.offsets_retention_check_ms, parts.group_transactions.end_overdue),
            (SWEEP_MS, end_sessions),
            (MINUTE, parts.logins.refresh),
            (EXPIRY_CHECK_MS, parts.transactions.expire),
            (CHECK_MS, fencing.check),
        ):
            self._timers.start(_every(interval_ms, work))

    def _fatal(self, error: LogbusError) -> None:
        if not self.fatal.done():
            self.fatal.set_result(error)


def _count(
    registry: Registry, applies: Callable[[PartitionView], bool]
) -> Generator[None, None, float]:
    """Compute, in slices, the number of partitions for which ``applies`` is true; 0 unless this
    broker is the controller.

    The sum over all brokers then counts each partition once."""
    views = registry.snapshot.topics.values() if registry.is_controller else ()
    return in_slices([each for view in views for each in view.partitions], applies)


def _log_recovery(logs: LogManager) -> None:
    for warning in logs.data.warnings:
        logger.warning("%s: %s", logs.data.path, warning)
    for key, report in logs.reports.items():
        if report.torn_bytes:
            logger.warning(
                "%s: %d bytes from offset %d on were %s and were cut off; .torn files in the "
                "partition's folder have %d of them",
                key,
                report.torn_bytes,
                report.torn_offset,
                "damaged" if report.torn_whole else "half written",
                report.saved_bytes,
                extra=log_event("log_end_repaired"),
            )
    for key, log in logs.logs.items():
        for damage in log.reader.corruption:
            logger.error("%s: %s", key, damage)


async def _every(interval_ms: int, work: Callable[[], Any]) -> None:
    """Run ``work`` every ``interval_ms`` milliseconds, and log its errors."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await work()
        except Exception:
            logger.exception(
                "a periodic task failed; it runs again in %d ms",
                interval_ms,
                extra=log_event("housekeeping_failed"),
            )
