"""The broker's place in the cluster: its registration, the metadata snapshot, who is suspected.

Loop thread only. One task, the keeper, does what watches, session events and suspicions make due,
in one order: register, depose, read, publish the snapshot, stand for controller. A reconnection
voids every watch, so it reads everything anew; so does a gap in the notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping

from broker_lite.config import BrokerConfig
from broker_lite.errors import CoordinationUnavailableError, LogbusError
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.metadata.notices import merge
from broker_lite.metadata.registration import Registrar
from broker_lite.metadata.store import (
    ChildrenChanged,
    Connected,
    DataChanged,
    MetadataStore,
    SessionLost,
    StoreEvent,
    Suspended,
)
from broker_lite.model import NO_BROKER, NO_EPOCH, BrokerView, StateChange, TopicView
from broker_lite.replication.election import can_be_left, is_election_due, leaderless_reason
from broker_lite.replication.topics import REPLICATION_LEVEL
from broker_lite.server.cluster.controller import ControllerShell

_log = logging.getLogger(__name__)

RETRY_S = 0.2
"""Before the keeper tries again what failed although there is a connection."""
HELD_DELAY_S = 0.2
"""Changes of the partitions held are gathered so long before the registration names them."""

ELECTION_S = 1.0
"""How long after a broker came or went a metadata answer may wait for the elections that follow.

librdkafka asks once when a leader's connection ends, and then once a second."""


class Membership:
    """What ``Registry`` stands on. ``now_ms`` is the wall clock."""

    def __init__(
        self, config: BrokerConfig, store: MetadataStore, *, now_ms: Callable[[], int]
    ) -> None:
        self.snapshot = MetadataSnapshot()
        self._fresh = MetadataSnapshot()
        """What was read since; its version is 0."""
        self._config = config
        self._store = store
        self._callbacks: list[Callable[[MetadataSnapshot], None]] = []
        self._watch_callbacks: list[Callable[[str | None], None]] = []
        self._fatal_callbacks: list[Callable[[LogbusError], None]] = []
        self._controller = ControllerShell(
            store,
            config,
            now_ms=now_ms,
            wait_connected=self._wait_connected,
            seen=self._seen,
        )
        self._registrar: Registrar | None = None
        self._broker_epoch = NO_EPOCH
        self._broker_epochs: frozenset[int] = frozenset()
        self._suspects: dict[int, int] = {}
        """Broker id to the broker epoch of the process that seems to be dead."""
        self._lost: dict[int, int] = {}
        """Likewise, of the processes to which this broker's connection ended."""
        self._elected_by_s = 0.0
        """The time on the loop's clock until which elections may be due."""
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._connected = asyncio.Event()
        self._due = asyncio.Event()
        self._published = asyncio.Event()
        self._register_due = self._reload_due = True
        self._brokers_due = self._changes_due = self._controller_due = False
        self._depose_due = self._held_due = False
        self._held_timer: asyncio.TimerHandle | None = None
        self._sequence = -1

    # Life.

    async def _join(self, cluster_id: str, registration: znodes.Registration) -> None:
        """Register, load the metadata, stand for controller, and keep doing what is due."""
        self._fresh = dataclasses.replace(self._fresh, cluster_id=cluster_id)
        self._registrar = Registrar(
            self._store,
            registration,
            patience_ms=self._config.zookeeper_session_timeout_ms + 1000,
            wait_connected=self._wait_connected,
        )
        await self._catch_up()
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Leave the cluster: the registration vanishes at once."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._held_timer is not None:
            self._held_timer.cancel()
        self._controller.resign()
        await self._store.close()

    async def drain(self) -> None:
        """Before a graceful stop: have leadership moved away and leave the ISRs.

        Returns when this broker leads nothing that another could lead and is in no ISR that it
        can leave; at once where ZooKeeper does not answer. The caller bounds the time.
        """
        if self._registrar is None or self._fresh.features.get("metadata", 0) < REPLICATION_LEVEL:
            return
        try:
            await self._registrar.drain()
        except CoordinationUnavailableError:
            return
        while self._store.connected and not self._closed and self._can_leave():
            await self._published.wait()

    async def set_full(self, is_full: bool) -> None:
        """Say whether this broker's disk is full; until it has room, others lead and its replicas
        leave the ISRs. Raises CoordinationUnavailableError."""
        if self._registrar is None or self._fresh.features.get("metadata", 0) < REPLICATION_LEVEL:
            return
        await self._registrar.set_full(is_full)

    def _can_leave(self) -> bool:
        own = self.snapshot.brokers.get(self._config.broker_id)
        if own is None or not own.draining:
            return own is not None
        brokers = self.live_brokers()
        return any(
            can_be_left(view.state, own, brokers)
            for topic in self.snapshot.topics.values()
            for view in topic.partitions
        )

    def on_change(self, callback: Callable[[MetadataSnapshot], None]) -> None:
        """Call ``callback`` after every swap, on the loop, now with the present one if any."""
        self._callbacks.append(callback)
        if self.snapshot.version:
            callback(self.snapshot)

    def on_watch(self, callback: Callable[[str | None], None]) -> None:
        """Called with the path of a watch that fired, and with None where all of them are void."""
        self._watch_callbacks.append(callback)

    def on_fatal(self, callback: Callable[[LogbusError], None]) -> None:
        """Called when the broker must stop: its id or directory was taken over by another."""
        self._fatal_callbacks.append(callback)

    @property
    def broker_epoch(self) -> int:
        """Of the present registration; -1 while there is none."""
        return self._broker_epoch

    @property
    def broker_epochs(self) -> frozenset[int]:
        """Every registration of this process; for ``LeaderAndIsrChanged``."""
        return self._broker_epochs

    @property
    def is_controller(self) -> bool:
        return self._controller.is_active

    @property
    def connected(self) -> bool:
        """Whether ZooKeeper answers."""
        return self._store.connected

    def leaderless_reason(self, topic: str, partition: int) -> str | None:
        """Why a partition has no leader, for people; None if it has one."""
        view = self.snapshot.partition(topic, partition)
        if view is None:
            return None
        return leaderless_reason(view.state, view.replicas, self.snapshot.brokers)

    # Suspicions.

    def lost(self, broker_id: int, broker_epoch: int) -> None:
        """Expect an election: the connection to a peer ended, and its process may be dead."""
        self._lost[broker_id] = broker_epoch
        self._expect_elections()

    def suspect(self, broker_id: int, broker_epoch: int) -> None:
        """A peer's connection ended and it refuses another: its process seems to be dead.

        The controller acts at once as if its session had ended; where it was the controller itself,
        it is deposed. A wrong guess costs availability only. Never raises.
        """
        known = self._fresh.brokers.get(broker_id)
        if known is None or known.broker_epoch != broker_epoch:
            return
        if broker_id == self._config.broker_id or self._suspects.get(broker_id) == broker_epoch:
            return
        _log.warning("broker %d seems to be dead: it refuses connections", broker_id)
        self._suspects[broker_id] = broker_epoch
        self._expect_elections()
        self._controller.suspects_changed(self._suspects)
        if broker_id == self._fresh.controller_id:
            self._depose_due = True
            self._due.set()

    def trust(self, broker_id: int, broker_epoch: int) -> None:
        """The same process is reachable again."""
        if self._lost.get(broker_id) == broker_epoch:
            del self._lost[broker_id]
            self._wake_waiting()
        if self._suspects.get(broker_id) == broker_epoch:
            _log.info("broker %d is reachable again", broker_id)
            del self._suspects[broker_id]
            self._controller.suspects_changed(self._suspects)

    async def wait_elections(
        self, topics: Callable[[MetadataSnapshot], Iterable[TopicView]]
    ) -> None:
        """Wait until the snapshot shows who leads these topics after brokers came or went.

        Returns at once where no election is due, or where ZooKeeper does not answer. Waits no
        longer than ``ELECTION_S`` after the last of these brokers came or went.
        """
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
        """The registered ones that are not suspected."""
        return {
            broker_id: broker
            for broker_id, broker in self._fresh.brokers.items()
            if self._suspects.get(broker_id) != broker.broker_epoch
        }

    # What ZooKeeper tells.

    def _on_event(self, event: StoreEvent) -> None:
        match event:
            case Connected():
                self._register_due = self._register_due or event.new_session
                # Watches are void. What was missed is in the notices, unless there were too many.
                self._changes_due = self._brokers_due = self._controller_due = True
                self._connected.set()
                self._tell_watchers(None)
            case Suspended():
                self._connected.clear()
                _log.warning("ZooKeeper does not answer; leaders go on, administration waits")
                # Who waits for what it cannot see any more goes on.
                self._wake_waiting()
                return
            case SessionLost():
                self._connected.clear()
                self._broker_epoch = NO_EPOCH
                self._register_due = True
                error = CoordinationUnavailableError(
                    "the session with ZooKeeper ended; what was asked may have been done"
                )
                self._controller.resign(error)
                return
            case DataChanged(path):
                self._changes_due = self._changes_due or path == znodes.CHANGES
                self._controller_due = self._controller_due or path == znodes.CONTROLLER
                self._tell_watchers(path)
            case ChildrenChanged(path):
                self._brokers_due = self._brokers_due or path == znodes.BROKER_IDS
        self._due.set()

    def _tell_watchers(self, path: str | None) -> None:
        for callback in self._watch_callbacks:
            callback(path)

    def _seen(self) -> loader.Seen:
        return loader.Seen(self._fresh.topics, self._sequence)

    async def _wait_connected(self) -> None:
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
                _log.error("this broker must stop: %s", error)
                for callback in self._fatal_callbacks:
                    callback(error)
                return
            except Exception:
                _log.exception("the registry met an error of its own; it tries again")
                await self._later()

    async def _later(self) -> None:
        await asyncio.sleep(RETRY_S)
        self._due.set()

    async def _catch_up(self) -> None:
        """Do what is due. What fails stays due; the snapshot is swapped when nothing failed."""
        if self._register_due:
            await self._register()
        if self._depose_due:
            await self._depose()
        if self._reload_due:
            await self._reload()
        elif self._changes_due:
            await self._read_changes()
        if self._brokers_due:
            await self._read_brokers()
        if self._controller_due:
            await self._read_controller()
        self._publish()
        if self._held_due:
            self._held_due = False
            assert self._registrar is not None
            await self._registrar.hold(_held(self.snapshot, self._config.broker_id))

    async def _register(self) -> None:
        assert self._registrar is not None
        epoch = await self._registrar.register()
        self._register_due = False
        self._broker_epoch = epoch
        self._broker_epochs |= {epoch}
        self._brokers_due = True
        _log.info("broker %d is registered in broker epoch %d", self._config.broker_id, epoch)

    async def _depose(self) -> None:
        """The controller seems to be dead: delete what says that it is there, and stand."""
        suspects = dict(self._suspects)
        await self._controller.depose(suspects)
        self._depose_due = False
        self._controller_due = True

    async def _reload(self) -> None:
        self._changes_due = False
        self._brokers_due = self._controller_due = True
        notices = await loader.load_notices(self._store, watch=True)
        topics = await loader.load_topics(self._store)
        features = await self._load_features()
        self._take_topics(topics)
        self._fresh = dataclasses.replace(self._fresh, features=features)
        self._sequence = notices.sequence
        self._reload_due = False

    async def _load_features(self) -> dict[str, int]:
        features = await loader.load_features(self._store)
        assert self._registrar is not None
        self._registrar.check_features(features)
        return features

    async def _read_changes(self) -> None:
        self._changes_due = False
        try:
            notices = await loader.load_notices(self._store, watch=True)
            merged = merge(notices, self._sequence)
            if merged is None:
                await self._reload()
                return
            topics = await loader.refresh_topics(self._store, self._fresh.topics, merged.topics)
            features = self._fresh.features
            if merged.cluster:
                # The features changed, or a broker is draining, full, or has room again.
                self._brokers_due = True
                features = await self._load_features()
        except BaseException:
            self._changes_due = True
            raise
        self._take_topics(topics)
        self._fresh = dataclasses.replace(self._fresh, features=features)
        self._sequence = notices.sequence

    def _take_topics(self, topics: dict[str, TopicView]) -> None:
        if self.is_controller:
            self._controller.states_read(_changed_states(self._fresh.topics, topics))
        by_id = {topic.topic_id: topic for topic in topics.values()}
        self._fresh = dataclasses.replace(
            self._fresh, topics=dict(sorted(topics.items())), topics_by_id=by_id
        )

    async def _read_brokers(self) -> None:
        self._brokers_due = False
        try:
            brokers = await loader.load_brokers(self._store, watch=True)
            own = brokers.get(self._config.broker_id)
            if own is None or own.broker_epoch != self._broker_epoch:
                # Somebody deleted it: a later start of a copy of our directory, or a person.
                assert self._registrar is not None
                await self._registrar.check_not_replaced()
                self._register_due = True
                self._due.set()
        except BaseException:
            self._brokers_due = True
            raise
        if brokers != self._fresh.brokers:
            self._expect_elections()
        self._fresh = dataclasses.replace(self._fresh, brokers=brokers)
        for broken in (self._suspects, self._lost):
            for broker_id, epoch in list(broken.items()):
                if broker_id not in brokers or brokers[broker_id].broker_epoch != epoch:
                    del broken[broker_id]
        self._controller.brokers_changed(self._suspects)

    async def _read_controller(self) -> None:
        self._controller_due = False
        try:
            pause_s = await self._controller.stand(self._broker_epoch, self._broker_epochs)
            present = await self._store.get(znodes.CONTROLLER)
            epoch = await self._store.get(znodes.CONTROLLER_EPOCH)
        except BaseException:
            self._controller_due = True
            raise
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
            asyncio.get_running_loop().call_later(pause_s, self._stand_again)
        if self._suspects.get(controller_id) == elected_as != NO_EPOCH:
            self._depose_due = True
            self._due.set()

    def _stand_again(self) -> None:
        self._controller_due = True
        self._due.set()

    def _publish(self) -> None:
        version = self.snapshot.version
        if version and self._fresh == dataclasses.replace(self.snapshot, version=0):
            return
        self.snapshot = dataclasses.replace(self._fresh, version=version + 1)
        if self._held_timer is None:
            loop = asyncio.get_running_loop()
            self._held_timer = loop.call_later(HELD_DELAY_S, self._hold)
        for callback in self._callbacks:
            callback(self.snapshot)
        self._wake_waiting()

    def _wake_waiting(self) -> None:
        published, self._published = self._published, asyncio.Event()
        published.set()

    def _hold(self) -> None:
        self._held_timer = None
        self._held_due = True
        self._due.set()


def _held(snapshot: MetadataSnapshot, broker_id: int) -> dict[str, list[int]]:
    held = {}
    for name, topic in snapshot.topics.items():
        partitions = [v.partition for v in topic.partitions if broker_id in v.replicas]
        if partitions:
            held[name] = partitions
    return held


def _changed_states(
    before: Mapping[str, TopicView], now: Mapping[str, TopicView]
) -> list[StateChange]:
    """The states that are other than they were, of topics that are still the same ones."""
    changes = []
    for name, topic in now.items():
        known = before.get(name)
        if known is None or known is topic or known.topic_id != topic.topic_id:
            continue
        for old, new in zip(known.partitions, topic.partitions):
            if new.state.version != old.state.version:
                changes.append(StateChange(name, new.partition, new.state, topic.topic_id))
    return changes
