"""A topic's settings."""

from __future__ import annotations

from dataclasses import dataclass

from broker_lite.config.setting import (
    DAY,
    GIB,
    INT_MAX,
    KIB,
    LONG_MAX,
    MIB,
    MINUTE,
    Config,
    fixed,
    setting,
)
from broker_lite.errors import CompactionNotBuiltError

_STORED = "batches are stored as the producer compressed them"
_COMPACTION = "topics are not compacted"
_TIERS = "segments are not copied to remote storage"
_THROTTLES = "replication is not throttled"


@dataclass(frozen=True, slots=True)
class TopicConfig(Config):
    """Settings of one topic: ``topic create -c``, ``topic alter -c``."""

    retention_ms: int = setting(
        "retention.ms",
        7 * DAY,
        "closed segments whose newest record is older are deleted; -1 never",
        "ms",
        at_least=-1,
    )
    retention_bytes: int = setting(
        "retention.bytes",
        -1,
        "oldest closed segments are deleted while a partition is larger; -1 never",
        "bytes",
        at_least=-1,
    )
    segment_bytes: int = setting(
        "segment.bytes",
        GIB,
        "a segment is closed before it would grow beyond this; a larger batch has its own segment",
        "bytes",
        at_least=4 * KIB,
        at_most=INT_MAX,
    )
    segment_ms: int = setting(
        "segment.ms",
        7 * DAY,
        "a segment is closed when its first record is this old",
        "ms",
        at_least=1,
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        4 * KIB,
        "one index entry at most every so many bytes of log",
        "bytes",
        at_least=0,
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        MINUTE,
        "a deleted segment's file is unlinked after this",
        "ms",
        at_least=0,
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        8 * MIB,
        "the largest batch that is accepted, header included",
        "bytes",
        at_least=1 * KIB,
        at_most=64 * MIB,
    )
    flush_messages: int = setting(
        "flush.messages",
        1,
        "records that may be appended before a flush is due; 1 flushes each group (group commit)",
        "records",
        at_least=1,
    )
    flush_ms: int = setting(
        "flush.ms", 1000, "longest time that a record waits for its flush", "ms", at_least=0
    )
    cleanup_policy: str = setting(
        "cleanup.policy", "delete", "what happens to old segments", choices=("delete", "compact")
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        0,
        "acks=all is refused while fewer replicas are in sync; 0: half of the replicas and one",
        "replicas",
        at_least=0,
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "CreateTime",
        "whose clock stamps records: the producer's or the broker's",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "a record older than this against the broker's clock is refused",
        "ms",
        at_least=0,
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        LONG_MAX,
        "a record further in the future than this is refused",
        "ms",
        at_least=0,
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        "let a replica that is not in sync lead when no other lives; loses what it lacks",
    )

    # Kafka's settings that take their default alone, so that tools which write them succeed.
    compression_type: str = fixed("compression.type", "producer", _STORED)
    compression_gzip_level: int = fixed("compression.gzip.level", -1, _STORED)
    compression_lz4_level: int = fixed("compression.lz4.level", 9, _STORED)
    compression_zstd_level: int = fixed("compression.zstd.level", 3, _STORED)
    delete_retention_ms: int = fixed("delete.retention.ms", DAY, _COMPACTION)
    min_compaction_lag_ms: int = fixed("min.compaction.lag.ms", 0, _COMPACTION)
    max_compaction_lag_ms: int = fixed("max.compaction.lag.ms", LONG_MAX, _COMPACTION)
    min_cleanable_dirty_ratio: str = fixed("min.cleanable.dirty.ratio", "0.5", _COMPACTION)
    segment_jitter_ms: int = fixed("segment.jitter.ms", 0, "segments close at segment.ms exactly")
    segment_index_bytes: int = fixed(
        "segment.index.bytes", 10 * MIB, "an index grows with index.interval.bytes"
    )
    preallocate: bool = fixed("preallocate", False, "segment files grow as they are written")
    remote_storage_enable: bool = fixed("remote.storage.enable", False, _TIERS)
    remote_log_copy_disable: bool = fixed("remote.log.copy.disable", False, _TIERS)
    remote_log_delete_on_disable: bool = fixed("remote.log.delete.on.disable", False, _TIERS)
    local_retention_ms: int = fixed("local.retention.ms", -2, _TIERS)
    local_retention_bytes: int = fixed("local.retention.bytes", -2, _TIERS)
    leader_throttled_replicas: str = fixed("leader.replication.throttled.replicas", "", _THROTTLES)
    follower_throttled_replicas: str = fixed(
        "follower.replication.throttled.replicas", "", _THROTTLES
    )
    errors_deadletterqueue_group_enable: bool = fixed(
        "errors.deadletterqueue.group.enable", False, "share groups do not exist"
    )

    def validate(self) -> None:
        if self.cleanup_policy == "compact":
            raise CompactionNotBuiltError(
                "cleanup.policy=compact is not built yet; use cleanup.policy=delete"
            )


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
