"""``Admin``: what operators and planners ask of a cluster, blocking. Without pyarrow, numpy.

Safe to share between threads: each question borrows connections of a pool; the view that they
renew is replaced whole. Safe after a fork: the child opens connections of its own. Retriable errors
are tried again within ``timeout_ms`` of each call, after fresh metadata where that may help.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker_lite.client.administration import admin_requests, replica_requests
from broker_lite.client.administration.group_lag import PartitionLag, lag_of, owned_by
from broker_lite.client.administration.query_lease import holder_of, running
from broker_lite.client.administration.replica_requests import Reassignment
from broker_lite.client.discovery import join, parse_endpoints
from broker_lite.client.operations import group_requests, requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.transport.blocking import Pool, monotonic_ms
from broker_lite.client.transport.steps import Operation
from broker_lite.config import value_text
from broker_lite.errors import (
    GroupIdNotFoundError,
    GroupLeaseHeldError,
    InvalidTopicError,
    LogbusError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    error_for,
)
from broker_lite.model import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    NAME_LENGTH_MAX,
    CommittedOffset,
    ListedOffset,
    TopicPartition,
    is_valid_name,
)
from broker_lite.wire.calls import configs, topics
from broker_lite.wire.calls.groups import DescribedGroupMember

TIMEOUT_MS = 30_000
_SOURCES = {1: "topic", 2: "broker", 4: "broker file", 5: "default"}


class ConfigEntry(NamedTuple):
    """One setting as a broker has it; ``source`` is topic, broker, broker file or default."""

    name: str
    value: str | None
    is_default: bool
    read_only: bool
    source: str
    documentation: str


class GroupListing(NamedTuple):
    """A consumer group. ``kind`` is its type in the protocol: "Classic" is a Kafka group, which a
    broker coordinates, "Native" one that coordinates itself in ZooKeeper. A Classic one whose
    ``protocol_type`` is empty has offsets alone: its first member decides which of the two it is.
    """

    group: str
    state: str
    kind: str
    protocol_type: str = "consumer"


class GroupDescription(NamedTuple):
    """A consumer group and its members."""

    group: str
    state: str
    protocol_type: str
    members: tuple[DescribedGroupMember, ...]


class LogDir(NamedTuple):
    """A broker's data directory: bytes by partition, and of the disk (-1 if unknown)."""

    broker_id: int
    path: str
    error: LogbusError | None
    total_bytes: int
    usable_bytes: int
    partitions: Mapping[TopicPartition, int]


class Admin:
    """Administration of one cluster. ``timeout_ms`` bounds each call, retries included."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "logbus",
        timeout_ms: float = TIMEOUT_MS,
        pool: Pool | None = None,
    ) -> None:
        endpoints = parse_endpoints(bootstrap_servers)
        self.bootstrap_servers = join(endpoints)
        self.timeout_ms = timeout_ms
        self._pool = Pool(client_id) if pool is None else pool
        self._cluster = Cluster(endpoints, monotonic_ms, client_id)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def _run(self, operation: Operation[Any]) -> Any:
        return self._pool.run(operation)

    def _deadline(self) -> float:
        return monotonic_ms() + self.timeout_ms

    # -- the cluster

    def cluster(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Brokers, controller and topics: all of them, or those named (a missing one has
        ``error``). Raises NoBrokersError where no broker answers."""
        names = None if topics is None else list(topics)
        view: ClusterView = self._run(requests.refresh(self._cluster, names, self._deadline()))
        if names is None:
            return view
        wanted = {name: view.topics[name] for name in names if name in view.topics}
        return ClusterView(view.cluster_id, view.controller_id, view.brokers, wanted)

    def describe_cluster(self) -> ClusterView:
        """Brokers and controller, without topics."""
        return self.cluster(())

    # -- topics

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
        *,
        if_not_exists: bool = False,
        validate_only: bool = False,
    ) -> str:
        """Make a topic and return its id once every broker serves it.

        -1 takes the brokers' defaults. ``config``: settings of ``conf/topic.conf``, as text or as
        Python values. ``validate_only`` asks whether it could be made, and makes nothing. Raises
        TopicExistsError (unless ``if_not_exists``), InvalidTopicError, InvalidPartitionsError,
        InvalidReplicationFactorError or InvalidConfigError.
        """
        if not is_valid_name(name):
            raise InvalidTopicError(
                f"topic name {name!r}: give 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_', '-'"
            )
        topic = topics.CreatableTopic(
            name,
            partitions,
            replication_factor,
            configs=tuple((key, value_text(value)) for key, value in (config or {}).items()),
        )
        try:
            topic_id: str = self._run(
                admin_requests.create_topic(
                    self._cluster,
                    topic,
                    validate_only=validate_only,
                    deadline_ms=self._deadline(),
                )
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            return self.cluster((name,)).topic_id(name)
        return topic_id

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic; returns once no broker serves it. Raises UnknownTopicOrPartitionError."""
        try:
            self._run(admin_requests.delete_topic(self._cluster, name, self._deadline()))
        except UnknownTopicOrPartitionError:
            if not if_exists:
                raise

    def create_partitions(self, name: str, count: int) -> None:
        """Let a topic have ``count`` partitions in all; raises InvalidPartitionsError for fewer
        than it has."""
        self._run(admin_requests.create_partitions(self._cluster, name, count, self._deadline()))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records before these offsets (-1: all that are committed); the first offsets
        that are left. Raises OffsetOutOfRangeError."""
        return requests.raise_first(
            self._run(admin_requests.delete_records(self._cluster, before, self._deadline()))
        )

    # -- replicas

    def reassign(self, targets: Mapping[TopicPartition, Sequence[int] | None]) -> None:
        """Begin to move partitions to these brokers, the preferred leader first; None takes a move
        back. Returns when that is recorded: see ``reassignments``. Raises
        InvalidReplicaAssignmentError, NoReassignmentInProgressError."""
        if targets:
            requests.raise_first(
                self._run(replica_requests.reassign(self._cluster, targets, self._deadline()))
            )

    def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """The partitions that are on their way to other brokers."""
        found: dict[TopicPartition, Reassignment] = self._run(
            replica_requests.reassignments(self._cluster, self._deadline())
        )
        return found

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, LogbusError | None]:
        """Let the preferred replicas lead, where they are in sync; or, ``unclean``, give partitions
        without a leader one that is not in sync and loses what it lacks. None: all partitions;
        then only those are returned for which something was tried."""
        found: dict[TopicPartition, LogbusError | None] = self._run(
            replica_requests.elect_leaders(
                self._cluster,
                None if partitions is None else list(partitions),
                unclean=unclean,
                deadline_ms=self._deadline(),
            )
        )
        return found

    def retire_broker(self, broker_id: int) -> None:
        """Forget a broker that will not come back. Raises InvalidRequestError where it runs or
        holds replicas, BrokerIdNotRegisteredError."""
        self._run(replica_requests.retire_broker(self._cluster, broker_id, self._deadline()))

    # -- settings

    def describe_configs(
        self, topics: Iterable[str] = (), brokers: Iterable[int] = ()
    ) -> dict[tuple[str, str], dict[str, ConfigEntry]]:
        """Settings of topics and brokers: {("topic"|"broker", name): {key: ConfigEntry}}."""
        resources = [configs.ConfigResource(configs.RESOURCE_TOPIC, name) for name in topics]
        resources += [configs.ConfigResource(configs.RESOURCE_BROKER, str(i)) for i in brokers]
        rows: list[configs.DescribeConfigsResult] = self._run(
            admin_requests.describe_configs(self._cluster, resources, self._deadline())
        )
        return {
            (
                "topic" if row.resource_type == configs.RESOURCE_TOPIC else "broker",
                row.resource_name,
            ): {
                item.name: ConfigEntry(
                    item.name,
                    item.value,
                    item.config_source == configs.SOURCE_DEFAULT,
                    item.read_only,
                    _SOURCES.get(item.config_source, str(item.config_source)),
                    item.documentation or "",
                )
                for item in row.configs
            }
            for row in rows
        }

    def alter_configs(
        self, topic: str, changes: Mapping[str, object], *, validate_only: bool = False
    ) -> None:
        """Change settings; None puts one back to its default. Raises InvalidConfigError."""
        rows = {key: None if value is None else value_text(value) for key, value in changes.items()}
        self._run(
            admin_requests.alter_configs(
                self._cluster,
                topic,
                rows,
                validate_only=validate_only,
                deadline_ms=self._deadline(),
            )
        )

    # -- offsets

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: str = "read_committed",
    ) -> dict[TopicPartition, ListedOffset]:
        """The first offset at or after a time in ms (-1: the end, -2: the start, -3: the newest
        record); offset -1 where there is none."""
        return requests.raise_first(
            self._run(
                requests.list_offsets(
                    self._cluster,
                    timestamps,
                    isolation_level=requests.isolation_code(isolation),
                    deadline_ms=self._deadline(),
                )
            )
        )

    def offsets_for_bytes(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        topic_ids: Mapping[str, str] = requests.ANY_TOPIC,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Where ``max_bytes`` stored bytes after ``start`` end: {tp: (start, max_bytes)} to
        {tp: (end offset, bytes)}; a batch boundary, at least one batch. Raises UnknownTopicIdError
        where a topic of that name is not the one that ``topic_ids`` says."""
        operation = requests.offsets_for_bytes(self._cluster, ranges, self._deadline(), topic_ids)
        return requests.raise_first(self._run(operation))

    def record_times(
        self, after: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset]:
        """The first record at or after each offset, and its timestamp in ms (-1: it has none);
        offset -1 where there is no such record yet."""
        return requests.raise_first(self.record_times_each(after))

    def record_times_each(
        self, after: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset | LogbusError]:
        """As ``record_times``, but what cannot be told is in the answer, beside what can."""
        found: dict[TopicPartition, ListedOffset | LogbusError] = self._run(
            requests.record_times(self._cluster, after, self._deadline())
        )
        return found

    # -- groups

    def lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """How far a group or Spark query is behind, in records and in seconds, and who reads, for
        every partition in which it committed or that a member reads."""
        committed = {tp: at for tp, at in self.committed(group).items() if at.offset >= 0}
        now_ms = time.time() * 1000
        owners = running(committed, now_ms)
        owners |= {tp: name for name, owned in self.group_members(group).items() for tp in owned}
        wheres = committed.keys() | owners.keys()
        if not wheres:
            return {}
        view = self.cluster({tp.topic for tp in wheres})
        led = sorted(tp for tp in wheres if view.leader(tp) is not None)
        ends = self.list_offsets(dict.fromkeys(led, LATEST_TIMESTAMP)) if led else {}
        new = dict.fromkeys((tp for tp in led if tp not in committed), EARLIEST_TIMESTAMP)
        starts = {tp: committed[tp].offset for tp in led if tp in committed}
        starts |= {tp: at.offset for tp, at in (self.list_offsets(new) if new else {}).items()}
        unread = {tp: start for tp, start in starts.items() if start < ends[tp].offset}
        firsts = self.record_times_each(unread) if unread else {}
        return lag_of(
            committed, starts=starts, ends=ends, firsts=firsts, owners=owners, now_ms=now_ms
        )

    def group_members(self, group: str) -> dict[str, tuple[TopicPartition, ...]]:
        """The live members of a group and what each owns; none where there is no such group."""
        with contextlib.suppress(GroupIdNotFoundError):
            members = self.describe_groups([group])[group].members
            return {row.member_id: owned_by(row) for row in members}
        return {}

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """A group's offsets, of all partitions or of these; those without one are absent."""
        return requests.raise_first(
            self._run(group_requests.committed(self._cluster, group, partitions, self._deadline()))
        )

    def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> None:
        """Set a group's offsets: the next ones to read. One that names a topic id is refused with
        UnknownTopicIdError where the topic was deleted and made again; GroupLeaseHeldError while
        a Spark query publishes to the group, whose next commit would overwrite this."""
        self.refuse_query(group)
        requests.raise_first(self.commit_each(group, offsets))

    def commit_each(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset | int]
    ) -> dict[TopicPartition, LogbusError | None]:
        """As ``commit_offsets``, but what is refused is in the answer, beside what is done, and
        whether a query publishes to the group is the caller's affair."""
        rows = {
            where: CommittedOffset(value) if isinstance(value, int) else value
            for where, value in offsets.items()
        }
        if not rows:
            return {}
        done: dict[TopicPartition, LogbusError | None] = self._run(
            group_requests.commit_offsets(self._cluster, group, rows, self._deadline())
        )
        return done

    def delete_group(self, group: str) -> None:
        """Forget a group and every offset it committed. Raises GroupIdNotFoundError,
        NonEmptyGroupError where it has members, GroupLeaseHeldError where a Spark query has it."""
        self.refuse_query(group)
        self._run(admin_requests.delete_group(self._cluster, group, self._deadline()))

    def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group committed in some partitions. Raises GroupIdNotFoundError,
        GroupSubscribedToTopicError where its members read the topic, and GroupLeaseHeldError where
        a Spark query publishes to the group."""
        wheres = list(partitions)
        if wheres:
            self.refuse_query(group)
            requests.raise_first(
                self._run(
                    admin_requests.delete_offsets(self._cluster, group, wheres, self._deadline())
                )
            )

    def refuse_query(self, group: str) -> None:
        """Raises GroupLeaseHeldError while a Spark query publishes its progress to the group."""
        now_ms = int(time.time() * 1000)
        query, until_ms = holder_of(self.committed(group).values(), now_ms)
        if query:
            raise GroupLeaseHeldError(
                f"a running Spark query ({query}) publishes its progress to group {group!r} and "
                "would overwrite this; stop the query first (of one that was killed the group is "
                f"free in {(until_ms - now_ms + 999) // 1000} s). Where the query goes on is in "
                "its checkpoint, not in the group"
            )

    def list_groups(self, *, with_types: bool = True) -> list[GroupListing]:
        """All groups that have offsets or members, by name. ``with_types=False`` for a Kafka
        before 3.8, which tells none: ``kind`` is empty."""
        rows = self._run(
            admin_requests.list_groups(self._cluster, self._deadline(), with_types=with_types)
        )
        return [
            GroupListing(row.group_id, row.group_state, row.group_type, row.protocol_type)
            for row in rows
        ]

    def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of groups; raises GroupIdNotFoundError."""
        rows = self._run(
            admin_requests.describe_groups(self._cluster, list(names), self._deadline())
        )
        return {
            name: GroupDescription(name, row.group_state, row.protocol_type, row.members)
            for name, row in rows.items()
        }

    # -- disks

    def log_dirs(self) -> list[LogDir]:
        """Every live broker's data directory and what each partition takes there, in bytes."""
        found = []
        answers = self._run(admin_requests.describe_log_dirs(self._cluster, self._deadline()))
        for broker_id, answer in sorted(answers.items()):
            if isinstance(answer, LogbusError):
                found.append(LogDir(broker_id, "", answer, -1, -1, {}))
                continue
            for row in answer.results:
                error = error_for(row.error_code) if row.error_code else None
                sizes = {
                    TopicPartition(topic.name, part.partition_index): part.partition_size
                    for topic in row.topics
                    for part in topic.partitions
                }
                found.append(
                    LogDir(broker_id, row.log_dir, error, row.total_bytes, row.usable_bytes, sizes)
                )
        return found
