"""Every setting once: key, type, default, unit, bounds, effect. ``conf/*.conf`` is held to this.

Four frozen dataclasses: ``BrokerConfig``, ``TopicConfig``, ``ProducerConfig``, ``ConsumerConfig``.
Keys are spelt as Kafka spells them where Kafka has them; the Python name is the key with dots as
underscores. Reads no environment and no home directory: callers pass what they found.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from broker_lite.errors import CompactionNotBuiltError, InvalidConfigError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Key:
    """One setting's row: what people see of it and what a value must be."""

    key: str
    doc: str
    unit: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()


def _key(
    key: str,
    default: Any,
    doc: str,
    unit: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    row = Key(key, doc, unit, at_least, at_most, choices)
    return field(default=default, metadata={"key": row})


class _Config:
    """What the four configurations share: the table, parsing, checking."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            row: Key = item.metadata["key"]
            _check(row, getattr(self, item.name))
        self.validate()

    def validate(self) -> None:
        """Check relations between settings; each message names both keys."""


@dataclass(frozen=True, slots=True)
class TopicConfig(_Config):
    """Settings of one topic: ``topic create -c``, ``topic alter -c``."""

    retention_ms: int = _key(
        "retention.ms",
        7 * DAY,
        "closed segments whose newest record is older are deleted; -1 never",
        "ms",
        at_least=-1,
    )
    retention_bytes: int = _key(
        "retention.bytes",
        -1,
        "oldest closed segments are deleted while a partition is larger; -1 never",
        "bytes",
        at_least=-1,
    )
    segment_bytes: int = _key(
        "segment.bytes",
        GIB,
        "a segment is closed before it would grow beyond this",
        "bytes",
        at_least=4 * KIB,
        at_most=INT_MAX,
    )
    segment_ms: int = _key(
        "segment.ms",
        7 * DAY,
        "a segment is closed when its first record is this old",
        "ms",
        at_least=1,
    )
    index_interval_bytes: int = _key(
        "index.interval.bytes",
        4 * KIB,
        "one index entry at most every so many bytes of log",
        "bytes",
        at_least=0,
    )
    max_message_bytes: int = _key(
        "max.message.bytes",
        8 * MIB,
        "the largest batch that is accepted, header included",
        "bytes",
        at_least=1 * KIB,
        at_most=64 * MIB,
    )
    flush_messages: int = _key(
        "flush.messages",
        1,
        "records that may be appended before a flush is due; 1 flushes each group (group commit)",
        "records",
        at_least=1,
    )
    flush_ms: int = _key(
        "flush.ms", 1000, "longest time that a record waits for its flush", "ms", at_least=0
    )
    cleanup_policy: str = _key(
        "cleanup.policy", "delete", "what happens to old segments", choices=("delete", "compact")
    )
    min_insync_replicas: int = _key(
        "min.insync.replicas",
        0,
        "acks=all is refused while fewer replicas are in sync; 0: half of the replicas and one",
        "replicas",
        at_least=0,
    )
    message_timestamp_type: str = _key(
        "message.timestamp.type",
        "CreateTime",
        "whose clock stamps records: the producer's or the broker's",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = _key(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "a record older than this against the broker's clock is refused",
        "ms",
        at_least=0,
    )
    message_timestamp_after_max_ms: int = _key(
        "message.timestamp.after.max.ms",
        LONG_MAX,
        "a record further in the future than this is refused",
        "ms",
        at_least=0,
    )
    unclean_leader_election_enable: bool = _key(
        "unclean.leader.election.enable",
        False,
        "let a replica that is not in sync lead when no other lives; loses what it lacks",
    )

    def validate(self) -> None:
        if self.cleanup_policy == "compact":
            raise CompactionNotBuiltError(
                "cleanup.policy=compact is not built yet; use cleanup.policy=delete"
            )
        if self.max_message_bytes > self.segment_bytes:
            raise InvalidConfigError(
                f"max.message.bytes={self.max_message_bytes} is larger than "
                f"segment.bytes={self.segment_bytes}; raise segment.bytes to "
                f"{self.max_message_bytes}, or lower max.message.bytes to {self.segment_bytes}"
            )


@dataclass(frozen=True, slots=True)
class BrokerConfig(_Config):
    """Settings of one broker process."""

    broker_id: int = _key(
        "broker.id", 0, "this broker's number, unique in the cluster", at_least=0, at_most=INT_MAX
    )
    host: str = _key("host", "127.0.0.1", "address to listen on")
    port: int = _key(
        "port", 9092, "port to listen on; 0 takes a free one", at_least=0, at_most=65535
    )
    advertised_host: str = _key("advertised.host", "", "host that clients are told; empty: host")
    advertised_port: int = _key(
        "advertised.port",
        0,
        "port that clients are told; 0: the bound one",
        at_least=0,
        at_most=65535,
    )
    rack: str = _key("broker.rack", "", "rack or zone of this broker; empty: none")
    log_dir: str = _key("log.dir", "", "data directory; it has a lock, an id and a start counter")
    zookeeper_connect: str = _key(
        "zookeeper.connect",
        "127.0.0.1:2181/logbus",
        "host:port,… of the ZooKeeper ensemble, with the chroot",
    )
    zookeeper_session_timeout_ms: int = _key(
        "zookeeper.session.timeout.ms",
        6 * SECOND,
        "a broker silent for so long counts as dead",
        "ms",
        at_least=500,
        at_most=10 * MINUTE,
    )
    num_partitions: int = _key(
        "num.partitions", 1, "partitions of a topic created without a number", at_least=1
    )
    default_replication_factor: int = _key(
        "default.replication.factor",
        0,
        "replicas of a topic created without a number; 0: three, or one a broker if fewer",
        at_least=0,
    )
    leader_rebalance_ms: int = _key(
        "leader.rebalance.ms",
        MINUTE,
        "leadership returns to the preferred replica when it was in sync for so long; -1: never",
        "ms",
        at_least=-1,
    )
    frame_bytes_max: int = _key(
        "socket.request.max.bytes",
        64 * MIB,
        "a longer request ends its connection",
        "bytes",
        at_least=64 * KIB,
    )
    connections_max: int = _key(
        "max.connections", 4096, "more connections than this are closed at once", at_least=1
    )
    connection_idle_ms: int = _key(
        "connections.max.idle.ms",
        10 * MINUTE,
        "a connection silent for so long is closed",
        "ms",
        at_least=1000,
    )
    connection_requests_max: int = _key(
        "connection.requests.max",
        64,
        "requests of one connection that are not answered yet; beyond it the socket is not read",
        at_least=1,
    )
    frame_timeout_ms: int = _key(
        "socket.request.timeout.ms",
        MINUTE,
        "a request that began to arrive must be whole by then, or its connection is closed",
        "ms",
        at_least=1000,
    )
    in_flight_bytes_max: int = _key(
        "queued.max.bytes",
        256 * MIB,
        "produced bytes held in memory at once; beyond it the broker stops reading sockets",
        "bytes",
        at_least=1 * MIB,
    )
    fetch_bytes_max: int = _key(
        "fetch.max.bytes", 55 * MIB, "upper bound of one fetch answer", "bytes", at_least=1 * KIB
    )
    fetch_wait_ms_max: int = _key(
        "fetch.max.wait.ms", 30 * SECOND, "longest wait that a fetch may ask for", "ms", at_least=0
    )
    fetch_verify: str = _key(
        "fetch.verify",
        "unverified",
        "whose fetches the broker checks (CRC) before it sends: of clients that do not, all, none",
        choices=("unverified", "always", "never"),
    )
    local_reads: bool = _key("local.reads.enable", True, "readers on this machine may read files")
    unread_cached_bytes: int = _key(
        "unread.cached.bytes", 16 * MIB, "what nobody reads leaves memory", "bytes", at_least=-1
    )
    disk_threads: int = _key(
        "disk.threads", 2, "threads that append and flush", at_least=1, at_most=64
    )
    read_threads: int = _key(
        "read.threads", 2, "threads that read cold ranges, check, transcode", at_least=1, at_most=64
    )
    checkpoint_interval_ms: int = _key(
        "checkpoint.interval.ms",
        1000,
        "recovery points are written at least this often",
        "ms",
        at_least=10,
    )
    retention_check_interval_ms: int = _key(
        "log.retention.check.interval.ms", 5 * MINUTE, "how often segments go", "ms", at_least=10
    )
    file_delete_delay_ms: int = _key(
        "file.delete.delay.ms",
        MINUTE,
        "a deleted segment's file is unlinked after this",
        "ms",
        at_least=0,
    )
    stray_retention_ms: int = _key(
        "stray.retention.ms",
        7 * DAY,
        "logs of topics that ZooKeeper did not know at a start are deleted after this; -1: never",
        "ms",
        at_least=-1,
    )
    producer_id_expiration_ms: int = _key(
        "producer.id.expiration.ms",
        DAY,
        "an idle producer's sequences are forgotten after this",
        "ms",
        at_least=1,
    )
    offset_metadata_bytes_max: int = _key(
        "offset.metadata.max.bytes",
        4096,
        "longest text that a commit may carry",
        "bytes",
        at_least=0,
    )
    offset_commit_interval_ms: int = _key(
        "offset.commit.interval.ms",
        20,
        "commits of all groups that arrive within this time share one ZooKeeper write",
        "ms",
        at_least=0,
    )
    offsets_retention_minutes: int = _key(
        "offsets.retention.minutes", 10_080, "then an empty group is deleted", "min", at_least=1
    )
    offsets_retention_check_ms: int = _key(
        "offsets.retention.check.interval.ms", 10 * MINUTE, "how often", "ms", at_least=10
    )
    group_session_timeout_min_ms: int = _key(
        "group.min.session.timeout.ms", 6 * SECOND, "shortest session", "ms", at_least=1
    )
    group_session_timeout_max_ms: int = _key(
        "group.max.session.timeout.ms", 30 * MINUTE, "longest session", "ms", at_least=1
    )
    group_initial_rebalance_delay_ms: int = _key(
        "group.initial.rebalance.delay.ms", 250, "wait for a group's others", "ms", at_least=0
    )
    group_size_max: int = _key(
        "group.max.size", 1000, "members of one group; more are refused", at_least=1
    )
    replica_lag_ms: int = _key(
        "replica.lag.time.max.ms",
        10 * SECOND,
        "a follower that was not at the leader's end for so long is not in sync any more",
        "ms",
        at_least=100,
    )
    replica_fetch_wait_ms: int = _key(
        "replica.fetch.wait.max.ms",
        500,
        "longest wait of a follower's fetch for new records",
        "ms",
        at_least=1,
        at_most=10 * SECOND,
    )
    metrics_port: int = _key(
        "metrics.port", -1, "port of /metrics; -1 none, 0 a free one", at_least=-1, at_most=65535
    )

    def validate(self) -> None:
        shortest, longest = self.group_session_timeout_min_ms, self.group_session_timeout_max_ms
        if shortest > longest:
            raise InvalidConfigError(
                f"group.min.session.timeout.ms={shortest} is longer than "
                f"group.max.session.timeout.ms={longest}; lower it to {longest}"
            )

    def topic_defaults(self) -> Mapping[str, str]:
        """Topic settings that this broker's file overrides (none are kept on the broker yet)."""
        return {}


@dataclass(frozen=True, slots=True)
class ProducerConfig(_Config):
    """Settings of a producer."""

    acks: str = _key(
        "acks", "all", "who must have the record before the answer", choices=("0", "1", "all")
    )
    linger_ms: int = _key(
        "linger.ms", 5, "how long a batch waits for company", "ms", at_least=0, at_most=MINUTE
    )
    batch_bytes: int = _key(
        "batch.size",
        2 * MIB,
        "a batch is sent when it holds this much",
        "bytes",
        at_least=1,
        at_most=32 * MIB,
    )
    buffer_bytes: int = _key(
        "buffer.memory",
        64 * MIB,
        "bytes waiting or under way; beyond it send blocks",
        "bytes",
        at_least=64 * KIB,
    )
    max_request_bytes: int = _key(
        "max.request.size",
        8 * MIB,
        "a larger record is refused by send; not more than the topic's max.message.bytes is of use",
        "bytes",
        at_least=1 * KIB,
        at_most=64 * MIB,
    )
    max_block_ms: int = _key(
        "max.block.ms", MINUTE, "longest time that send may block", "ms", at_least=0
    )
    delivery_timeout_ms: int = _key(
        "delivery.timeout.ms",
        2 * MINUTE,
        "a record not acknowledged by then fails",
        "ms",
        at_least=1,
    )
    request_timeout_ms: int = _key(
        "request.timeout.ms", 30 * SECOND, "longest wait for one answer", "ms", at_least=1
    )
    retry_backoff_ms: int = _key(
        "retry.backoff.ms", 50, "pause before a request is tried again", "ms", at_least=0
    )
    max_in_flight: int = _key(
        "max.in.flight.requests.per.connection",
        5,
        "batches under way per partition (5 is what brokers remember)",
        at_least=1,
        at_most=5,
    )
    compression: str = _key(
        "compression.type", "none", "how batches are packed", choices=("none", "lz4", "zstd")
    )
    idempotence: bool = _key(
        "enable.idempotence", True, "a retry never doubles or reorders records (needs acks=all)"
    )
    metadata_max_age_ms: int = _key(
        "metadata.max.age.ms", 5 * MINUTE, "metadata older than this is renewed", "ms", at_least=1
    )
    client_id: str = _key("client.id", "logbus", "name in the broker's log and metrics")

    def validate(self) -> None:
        if self.delivery_timeout_ms < self.linger_ms:
            raise InvalidConfigError(
                f"delivery.timeout.ms={self.delivery_timeout_ms} is shorter than "
                f"linger.ms={self.linger_ms}; raise delivery.timeout.ms"
            )


@dataclass(frozen=True, slots=True)
class ConsumerConfig(_Config):
    """Settings of a consumer."""

    start: str = _key(
        "auto.offset.reset",
        "latest",
        "where a group without an offset begins",
        choices=("earliest", "latest", "none"),
    )
    fetch_min_bytes: int = _key(
        "fetch.min.bytes", 1, "an answer waits until it holds this much", "bytes", at_least=1
    )
    fetch_max_wait_ms: int = _key(
        "fetch.max.wait.ms", 500, "longest wait for fetch.min.bytes", "ms", at_least=0
    )
    fetch_max_bytes: int = _key(
        "fetch.max.bytes", 32 * MIB, "upper bound of one answer", "bytes", at_least=1 * KIB
    )
    partition_fetch_bytes: int = _key(
        "max.partition.fetch.bytes",
        4 * MIB,
        "upper bound for one partition in an answer",
        "bytes",
        at_least=1 * KIB,
    )
    auto_commit: bool = _key("enable.auto.commit", True, "commit the group's positions by itself")
    auto_commit_interval_ms: int = _key(
        "auto.commit.interval.ms", 5 * SECOND, "how often", "ms", at_least=10
    )
    isolation_level: str = _key(
        "isolation.level",
        "read_committed",
        "whether records of open transactions are seen",
        choices=("read_committed", "read_uncommitted"),
    )
    on_corrupt: str = _key(
        "on.corrupt",
        "fail",
        "a batch whose checksum is wrong: raise, or go past it",
        choices=("fail", "skip"),
    )
    local_reads: bool = _key(
        "local.reads.enable", True, "read files of a broker on this machine in place"
    )
    request_timeout_ms: int = _key(
        "request.timeout.ms", 30 * SECOND, "longest wait for one answer", "ms", at_least=1
    )
    retry_backoff_ms: int = _key(
        "retry.backoff.ms", 50, "pause before a request is tried again", "ms", at_least=0
    )
    client_id: str = _key("client.id", "logbus", "name in the broker's log and metrics")


def min_insync(config: TopicConfig, replication_factor: int) -> int:
    """How many replicas must be in sync for acks=all: a majority, unless the topic says another."""
    return config.min_insync_replicas or replication_factor // 2 + 1


def min_insync_of(text: str | None, replication_factor: int) -> int:
    """The same for a topic's setting as it is written. What cannot be read, of a later version or
    put there by hand, counts as not set."""
    try:
        own = int(text or 0)
    except ValueError:
        own = 0
    return own if own > 0 else replication_factor // 2 + 1


C = TypeVar("C", BrokerConfig, TopicConfig, ProducerConfig, ConsumerConfig)


def keys(kind: type[C]) -> Mapping[str, Key]:
    """The table of a configuration: Python name to row."""
    return {item.name: item.metadata["key"] for item in dataclasses.fields(kind)}


def parse(kind: type[C], settings: Mapping[str, str], *, base: C | None = None) -> C:
    """Build a configuration from text settings.

    Raises InvalidConfigError for an unknown key (naming the nearest), a value of the wrong type or
    out of bounds, and for settings at odds with each other.
    """
    names = {row.key: name for name, row in keys(kind).items()}
    types = {item.name: item.type for item in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key, text in settings.items():
        name = names.get(key)
        if name is None:
            raise InvalidConfigError(f"unknown setting {key!r}{nearest(key, names)}")
        values[name] = _convert(key, str(text), str(types[name]))
    return dataclasses.replace(base, **values) if base is not None else kind(**values)


def text(config: Any) -> dict[str, str]:
    """A configuration as text settings, the inverse of ``parse``."""
    rows = keys(type(config))
    return {row.key: value_text(getattr(config, name)) for name, row in rows.items()}


def value_text(value: object) -> str:
    """A value as files and DescribeConfigs spell it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def nearest(word: str, known: Mapping[str, Any] | list[str]) -> str:
    """``"; did you mean X?"`` for an error message, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def load(kind: type[C], path: str | Path) -> C:
    """Read a ``key=value`` file (``#`` comments). Errors name the file and the line."""
    settings: dict[str, str] = {}
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        if not equals:
            raise InvalidConfigError(f"{path}:{number}: {stripped!r} is not key=value")
        settings[key.strip()] = value.strip()
    try:
        return parse(kind, settings)
    except InvalidConfigError as error:
        raise type(error)(f"{path}: {error.message}") from None


def _convert(key: str, value: str, kind: str) -> Any:
    if kind == "bool":
        if value.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{key}={value!r}: give true or false")
        return value.lower() == "true"
    if kind == "int":
        try:
            return int(value)
        except ValueError:
            raise InvalidConfigError(f"{key}={value!r}: give a whole number") from None
    return value


def _check(row: Key, value: Any) -> None:
    if row.choices and value not in row.choices:
        raise InvalidConfigError(f"{row.key}={value!r}: give one of {', '.join(row.choices)}")
    if row.minimum is not None and value < row.minimum:
        raise InvalidConfigError(f"{row.key}={value}: give at least {row.minimum}")
    if row.maximum is not None and value > row.maximum:
        raise InvalidConfigError(f"{row.key}={value}: give at most {row.maximum}")
