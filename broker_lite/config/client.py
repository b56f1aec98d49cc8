"""Settings of producers and consumers."""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.config.setting import KIB, MIB, MINUTE, SECOND, Config, setting
from broker_lite.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class ProducerConfig(Config):
    """Settings of a producer."""

    acks: str = setting(
        "acks", "all", "who must have the record before the answer", choices=("0", "1", "all")
    )
    linger_ms: int = setting(
        "linger.ms", 5, "how long a batch waits for company", "ms", at_least=0, at_most=MINUTE
    )
    batch_bytes: int = setting(
        "batch.size",
        2 * MIB,
        "a batch is sent when it holds this much",
        "bytes",
        at_least=1,
        at_most=32 * MIB,
    )
    buffer_bytes: int = setting(
        "buffer.memory",
        64 * MIB,
        "bytes waiting or under way; beyond it send blocks",
        "bytes",
        at_least=64 * KIB,
    )
    max_request_bytes: int = setting(
        "max.request.size",
        8 * MIB,
        "a larger record is refused by send; not more than the topic's max.message.bytes is of use",
        "bytes",
        at_least=1 * KIB,
        at_most=64 * MIB,
    )
    max_block_ms: int = setting(
        "max.block.ms", MINUTE, "longest time that send may block", "ms", at_least=0
    )
    delivery_timeout_ms: int = setting(
        "delivery.timeout.ms",
        2 * MINUTE,
        "a record not acknowledged by then fails",
        "ms",
        at_least=1,
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms", 30 * SECOND, "longest wait for one answer", "ms", at_least=1
    )
    retry_backoff_ms: int = setting(
        "retry.backoff.ms", 50, "pause before a request is tried again", "ms", at_least=0
    )
    max_in_flight: int = setting(
        "max.in.flight.requests.per.connection",
        5,
        "batches under way per partition (5 is what brokers remember)",
        at_least=1,
        at_most=5,
    )
    compression: str = setting(
        "compression.type", "none", "how batches are packed", choices=("none", "lz4", "zstd")
    )
    idempotence: bool = setting(
        "enable.idempotence", True, "a retry never doubles or reorders records (needs acks=all)"
    )
    metadata_max_age_ms: int = setting(
        "metadata.max.age.ms", 5 * MINUTE, "metadata older than this is renewed", "ms", at_least=1
    )
    client_id: str = setting("client.id", "logbus", "name in the broker's log and metrics")

    def validate(self) -> None:
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
        "where a group without an offset begins",
        choices=("earliest", "latest", "none"),
    )
    fetch_min_bytes: int = setting(
        "fetch.min.bytes", 1, "an answer waits until it holds this much", "bytes", at_least=1
    )
    fetch_max_wait_ms: int = setting(
        "fetch.max.wait.ms", 500, "longest wait for fetch.min.bytes", "ms", at_least=0
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 32 * MIB, "upper bound of one answer", "bytes", at_least=1 * KIB
    )
    partition_fetch_bytes: int = setting(
        "max.partition.fetch.bytes",
        4 * MIB,
        "upper bound for one partition in an answer",
        "bytes",
        at_least=1 * KIB,
    )
    auto_commit: bool = setting(
        "enable.auto.commit", True, "commit the group's positions by itself"
    )
    auto_commit_interval_ms: int = setting(
        "auto.commit.interval.ms", 5 * SECOND, "how often", "ms", at_least=10
    )
    isolation_level: str = setting(
        "isolation.level",
        "read_committed",
        "whether records of open transactions are seen",
        choices=("read_committed", "read_uncommitted"),
    )
    on_corrupt: str = setting(
        "on.corrupt",
        "fail",
        "a batch whose checksum is wrong: raise, or go past it",
        choices=("fail", "skip"),
    )
    local_reads: bool = setting(
        "local.reads.enable", True, "read files of a broker on this machine in place"
    )
    request_timeout_ms: int = setting(
        "request.timeout.ms", 30 * SECOND, "longest wait for one answer", "ms", at_least=1
    )
    retry_backoff_ms: int = setting(
        "retry.backoff.ms", 50, "pause before a request is tried again", "ms", at_least=0
    )
    client_id: str = setting("client.id", "logbus", "name in the broker's log and metrics")
