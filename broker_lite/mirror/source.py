"""Read the source cluster of a mirror: metadata, group offsets, and the records of many partitions.

All calls block. Two threads may use a ``MirrorSource``, one of them only for ``fetch``. The
source's brokers may be Kafka's or logbus's, and receive the same requests. Only logbus's brokers
answer with batches in logbus's column format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from broker_lite import __version__
from broker_lite.client.administration.admin import Admin
from broker_lite.client.discovery import security_for
from broker_lite.client.fetch.fetches import answers_of, fetch_request
from broker_lite.client.fetch.position import Corrupt, Failed, FetchPosition, Retry
from broker_lite.client.operations import requests
from broker_lite.client.operations.cluster import ClusterView, cluster_at
from broker_lite.client.received import WalkResult
from broker_lite.client.transport.clock import monotonic_ms
from broker_lite.client.transport.pool import Pool
from broker_lite.client.transport.steps import CallExchange, FetchExchange, Send
from broker_lite.config.client_security import ClientSecurity
from broker_lite.errors import (
    GroupIdNotFoundError,
    LogbusError,
    NetworkError,
    NoBrokersError,
    RequestTimedOutError,
    SourceUnreachableError,
    UnsupportedVersionError,
)
from broker_lite.mirror import positions
from broker_lite.model import (
    CommittedOffset,
    Endpoint,
    TopicPartition,
)
from broker_lite.record.walker import LogBatch
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
)

PARTITION_BYTES = 4 << 20
FETCH_BYTES = 32 << 20
"""Maximum bytes of all partitions together in a fetch response; ``PARTITION_BYTES`` is the maximum
of one partition."""
REQUEST_TIMEOUT_MS = 30_000
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
"""The APIs that a mirror uses at its source, each with the oldest and the newest version that the
mirror supports."""


class MirrorSource:
    """Reads the source cluster of a mirror. Call ``close`` at the end."""

    def __init__(
        self, servers: str, client_id: str, security: ClientSecurity | None = None
    ) -> None:
        self.servers = servers
        self._pool = Pool(client_id, security_for(servers, security))
        self.admin = Admin(servers, pool=self._pool)
        self._cluster = cluster_at(servers)
        self._turn = 0
        self._is_stale = True
        self._fetch_version = CLIENT_VERSION

    def close(self) -> None:
        self._pool.close()

    def describe(self) -> ClusterView:
        """Return the source's brokers and cluster id. Raises SourceUnreachableError if no broker
        answers."""
        try:
            return self.admin.describe_cluster()
        except (NoBrokersError, NetworkError, RequestTimedOutError) as error:
            raise SourceUnreachableError(
                f"--from {self.servers} does not answer ({error.message}): check the address, that "
                "this machine reaches it and its brokers' advertised addresses, and that "
                "--from-config has the security settings of its listener"
            ) from error

    def check_versions(self) -> None:
        """Check that the source's brokers support the requests of a mirror, and choose the version
        of the fetch request (an older one for Kafka before 3.9).

        Raises SourceUnreachableError, and UnsupportedVersionError for brokers that are too old."""
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
                    + ", which Kafka has since 3.1; upgrade the source"
                )
        self._fetch_version = min(CLIENT_VERSION, spoken[ApiKey.FETCH].max_version)

    def view(self) -> ClusterView:
        """Return the metadata of all topics."""
        view = self.admin.cluster()
        self._is_stale = True
        return view

    def made_of(self, cluster_id: str, view: ClusterView) -> set[str]:
        """Return the topics of this source that are themselves copies: a running mirror copies them
        from the cluster ``cluster_id``."""
        name = positions.name_for(cluster_id)
        if name not in view.topics or not self._has_members(name):
            return set()
        return {
            tp.topic
            for tp, commit in self.admin.committed(name).items()
            if tp.topic in view.topics and commit.topic_id == view.topic_id(tp.topic)
        }

    def _has_members(self, group: str) -> bool:
        try:
            return bool(self.admin.describe_groups([group])[group].members)
        except GroupIdNotFoundError:
            return False

    def ends(self, tps: Sequence[TopicPartition], time: int) -> dict[TopicPartition, int]:
        """Return the last stable offset (``time`` -1) or the log start offset (``time`` -2) of each
        partition."""
        if not tps:
            return {}
        listed = self.admin.list_offsets(dict.fromkeys(tps, time), isolation="read_committed")
        return {tp: row.offset for tp, row in listed.items()}

    def groups(
        self, pattern: str
    ) -> Iterator[tuple[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Yield the committed offsets of each group whose whole name matches ``pattern``."""
        for row in self.admin.list_groups(with_types=False):
            if row.group and re.fullmatch(pattern, row.group, re.DOTALL):
                yield row.group, self.admin.committed(row.group)

    def fetch(
        self, positions: Sequence[FetchPosition], wait_ms: int
    ) -> dict[TopicPartition, FetchedPartition | LogbusError]:
        """Fetch the next records of each partition. Return the fetched data or the error of each.

        A broker without new records waits up to ``wait_ms`` for some to arrive. Raises
        NoBrokersError."""
        by_tp = {position.tp: position for position in positions}
        if self._is_stale:
            topics = list(dict.fromkeys(tp.topic for tp in by_tp))
            self._pool.run(requests.refresh_once(self._cluster, topics))
            self._is_stale = False
        # Begin with another partition each time, because the first ones may fill the response.
        self._turn += 1
        turn = self._turn % max(1, len(by_tp))
        rows = list(by_tp)
        by_leader, errors = self._cluster.by_leader(rows[turn:] + rows[:turn])
        results: dict[TopicPartition, FetchedPartition | LogbusError] = dict(errors)
        sends = [
            Send(
                endpoint,
                self._exchange([by_tp[tp] for tp in group], wait_ms),
                REQUEST_TIMEOUT_MS + wait_ms,
            )
            for endpoint, group in by_leader.items()
        ]
        answers = self._pool.ask_all(sends)
        for (endpoint, group), answer in zip(by_leader.items(), answers, strict=True):
            if isinstance(answer, LogbusError):
                self._cluster.failed(endpoint)
            results |= answers_of(answer, {tp: by_tp[tp].topic_id for tp in group})
        if any(isinstance(row, LogbusError) for row in results.values()):
            self._is_stale = True
        return results

    def _exchange(self, group: Sequence[FetchPosition], wait_ms: int) -> FetchExchange:
        view = self._cluster.view
        rows = [row.request(view.leader_epoch(row.tp), PARTITION_BYTES) for row in group]
        request = fetch_request(rows, wait_ms, READ_COMMITTED, max_bytes=FETCH_BYTES)
        return FetchExchange(request, self._fetch_version)

    def fetch_one(self, position: FetchPosition) -> list[LogBatch]:
        """Fetch the next batches of one partition, return them, and advance the position. Raises
        the partition's error if it is not retriable or lasts for REQUEST_TIMEOUT_MS."""
        deadline_ms = monotonic_ms() + REQUEST_TIMEOUT_MS
        while True:
            results = self.fetch([position], 0)
            match position.evaluate(
                results.get(
                    position.tp, NoBrokersError("the source did not answer for the partition")
                )
            ):
                case WalkResult(batches):
                    return batches
                case Failed(error):
                    raise error
                case Corrupt(error) | Retry(LogbusError() as error):
                    if monotonic_ms() >= deadline_ms:
                        raise position.located(error)
            self._pool.run(requests.refresh(self._cluster, (position.tp.topic,), deadline_ms))
