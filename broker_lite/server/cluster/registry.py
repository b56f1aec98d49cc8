"""Register this broker in ZooKeeper, keep its snapshot of the cluster's metadata, and let it stand
for election as controller.

One task, the *keeper*, reacts to ZooKeeper watches, session events and suspected brokers. It takes
the due steps in the order of ``_Step`` and publishes the snapshot. After a reconnection it sets all
watches again and reads the change notices (``metadata/notices.py``) that it missed, or all metadata
if notices are missing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from broker_lite.config import BrokerConfig
from broker_lite.errors import ClosedError, CoordinationUnavailableError, LogbusError
from broker_lite.metadata import acls, credentials, loader, quotas, security_znodes, znodes
from broker_lite.metadata.cache import TRANSACTION_FEATURE, TRANSACTION_LEVEL, MetadataSnapshot
from broker_lite.metadata.group_deletion import GroupDeletion
from broker_lite.metadata.group_offsets import GroupOffsets
from broker_lite.metadata.notices import merge
from broker_lite.metadata.producer_ids import ProducerIds
from broker_lite.metadata.registration import Registrar, prepare
from broker_lite.metadata.store import (
    ChildrenChanged,
    Connected,
    DataChanged,
    MetadataStore,
    SessionLost,
    StoreEvent,
    Suspended,
    insist,
)
from broker_lite.model import (
    NO_BROKER,
    NO_EPOCH,
    BrokerView,
    LeaderAndIsr,
    PartitionKey,
    StateChange,
    TopicView,
    UnreadableZnode,
)
from broker_lite.replication.election import can_leave_isr, is_election_due, leaderless_reason
from broker_lite.replication.topics import REPLICATION_LEVEL
from broker_lite.server.cluster.administration import Administration
from broker_lite.server.cluster.controller import ControllerShell
from broker_lite.server.cluster.state_writes import StateWrites
from broker_lite.server.log_events import log_event
from broker_lite.server.metrics import Counter

_log = logging.getLogger(__name__)

SUPPORTED_FEATURES: Mapping[str, int] = {
    "metadata": znodes.VERSION,
    "columns": 1,
    TRANSACTION_FEATURE: TRANSACTION_LEVEL,
}
"""The features of this version of logbus, with the highest supported level of each."""
VISIBLE_WITHIN_S = 5.0
"""Maximum seconds for which an admin request waits until this broker's metadata snapshot shows the
change that the request made."""

RETRY_S = 0.2
"""Seconds before ``Registry`` repeats a step that failed while ZooKeeper was connected."""

ELECTION_S = 1.0
"""Maximum seconds for which a Metadata answer waits for elections after a broker joined or left.

librdkafka repeats its request each second, so a longer wait is useless."""

DRAIN_ANSWER_S = 2.0
"""Maximum seconds for which a stopping broker waits until ZooKeeper has stored that it is about to
stop (drains)."""


class _Step(enum.Enum):
    """A step of the keeper task, which runs due steps in the order of this enumeration."""

    REGISTER = enum.auto()
    DEPOSE = enum.auto()
    """Delete the znode of a controller that is probably dead."""
    RELOAD = enum.auto()
    """Read all metadata."""
    READ_CHANGES = enum.auto()
    """Read the metadata that new change notices (entries of the znode /changes) name."""
    READ_BROKERS = enum.auto()
    STAND = enum.auto()
    """Stand for election as controller, then read which broker is the controller."""


class Registry:
    """The registration of one broker, and the broker's access to the metadata in ZooKeeper.

    Attributes: ``groups`` reads and writes committed offsets, ``group_deletion`` deletes them, and
    ``administration`` changes topics, settings and users. ``now_ms`` returns wall time. Operations
    that need ZooKeeper raise CoordinationUnavailableError while it is unavailable."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        store: MetadataStore,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.snapshot = MetadataSnapshot()
        self._fresh = MetadataSnapshot()
        """The next snapshot, as far as it has been read. Its version is 0 until ``_publish``
        publishes a copy with the next version."""
        self._unreadable: security_znodes.Unreadable = {}
        self._config = config
        self._store = store
        self._callbacks: list[Callable[[MetadataSnapshot], None]] = []
        self._watch_callbacks: list[Callable[[str | None], None]] = []
        self._fatal_callbacks: list[Callable[[LogbusError], None]] = []
        self._controller = ControllerShell(
            store,
            config,
            wait_connected=self.wait_connected,
            snapshot=self._topics_snapshot,
        )
        self.groups = GroupOffsets(
            store,
            find_topic=lambda name: self.snapshot.topics.get(name),
            now_ms=now_ms,
            interval_ms=config.offset_commit_interval_ms,
            identity=lambda: (config.broker_id, self.broker_epoch),
            wait_connected=self.wait_connected,
        )
        self.group_deletion = GroupDeletion(store, self.groups)
        self.administration = Administration(self, self._controller, store, config, random_bytes)
        self._producer_ids = ProducerIds(store, config.broker_id)
        self._states = StateWrites(
            store,
            config.broker_id,
            wait_connected=self.wait_connected,
            snapshot=self._topics_snapshot,
            live=self.live_brokers,
        )
        self._registrar: Registrar | None = None
        self._patience_s = config.zookeeper_session_timeout_ms / 1000
        """Maximum seconds for which a starting broker repeats a step because its connection to
        ZooKeeper was lost, as on a busy machine."""
        self._broker_epoch = NO_EPOCH
        self._broker_epochs: frozenset[int] = frozenset()
        self._suspects: dict[int, int] = {}
        """Broker epochs of processes that are suspected to be dead, by broker id."""
        self._lost: dict[int, int] = {}
        """By broker id, the broker epochs of processes that may be dead, because their connection
        to this broker closed."""
        self.session_losses = Counter()
        """How many of this broker's ZooKeeper sessions have expired."""
        self._elected_by_s = 0.0
        """Time by the event loop's clock (s) until which Metadata answers wait for elections."""
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._connected = asyncio.Event()
        self._unsure_since_s = 0.0
        """Time by the event loop's clock (s) since which the snapshot may lack changes; 0 if it
        lacks none."""
        self._due = asyncio.Event()
        self._published = asyncio.Event()
        self._steps = {_Step.REGISTER, _Step.RELOAD}
        self._sequence = self._published_sequence = -1

    # Methods by which the broker joins the cluster, drains and leaves.

    async def start(
        self,
        registration: znodes.Registration,
        *,
        cluster_id: str = "",
        damaged: Collection[PartitionKey] = (),
    ) -> str:
        """Register the broker, load the metadata, and stand for election. Return the cluster id.

        ``cluster_id`` is the id in the data directory, empty for a new one. ``damaged`` lists
        partitions whose log lost flushed records: this broker leaves their ISRs before it
        registers, except where it is the only member.

        Raises CoordinationUnavailableError, BrokerIdTakenError, StaleDirectoryError,
        InconsistentClusterIdError, InvalidConfigError or UnsupportedVersionError."""

        async def enter() -> str:
            features, new_id = registration.features, self.administration.new_id
            known_id = await prepare(self._store, cluster_id, new_id, features)
            if damaged:
                await self._states.withdraw(registration.directory_id, damaged)
            return known_id

        try:
            await self._store.start(self._on_event)
            cluster_id = await insist(enter, self._patience_s)
            await self._join(cluster_id, registration)
        except BaseException:
            await self.close()
            raise
        return cluster_id

    async def _join(self, cluster_id: str, registration: znodes.Registration) -> None:
        """Register the broker, read the metadata, and start the keeper task, which follows later
        changes."""
        self._fresh = dataclasses.replace(self._fresh, cluster_id=cluster_id)
        self._registrar = Registrar(
            self._store,
            registration,
            patience_ms=self._config.zookeeper_session_timeout_ms + 1000,
            wait_connected=self.wait_connected,
        )
        await insist(self._catch_up, self._patience_s)
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Leave the cluster: stop the task that follows ZooKeeper's changes, and end the ZooKeeper
        session, which deletes the registration."""
        self.groups.close()
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        self._controller.resign()
        await self._store.close()

    async def drain(self) -> None:
        """Give up leadership and leave the ISRs before a controlled shutdown.

        Return when this broker leads no partition and is in no ISR, except where no live broker
        could replace it. The caller limits the time. Raises CoordinationUnavailableError if
        ZooKeeper does not confirm within ``DRAIN_ANSWER_S`` seconds that this broker drains."""
        if self._registrar is None or self._fresh.features.get("metadata", 0) < REPLICATION_LEVEL:
            return
        try:
            async with asyncio.timeout(DRAIN_ANSWER_S):
                await self._registrar.drain()
        except TimeoutError:
            raise CoordinationUnavailableError(
                f"ZooKeeper did not answer within {DRAIN_ANSWER_S:g} s, so this broker does not "
                "drain yet; try again"
            ) from None
        while self._store.connected and not self._closed and self._can_leave():
            await self._published.wait()

    async def set_full(self, is_full: bool) -> None:
        """Store in this broker's registration whether its disk is full.

        While it is full, the broker's replicas give up leadership and leave the ISRs. Raises
        CoordinationUnavailableError."""
        if self._registrar is None or self._fresh.features.get("metadata", 0) < REPLICATION_LEVEL:
            return
        await self._registrar.set_full(is_full)

    def _can_leave(self) -> bool:
        own = self.snapshot.brokers.get(self._config.broker_id)
        if own is None or not own.draining:
            return own is not None
        brokers = self.live_brokers()
        return any(
            can_leave_isr(view.state, own, brokers)
            for topic in self.snapshot.topics.values()
            for view in topic.partitions
        )

    # Methods that write to ZooKeeper, or wait until this broker has seen a change.

    async def write_states(self, changes: Sequence[StateChange]) -> list[LeaderAndIsr | None]:
        """Write the states of partitions that this broker leads. Return the written states, in
        order.

        A result is None if the write was refused: the state in ZooKeeper has another version, or a
        replica that would join the ISR is on a broker that is not live. While ZooKeeper is
        unavailable, the call waits; the results are None if the session ends meanwhile."""
        if self._closed:
            raise ClosedError("this broker is shutting down; try again on another broker")
        return await self._states.write(changes)

    async def next_producer_id(self) -> int:
        """Return a producer id that no other producer of the cluster has."""
        return await self._producer_ids.next()

    def check_connected(self) -> None:
        """Raise CoordinationUnavailableError without a ZooKeeper connection, ClosedError while
        stopping."""
        if self._closed:
            raise ClosedError("this broker is shutting down; try again on another broker")
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; try again later")

    async def wait_visible(self, visible: Callable[[MetadataSnapshot], bool]) -> None:
        """Wait until ``visible`` is true for this broker's metadata snapshot, for at most
        ``VISIBLE_WITHIN_S`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VISIBLE_WITHIN_S):
                while not visible(self.snapshot):
                    await self._published.wait()

    async def wait_read(self, sequence: int | None = None) -> None:
        """Wait until this broker's metadata snapshot has all changes up to that of change notice
        number ``sequence``; by default, all changes that this broker wrote as controller."""
        written = self._controller.written_sequence if sequence is None else sequence
        await self.wait_visible(lambda now: self._published_sequence >= written)

    async def deleted_topics(self, topic_ids: Collection[str]) -> frozenset[str]:
        """Return those of ``topic_ids`` whose topics were deleted. Each must be the id of a topic
        that existed.

        The result is empty while this broker's metadata are older than ZooKeeper's, because a topic
        that they lack may be new. Raises CoordinationUnavailableError."""
        await self._store.sync(znodes.CHANGES)
        notices = await loader.load_notices(self._store)
        if self._sequence < notices.sequence:
            return frozenset()
        return frozenset(topic_ids).difference(self._fresh.topics_by_id)

    # Callbacks for changes, and properties of the broker's state.

    def on_change(self, callback: Callable[[MetadataSnapshot], None]) -> None:
        """Call ``callback`` with the current metadata snapshot, if any, and with each new one."""
        self._callbacks.append(callback)
        if self.snapshot.version:
            callback(self.snapshot)

    def on_watch(self, callback: Callable[[str | None], None]) -> None:
        """Call ``callback`` with the path of each znode whose watch fires.

        After a reconnection to ZooKeeper, call it with None: all watches are lost."""
        self._watch_callbacks.append(callback)

    def on_fatal(self, callback: Callable[[LogbusError], None]) -> None:
        """Call ``callback`` with the error that makes the broker stop, such as a taken broker
        id."""
        self._fatal_callbacks.append(callback)

    @property
    def broker_epoch(self) -> int:
        """The broker epoch of the current registration; -1 while the broker is not registered."""
        return self._broker_epoch

    @property
    def broker_epochs(self) -> frozenset[int]:
        """The broker epochs of all registrations of this process.

        A replica compares them with the elected leader's broker epoch, to learn whether this
        process is the leader."""
        return self._broker_epochs

    @property
    def is_controller(self) -> bool:
        return self._controller.is_active

    @property
    def metadata_age_s(self) -> float:
        """For how many seconds the metadata snapshot may have lacked changes; 0 if it is
        complete."""
        return self._now_s() - self._unsure_since_s if self._unsure_since_s else 0.0

    @property
    def unreadable_znodes(self) -> list[UnreadableZnode]:
        """The users, access control lists and quotas in ZooKeeper that this broker cannot
        decode."""
        return sorted(self._unreadable.values())

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper is connected."""
        return self._store.connected

    def leaderless_reason(self, topic: str, partition: int) -> str | None:
        """Return the reason why a partition has no leader, or None if it has one."""
        view = self.snapshot.partition(topic, partition)
        if view is None:
            return None
        return leaderless_reason(view.state, view.replicas, self.snapshot.brokers)

    # Methods that record suspected brokers and wait for elections.

    def lost(self, broker_id: int, broker_epoch: int) -> None:
        """Record that the connection to a broker closed. Metadata answers then wait for elections,
        because the broker may be dead."""
        self._lost[broker_id] = broker_epoch
        self._expect_elections()

    def suspect(self, broker_id: int, broker_epoch: int) -> None:
        """Suspect that a broker is dead, because it closed its connection and refuses a new one.

        The controller treats it as if its ZooKeeper session had ended. If the suspect is the
        controller, this broker deletes its znode /controller. A wrong suspicion costs availability,
        but no records."""
        known = self._fresh.brokers.get(broker_id)
        if known is None or known.broker_epoch != broker_epoch:
            return
        if broker_id == self._config.broker_id or self._suspects.get(broker_id) == broker_epoch:
            return
        _log.warning(
            "broker %d is suspected to be dead: it refuses connections",
            broker_id,
            extra=log_event("broker_suspected"),
        )
        self._suspects[broker_id] = broker_epoch
        self._expect_elections()
        self._controller.suspects_changed(self._suspects)
        if broker_id == self._fresh.controller_id:
            self._schedule(_Step.DEPOSE)

    def trust(self, broker_id: int, broker_epoch: int) -> None:
        """Treat a lost or suspected broker as alive, because it is reachable again."""
        if self._lost.get(broker_id) == broker_epoch:
            del self._lost[broker_id]
            self._wake_waiting()
        if self._suspects.get(broker_id) == broker_epoch:
            _log.info(
                "broker %d is reachable again", broker_id, extra=log_event("broker_reachable")
            )
            del self._suspects[broker_id]
            self._controller.suspects_changed(self._suspects)

    async def wait_elections(
        self, topics: Callable[[MetadataSnapshot], Iterable[TopicView]]
    ) -> None:
        """Wait for the elections due in the topics that ``topics`` selects from a metadata
        snapshot.

        The call returns at once if no election is due or ZooKeeper is unavailable, and at the
        latest ``ELECTION_S`` seconds after a broker last joined or left."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            while loop.time() < self._elected_by_s and self._is_election_due(topics(self.snapshot)):
                async with asyncio.timeout_at(self._elected_by_s):
                    await self._published.wait()

    def _is_election_due(self, topics: Iterable[TopicView]) -> bool:
        live = {
            broker_id: broker
            for broker_id, broker in self.live_brokers().items()
            if self._lost.get(broker_id) != broker.broker_epoch
        }
        return self._store.connected and any(
            is_election_due(view.state, live) for topic in topics for view in topic.partitions
        )

    def _expect_elections(self) -> None:
        self._elected_by_s = asyncio.get_running_loop().time() + ELECTION_S

    def live_brokers(self) -> Mapping[int, BrokerView]:
        """Return the registered brokers that are not suspected to be dead, by id."""
        return {
            broker_id: broker
            for broker_id, broker in self._fresh.brokers.items()
            if self._suspects.get(broker_id) != broker.broker_epoch
        }

    # Methods that handle ZooKeeper's events and read the changed metadata.

    def _on_event(self, event: StoreEvent) -> None:
        match event:
            case Connected():
                self._connected.set()
                if event.new_session:
                    self._schedule(_Step.REGISTER)
                # Without a connection, this broker missed watch events. The change notices say what
                # has changed. If some notices are deleted already, read all metadata.
                self._schedule(_Step.READ_CHANGES, _Step.READ_BROKERS, _Step.STAND)
                self._notify_watchers(None)
            case Suspended():
                self._connected.clear()
                self._unsure_since_s = self._unsure_since_s or self._now_s()
                _log.warning(
                    "ZooKeeper does not answer; leaders keep serving, administrative requests fail",
                    extra=log_event("zookeeper_unreachable"),
                )
                # Without ZooKeeper, this broker sees no changes. Wake the requests that wait for
                # one, so that they do not wait until ZooKeeper answers again.
                self._wake_waiting()
            case SessionLost():
                self.session_losses.n += 1
                self._connected.clear()
                self._unsure_since_s = self._unsure_since_s or self._now_s()
                self._broker_epoch = NO_EPOCH
                self._steps.add(_Step.REGISTER)
                error = CoordinationUnavailableError(
                    "the ZooKeeper session ended before ZooKeeper answered; "
                    "the request may have taken effect"
                )
                self._controller.resign(error)
            case DataChanged(path):
                if path == znodes.CHANGES:
                    self._schedule(_Step.READ_CHANGES)
                elif path == znodes.CONTROLLER:
                    self._schedule(_Step.STAND)
                self._notify_watchers(path)
            case ChildrenChanged(znodes.BROKER_IDS):
                self._schedule(_Step.READ_BROKERS)

    def _schedule(self, *steps: _Step) -> None:
        """Let the keeper task run these steps."""
        self._steps.update(steps)
        self._due.set()

    def _notify_watchers(self, path: str | None) -> None:
        for callback in self._watch_callbacks:
            callback(path)

    def _topics_snapshot(self) -> loader.TopicsSnapshot:
        return loader.TopicsSnapshot(self._fresh.topics, self._sequence)

    async def wait_connected(self) -> None:
        """Wait until the ZooKeeper connection is up."""
        await self._connected.wait()

    async def _keep(self) -> None:
        while True:
            await self._due.wait()
            await self._connected.wait()
            self._due.clear()
            try:
                await self._catch_up()
            except CoordinationUnavailableError:
                await self._later()
            except LogbusError as error:
                if error.retriable:
                    await self._later()
                    continue
                _log.error("this broker must stop: %s", error, extra=log_event("broker_fenced"))
                for callback in self._fatal_callbacks:
                    callback(error)
                return
            except Exception:
                _log.exception("unexpected error while reading the cluster's metadata; retrying")
                await self._later()

    async def _later(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._due.set()

    async def _catch_up(self) -> None:
        """Run the due steps (``_Step``), and publish the snapshot.

        A step that fails raises its error and stays due."""
        actions: Mapping[_Step, Callable[[], Awaitable[None]]] = {
            _Step.REGISTER: self._register,
            _Step.DEPOSE: self._depose,
            _Step.RELOAD: self._reload,
            _Step.READ_CHANGES: self._read_changes,
            _Step.READ_BROKERS: self._read_brokers,
            _Step.STAND: self._read_controller,
        }
        for step in _Step:
            if step not in self._steps:
                continue
            # Remove the step before it runs: an event that arrives during its run makes it due
            # again.
            self._steps.remove(step)
            try:
                await actions[step]()
            except BaseException:
                self._steps.add(step)
                raise
        self._publish()
        if self._store.connected:
            self._unsure_since_s = 0.0

    async def _register(self) -> None:
        assert self._registrar is not None
        epoch = await self._registrar.register()
        self._broker_epoch = epoch
        self._broker_epochs |= {epoch}
        self._steps.add(_Step.READ_BROKERS)
        _log.info(
            "broker %d is registered in broker epoch %d",
            self._config.broker_id,
            epoch,
            extra=log_event("broker_registered"),
        )

    async def _depose(self) -> None:
        """Delete the znode /controller of a controller that is probably dead, so that this broker
        can stand for election."""
        await self._controller.depose(dict(self._suspects))
        self._steps.add(_Step.STAND)

    async def _reload(self) -> None:
        self._steps.discard(_Step.READ_CHANGES)
        self._steps |= {_Step.READ_BROKERS, _Step.STAND}
        notices = await loader.load_notices(self._store, watch=True)
        topics = await loader.load_topics(self._store)
        await self._load_cluster()
        unreadable: security_znodes.Unreadable = {}
        self._fresh = dataclasses.replace(
            self._fresh,
            users=await security_znodes.load(self._store, credentials.KIND, unreadable),
            acls=await acls.load_acls(self._store, unreadable),
            quotas=await security_znodes.load(self._store, quotas.KIND, unreadable),
        )
        self._unreadable = unreadable
        self._take_topics(topics)
        self._sequence = notices.sequence

    async def _load_cluster(self) -> None:
        """Read the features of the cluster and the settings of its brokers."""
        features = await loader.load_features(self._store)
        assert self._registrar is not None
        self._registrar.check_features(features)
        configs = await loader.load_broker_configs(self._store)
        self._fresh = dataclasses.replace(self._fresh, features=features, broker_configs=configs)

    async def _read_changes(self) -> None:
        notices = await loader.load_notices(self._store, watch=True)
        merged = merge(notices, self._sequence)
        if merged is None:
            await self._reload()
            return
        topics = await loader.refresh_topics(self._store, self._fresh.topics, merged.topics)
        if merged.security:
            await self._refresh_security(merged.security)
        if merged.cluster:
            # This notice does not say what changed in the cluster: features, settings of a broker,
            # or a broker that drains or whose disk is full. Read all of these.
            self._steps.add(_Step.READ_BROKERS)
            await self._load_cluster()
        self._take_topics(topics)
        self._sequence = notices.sequence

    async def _refresh_security(self, paths: Collection[str]) -> None:
        fresh, store, unreadable = self._fresh, self._store, self._unreadable
        read = security_znodes.refreshed
        self._fresh = dataclasses.replace(
            fresh,
            users=await read(store, fresh.users, paths, credentials.KIND, unreadable),
            acls=await read(store, fresh.acls, paths, acls.KIND, unreadable),
            quotas=await read(store, fresh.quotas, paths, quotas.KIND, unreadable),
        )

    def _take_topics(self, topics: dict[str, TopicView]) -> None:
        if self.is_controller:
            self._controller.states_read(_changed_states(self._fresh.topics, topics))
        by_id = {topic.topic_id: topic for topic in topics.values()}
        self._fresh = dataclasses.replace(
            self._fresh, topics=dict(sorted(topics.items())), topics_by_id=by_id
        )

    async def _read_brokers(self) -> None:
        brokers = await loader.load_brokers(self._store, watch=True)
        own = brokers.get(self._config.broker_id)
        if own is None or own.broker_epoch != self._broker_epoch:
            # This broker's registration was deleted: by an operator, or by a broker that runs on a
            # copy of this data directory.
            assert self._registrar is not None
            await self._registrar.check_disk()
            self._schedule(_Step.REGISTER)
        if brokers != self._fresh.brokers:
            self._expect_elections()
        self._fresh = dataclasses.replace(self._fresh, brokers=brokers)
        for broken in (self._suspects, self._lost):
            for broker_id, epoch in list(broken.items()):
                if broker_id not in brokers or brokers[broker_id].broker_epoch != epoch:
                    del broken[broker_id]
        self._controller.brokers_changed(self._suspects)

    async def _read_controller(self) -> None:
        pause_s = await self._controller.stand(self._broker_epoch, self._broker_epochs)
        present = await self._store.get(znodes.CONTROLLER)
        epoch = await self._store.get(znodes.CONTROLLER_EPOCH)
        controller_id, controller_epoch = NO_BROKER, self._fresh.controller_epoch
        elected_as = NO_EPOCH
        if present is not None:
            controller_id, elected_as = znodes.decode_controller(znodes.CONTROLLER, present.data)
        if epoch is not None:
            controller_epoch = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, epoch.data)
        self._fresh = dataclasses.replace(
            self._fresh, controller_id=controller_id, controller_epoch=controller_epoch
        )
        if pause_s:
            asyncio.get_running_loop().call_later(pause_s, self._schedule, _Step.STAND)
        if self._suspects.get(controller_id) == elected_as != NO_EPOCH:
            self._schedule(_Step.DEPOSE)

    def _publish(self) -> None:
        version = self.snapshot.version
        if not version or self._fresh != dataclasses.replace(self.snapshot, version=0):
            self.snapshot = dataclasses.replace(self._fresh, version=version + 1)
            for callback in self._callbacks:
                callback(self.snapshot)
        self._published_sequence = self._sequence
        # Wake the callers of ``wait_read`` even if the snapshot did not change: two changes may
        # cancel out.
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        published, self._published = self._published, asyncio.Event()
        published.set()


def _changed_states(
    before: Mapping[str, TopicView], now: Mapping[str, TopicView]
) -> list[StateChange]:
    """Return the states in ``now`` that differ from ``before``, without those of new topics and of
    topics that were created anew."""
    changes = []
    for name, topic in now.items():
        known = before.get(name)
        if known is None or known is topic or known.topic_id != topic.topic_id:
            continue
        for old, new in zip(known.partitions, topic.partitions):
            if new.state.version != old.state.version:
                changes.append(StateChange(name, new.partition, new.state, topic.topic_id))
    return changes
