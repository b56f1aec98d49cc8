"""The source cluster: metadata, group offsets, and fetches of many partitions at once.

Blocking. Two threads may use it, one of them only for ``fetch`` (prefetching). Kafka and logbus
brokers get the same requests; logbus answers with columns if it has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker_lite import __version__
from broker_lite.client.administration.admin import Admin
from broker_lite.client.discovery import parse_endpoints
from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import Cluster, ClusterView
from broker_lite.client.received import Walked, walk
from broker_lite.client.transport.blocking import Pool, monotonic_ms
from broker_lite.client.transport.steps import CallExchange, FetchExchange, Send
from broker_lite.errors import (
    GroupIdNotFoundError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    SourceUnreachableError,
    UnsupportedVersionError,
)
from broker_lite.mirror import positions
from broker_lite.model import (
    NO_EPOCH,
    CommittedOffset,
    Endpoint,
    OffsetAndEpoch,
    TopicPartition,
)
from broker_lite.record.walker import BatchWalker, WalkPolicy
from broker_lite.wire.api import BY_TOPIC_ID, ApiKey
from broker_lite.wire.calls.cluster import ApiVersionsRequest, MetadataRequest
from broker_lite.wire.calls.configs import DescribeConfigsRequest
from broker_lite.wire.calls.groups import (
    FindCoordinatorRequest,
    ListUntypedGroupsRequest,
    OffsetFetchRequest,
)
from broker_lite.wire.calls.offsets import ListOffsetsRequest
from broker_lite.wire.fetch import (
    CLIENT_VERSION,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)

PARTITION_BYTES = 4 << 20
FETCH_BYTES = 32 << 20
REQUEST_TIMEOUT_MS = 30_000
_KAFKA_LOG = WalkPolicy(allows_gaps=True, orders_epochs=False)
"""Walk policy for the source: Kafka's compaction leaves gaps, and old batch formats have no
leader epoch."""
_SPOKEN: Mapping[int, tuple[int, int]] = {
    ApiKey.FETCH: (BY_TOPIC_ID, CLIENT_VERSION),
    **{
        call.API_KEY: (call.VERSION, call.VERSION)
        for call in (
            MetadataRequest,
            ListOffsetsRequest,
            DescribeConfigsRequest,
            FindCoordinatorRequest,
            ListUntypedGroupsRequest,
            OffsetFetchRequest,
        )
    },
}
"""APIs that a mirror needs of its source, with the oldest and newest usable version."""


class WantedPartition(NamedTuple):
    """The offset to fetch a partition from. ``last_epoch`` is that of the record before (-1:
    unknown)."""

    topic_id: str
    offset: int
    last_epoch: int = NO_EPOCH


class PartedError(OffsetOutOfRangeError):
    """The source's log diverges from the records read. ``told`` is the end of the last common
    epoch, reported by the leader of ``leader_epoch``."""

    def __init__(self, told: OffsetAndEpoch, leader_epoch: int) -> None:
        super().__init__(f"it leaves epoch {told.leader_epoch} at offset {told.offset}")
        self.told = told
        self.leader_epoch = leader_epoch


class MirrorSource:
    """Reads a cluster; ``close`` it."""

    def __init__(self, servers: str, client_id: str) -> None:
        self.servers = servers
        self._pool = Pool(client_id)
        self.admin = Admin(servers, client_id=client_id, pool=self._pool)
        self._cluster = Cluster(parse_endpoints(servers), monotonic_ms, client_id)
        self._turn = 0
        self._is_stale = True
        self._fetch_version = CLIENT_VERSION

    def close(self) -> None:
        self._pool.close()

    def describe(self) -> ClusterView:
        """Return the source's brokers and cluster id. Raises SourceUnreachableError with the
        next step."""
        try:
            return self.admin.describe_cluster()
        except (NoBrokersError, NetworkError, RequestTimedOutError) as error:
            raise SourceUnreachableError(
                f"--from {self.servers} does not answer ({error.message}): check the address, that "
                "this machine reaches it and the names its brokers give for themselves, and that "
                "the listener is PLAINTEXT: TLS and passwords are not spoken"
            ) from error

    def check_versions(self) -> None:
        """Choose request versions that the brokers support: an older fetch before Kafka 3.9.
        Raises UnsupportedVersionError for too old brokers, SourceUnreachableError."""
        call = ApiVersionsRequest("logbus-mirror", __version__)
        view = self.describe()
        endpoint: Endpoint = next(iter(view.brokers.values()))
        answer = self._pool.ask(Send(endpoint, CallExchange(call), REQUEST_TIMEOUT_MS))
        spoken = {row.api_key: row for row in answer.api_keys}
        for key, (oldest, newest) in _SPOKEN.items():
            row = spoken.get(key)
            if row is None or row.max_version < oldest or row.min_version > newest:
                has = "not at all" if row is None else f"{row.min_version} to {row.max_version}"
                raise UnsupportedVersionError(
                    f"{endpoint} speaks {ApiKey(key).name} {has}; a mirror needs version {oldest}"
                    + (f" to {newest}" if newest > oldest else "")
                    + ", as Kafka has since 3.1"
                )
        self._fetch_version = min(CLIENT_VERSION, spoken[ApiKey.FETCH].max_version)

    def view(self) -> ClusterView:
        """Return the metadata of all topics."""
        view = self.admin.cluster()
        self._is_stale = True
        return view

    def made_of(self, cluster_id: str, view: ClusterView) -> set[str]:
        """Return the topics here that a running mirror copies from the given cluster."""
        name = positions.name_for(cluster_id)
        if name not in view.topics or not self._has_members(name):
            return set()
        return {
            where.topic
            for where, commit in self.admin.committed(name).items()
            if where.topic in view.topics and commit.topic_id == view.topic_id(where.topic)
        }

    def _has_members(self, group: str) -> bool:
        try:
            return bool(self.admin.describe_groups([group])[group].members)
        except GroupIdNotFoundError:
            return False

    def ends(self, wheres: Sequence[TopicPartition], time: int) -> dict[TopicPartition, int]:
        """Return offsets of committed data (-1: end, -2: start)."""
        if not wheres:
            return {}
        found = self.admin.list_offsets(dict.fromkeys(wheres, time), isolation="read_committed")
        return {where: row.offset for where, row in found.items()}

    def groups(self, pattern: str) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """Return the offsets of all groups whose names fully match, of every type."""
        found = {}
        for row in self.admin.list_groups(with_types=False):
            if not row.group or not re.fullmatch(pattern, row.group):
                continue
            commits = self.admin.committed(row.group)
            if commits:
                found[row.group] = commits
        return found

    def fetch(
        self, wanted: Mapping[TopicPartition, WantedPartition], wait_ms: int
    ) -> dict[TopicPartition, Walked | LogbusError]:
        """Return batches or an error for each partition; wait at most ``wait_ms`` for new
        records. Raises NoBrokersError."""
        if self._is_stale:
            topics = list(dict.fromkeys(where.topic for where in wanted))
            self._pool.run(requests.refresh_once(self._cluster, topics))
            self._is_stale = False
        # The first partitions of a request fill the answer: rotate the order.
        self._turn += 1
        turn = self._turn % max(1, len(wanted))
        rows = list(wanted)
        by_leader, errors = self._cluster.by_leader(rows[turn:] + rows[:turn])
        found: dict[TopicPartition, Walked | LogbusError] = dict(errors)
        sends = [
            Send(
                endpoint,
                FetchExchange(_request(group, wanted, wait_ms), self._fetch_version),
                REQUEST_TIMEOUT_MS + wait_ms,
            )
            for endpoint, group in by_leader.items()
        ]
        answers = self._pool.ask_all(sends)
        for (endpoint, group), answer in zip(by_leader.items(), answers, strict=True):
            if isinstance(answer, LogbusError):
                self._cluster.failed(endpoint)
            topic_ids = {where: wanted[where].topic_id for where in group}
            for where, row in answers_of(answer, topic_ids).items():
                try:
                    found[where] = self._walked(where, wanted[where].offset, row)
                except LogbusError as error:
                    found[where] = error
        if any(isinstance(row, LogbusError) for row in found.values()):
            self._is_stale = True
        return found

    def _walked(
        self, where: TopicPartition, offset: int, row: FetchedPartition | LogbusError
    ) -> Walked:
        leader_epoch = self._cluster.view.leader_epoch(where)
        if isinstance(row, LogbusError):
            raise row
        if row.diverging is not None:
            raise PartedError(row.diverging, leader_epoch)
        policy = _KAFKA_LOG._replace(aborted=row.aborted_transactions or ())
        found = walk(row.records, BatchWalker(policy, offset), where)
        if found.damage is not None and not found.batches:
            raise found.damage
        return found._replace(leader_epoch=leader_epoch)

    def fetch_one(self, where: TopicPartition, topic_id: str, offset: int) -> Walked:
        """Return the next batches of one partition; raises its error."""
        deadline_ms = monotonic_ms() + REQUEST_TIMEOUT_MS
        while True:
            found = self.fetch({where: WantedPartition(topic_id, offset)}, 0)
            row = found.get(where, NoBrokersError(f"{where}: no answer"))
            if not isinstance(row, LogbusError):
                return row
            if not row.retriable or monotonic_ms() >= deadline_ms:
                raise row
            self._pool.run(requests.refresh(self._cluster, (where.topic,), deadline_ms))


def _request(
    group: Sequence[TopicPartition],
    wanted: Mapping[TopicPartition, WantedPartition],
    wait_ms: int,
) -> FetchRequest:
    rows = [
        (
            wanted[where].topic_id,
            FetchPartition(
                where.partition,
                wanted[where].offset,
                PARTITION_BYTES,
                last_fetched_epoch=wanted[where].last_epoch,
            ),
        )
        for where in group
    ]
    return fetch_request(rows, wait_ms, READ_COMMITTED, max_bytes=FETCH_BYTES)
