"""Tests of retention: the segments that expire by time, by size or below the log start offset."""

from __future__ import annotations

import pytest

from broker_lite.config import DAY, TopicConfig
from broker_lite.storage.retention import SegmentFacts, expired

NOW = 1000 * DAY


def count(
    segments: list[SegmentFacts], *, start: int = 0, end: int = 1 << 60, **config: int
) -> int:
    made = TopicConfig(**{"retention_ms": -1, **config})  # type: ignore[arg-type]
    return len(expired(segments, made, now_ms=NOW, log_start_offset=start, last_stable_offset=end))


def segments(*newest_days: float, size: int = 100) -> list[SegmentFacts]:
    """Return segments of ten offsets.

    ``newest_days`` holds the age, in days, of each segment's newest record and last append.
    """
    return [
        SegmentFacts(i * 10, size, NOW - int(days * DAY), NOW - int(days * DAY))
        for i, days in enumerate(newest_days)
    ]


def test_segments_older_than_retention_ms_are_due_for_deletion() -> None:
    assert count(segments(9, 8, 6, 0), retention_ms=7 * DAY) == 2
    assert count(segments(9, 6, 8, 0), retention_ms=7 * DAY) == 1
    assert count(segments(7, 0), retention_ms=7 * DAY) == 0
    assert count(segments(9, 8), retention_ms=-1) == 0


def test_retention_by_size_keeps_at_least_retention_bytes() -> None:
    assert count(segments(1, 1, 1, 1), retention_bytes=250) == 1
    assert count(segments(1, 1, 1, 1), retention_bytes=0) == 3
    assert count(segments(1, 1, 1, 1), retention_bytes=400) == 0


def test_segments_before_the_log_start_expire() -> None:
    assert count(segments(0, 0, 0), start=19) == 1
    assert count(segments(0, 0, 0), start=20) == 2
    assert count(segments(0, 0, 0), start=99) == 2


def test_retention_returns_the_reason_for_each_expired_segment() -> None:
    made = TopicConfig(retention_ms=7 * DAY, retention_bytes=250)
    found = expired(
        segments(9, 9, 9, 9, 0), made, now_ms=NOW, log_start_offset=10, last_stable_offset=99
    )
    assert found == ["log_start", "size", "time", "time"]


def test_active_segment_and_segments_above_the_last_stable_offset_never_expire() -> None:
    assert count(segments(99), retention_ms=0, retention_bytes=0) == 0
    assert count(segments(99, 99, 99), retention_ms=0, end=19) == 1


def one(max_timestamp: int, appended: int) -> list[SegmentFacts]:
    return [SegmentFacts(0, 100, max_timestamp, appended), SegmentFacts(10, 100, NOW, NOW)]


@pytest.mark.parametrize(
    ("max_timestamp", "appended", "gone"),
    [
        (NOW - 8 * DAY, NOW, True),
        (0, NOW, True),
        (NOW - 8 * DAY + DAY, NOW - 8 * DAY, False),
        (NOW + 5000 * DAY, NOW - 8 * DAY, True),
        (NOW + 5000 * DAY, NOW - 6 * DAY, False),
        (NOW, 0, False),
        (-1, NOW - 8 * DAY, True),
        (-1, NOW - 6 * DAY, False),
    ],
    ids=[
        "old timestamp and new append: expired by timestamp",
        "timestamp 0 and new append: expired by timestamp",
        "timestamp one day after the append: kept by timestamp",
        "timestamp years ahead and old append: expired by append time",
        "timestamp years ahead and recent append: kept by append time",
        "present timestamp, append while the broker's clock was in 1970: kept by timestamp",
        "no timestamp and old append: expired by append time",
        "no timestamp and recent append: kept by append time",
    ],
)
def test_segment_with_an_implausible_newest_timestamp_expires_by_its_append_time(
    max_timestamp: int, appended: int, gone: bool
) -> None:
    assert count(one(max_timestamp, appended), retention_ms=7 * DAY) == int(gone)
