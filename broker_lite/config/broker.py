"""A broker's settings."""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.config.setting import (
    DAY,
    INT_MAX,
    KIB,
    MIB,
    MINUTE,
    SECOND,
    Config,
    setting,
)
from broker_lite.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class BrokerConfig(Config):
    """Settings of one broker process."""

    broker_id: int = setting(
        "broker.id", 0, "this broker's number, unique in the cluster", at_least=0, at_most=INT_MAX
    )
    host: str = setting("host", "127.0.0.1", "address to listen on")
    listeners_insecure_allow: bool = setting(
        "listeners.insecure.allow",
        False,
        "listen where other machines reach it, though there are no logins and no encryption",
    )
    port: int = setting(
        "port", 9092, "port to listen on; 0 takes a free one", at_least=0, at_most=65535
    )
    advertised_host: str = setting("advertised.host", "", "host that clients are told; empty: host")
    advertised_port: int = setting(
        "advertised.port",
        0,
        "port that clients are told; 0: the bound one",
        at_least=0,
        at_most=65535,
    )
    rack: str = setting("broker.rack", "", "rack or zone of this broker; empty: none")
    log_dir: str = setting(
        "log.dir", "", "data directory; it has a lock, an id and a start counter"
    )
    zookeeper_connect: str = setting(
        "zookeeper.connect",
        "127.0.0.1:2181/logbus",
        "host:port,… of the ZooKeeper ensemble, with the chroot",
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        6 * SECOND,
        "a broker silent for so long counts as dead",
        "ms",
        at_least=500,
        at_most=10 * MINUTE,
    )
    num_partitions: int = setting(
        "num.partitions", 1, "partitions of a topic created without a number", at_least=1
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        0,
        "replicas of a topic created without a number; 0: three, or one a broker if fewer",
        at_least=0,
    )
    auto_create_topics: bool = setting(
        "auto.create.topics.enable",
        False,
        "a client's request for the metadata of a missing topic creates the topic",
    )
    leader_rebalance_ms: int = setting(
        "leader.rebalance.ms",
        MINUTE,
        "leadership returns to the preferred replica when it was in sync for so long; -1: never",
        "ms",
        at_least=-1,
    )
    frame_bytes_max: int = setting(
        "socket.request.max.bytes",
        64 * MIB,
        "a longer request ends its connection",
        "bytes",
        at_least=64 * KIB,
    )
    connections_max: int = setting(
        "max.connections", 4096, "more connections than this are closed at once", at_least=1
    )
    connection_idle_ms: int = setting(
        "connections.max.idle.ms",
        10 * MINUTE,
        "a connection silent for so long is closed",
        "ms",
        at_least=1000,
    )
    connection_requests_max: int = setting(
        "connection.requests.max",
        64,
        "requests of one connection that are not answered yet; beyond it the socket is not read",
        at_least=1,
    )
    frame_timeout_ms: int = setting(
        "socket.request.timeout.ms",
        MINUTE,
        "a request that began to arrive must be whole by then, or its connection is closed",
        "ms",
        at_least=1000,
    )
    in_flight_bytes_max: int = setting(
        "queued.max.bytes",
        256 * MIB,
        "produced bytes held in memory at once; beyond it the broker stops reading sockets",
        "bytes",
        at_least=1 * MIB,
    )
    fetch_bytes_max: int = setting(
        "fetch.max.bytes", 55 * MIB, "upper bound of one fetch answer", "bytes", at_least=1 * KIB
    )
    fetch_wait_ms_max: int = setting(
        "fetch.max.wait.ms", 30 * SECOND, "longest wait that a fetch may ask for", "ms", at_least=0
    )
    fetch_verify: str = setting(
        "fetch.verify",
        "unverified",
        "whose fetches the broker checks (CRC) before it sends: of clients that do not, all, none",
        choices=("unverified", "always", "never"),
    )
    local_reads: bool = setting(
        "local.reads.enable", True, "readers on this machine may read files"
    )
    unread_cached_bytes: int = setting(
        "unread.cached.bytes", 4 * MIB, "what nobody reads leaves memory", "bytes", at_least=-1
    )
    disk_threads: int = setting(
        "disk.threads", 2, "threads that append and flush", at_least=1, at_most=64
    )
    read_threads: int = setting(
        "read.threads", 2, "threads that read cold ranges, check, transcode", at_least=1, at_most=64
    )
    checkpoint_interval_ms: int = setting(
        "checkpoint.interval.ms",
        1000,
        "recovery points are written at least this often",
        "ms",
        at_least=10,
    )
    retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms", 5 * MINUTE, "how often segments go", "ms", at_least=10
    )
    stray_retention_ms: int = setting(
        "stray.retention.ms",
        7 * DAY,
        "logs of topics that ZooKeeper did not know at a start are deleted after this; -1: never",
        "ms",
        at_least=-1,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        DAY,
        "an idle producer's sequences are forgotten after this",
        "ms",
        at_least=1,
    )
    offset_metadata_bytes_max: int = setting(
        "offset.metadata.max.bytes",
        4096,
        "longest text that a commit may carry",
        "bytes",
        at_least=0,
    )
    offset_commit_interval_ms: int = setting(
        "offset.commit.interval.ms",
        20,
        "commits of all groups that arrive within this time share one ZooKeeper write",
        "ms",
        at_least=0,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", 10_080, "then an empty group is deleted", "min", at_least=1
    )
    offsets_retention_check_ms: int = setting(
        "offsets.retention.check.interval.ms", 10 * MINUTE, "how often", "ms", at_least=10
    )
    group_session_timeout_min_ms: int = setting(
        "group.min.session.timeout.ms", 6 * SECOND, "shortest session", "ms", at_least=1
    )
    group_session_timeout_max_ms: int = setting(
        "group.max.session.timeout.ms", 30 * MINUTE, "longest session", "ms", at_least=1
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", 250, "wait for a group's others", "ms", at_least=0
    )
    group_size_max: int = setting(
        "group.max.size", 1000, "members of one group; more are refused", at_least=1
    )
    replica_lag_ms: int = setting(
        "replica.lag.time.max.ms",
        10 * SECOND,
        "a follower that was not at the leader's end for so long is not in sync any more",
        "ms",
        at_least=100,
    )
    replica_fetch_wait_ms: int = setting(
        "replica.fetch.wait.max.ms",
        500,
        "longest wait of a follower's fetch for new records",
        "ms",
        at_least=1,
        at_most=10 * SECOND,
    )
    metrics_port: int = setting(
        "metrics.port", -1, "port of /metrics; -1 none, 0 a free one", at_least=-1, at_most=65535
    )

    def validate(self) -> None:
        shortest, longest = self.group_session_timeout_min_ms, self.group_session_timeout_max_ms
        if shortest > longest:
            raise InvalidConfigError(
                f"group.min.session.timeout.ms={shortest} is longer than "
                f"group.max.session.timeout.ms={longest}; lower it to {longest}"
            )
