"""The settings of producers and of consumers."""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.config.client_security import ClientSecurity
from broker_lite.config.setting import INT_MAX, KIB, MIB, MINUTE, SECOND, Config, setting
from broker_lite.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class ProducerConfig(Config):
    """Settings of a producer."""

    acks: str = setting(
        "acks",
        "all",
        "replicas that must hold a record before the broker acknowledges it",
        choices=("0", "1", "all"),
    )
    linger_ms: int = setting(
        "linger.ms",
        5,
        "maximum time that a batch waits for more records",
        "ms",
        at_least=0,
        at_most=MINUTE,
    )
    batch_bytes: int = setting(
        "batch.size",
        2 * MIB,
        "size at which a batch is sent without waiting for linger.ms",
        "bytes",
        at_least=1,
        at_most=32 * MIB,
    )
    buffer_bytes: int = setting(
        "buffer.memory",
        64 * MIB,
        "maximum bytes that are queued or in flight; send blocks at this limit",
        "bytes",
        at_least=64 * KIB,
    )
    max_request_bytes: int = setting(
        "max.request.size",
        8 * MIB,
        "maximum size of a record; keep it within the topic's max.message.bytes",
        "bytes",
        at_least=1 * KIB,
        at_most=64 * MIB,
    )
    max_block_ms: int = setting(
        "max.block.ms", MINUTE, "maximum time that send blocks", "ms", at_least=0
    )
    delivery_timeout_ms: int = setting(
        "delivery.timeout.ms",
        2 * MINUTE,
        "maximum time until a record is acknowledged; then it fails",
        "ms",
        at_least=1,
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms",
        30 * SECOND,
        "maximum wait for a response",
        "ms",
        at_least=1,
        at_most=INT_MAX,
    )
    retry_backoff_ms: int = setting(
        "retry.backoff.ms", 50, "delay before a request is retried", "ms", at_least=0
    )
    max_in_flight: int = setting(
        "max.in.flight.requests.per.connection",
        5,
        "maximum batches in flight per partition; brokers recognise retries of the last 5",
        at_least=1,
        at_most=5,
    )
    compression: str = setting(
        "compression.type", "none", "compression codec of batches", choices=("none", "lz4", "zstd")
    )
    idempotence: bool = setting(
        "enable.idempotence",
        True,
        "prevent duplicates and reordering by retries (requires acks=all)",
    )
    metadata_max_age_ms: int = setting(
        "metadata.max.age.ms",
        5 * MINUTE,
        "maximum age of metadata before a refresh",
        "ms",
        at_least=1,
    )
    client_id: str = setting("client.id", "logbus", "client name in the broker's log and metrics")
    transactional_id: str = setting(
        "transactional.id", "", "name under which a producer's transactions survive a restart"
    )
    transaction_timeout_ms: int = setting(
        "transaction.timeout.ms",
        MINUTE,
        "maximum length of a transaction; then the coordinator aborts it",
        "ms",
        at_least=1,
        at_most=INT_MAX,
    )
    security: ClientSecurity | None = None
    """The security settings of the producer's connections. None means those that
    ``client.discovery.security_for`` finds for the cluster."""
    has_answered: bool = False
    """Whether a broker of the cluster has answered this program before, which shows that the
    bootstrap address is right. If so, the producer's first request may use its whole timeout to
    wait for brokers that do not answer. If not, it fails after five seconds
    (``FIRST_CONTACT_MS``)."""

    def validate(self) -> None:
        if self.transactional_id and (self.acks != "all" or not self.idempotence):
            given = "enable.idempotence=false" if self.acks == "all" else f"acks={self.acks}"
            raise InvalidConfigError(
                f"transactional.id={self.transactional_id!r} with {given}: a transaction needs "
                "acks=all and idempotence; leave out that option, or the transactional id"
            )
        if self.delivery_timeout_ms < self.linger_ms:
            raise InvalidConfigError(
                f"delivery.timeout.ms={self.delivery_timeout_ms} is shorter than "
                f"linger.ms={self.linger_ms}; raise delivery.timeout.ms"
            )


@dataclass(frozen=True, slots=True)
class ConsumerConfig(Config):
    """Settings of a consumer."""

    start: str = setting(
        "auto.offset.reset",
        "latest",
        "start position of a partition without a committed offset",
        choices=("earliest", "latest", "none"),
    )
    fetch_min_bytes: int = setting(
        "fetch.min.bytes",
        1,
        "minimum bytes of a fetch response, or else fetch.max.wait.ms",
        "bytes",
        at_least=1,
        at_most=INT_MAX,
    )
    fetch_max_wait_ms: int = setting(
        "fetch.max.wait.ms",
        500,
        "maximum wait for fetch.min.bytes",
        "ms",
        at_least=0,
        at_most=INT_MAX,
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        32 * MIB,
        "maximum size of a fetch response",
        "bytes",
        at_least=1 * KIB,
        at_most=INT_MAX,
    )
    partition_fetch_bytes: int = setting(
        "max.partition.fetch.bytes",
        4 * MIB,
        "maximum bytes of one partition in a fetch response",
        "bytes",
        at_least=1 * KIB,
        at_most=INT_MAX,
    )
    auto_commit: bool = setting(
        "enable.auto.commit", True, "commit the consumer's positions periodically"
    )
    auto_commit_interval_ms: int = setting(
        "auto.commit.interval.ms", 5 * SECOND, "time between automatic commits", "ms", at_least=10
    )
    isolation_level: str = setting(
        "isolation.level",
        "read_committed",
        "hide records of open and aborted transactions, or return all records",
        choices=("read_committed", "read_uncommitted"),
    )
    on_corrupt: str = setting(
        "on.corrupt",
        "fail",
        "raise an error for a batch with a wrong checksum, or skip the batch",
        choices=("fail", "skip"),
    )
    local_reads: bool = setting(
        "local.reads.enable", True, "read the files of a broker on the same machine directly"
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms", 30 * SECOND, "maximum wait for a response", "ms", at_least=1
    )
    retry_backoff_ms: int = setting(
        "retry.backoff.ms", 50, "delay before a request is retried", "ms", at_least=0
    )
    client_id: str = setting("client.id", "logbus", "client name in the broker's log and metrics")
    security: ClientSecurity | None = None
    """The security settings of the consumer's connections. None means those that
    ``client.discovery.security_for`` finds for the cluster."""
    has_answered: bool = False
    """Whether a broker of the cluster has answered this program before, which shows that the
    bootstrap address is right. If so, the consumer's first request may use its whole timeout to
    wait for brokers that do not answer. If not, it fails after five seconds
    (``FIRST_CONTACT_MS``)."""
