"""The broker's part in the cluster: registration, metadata snapshot, topics, offsets, ids.

Loop thread only. Everything that needs ZooKeeper raises CoordinationUnavailableError while it does
not answer, and works again by itself afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from broker_lite.config import BrokerConfig
from broker_lite.errors import LogbusError
from broker_lite.metadata.cache import MetadataSnapshot
from broker_lite.metadata.store import MetadataStore
from broker_lite.model import CommittedOffset, Endpoint, TopicPartition, TopicView


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
    features: Mapping[str, int] = field(default_factory=dict)


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

    snapshot: MetadataSnapshot

    def __init__(
        self,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        store: MetadataStore | None = None,
        random_bytes: Callable[[int], bytes] = ...,
    ) -> None: ...

    async def start(self, registration: BrokerRegistration) -> str:
        """Register, load the metadata, stand for controller; returns the cluster id.

        Raises CoordinationUnavailableError, BrokerIdTakenError, StaleDirectoryError,
        InconsistentClusterIdError.
        """

    async def close(self) -> None:
        """Leave the cluster: the registration vanishes at once."""

    def on_change(self, callback: Callable[[MetadataSnapshot], None]) -> None:
        """Call ``callback`` after every swap, on the loop, now with the present one if any."""

    def on_fatal(self, callback: Callable[[LogbusError], None]) -> None:
        """Called when the broker must stop: its id or directory was taken over by another."""

    @property
    def broker_epoch(self) -> int: ...

    @property
    def broker_epochs(self) -> frozenset[int]:
        """Every registration of this process; for ``LeaderAndIsrChanged``."""

    @property
    def is_controller(self) -> bool: ...

    @property
    def connected(self) -> bool: ...

    def leaderless_reason(self, topic: str, partition: int) -> str | None:
        """Why a partition has no leader, for people; None if it has one."""

    # Topics: NotControllerError unless this broker is the controller.

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]: ...

    async def delete_topics(self, names_or_ids: Sequence[str]) -> list[TopicResult]: ...

    async def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> TopicResult: ...

    async def alter_topic_config(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> TopicView:
        """Set (text) or remove (None) settings. Raises InvalidConfigError, UnknownTopic…Error."""

    # Groups: on any broker.

    async def commit_offsets(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, LogbusError | None]:
        """Answered when ZooKeeper has them. Fills in the topic id and the time where missing."""

    async def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Only those that there are, and that belong to the topic as it is now. None: all."""

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> None:
        """None: the whole group. Raises GroupIdNotFoundError."""

    async def list_groups(self) -> list[GroupListing]: ...

    async def group_kind(self, group: str) -> str | None: ...

    # Producer ids: on any broker.

    async def next_producer_id(self) -> int: ...
