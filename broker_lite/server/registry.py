"""The broker's part in the cluster: registration, metadata snapshot, topics, offsets, ids.

Loop thread only. Everything that needs ZooKeeper raises CoordinationUnavailableError while it does
not answer, and works again by itself afterwards. One task, the keeper, does what watches and
session events make due, in one order: register, read, publish the snapshot, stand for controller.
A reconnection voids every watch, so it reads everything anew; so does a gap in the notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    ClosedError,
    CoordinationUnavailableError,
    InvalidRequestError,
    LogbusError,
    NotControllerError,
)
from broker_lite.metadata import loader, znodes
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.metadata.group_offsets import GroupOffsets
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
)
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.model import (
    NO_BROKER,
    NO_EPOCH,
    CommittedOffset,
    Endpoint,
    TopicPartition,
    TopicView,
    topic_id_text,
)
from broker_lite.replication.controller import (
    ConfigChangeRequested,
    PartitionsRequested,
    TopicCreationRequested,
    TopicDeletionRequested,
)
from broker_lite.replication.election import leaderless_reason
from broker_lite.server.controller import ControllerShell

_log = logging.getLogger(__name__)

SUPPORTED_FEATURES: Mapping[str, int] = {"metadata": znodes.VERSION, "columns": 1}
"""What this version of logbus can read and write, by the highest level of each."""
RETRY_S = 0.2
"""Before the keeper tries again what failed although there is a connection."""
HELD_DELAY_S = 0.2
"""Changes of the partitions held are gathered so long before the registration names them."""
VISIBLE_WITHIN_S = 5.0
"""How long an administration call waits until this broker's own snapshot shows what it did."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """What a broker says of itself. ``start_counter`` must have been raised, durably, by this
    process before it registers; ``cluster_id`` is the data directory's ("" if it has none yet)."""

    broker_id: int
    endpoint: Endpoint
    directory_id: str
    start_counter: int
    cluster_id: str = ""
    rack: str | None = None
    features: Mapping[str, int] = field(default_factory=lambda: SUPPORTED_FEATURES)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 takes the broker's defaults, ``assignment`` overrides both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic of a request."""

    name: str
    topic_id: str
    error: LogbusError | None = None
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group that has state in ZooKeeper; ``kind`` is "kafka" or "native"."""

    group: str
    kind: str


class Registry:
    """``now_ms`` is the wall clock. ``store`` is ZooKeeper's as the config says, unless given."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        store: MetadataStore | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.snapshot = MetadataSnapshot()
        self._fresh = MetadataSnapshot()
        """What was read since; its version is 0."""
        self._config = config
        self._store: MetadataStore = store or ZooKeeperStore(
            config.zookeeper_connect, session_timeout_ms=config.zookeeper_session_timeout_ms
        )
        self._random_bytes = random_bytes
        self._callbacks: list[Callable[[MetadataSnapshot], None]] = []
        self._fatal_callbacks: list[Callable[[LogbusError], None]] = []
        self._groups = GroupOffsets(
            self._store,
            find_topic=lambda name: self.snapshot.topics.get(name),
            now_ms=now_ms,
            interval_ms=config.offset_commit_interval_ms,
        )
        self._producer_ids = ProducerIds(self._store, config.broker_id)
        self._controller = ControllerShell(
            self._store, config.broker_id, wait_connected=self._wait_connected
        )
        self._registrar: Registrar | None = None
        self._broker_epoch = NO_EPOCH
        self._broker_epochs: frozenset[int] = frozenset()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._connected = asyncio.Event()
        self._due = asyncio.Event()
        self._published = asyncio.Event()
        self._register_due = self._reload_due = True
        self._brokers_due = self._changes_due = self._controller_due = False
        self._held_due = False
        self._held_timer: asyncio.TimerHandle | None = None
        self._sequence = -1

    # Life.

    async def start(self, registration: BrokerRegistration) -> str:
        """Register, load the metadata, stand for controller; returns the cluster id.

        Raises CoordinationUnavailableError, BrokerIdTakenError, StaleDirectoryError,
        InconsistentClusterIdError, UnsupportedVersionError.
        """
        try:
            await self._store.start(self._on_event)
            cluster_id = await prepare(self._store, registration.cluster_id, self._new_id)
            self._fresh = dataclasses.replace(self._fresh, cluster_id=cluster_id)
            self._registrar = Registrar(
                self._store,
                znodes.Registration(
                    registration.broker_id,
                    registration.endpoint,
                    registration.directory_id,
                    registration.start_counter,
                    registration.rack,
                    registration.features,
                ),
                patience_ms=self._config.zookeeper_session_timeout_ms + 1000,
                wait_connected=self._wait_connected,
            )
            await self._catch_up()
        except BaseException:
            await self.close()
            raise
        self._keeper = asyncio.get_running_loop().create_task(self._keep())
        return cluster_id

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
        self._groups.close()
        await self._store.close()

    def on_change(self, callback: Callable[[MetadataSnapshot], None]) -> None:
        """Call ``callback`` after every swap, on the loop, now with the present one if any."""
        self._callbacks.append(callback)
        if self.snapshot.version:
            callback(self.snapshot)

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

    # Topics: NotControllerError unless this broker is the controller.

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create topics one after another; each has its own result."""
        self._check_controller()
        names = [topic.name for topic in topics]
        results = []
        for topic in topics:
            if names.count(topic.name) > 1:
                error = InvalidRequestError(f"topic {topic.name!r} is named twice in the request")
                results.append(TopicResult(topic.name, "", error))
                continue
            results.append(await self._create_topic(topic, validate_only))
        return results

    async def _create_topic(self, topic: NewTopic, validate_only: bool) -> TopicResult:
        count, factor = topic.partitions, topic.replication_factor
        if count == -1:
            count = self._config.num_partitions
        if factor == -1:
            factor = self._config.default_replication_factor
        topic_id = self._new_id()
        try:
            view = await self._controller.request(
                lambda token: TopicCreationRequested(
                    token,
                    topic.name,
                    topic_id,
                    count,
                    factor,
                    topic.assignment,
                    topic.config,
                    validate_only,
                )
            )
        except LogbusError as error:
            return TopicResult(topic.name, "", error)
        if not validate_only:
            await self._until(lambda now: view.topic_id in now.topics_by_id)
        return _result(view)

    async def delete_topics(self, names_or_ids: Sequence[str]) -> list[TopicResult]:
        """Delete topics with their records; a broker that is down deletes its part later."""
        self._check_controller()
        results = []
        for name in names_or_ids:
            results.append(await self._delete_topic(name))
        return results

    async def _delete_topic(self, name_or_id: str) -> TopicResult:
        try:
            view = await self._controller.request(
                lambda token: TopicDeletionRequested(token, name_or_id)
            )
        except LogbusError as error:
            return TopicResult(name_or_id, "", error)
        await self._until(lambda now: view.topic_id not in now.topics_by_id)
        return _result(view)

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicResult:
        """Raise a topic's number of partitions to ``count``; the error is in the result."""
        self._check_controller()
        try:
            view = await self._controller.request(
                lambda token: PartitionsRequested(token, name, count, assignment, validate_only)
            )
        except LogbusError as error:
            return TopicResult(name, "", error)
        if not validate_only:
            await self._until(lambda now: now.partition(name, count - 1) is not None)
        return _result(view)

    async def alter_topic_config(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicView:
        """Set (text) or remove (None) settings. Raises InvalidConfigError,
        UnknownTopicOrPartitionError, NotControllerError, CoordinationUnavailableError."""
        self._check_controller()
        view = await self._controller.request(
            lambda token: ConfigChangeRequested(token, name, changes, validate_only)
        )
        if not validate_only:
            await self._until(lambda now: _has_config(now, view))
        return view

    # Groups: on any broker.

    async def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, LogbusError | None]:
        """Answered when ZooKeeper has them. Fills in the topic id and the time where missing."""
        return await self._groups.commit(group, offsets)

    async def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Only those that there are, and that belong to the topic as it is now. None: all."""
        return await self._groups.fetch(group, partitions)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """None: the whole group. Raises GroupIdNotFoundError."""
        await self._groups.delete(group, partitions)

    async def list_groups(self) -> list[GroupListing]:
        """Every group that has state in ZooKeeper."""
        return [GroupListing(*row) for row in (await self._groups.kinds()).items()]

    async def group_kind(self, group: str) -> str | None:
        """ "kafka", "native", or None if there is no such group."""
        return await self._groups.kind(group)

    # Producer ids: on any broker.

    async def next_producer_id(self) -> int:
        """One that nobody in the cluster had."""
        return await self._producer_ids.next()

    # What ZooKeeper tells.

    def _on_event(self, event: StoreEvent) -> None:
        match event:
            case Connected():
                self._register_due = self._register_due or event.new_session
                self._reload_due = True
                self._connected.set()
            case Suspended():
                self._connected.clear()
                _log.warning("ZooKeeper does not answer; leaders go on, administration waits")
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
            case ChildrenChanged(path):
                self._brokers_due = self._brokers_due or path == znodes.BROKER_IDS
        self._due.set()

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

    async def _reload(self) -> None:
        self._changes_due = False
        self._brokers_due = self._controller_due = True
        notices = await loader.load_notices(self._store, watch=True)
        topics = await loader.load_topics(self._store)
        features = await self._load_features()
        self._fresh = dataclasses.replace(_with_topics(self._fresh, topics), features=features)
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
            merged = loader.merge_notices(notices, self._sequence)
            if merged is None:
                await self._reload()
                return
            changed, cluster = merged
            topics = await loader.refresh_topics(self._store, self._fresh.topics, changed)
            features = self._fresh.features
            if cluster:
                features = await self._load_features()
        except BaseException:
            self._changes_due = True
            raise
        self._fresh = dataclasses.replace(_with_topics(self._fresh, topics), features=features)
        self._sequence = notices.sequence

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
        self._fresh = dataclasses.replace(self._fresh, brokers=brokers)
        self._controller.brokers_changed()

    async def _read_controller(self) -> None:
        self._controller_due = False
        try:
            await self._controller.stand(self._broker_epoch, self._broker_epochs)
            present = await self._store.get(znodes.CONTROLLER)
            epoch = await self._store.get(znodes.CONTROLLER_EPOCH)
        except BaseException:
            self._controller_due = True
            raise
        controller_id, controller_epoch = NO_BROKER, self._fresh.controller_epoch
        if present is not None:
            controller_id, _ = znodes.decode_controller(znodes.CONTROLLER, present.data)
        if epoch is not None:
            controller_epoch = znodes.decode_controller_epoch(znodes.CONTROLLER_EPOCH, epoch.data)
        self._fresh = dataclasses.replace(
            self._fresh, controller_id=controller_id, controller_epoch=controller_epoch
        )

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
        published, self._published = self._published, asyncio.Event()
        published.set()

    def _hold(self) -> None:
        self._held_timer = None
        self._held_due = True
        self._due.set()

    # Administration.

    def _check_controller(self) -> None:
        if self._closed:
            raise ClosedError("the broker stops")
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; try again later")
        if not self._controller.is_active:
            raise NotControllerError()

    async def _until(self, visible: Callable[[MetadataSnapshot], bool]) -> None:
        """Until our own snapshot shows it, so that who asks us next sees what was done."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VISIBLE_WITHIN_S):
                while not visible(self.snapshot):
                    await self._published.wait()

    def _new_id(self) -> str:
        while True:
            text = topic_id_text(self._random_bytes(16))
            # Names of folders and arguments of commands should not look like options.
            if not text.startswith("-"):
                return text


def _with_topics(snapshot: MetadataSnapshot, topics: dict[str, TopicView]) -> MetadataSnapshot:
    by_id = {topic.topic_id: topic for topic in topics.values()}
    return dataclasses.replace(snapshot, topics=dict(sorted(topics.items())), topics_by_id=by_id)


def _held(snapshot: MetadataSnapshot, broker_id: int) -> dict[str, list[int]]:
    held = {}
    for name, topic in snapshot.topics.items():
        partitions = [v.partition for v in topic.partitions if broker_id in v.replicas]
        if partitions:
            held[name] = partitions
    return held


def _has_config(snapshot: MetadataSnapshot, view: TopicView) -> bool:
    topic = snapshot.topics_by_id.get(view.topic_id)
    return topic is None or dict(topic.config) == dict(view.config)


def _result(view: TopicView) -> TopicResult:
    return TopicResult(
        view.name,
        view.topic_id,
        None,
        len(view.partitions),
        len(view.partitions[0].replicas),
        view.config,
    )
