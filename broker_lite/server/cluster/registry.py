"""The broker's access to cluster state: topics, partition states, offsets and producer ids.

Loop thread only. All operations that need ZooKeeper raise CoordinationUnavailableError while it is
unavailable, and recover without a restart. ``broker_registration`` maintains the snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_lite.config import BrokerConfig
from broker_lite.errors import (
    ClosedError,
    CoordinationUnavailableError,
    InvalidRequestError,
    LogbusError,
    NotControllerError,
)
from broker_lite.metadata import znodes
from broker_lite.metadata.acls import change_entries
from broker_lite.metadata.cache import TRANSACTION_FEATURE, TRANSACTION_LEVEL, MetadataSnapshot
from broker_lite.metadata.credentials import change_user, load_salt_key
from broker_lite.metadata.group_claims import GroupClaim
from broker_lite.metadata.group_offsets import (
    FetchedOffsets,
    GroupAge,
    GroupOffsets,
    PendingRow,
)
from broker_lite.metadata.native_members import NativeMember, read_members
from broker_lite.metadata.producer_ids import ProducerIds
from broker_lite.metadata.registration import prepare, write_broker_config
from broker_lite.metadata.store import MetadataStore
from broker_lite.metadata.zookeeper import ZooKeeperStore
from broker_lite.model import (
    CommittedOffset,
    Endpoint,
    LeaderAndIsr,
    PartitionKey,
    StateChange,
    TopicPartition,
    TopicView,
    topic_id_text,
)
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
from broker_lite.security.acls import Entry, Pattern
from broker_lite.security.scram import UserCredentials
from broker_lite.server.cluster.broker_registration import Membership
from broker_lite.server.cluster.state_writes import StateWrites

SUPPORTED_FEATURES: Mapping[str, int] = {
    "metadata": znodes.VERSION,
    "columns": 1,
    TRANSACTION_FEATURE: TRANSACTION_LEVEL,
}
"""The features of this version of logbus, with the highest supported level of each."""
VISIBLE_WITHIN_S = 5.0
"""Maximum seconds that an admin request waits for this broker's snapshot to show its result."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The registration data of a broker.

    The process must have raised and stored ``start_counter`` before it registers. ``cluster_id`` is
    the data directory's; "" for a new directory. ``damaged`` lists partitions whose log lost
    flushed records. Their replicas leave the ISR before the registration, unless they are the only
    member.
    """

    broker_id: int
    endpoint: Endpoint
    directory_id: str
    start_counter: int
    cluster_id: str = ""
    rack: str | None = None
    features: Mapping[str, int] = field(default_factory=lambda: SUPPORTED_FEATURES)
    damaged: frozenset[PartitionKey] = frozenset()
    is_full: bool = False
    """Whether the data directory has no space for records."""
    listeners: Mapping[str, Endpoint] = field(default_factory=dict)
    """The address of each listener; empty: PLAINTEXT at ``endpoint``."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1 selects the broker's default; ``assignment`` overrides both counts."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] | None = None
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result of one topic of a request."""

    name: str
    topic_id: str
    error: LogbusError | None = None
    partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """A group with state in ZooKeeper; ``kind`` is "kafka" or "native"."""

    group: str
    kind: str


class Registry(Membership):
    """The broker's registry. ``now_ms`` returns wall time; ``store`` defaults to the configured
    ZooKeeper."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        store: MetadataStore | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        store = store or ZooKeeperStore(
            config.zookeeper_connect, session_timeout_ms=config.zookeeper_session_timeout_ms
        )
        super().__init__(config, store, now_ms=now_ms)
        self._random_bytes = random_bytes
        self._groups = GroupOffsets(
            store,
            find_topic=lambda name: self.snapshot.topics.get(name),
            now_ms=now_ms,
            interval_ms=config.offset_commit_interval_ms,
            identity=lambda: (config.broker_id, self.broker_epoch),
            wait_connected=self._wait_connected,
        )
        self._producer_ids = ProducerIds(store, config.broker_id)
        self._states = StateWrites(
            store,
            config.broker_id,
            wait_connected=self._wait_connected,
            seen=self._seen,
            live=self.live_brokers,
        )

    async def start(self, registration: BrokerRegistration) -> str:
        """Register, load the metadata, stand for controller, and return the cluster id.

        Raise CoordinationUnavailableError, BrokerIdTakenError, StaleDirectoryError,
        InconsistentClusterIdError, InvalidConfigError or UnsupportedVersionError.
        """
        try:
            await self._store.start(self._on_event)
            cluster_id = await prepare(
                self._store, registration.cluster_id, self._new_id, registration.features
            )
            if registration.damaged:
                await self._states.withdraw_before_start(
                    registration.directory_id, registration.damaged
                )
            await self._join(
                cluster_id,
                znodes.Registration(
                    registration.broker_id,
                    registration.endpoint,
                    registration.directory_id,
                    registration.start_counter,
                    registration.rack,
                    registration.features,
                    is_full=registration.is_full,
                    listeners=registration.listeners,
                ),
            )
        except BaseException:
            await self.close()
            raise
        return cluster_id

    async def close(self) -> None:
        """Leave the cluster; the registration is removed at once."""
        self._groups.close()
        await super().close()

    # Partition states, written by leaders.

    async def write_states(self, changes: Sequence[StateChange]) -> list[LeaderAndIsr | None]:
        """Write the states of partitions led here, conditionally, and return their outcomes in
        order.

        An outcome is None if the write was refused: the stored state differs, or a joining
        replica's broker is not live. The snapshot is then read again. Without ZooKeeper the call
        waits until the session ends.
        """
        if self._closed:
            raise ClosedError("the broker stops")
        return await self._states.write(changes)

    async def withdraw(self, partitions: Collection[PartitionKey]) -> frozenset[PartitionKey]:
        """Remove this broker's replicas from ISRs, and return the partitions concerned.

        If the replica leads, another live ISR member takes over. A replica stays if it is the only
        ISR member, or if it leads and no other member is live.
        """
        own = self.snapshot.brokers.get(self._config.broker_id)
        if own is None:
            return frozenset()
        return await self._states.withdraw(own.directory_id, partitions)

    # Topics. Raise NotControllerError unless this broker is the controller.

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create the topics in order; each has its own result."""
        self._check_controller()
        times = Counter(topic.name for topic in topics)
        results = []
        for topic in topics:
            if times[topic.name] > 1:
                error = InvalidRequestError(f"topic {topic.name!r} is named twice in the request")
                results.append(TopicResult(topic.name, "", error))
                continue
            results.append(await self._create_topic(topic, validate_only))
        return results

    async def _create_topic(self, topic: NewTopic, validate_only: bool) -> TopicResult:
        count = topic.partitions
        factor: int | None = topic.replication_factor
        if count == -1:
            count = self._config.num_partitions
        if factor == -1:
            factor = self._config.default_replication_factor or None
        topic_id = self._new_id()
        try:
            view = await self._asked_for_topic(
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

    async def wait_topics(self, names: Sequence[str]) -> None:
        """Wait, for at most a few seconds, until this broker's snapshot has the topics."""
        await self._until(lambda now: all(name in now.topics for name in names))

    async def delete_topics(self, names_or_ids: Sequence[str]) -> list[TopicResult]:
        """Delete topics and their records; brokers that are down delete their replicas later."""
        self._check_controller()
        results = []
        for name in names_or_ids:
            results.append(await self._delete_topic(name))
        return results

    async def _delete_topic(self, name_or_id: str) -> TopicResult:
        try:
            view = await self._asked_for_topic(
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
        """Raise a topic's partition count to ``count``; the result holds any error."""
        self._check_controller()
        try:
            view = await self._asked_for_topic(
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
        """Set (text) or remove (None) topic settings.

        Raise InvalidConfigError, UnknownTopicOrPartitionError, NotControllerError or
        CoordinationUnavailableError.
        """
        self._check_controller()
        view = await self._asked_for_topic(
            lambda token: ConfigChangeRequested(token, name, changes, validate_only)
        )
        if not validate_only:
            await self._until(lambda now: _has_config(now, view))
        return view

    async def alter_broker_config(self, broker_id: int, changes: Mapping[str, str | None]) -> None:
        """Set (text) or remove (None) settings of a broker that ZooKeeper holds.

        Raise NotControllerError, WriteConflictError or CoordinationUnavailableError.
        """
        self._check_controller()
        await write_broker_config(self._store, broker_id, changes, self._wait_connected)
        await self._until(
            lambda now: all(now.broker_config(broker_id).get(k) == v for k, v in changes.items())
        )

    async def alter_user(
        self, name: str, change: Callable[[UserCredentials], UserCredentials]
    ) -> None:
        """Replace a user's credentials; none deletes the user. Any broker writes.

        Return when this broker knows the change. Raise WriteConflictError,
        CoordinationUnavailableError, or the error of ``change``.
        """
        self._check_connected()
        written: list[UserCredentials] = []

        def noted(before: UserCredentials) -> UserCredentials:
            written.append(change(before))
            return written[-1]

        await change_user(self._store, name, noted, self._wait_connected)
        await self._until(lambda now: now.users.get(name, {}) == written[-1])

    async def alter_acls(
        self, pattern: Pattern, change: Callable[[frozenset[Entry]], frozenset[Entry]]
    ) -> None:
        """Replace the access control list of a pattern, as ``alter_user`` does a user."""
        self._check_connected()
        written: list[frozenset[Entry]] = []

        def noted(before: frozenset[Entry]) -> frozenset[Entry]:
            written.append(change(before))
            return written[-1]

        await change_entries(self._store, pattern, noted, self._wait_connected)
        await self._until(lambda now: now.acls.get(pattern, frozenset()) == written[-1])

    async def salt_key(self) -> bytes:
        """Return the cluster's key for the salts of unknown users."""
        return await load_salt_key(self._store, self._random_bytes)

    async def _asked_for_topic(self, make: Callable[[int], Request]) -> TopicView:
        answer = await self._controller.request(make)
        assert answer.topic is not None
        return answer.topic

    # Replicas. Raise NotControllerError unless this broker is the controller.

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        may_change_factor: bool = True,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Start the reassignment of partitions to the given brokers, the preferred leader first.

        None cancels a partition's reassignment. Raise as ``alter_topic_config``; return the errors
        of single partitions.
        """
        self._check_controller()
        answer = await self._controller.request(
            lambda token: ReassignmentRequested(token, dict(targets), may_change_factor)
        )
        await self._until_read()
        return dict(answer.outcomes)

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, unclean: bool = False
    ) -> dict[TopicPartition, LogbusError | None]:
        """Elect preferred leaders, or with ``unclean`` out-of-sync leaders for leaderless
        partitions.

        None selects all partitions and returns only those with an attempted election.
        """
        self._check_controller()
        answer = await self._controller.request(
            lambda token: ElectionRequested(token, unclean, partitions)
        )
        await self._until_read()
        return dict(answer.outcomes)

    async def retire_broker(self, broker_id: int) -> None:
        """Remove a dead broker. Raise InvalidRequestError if the broker is live or assigned
        replicas, or BrokerIdNotRegisteredError."""
        self._check_controller()
        await self._controller.request(lambda token: RetirementRequested(token, broker_id))

    # Groups. A broker claims a group before it writes the group's state.

    async def claim_group(self, group: str) -> GroupClaim:
        """Claim the right to write the group's offsets, until another broker claims it."""
        return await self._groups.claim(group)

    def release_group(self, claim: GroupClaim) -> None:
        """Stop writing under this claim."""
        self._groups.release(claim)

    def release_other_groups(self, is_ours: Callable[[str], bool]) -> None:
        """Release the claims of all groups that another broker coordinates."""
        self._groups.release_others(is_ours)

    async def begin_generation(
        self,
        claim: GroupClaim,
        generation: int,
        *,
        is_empty: bool,
        members: int = 0,
        session_timeout_ms: int = 0,
    ) -> None:
        """Write a new generation and return once ZooKeeper has it, without a timeout.

        The group's next coordinator uses ``members`` and their longest session timeout. Raise
        NotCoordinatorError if the claim is lost.
        """
        await self._groups.begin_generation(
            claim,
            generation,
            is_empty=is_empty,
            members=members,
            session_timeout_ms=session_timeout_ms,
        )

    def unwritten_commits(self, claim: GroupClaim) -> asyncio.Future[None] | None:
        """Return a future of this claim's pending offset writes, or None if all are written."""
        return self._groups.unwritten(claim)

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        claim: GroupClaim | None = None,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Write offsets and return after ZooKeeper has them, with an error or None for each
        partition.

        Fill in missing topic ids and commit times. Without a claim, claim the group first. Raise
        NotCoordinatorError if the given claim is lost.
        """
        return await self._groups.commit(group, offsets, claim)

    async def fetch_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        with_former: bool = False,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of the present topics; partitions None selects all.

        With ``with_former``, include offsets of deleted topics of the same name: the topic id
        without the offset.
        """
        return await self._groups.fetch(group, partitions, with_former=with_former)

    async def fetch_stable_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        with_former: bool = False,
    ) -> FetchedOffsets:
        """Return offsets as ``fetch_offsets`` does, without those that an open transaction may
        change, and the partitions of the latter."""
        return await self._groups.fetch_stable(group, partitions, with_former=with_former)

    async def add_pending_offsets(
        self,
        claim: GroupClaim,
        transaction: znodes.TransactionKey,
        value: znodes.PendingOffsets,
    ) -> dict[TopicPartition, LogbusError | None]:
        """Keep a transaction's offsets until its end, with an error or None for each partition.

        The write is queued before the first suspension. Raise NotCoordinatorError if the claim is
        lost.
        """
        return await self._groups.add_pending(claim, transaction, value)

    async def end_pending_offsets(
        self, group: str, transaction: znodes.TransactionKey, *, is_commit: bool
    ) -> None:
        """Commit or drop a transaction's offsets. Repeating it has no effect."""
        await self._groups.end_pending(group, transaction, is_commit=is_commit)

    async def pending_offsets(self, group: str) -> list[PendingRow]:
        """Return the offsets of the group's open transactions."""
        return await self._groups.pending(group)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """Delete offsets; partitions None deletes the group. Raise GroupIdNotFoundError."""
        await self._groups.delete(group, partitions)

    async def list_groups(self) -> list[KnownGroup]:
        """Return all groups with state in ZooKeeper."""
        return [KnownGroup(*row) for row in (await self._groups.kinds()).items()]

    async def members_left(self, group: str) -> int:
        """Return the member count of a Kafka group's last generation, whichever broker wrote it."""
        return await self._groups.members_left(group)

    async def native_members(self, group: str) -> list[str]:
        """Return the live consumers of a native group."""
        return await self._groups.native_members(group)

    async def describe_native_group(self, group: str) -> list[NativeMember]:
        """Return the live consumers of a native group, with the partitions that they own."""
        return await read_members(self._store, group)

    async def is_claim_held(self, claim: GroupClaim) -> bool:
        """Return whether no other broker has claimed the group since; ``on_watch`` reports
        possible changes."""
        return await self._groups.is_held(claim)

    async def note_members(self, group: str, *, is_empty: bool) -> None:
        """Record that a native group has members, or the time since which it has none."""
        await self._groups.note_members(group, is_empty=is_empty)

    async def expire_group(self, group: str, is_over: Callable[[GroupAge], bool]) -> bool:
        """Delete the group if ``is_over`` holds and no member joins meanwhile; return whether it
        was deleted."""
        return await self._groups.expire(group, is_over)

    async def expire_former_offsets(self, group: str, before_ms: int) -> int:
        """Delete the group's offsets of deleted topics that are older than ``before_ms``; return
        their number."""
        return await self._groups.expire_former(group, before_ms)

    async def group_kind(self, group: str) -> str | None:
        """Return "kafka", "native", or None if the group does not exist."""
        return await self._groups.kind(group)

    async def is_group_open(self, group: str, kind: str) -> bool:
        """Return whether the group never had a member; its first member fixes the kind."""
        return await self._groups.is_open(group, kind)

    # Producer ids, available on every broker.

    async def next_producer_id(self) -> int:
        """Return a producer id that is unique in the cluster."""
        return await self._producer_ids.next()

    # Administration.

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the active controller."""
        return self._controller.is_active

    def _check_connected(self) -> None:
        if self._closed:
            raise ClosedError("the broker stops")
        if not self._store.connected:
            raise CoordinationUnavailableError("ZooKeeper does not answer; try again later")

    def _check_controller(self) -> None:
        self._check_connected()
        if not self._controller.is_active:
            raise NotControllerError()

    async def _until(self, visible: Callable[[MetadataSnapshot], bool]) -> None:
        """Wait until this broker's snapshot shows a change, so that later requests see it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(VISIBLE_WITHIN_S):
                while not visible(self.snapshot):
                    await self._published.wait()

    async def _until_read(self) -> None:
        """Wait until this broker's snapshot shows all changes that the controller has written."""
        written = self._controller.written_sequence
        await self._until(lambda now: self._sequence >= written)

    def _new_id(self) -> str:
        while True:
            text = topic_id_text(self._random_bytes(16))
            # Folder names and command arguments must not look like options.
            if not text.startswith("-"):
                return text


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
