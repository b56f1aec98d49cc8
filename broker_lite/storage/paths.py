"""Every file and directory name of storage, made and parsed here and nowhere else.

A data directory holds one directory a partition, ``<topic id>-<partition>``; in it the files of a
segment share its base offset in twenty digits. Pure; any thread.
"""

from __future__ import annotations

import re

from broker_lite.model import PartitionKey

LOG, INDEX, TIME_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".snapshot"
TXN_INDEX = ".txnindex"
"""Room for transactions: the aborted ones of a segment."""
DELETED = ".deleted"
"""Renamed to this first, unlinked after ``file.delete.delay.ms``."""
TORN = ".torn"
"""Bytes that recovery set aside; never read again by a broker."""
TEMPORARY = ".tmp"
STRAY = ".stray"
"""Partitions of topics that the metadata does not know: kept for ``stray.retention.ms``."""

LOCK = "lock"
META = "meta.properties"
CLEAN_MARKER = "clean-shutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
RESERVE = "reserve"

SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

_PARTITION = re.compile(r"([A-Za-z0-9_-]{22})-(\d{1,10})")
_STRAY = re.compile(r"([A-Za-z0-9_-]{22})-(\d{1,10})\.(\d{1,15})\.stray")
_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.snapshot|\.txnindex)")
_TORN = re.compile(r"(\d{20})-(\d+)\.torn")


def partition_dir(data_dir: str, key: PartitionKey) -> str:
    return f"{data_dir}/{key.topic_id}-{key.partition}"


def parse_partition_dir(name: str) -> PartitionKey | None:
    """The partition that a directory holds, or None for a name that is not ours."""
    found = _PARTITION.fullmatch(name)
    return PartitionKey(found[1], int(found[2])) if found else None


def stray_dir(data_dir: str, key: PartitionKey, since_ms: int) -> str:
    return f"{partition_dir(data_dir, key)}.{since_ms}{STRAY}"


def parse_stray_dir(name: str) -> tuple[PartitionKey, int] | None:
    """The partition that was set aside, and when; None for any other name."""
    found = _STRAY.fullmatch(name)
    return (PartitionKey(found[1], int(found[2])), int(found[3])) if found else None


def segment_file(partition: str, base_offset: int, suffix: str) -> str:
    return f"{partition}/{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset and suffix, or None for a name that is not a segment's."""
    found = _SEGMENT_FILE.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def torn_file(partition: str, offset: int, number: int) -> str:
    """Where bytes that would have begun at ``offset`` are set aside, for the number-th time."""
    return f"{partition}/{offset:020d}-{number}{TORN}"


def parse_torn_file(name: str) -> tuple[int, int] | None:
    """Offset and number of a set-aside file, or None."""
    found = _TORN.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None
