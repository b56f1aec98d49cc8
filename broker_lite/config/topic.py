"""The settings of a topic, and rules about them that brokers and clients share."""

from __future__ import annotations

import math
import re
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
from broker_lite.errors import CompactionNotBuiltError, InvalidConfigError

_STORED = "batches are stored as the producer compressed them"
_COMPACTION = "topics are not compacted"
_TIERS = "segments are not copied to remote storage"
_THROTTLED = 'replicas outside the ISR to throttle: "", "*" or "partition:broker,..."; '
_REPLICAS = re.compile(r"(\*|\d+:\d+(, ?\d+:\d+)*)?")


@dataclass(frozen=True, slots=True)
class TopicConfig(Config):
    """Settings of one topic, which ``logbus topic create -c`` and ``topic alter -c`` set."""

    retention_ms: int = setting(
        "retention.ms",
        7 * DAY,
        "maximum age of a closed segment's newest record; older ones are deleted; -1: unlimited",
        "ms",
        at_least=-1,
    )
    retention_bytes: int = setting(
        "retention.bytes",
        -1,
        "maximum size of a partition; the oldest closed segments are deleted; -1: unlimited",
        "bytes",
        at_least=-1,
    )
    segment_bytes: int = setting(
        "segment.bytes",
        GIB,
        "maximum size of a segment; a larger batch gets a segment of its own",
        "bytes",
        at_least=4 * KIB,
        at_most=INT_MAX,
    )
    segment_ms: int = setting(
        "segment.ms",
        7 * DAY,
        "maximum age of a segment's first batch before the segment is closed",
        "ms",
        at_least=1,
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        4 * KIB,
        "bytes of log between two index entries",
        "bytes",
        at_least=0,
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        MINUTE,
        "delay between the deletion of a segment and the removal of its file",
        "ms",
        at_least=0,
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        8 * MIB,
        "maximum size of a batch, header included",
        "bytes",
        at_least=1 * KIB,
        at_most=64 * MIB,
    )
    flush_messages: int = setting(
        "flush.messages",
        1,
        "records appended between two flushes; 1: flush each group of batches (group commit)",
        "records",
        at_least=1,
    )
    flush_ms: int = setting(
        "flush.ms", 1000, "maximum time between an append and its flush", "ms", at_least=0
    )
    cleanup_policy: str = setting(
        "cleanup.policy", "delete", "treatment of old segments", choices=("delete", "compact")
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        0,
        "in-sync replicas that acks=all requires; 0: a majority of the replicas",
        "replicas",
        at_least=0,
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "CreateTime",
        "the source of a record's timestamp: the producer's clock or the broker's",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "maximum age of a record's timestamp by the broker's clock; older records are refused",
        "ms",
        at_least=0,
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        LONG_MAX,
        "maximum lead of a record's timestamp over the broker's clock; others are refused",
        "ms",
        at_least=0,
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        "elect a replica outside the ISR if no other is alive; records that it lacks are lost",
    )

    leader_throttled_replicas: str = setting(
        "leader.replication.throttled.replicas",
        "",
        _THROTTLED + "their leaders send at leader.replication.throttled.rate",
    )
    follower_throttled_replicas: str = setting(
        "follower.replication.throttled.replicas",
        "",
        _THROTTLED + "they fetch at follower.replication.throttled.rate",
    )

    # Some tools send every setting of Kafka. Accept the settings below with their default only.
    compression_type: str = fixed("compression.type", "producer", _STORED)
    compression_gzip_level: int = fixed("compression.gzip.level", -1, _STORED)
    compression_lz4_level: int = fixed("compression.lz4.level", 9, _STORED)
    compression_zstd_level: int = fixed("compression.zstd.level", 3, _STORED)
    delete_retention_ms: int = fixed("delete.retention.ms", DAY, _COMPACTION)
    min_compaction_lag_ms: int = fixed("min.compaction.lag.ms", 0, _COMPACTION)
    max_compaction_lag_ms: int = fixed("max.compaction.lag.ms", LONG_MAX, _COMPACTION)
    min_cleanable_dirty_ratio: str = fixed("min.cleanable.dirty.ratio", "0.5", _COMPACTION)
    segment_jitter_ms: int = fixed(
        "segment.jitter.ms", 0, "segments are closed at exactly segment.ms"
    )
    segment_index_bytes: int = fixed(
        "segment.index.bytes", 10 * MIB, "an index grows on demand and is not preallocated"
    )
    preallocate: bool = fixed("preallocate", False, "segment files grow with each append")
    remote_storage_enable: bool = fixed("remote.storage.enable", False, _TIERS)
    remote_log_copy_disable: bool = fixed("remote.log.copy.disable", False, _TIERS)
    remote_log_delete_on_disable: bool = fixed("remote.log.delete.on.disable", False, _TIERS)
    local_retention_ms: int = fixed("local.retention.ms", -2, _TIERS)
    local_retention_bytes: int = fixed("local.retention.bytes", -2, _TIERS)
    errors_deadletterqueue_group_enable: bool = fixed(
        "errors.deadletterqueue.group.enable", False, "share groups are not supported"
    )

    def validate(self) -> None:
        for key, value in (
            ("leader.replication.throttled.replicas", self.leader_throttled_replicas),
            ("follower.replication.throttled.replicas", self.follower_throttled_replicas),
        ):
            if not _REPLICAS.fullmatch(value):
                raise InvalidConfigError(
                    f'{key}={value[:60]!r}: give "*", or partitions and brokers as 0:1,0:2'
                )
        if self.cleanup_policy == "compact":
            raise CompactionNotBuiltError(
                "cleanup.policy=compact is not built yet; use cleanup.policy=delete"
            )


def min_insync(config: TopicConfig, replication_factor: int) -> int:
    """Return the number of in-sync replicas that acks=all requires: ``min.insync.replicas``, or a
    majority of the replicas if the setting is 0."""
    return config.min_insync_replicas or replication_factor // 2 + 1


def min_insync_of(text: str | None, replication_factor: int) -> int:
    """Return ``min_insync`` for the value of ``min.insync.replicas`` as ZooKeeper has it: a text,
    or None if the topic does not set it.

    A text that is not a number counts as not set, because a user or a later version of logbus may
    have written it."""
    try:
        own = int(text or 0)
    except ValueError:
        own = 0
    return own if own > 0 else replication_factor // 2 + 1


def loss_of(key: str, before: str | None, after: str | None) -> str:
    """Return a warning if changing the topic setting ``key`` from ``before`` to ``after`` can lose
    records, else "". None means the default."""
    limits = {"retention.ms": _DEFAULTS.retention_ms, "retention.bytes": _DEFAULTS.retention_bytes}
    if key in limits:
        is_lower = _limit(after, limits[key]) < _limit(before, limits[key])
        return f"Brokers delete the records beyond the lower {key}." if is_lower else ""
    if key == "unclean.leader.election.enable":
        is_new = (after or "").lower() == "true" and (before or "").lower() != "true"
        return "An unclean election loses acknowledged records." if is_new else ""
    return ""


def _limit(text: str | None, default: int) -> float:
    """Return the value of a retention setting as a number; infinity means that nothing is deleted.
    A text that is not a number counts as infinity."""
    try:
        value = default if text is None else int(text)
    except ValueError:
        value = -1
    return math.inf if value < 0 else value


_DEFAULTS = TopicConfig()
