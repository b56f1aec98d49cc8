"""Build and parse the names of all files and directories of storage.

A data directory holds one directory for each partition, ``<topic id>-<partition>``. The names of a
segment's files begin with its base offset in twenty digits. Any thread may call these functions."""

from __future__ import annotations

import re

from broker_lite.model import PartitionKey

LOG, INDEX, TIME_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".snapshot"
TXN_INDEX = ".txnindex"
"""Suffix of the file that lists a segment's aborted transactions, if it has transactional
batches."""
DELETED = ".deleted"
"""Suffix of deleted files, which are unlinked after ``file.delete.delay.ms``."""
TORN = ".torn"
"""Suffix of files with damaged or half-written bytes that recovery removed from a log. The broker
never reads them again."""
TEMPORARY = ".tmp"
STRAY = ".stray"
"""Suffix of the directory of a stray: a log that the metadata do not assign to this broker.

The broker deletes it after ``stray.retention.ms``."""

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
    """Return the partition of a directory name, or None for any other name."""
    match = _PARTITION.fullmatch(name)
    return PartitionKey(match[1], int(match[2])) if match else None


def stray_dir(data_dir: str, key: PartitionKey, since_ms: int) -> str:
    return f"{partition_dir(data_dir, key)}.{since_ms}{STRAY}"


def parse_stray_dir(name: str) -> tuple[PartitionKey, int] | None:
    """Return the partition and the time of renaming (ms) in a stray's directory name, or None."""
    match = _STRAY.fullmatch(name)
    return (PartitionKey(match[1], int(match[2])), int(match[3])) if match else None


def segment_file(partition: str, base_offset: int, suffix: str) -> str:
    return f"{partition}/{base_offset:020d}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Return the base offset and the suffix of a segment's file; None for other names."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def torn_file(partition: str, offset: int, number: int) -> str:
    """Return the path of a ``.torn`` file: half-written bytes of a log from ``offset`` on.

    ``number`` starts at 1."""
    return f"{partition}/{offset:020d}-{number}{TORN}"


def parse_torn_file(name: str) -> tuple[int, int] | None:
    """Return the offset and the number in the name of a ``.torn`` file; None for other names."""
    match = _TORN.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None
