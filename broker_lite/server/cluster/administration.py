"""Carry out the administrative changes that clients request from this broker.

Only the controller changes topics, replicas and settings. Any broker changes users, access control
lists and quotas. Most calls return when this broker's metadata snapshot shows the change, so that
the client's next request sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError, NotControllerError
from broker_lite.metadata import credentials
from broker_lite.metadata.acls import change_entries
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.metadata.credentials import load_salt_key
from broker_lite.metadata.quotas import change_quotas
from broker_lite.metadata.registration import write_broker_config
from broker_lite.metadata.security_znodes import replace_value
from broker_lite.metadata.store import MetadataStore
from broker_lite.model import UNNUMBERED, TopicPartition, TopicView, topic_id_text
from broker_lite.replication.controller_events import (
    ConfigChangeRequested,
    ElectionRequested,
    PartitionsRequested,
    ReassignmentRequested,
    Request,
    RetirementRequested,
    TopicCreationRequested,
    TopicDeletionRequested,
)
from broker_lite.replication.placement import REPLICATION_FACTOR_MAX
from broker_lite.security.acls import Entry, Pattern
from broker_lite.security.quotas import Entity, Values
from broker_lite.security.scram import UserCredentials
from broker_lite.server.cluster.controller import ControllerShell


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. A partition count or replication factor of -1 means the broker's default.

    ``assignment``, if given, lists the broker ids of each partition's replicas; both counts are
    then ignored."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The outcome of a request for one topic. ``error`` is None on success."""

    name: str
    topic_id: str
    error: LogbusError | None = None
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


class ChangeWaits(Protocol):
    """The methods of the broker registry (``Registry``) by which administration waits until a
    change is visible."""

    @property
    def snapshot(self) -> MetadataSnapshot: ...

    def check_connected(self) -> None: ...

    async def wait_connected(self) -> None: ...

    async def wait_visible(self, visible: Callable[[MetadataSnapshot], bool]) -> None: ...

    async def wait_read(self, sequence: int | None = None) -> None: ...


class Administration:
    """Changes topics, replicas, settings, users, access control lists and quotas on behalf of
    clients."""

    def __init__(
        self,
        registry: ChangeWaits,
        controller: ControllerShell,
        store: MetadataStore,
        config: BrokerConfig,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._registry = registry
        self._controller = controller
        self._store = store
        self._config = config
        self._random_bytes = random_bytes
        self.altering_topic = asyncio.Lock()
        """Lock held by each change that reads a topic's settings before it writes them."""

    # Methods that change topics, settings, users, ACLs and quotas. Those that change topics or
    # settings raise NotControllerError unless this broker is the controller.

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create topics in order. Return the result of each.

        With ``validate_only``, check the topics and create none."""
        self._check_controller()
        return [await self._create_topic(topic, validate_only) for topic in topics]

    async def _create_topic(self, topic: NewTopic, validate_only: bool) -> TopicResult:
        count = topic.partitions
        factor: int | None = topic.replication_factor
        if count == -1:
            count = self._config.num_partitions
        if factor == -1:
            factor = self._config.default_replication_factor or None
        if factor is None and len(self._registry.snapshot.brokers) < REPLICATION_FACTOR_MAX:
            # The default replication factor depends on the number of brokers, so let the controller
            # first read which brokers have started.
            self._controller.read_brokers()
        topic_id = self.new_id()
        try:
            view = await self._asked_for_topic(
                TopicCreationRequested(
                    UNNUMBERED,
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
            await self._registry.wait_read()
        return _result(view)

    async def wait_topics(self, names: Sequence[str]) -> None:
        """Wait a few seconds at most until this broker's metadata snapshot has the topics."""
        await self._registry.wait_visible(lambda now: all(name in now.topics for name in names))

    async def delete_topics(self, names_or_ids: Sequence[str]) -> list[TopicResult]:
        """Delete topics and their records. Return the result of each topic.

        A broker that is down deletes its replicas of the topics when it starts."""
        self._check_controller()
        return [await self._delete_topic(name) for name in names_or_ids]

    async def _delete_topic(self, name_or_id: str) -> TopicResult:
        try:
            view = await self._asked_for_topic(TopicDeletionRequested(UNNUMBERED, name_or_id))
        except LogbusError as error:
            return TopicResult(name_or_id, "", error)
        await self._registry.wait_read()
        return _result(view)

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicResult:
        """Increase a topic's partition count to ``count``. An error is returned in the result."""
        self._check_controller()
        try:
            view = await self._asked_for_topic(
                PartitionsRequested(UNNUMBERED, name, count, assignment, validate_only)
            )
        except LogbusError as error:
            return TopicResult(name, "", error)
        if not validate_only:
            await self._registry.wait_read()
        return _result(view)

    async def alter_topic_config(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicView:
        """Change settings of a topic and return the topic. A value of None resets a setting.

        Raises InvalidConfigError, UnknownTopicOrPartitionError, NotControllerError or
        CoordinationUnavailableError."""
        self._check_controller()
        view = await self._asked_for_topic(
            ConfigChangeRequested(UNNUMBERED, name, changes, validate_only)
        )
        if not validate_only:
            await self._registry.wait_read()
        return view

    async def alter_broker_config(self, broker_id: int, changes: Mapping[str, str | None]) -> None:
        """Change the settings that ZooKeeper stores for a broker. A value of None removes a
        setting.

        Raises NotControllerError, WriteConflictError or CoordinationUnavailableError."""
        self._check_controller()
        sequence = await write_broker_config(
            self._store, broker_id, changes, self._registry.wait_connected
        )
        await self._registry.wait_read(sequence)

    async def alter_user(
        self, name: str, change: Callable[[UserCredentials], UserCredentials]
    ) -> None:
        """Replace a user's credentials by ``change(current credentials)``. Empty ones delete the
        user.

        ``change`` is called again if another broker changed the credentials meanwhile. Raises
        WriteConflictError, CoordinationUnavailableError, or the error of ``change``."""
        self._registry.check_connected()
        wait = self._registry.wait_connected
        sequence = await replace_value(self._store, credentials.KIND, name, change, wait)
        await self._registry.wait_read(sequence)

    async def alter_acls(
        self, pattern: Pattern, change: Callable[[frozenset[Entry]], frozenset[Entry]]
    ) -> None:
        """Replace the access control list of a resource pattern by ``change(current list)``.

        ``change`` may be called again, and errors are raised, as in ``alter_user``."""
        self._registry.check_connected()
        sequence = await change_entries(self._store, pattern, change, self._registry.wait_connected)
        await self._registry.wait_read(sequence)

    async def alter_quotas(self, entity: Entity, change: Callable[[Values], Values]) -> None:
        """Replace the quotas of an entity (a user, client id or both) by ``change(current
        quotas)``.

        Raises the errors of ``alter_user``."""
        self._registry.check_connected()
        sequence = await change_quotas(self._store, entity, change, self._registry.wait_connected)
        await self._registry.wait_read(sequence)

    async def salt_key(self) -> bytes:
        """Return the cluster's secret key, from which brokers derive salts for unknown user names.

        A new cluster has no key; the call then creates it in ZooKeeper."""
        return await load_salt_key(self._store, self._random_bytes)

    async def _asked_for_topic(self, request: Request) -> TopicView:
        answer = await self._controller.request(request)
        assert answer.topic is not None
        return answer.topic

    # Methods that move replicas, elect leaders and retire brokers. They raise NotControllerError
    # unless this broker is the controller.

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Start to move partitions to the given broker ids, the preferred leader first.

        A target of None cancels the partition's reassignment. Return an error or None for each
        partition. Raises NotControllerError or CoordinationUnavailableError."""
        self._check_controller()
        answer = await self._controller.request(
            ReassignmentRequested(UNNUMBERED, dict(targets), may_change_factor)
        )
        await self._registry.wait_read()
        return dict(answer.outcomes)

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, LogbusError | None]:
        """Elect the preferred leaders of ``partitions``; None means all partitions.

        With ``unclean``, elect replicas outside the ISR for partitions that have no leader. Return
        an error or None for each partition; if ``partitions`` is None, only for those that needed
        an election."""
        self._check_controller()
        answer = await self._controller.request(ElectionRequested(UNNUMBERED, unclean, partitions))
        await self._registry.wait_read()
        return dict(answer.outcomes)

    async def retire_broker(self, broker_id: int) -> None:
        """Remove a dead broker from the metadata.

        Raises BrokerIdNotRegisteredError for an unknown broker, and InvalidRequestError if the
        broker is live or still has replicas.
        """
        self._check_controller()
        await self._controller.request(RetirementRequested(UNNUMBERED, broker_id))

    def _check_controller(self) -> None:
        self._registry.check_connected()
        if not self._controller.is_active:
            raise NotControllerError()

    def new_id(self) -> str:
        """Return a random id for a topic or a cluster."""
        while True:
            text = topic_id_text(self._random_bytes(16))
            # Ids become folder names and arguments of commands. With a dash in front they would
            # look like options, so draw again.
            if not text.startswith("-"):
                return text


def _result(view: TopicView) -> TopicResult:
    return TopicResult(
        view.name,
        view.topic_id,
        None,
        len(view.partitions),
        len(view.partitions[0].replicas),
        view.config,
    )
